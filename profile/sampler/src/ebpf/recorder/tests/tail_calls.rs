//! Unwinding as before Linux 5.17.

use std::path::Path;

use super::*;

/// The callers of the function that a program's thread runs in, from the first one on, and how many of 100
/// stacks were truncated.
fn callers(program: &Path, depth: usize, without_loops: bool) -> Option<(Vec<u64>, u64)> {
    let target = Target::spawn(Command::new(program).arg(format!("depth={depth}")));
    let mut options = Options::new(Targets::Processes(vec![target.pid()]));
    options.frequency = 499;
    options.without_loops = without_loops;
    let mut recorder = start(&options)?;
    Feature::Tables.or_skip(recorder.without_tables().map_or(Ok(()), Err))?;
    recorder.loaded.unwinding.wait(TIMEOUT);
    recorder.drain(&mut Catalog::new(), &mut |_| {});
    recorder.processes_mut().reset_catalog();
    let before = recorder.processes().counts();
    let mut catalog = Catalog::new();
    let (mut first, mut samples) = (None, 0);
    let begin = Instant::now();
    while samples < 100 {
        assert!(begin.elapsed() < TIMEOUT * 2, "{samples} samples");
        std::thread::sleep(Duration::from_millis(20));
        let mut taken = Vec::new();
        recorder.drain(&mut catalog, &mut |sample| taken.push(sample));
        for sample in taken {
            // The first thread only waits for its input.
            if catalog.thread_facts(sample.thread).tid == target.pid() {
                continue;
            }
            let frames = catalog.frames(sample.user_stack);
            let stack: Vec<u64> = frames.filter_map(Frame::address).collect();
            samples += 1;
            assert_eq!(
                stack[1..],
                *first.get_or_insert_with(|| stack[1..].to_vec())
            );
        }
    }
    let mut counts = recorder.processes().counts();
    counts -= before;
    assert_eq!(
        counts.incomplete_stacks.iter().sum::<u64>(),
        0,
        "{counts:?}"
    );
    // Pages have other addresses in each process.
    let in_page = |callers: Vec<u64>| callers.iter().map(|it| it & 0xfff).collect();
    Some((in_page(first?), counts.truncated_stacks))
}

#[test]
fn stacks_are_the_same_without_loops() {
    let Some(program) = Sampled::own().stacks_without_frame_pointers("gcc") else {
        return;
    };
    for depth in [1, 40] {
        let (Some(by_tail_calls), Some(by_loops)) = (
            callers(&program, depth, true),
            callers(&program, depth, false),
        ) else {
            return;
        };
        assert_eq!(by_tail_calls, by_loops);
        assert_eq!(by_tail_calls.1, 0);
        assert!(by_tail_calls.0.len() > depth);
    }
    let Some((callers, truncated)) = callers(&program, 200, true) else {
        return;
    };
    assert_eq!(callers.len(), 144 - 1);
    assert!(truncated >= 100, "{truncated}");
}
