//! The user's stack of a sample, frame by frame, against what the program knows of its own.
//!
//! Needs the right to use eBPF.

use std::process::Command;
use std::time::{Duration, Instant};

use otelctx_fixtures::Target;
use otelctx_fixtures::kernel::{Feature, give_way_if_emulated, is_emulated};
use otelctx_fixtures::sampled::Sampled;
use otelctx_sampler::sample::{Catalog, Counts, Frame, Sample};
use otelctx_sampler::{INTERVAL, Options, Sampler, Targets};

/// Long enough for everything to happen, even on a slow machine.
const TIMEOUT: Duration = otelctx_fixtures::HANG_TIMEOUT;
/// Maximum number of frames that are kept of a stack that is walked by frame pointers.
const MAX_FRAMES: usize = 127;
/// Maximum number of frames that are kept of a stack that is unwound by tables.
const MAX_FRAMES_BY_TABLES: usize = 512;
/// Neither function of `spin.c` has more bytes, and each begins where that many would end.
const FUNCTION: u64 = 256;
/// Frames of 24 bytes.
const ODD: u32 = 24;

/// What sampling a program came to.
struct Sampling {
    counts: Counts,
    /// Samples whose stacks were compared.
    samples: u64,
    /// Samples of the first thread, which only waits for its input.
    others: u64,
    /// Frames of a stack that are kept.
    max_frames: usize,
}

/// Samples a program until enough of its other threads' stacks were compared. `None`, with a line,
/// where the kernel does not permit eBPF. With `has_tables`, that begins when its tables are ready, which
/// takes an emulated machine longer than sampling waits for them.
fn sample(
    target: &Target,
    what: &str,
    has_tables: bool,
    mut at: impl FnMut(&[u64]),
) -> Option<Sampling> {
    let mut options = Options::new(Targets::Processes(vec![target.pid()]));
    options.frequency = 499;
    options.without_second_walk = true;
    let mut sampler = Sampler::start(&options).unwrap();
    Feature::Ebpf.or_skip(sampler.method().require_ebpf())?;
    Feature::Tables.or_skip(sampler.without_tables().map_or(Ok(()), Err))?;
    let max_frames = sampler.max_frames();
    assert_eq!(sampler.without_loops().is_none(), max_frames == 512);
    let (mut catalog, mut samples) = (Catalog::new(), Vec::<Sample>::new());
    let begin = Instant::now();
    let (mut compared, mut others) = (0, 0);
    let mut compare = |catalog: &Catalog, sample: Sample| {
        let is_first = catalog.thread_facts(sample.thread).tid == target.pid();
        if is_first {
            others += 1;
            return 0;
        }
        let frames = catalog.frames(sample.user_stack);
        let addresses: Vec<u64> = frames.filter_map(Frame::address).collect();
        at(&addresses);
        1
    };
    let mut before = (!has_tables).then(Counts::default);
    while compared < 20 {
        assert!(begin.elapsed() < TIMEOUT, "{what}: {compared}");
        std::thread::sleep(INTERVAL);
        sampler.drain(&mut catalog, &mut |sample| samples.push(sample));
        if before.is_none() {
            let counts = sampler.counts();
            let is_any = counts.complete_stacks + counts.truncated_stacks > 0;
            before = is_any.then_some(counts);
            samples.clear();
        }
        for sample in samples.drain(..) {
            compared += compare(&catalog, sample);
        }
    }
    let mut counts = sampler
        .stop(&mut catalog, &mut |sample| samples.push(sample))
        .counts;
    counts -= before.unwrap_or_default();
    for sample in samples {
        compared += compare(&catalog, sample);
    }
    Some(Sampling {
        counts,
        samples: compared,
        others,
        max_frames,
    })
}

/// How many calls deep, how many bytes each keeps on the stack, and further arguments.
type Way = (usize, u32, &'static [&'static str]);

