//! The user's stack of a sample, frame by frame, against what the program knows of its own.
//!
//! Needs the right to use eBPF.

use std::process::Command;
use std::time::{Duration, Instant};

use otelctx_fixtures::Target;
use otelctx_fixtures::kernel::Feature;
use otelctx_fixtures::sampled::Sampled;
use otelctx_sampler::sample::{Catalog, Sample};
use otelctx_sampler::{INTERVAL, Method, Options, Sampler, Targets};

/// Whatever is to happen has happened by then, on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// The most frames that are kept.
const MOST: usize = 127;
/// Neither function of `spin.c` has more bytes, and each begins where so many would end.
const FUNCTION: u64 = 256;
/// Frames of 24 bytes.
const ODD: u32 = 24;

#[test]
fn every_frame_is_there_however_far_it_is_from_the_next() {
    let Some(program) = Sampled::own().stacks() else {
        return;
    };
    let mut ways = vec![
        (1, 0),
        (20, 0),
        // Less than is read of the stack at once, more than that, and more than a page.
        (20, 500),
        (20, 1500),
        (20, 5000),
        (MOST - 10, 0),
        (MOST + 20, 0),
        (MOST + 20, 100),
    ];
    if cfg!(target_arch = "x86_64") {
        ways.push((MOST - 10, ODD));
    }
    for (depth, frame) in ways {
        let what = format!("{depth} calls, {frame} bytes");
        let mut arguments = vec![format!("depth={depth}"), format!("frame={frame}")];
        if frame == ODD {
            arguments.push("odd".into());
        }
        let target = Target::spawn(Command::new(&program).args(arguments));
        let places = target.lines[0].split(' ');
        let places: Vec<u64> = places.map(|it| it.parse().unwrap()).collect();
        let is_in = |address: u64, function: u64| {
            let range = function..function + FUNCTION;
            range.contains(&address)
        };
        let mut options = Options::new(Targets::Processes(vec![target.pid()]));
        options.frequency = 499;
        let mut sampler = Sampler::start(&options).unwrap();
        let by = match sampler.method() {
            Method::Ptrace(why) => Err(why),
            _ => Ok(()),
        };
        if Feature::Ebpf.or_skip(by).is_none() {
            return;
        }
        let mut catalog = Catalog::new();
        let begin = Instant::now();
        let mut looked_at = 0;
        while looked_at < 20 {
            assert!(begin.elapsed() < PATIENCE, "{what}: {looked_at}");
            std::thread::sleep(INTERVAL);
            let mut samples: Vec<Sample> = Vec::new();
            sampler.drain(&mut catalog, &mut |sample| samples.push(sample));
            for sample in samples {
                let stack = catalog.addresses(sample.user_stack);
                // The thread that waits for input, and one that is still on its way down.
                if !stack.first().is_some_and(|first| is_in(*first, places[0])) {
                    continue;
                }
                let calls = stack.iter().take_while(|it| is_in(**it, places[0])).count();
                assert_eq!(calls, depth.min(MOST), "{what}: {stack:x?}");
                if depth < MOST {
                    assert!(is_in(stack[depth], places[1]), "{what}: {stack:x?}");
                }
                looked_at += 1;
            }
        }
        let counts = sampler.stop(&mut catalog, &mut |_| {});
        let truncated = counts.truncated_stacks > 0;
        assert_eq!(truncated, depth >= MOST, "{what}: {counts:?}");
        assert_eq!(counts.missing_stacks, 0, "{what}: {counts:?}");
    }
}
