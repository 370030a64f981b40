//! A thread that has the ID of one that has ended never has that one's functions.

use super::*;

/// Functions of `reused.py`, one after the other.
const TURNS: usize = 12;

/// Samples of the program, and its times of each turn.
fn record(
    interpreter: &Interpreter,
    runtime: Logged,
) -> Option<(Catalog, Vec<Sample>, Vec<String>)> {
    let mut target = interpreter.start("reused.py");
    let mut options = Options::new(Targets::Processes(vec![target.pid()]));
    options.frequency = 1999;
    options.runtimes = Runtimes::new(vec![Arc::new(runtime)]);
    options.kernel_object = Some(KernelObject(otelctx_fixtures::kernel::PROGRAMS));
    let mut sampler = Sampler::start(&options).unwrap();
    Feature::Ebpf.or_skip(sampler.method().require_ebpf())?;
    let (mut catalog, mut samples) = (Catalog::new(), Vec::new());
    let program = std::thread::spawn(move || {
        target.command("start");
        std::mem::take(&mut target.lines)
    });
    while !program.is_finished() {
        std::thread::sleep(INTERVAL / 4);
        sampler.drain(&mut catalog, &mut |sample| samples.push(sample));
    }
    Some((catalog, samples, program.join().unwrap()))
}

/// The state that the recorder has found for an ID is another thread's now, and may have been freed.
#[test]
#[cfg_attr(
    target_arch = "aarch64",
    ignore = "in an emulator, samples come faster than they are read"
)]
fn a_thread_with_a_reused_id_has_its_own_functions() {
    const LAST: &str = "/proc/sys/kernel/ns_last_pid";
    let last = std::fs::read_to_string(LAST).unwrap_or_default();
    if let Err(error) = std::fs::write(LAST, last) {
        return eprintln!("skipped: thread IDs cannot be chosen: {LAST}: {error}");
    }
    let versions = ["3.6", "3.9", "3.11", "3.12", "3.13t", "3.14"];
    for version in versions {
        for interpreter in Interpreter::with_version(version).iter().take(1) {
            for is_undecoded in [false, true] {
                let runtime = Logged {
                    is_undecoded,
                    log: Arc::default(),
                };
                let Some((catalog, samples, lines)) = record(interpreter, runtime) else {
                    return;
                };
                let words = |line: &String| -> Vec<u64> {
                    let words = line.split(' ').skip(1);
                    words.map(|word| word.parse().unwrap()).collect()
                };
                let tid = words(&lines[0])[0] as i32;
                let turns: Vec<Vec<u64>> = lines[1..].iter().map(words).collect();
                assert_eq!(turns.len(), TURNS);
                let mut counts = [0; TURNS];
                for sample in &samples {
                    if catalog.thread_facts(sample.thread).tid != tid {
                        continue;
                    }
                    for frame in catalog.frames(sample.user_stack) {
                        let Frame::Named(named) = frame else { continue };
                        let Some(number) = named.function.strip_prefix("turn_") else {
                            continue;
                        };
                        let number: usize = number.parse().unwrap();
                        let (from, to) = (turns[number][1], turns[number][2]);
                        assert!(
                            (from..=to).contains(&sample.time),
                            "{interpreter}: {number} at {}: {turns:?}",
                            sample.time
                        );
                        counts[number] += 1;
                    }
                }
                let sampled = counts.iter().filter(|count| **count > 0).count();
                eprintln!("{interpreter}, {is_undecoded}: {counts:?}");
                assert!(sampled > TURNS / 2, "{interpreter}: {counts:?}");
            }
        }
    }
}
