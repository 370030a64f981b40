//! The user's stack of a sample, frame by frame, against what the program knows of its own.
//!
//! Needs the right to use eBPF.

use std::process::Command;
use std::time::{Duration, Instant};

use otelctx_fixtures::Target;
use otelctx_fixtures::kernel::Feature;
use otelctx_fixtures::sampled::Sampled;
use otelctx_sampler::sample::{Catalog, Counts, Frame, Sample};
use otelctx_sampler::{INTERVAL, Method, Options, Sampler, Targets};

/// Long enough for everything to happen, even on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of frames that are kept.
const MAX_FRAMES: usize = 127;
/// Neither function of `spin.c` has more bytes, and each begins where that many would end.
const FUNCTION: u64 = 256;
/// Frames of 24 bytes.
const ODD: u32 = 24;

/// Samples a program until enough of its other threads' stacks were compared. `None`, with a line,
/// where the kernel does not let us use eBPF.
fn sample(target: &Target, what: &str, mut at: impl FnMut(&[u64])) -> Option<Counts> {
    let mut options = Options::new(Targets::Processes(vec![target.pid()]));
    options.frequency = 499;
    let mut sampler = Sampler::start(&options).unwrap();
    Feature::Ebpf.or_skip(match sampler.method() {
        Method::Ptrace(why) => Err(why),
        _ => Ok(()),
    })?;
    let (mut catalog, mut samples) = (Catalog::new(), Vec::<Sample>::new());
    let begin = Instant::now();
    let mut compared = 0;
    while compared < 20 {
        assert!(begin.elapsed() < TIMEOUT, "{what}: {compared}");
        std::thread::sleep(INTERVAL);
        sampler.drain(&mut catalog, &mut |sample| samples.push(sample));
        for sample in samples.drain(..) {
            // The first one only waits for its input. The stack of one that was in the kernel is
            // walked by that, which minds no alignment.
            let was_in_kernel = !catalog.frame_ids(sample.kernel_stack).is_empty();
            if catalog.thread_facts(sample.thread).tid != target.pid() && !was_in_kernel {
                let frames = catalog.frames(sample.user_stack);
                let addresses: Vec<u64> = frames.filter_map(Frame::address).collect();
                at(&addresses);
                compared += 1;
            }
        }
    }
    Some(sampler.stop(&mut catalog, &mut |_| {}))
}

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
        (MAX_FRAMES - 10, 0),
        (MAX_FRAMES + 20, 0),
        (MAX_FRAMES + 20, 100),
    ];
    if cfg!(target_arch = "x86_64") {
        ways.push((MAX_FRAMES - 10, ODD));
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
        let counts = sample(&target, &what, |stack| {
            let calls = stack.iter().take_while(|it| is_in(**it, places[0])).count();
            assert_eq!(calls, depth.min(MAX_FRAMES), "{what}: {stack:x?}");
            if depth < MAX_FRAMES {
                assert!(is_in(stack[depth], places[1]), "{what}: {stack:x?}");
            }
        });
        let Some(counts) = counts else { return };
        // Behind the others may be whatever the C library has in the register.
        if depth >= MAX_FRAMES {
            assert!(counts.truncated_stacks > 0, "{what}: {counts:?}");
        }
        assert_eq!(counts.missing_stacks, 0, "{what}: {counts:?}");
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_stack_ends_where_its_frames_lead_nowhere() {
    let Some(program) = Sampled::own().stacks() else {
        return;
    };
    for last in 0..5 {
        let what = format!("edges={last}");
        let target = Target::spawn(Command::new(&program).arg(&what));
        let mut expected = vec![1, 2, 3];
        if last == 1 {
            expected.resize(MAX_FRAMES - 1, 3);
        }
        let counts = sample(&target, &what, |stack| {
            assert_eq!(stack[1..], expected, "{what}");
        });
        if counts.is_none() {
            return;
        }
    }
}