#[test]
fn every_frame_is_there_however_far_it_is_from_the_next() {
    let programs = Sampled::own();
    let mut ways: Vec<Way> = vec![
        (1, 0, &[]),
        (20, 0, &[]),
        // Less than is read of the stack at once, more than that, and more than a page.
        (20, 500, &[]),
        (20, 1500, &[]),
        (20, 5000, &[]),
        (MAX_FRAMES - 10, 0, &[]),
        (MAX_FRAMES + 20, 0, &[]),
        (MAX_FRAMES + 20, 100, &[]),
        (MAX_FRAMES_BY_TABLES + 20, 0, &[]),
    ];
    if cfg!(target_arch = "x86_64") {
        ways.push((MAX_FRAMES - 10, ODD, &["odd"]));
    }
    let without = |compiler| programs.stacks_without_frame_pointers(compiler);
    let mut built = vec![
        ("frame pointers", programs.stacks()),
        ("gcc", without("gcc")),
    ];
    if is_emulated() {
        // Each takes about ten seconds there: frames larger than a page, a deep stack that every kernel completes, one that
        // every kernel truncates, and one compiler's tables.
        let depths = [MAX_FRAMES - 10, MAX_FRAMES_BY_TABLES + 20];
        ways.retain(|(depth, frame, _)| *frame == 5000 || *frame == 0 && depths.contains(depth));
    } else {
        built.push(("clang", without("clang")));
    }
    for (name, program) in built {
        let Some(program) = program else { continue };
        for (depth, frame, more) in &ways {
            let what = format!("{name}: {depth} calls, {frame} bytes");
            let arguments = [format!("depth={depth}"), format!("frame={frame}")];
            let mut command = Command::new(&program);
            give_way_if_emulated(&mut command);
            let target = Target::spawn(command.args(arguments).args(*more));
            let Some(()) = check_frames(&target, &what, *depth) else {
                return;
            };
        }
    }
}

/// Checks the stacks of a thread with this many calls below its first function, and that they are
/// counted as what they are.
fn check_frames(target: &Target, what: &str, depth: usize) -> Option<()> {
    let places = target.lines[0].split(' ');
    let places: Vec<u64> = places.map(|it| it.parse().unwrap()).collect();
    let is_in = |address: u64, function: u64| (function..function + FUNCTION).contains(&address);
    let mut stacks = Vec::new();
    let result = sample(target, what, true, |stack| stacks.push(stack.to_vec()))?;
    let limit = result.max_frames;
    for stack in stacks {
        let calls = stack.iter().take_while(|it| is_in(**it, places[0])).count();
        assert_eq!(calls, depth.min(limit), "{what}: {stack:x?}");
        if depth < limit {
            assert!(is_in(stack[depth], places[1]), "{what}: {stack:x?}");
        }
        if depth < limit {
            // The C library's functions that started the thread: start_thread and clone3.
            assert_eq!(stack.len(), depth + 3, "{what}: {stack:x?}");
        }
    }
    let counts = result.counts;
    let is_complete = depth < limit;
    assert_eq!(counts.missing_stacks, 0, "{what}: {counts:?}");
    if is_complete {
        assert!(
            counts.complete_stacks >= result.samples,
            "{what}: {counts:?}"
        );
    } else {
        assert!(
            counts.complete_stacks <= result.others,
            "{what}: {counts:?}"
        );
    }
    if depth >= limit {
        assert!(
            counts.truncated_stacks >= result.samples,
            "{what}: {counts:?}"
        );
    }
    Some(())
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_stack_whose_frames_lead_nowhere_is_cut_and_not_complete() {
    let Some(program) = Sampled::own().stacks() else {
        return;
    };
    for last in 0..5 {
        let what = format!("edges={last}");
        let mut command = Command::new(&program);
        give_way_if_emulated(&mut command);
        let target = Target::spawn(command.arg(&what));
        // The frames' addresses are no code.
        let result = sample(&target, &what, false, |stack| {
            assert_eq!(stack.len(), 1, "{what}")
        });
        let Some(result) = result else { return };
        let counts = result.counts;
        assert!(
            counts.complete_stacks <= result.others,
            "{what}: {counts:?}"
        );
        let incomplete: u64 = counts.incomplete_stacks.iter().sum();
        assert!(incomplete >= result.samples, "{what}: {counts:?}");
    }
}
