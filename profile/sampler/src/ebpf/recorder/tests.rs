//! Tests of events that cannot be caused or observed from outside. They need permission to use
//! eBPF.

#[cfg(target_arch = "x86_64")]
mod frame_pointers;
mod rows;
mod tail_calls;

use std::process::Command;

use otelctx_fixtures::Target;
use otelctx_fixtures::kernel::Feature;
use otelctx_fixtures::sampled::Sampled;

use otelctx_reader::runtime::RuntimeError;
use otelctx_sample::{Found, Frame, StackEnd};

use super::super::abi::{
    self, Part, RECORD_LIMIT, SAMPLE_LIMIT, SEGMENT_SIZE, StepConfiguration, StepKey, ThreadKey,
    flag, outcome, step_outcome,
};
use super::super::decode::read_user_stack;
use super::super::steps::Step;
use super::super::thread_words::Lookup;
use super::super::unwind::stack_end;
use super::*;
use crate::KernelObject;
use crate::code::{MemoryChange, Report};

/// Long enough for everything to happen, even on a slow machine.
const TIMEOUT: Duration = otelctx_fixtures::HANG_TIMEOUT;

/// `None`, with a message, if eBPF is not permitted.
fn start(options: &Options) -> Option<Recorder> {
    crate::sampler::raise_limits();
    let recorder = Recorder::start(options, reader::Options::default(), None).unwrap();
    Feature::Ebpf.or_skip(recorder)
}

fn busy() -> Option<Target> {
    let program = Sampled::own().workers()?;
    Some(Target::spawn(Command::new(program).arg("busy")))
}

/// Starts to sample a process that runs already.
fn start_sampling(recorder: &mut Recorder, pid: i32) {
    recorder.processes.add(pid).unwrap();
    recorder.processes.scan(pid);
    recorder.configure(pid);
}

/// Takes stacks of a process and how they end, of samples whose parts are wanted. The recorder takes no note of them.
fn take_stacks(
    recorder: &mut Recorder,
    pid: i32,
    count: usize,
    is_wanted: impl Fn(abi::Parts<'_>) -> bool,
) -> Vec<(u16, Vec<u64>)> {
    let begin = Instant::now();
    let mut stacks = Vec::new();
    while stacks.len() < count {
        assert!(begin.elapsed() < TIMEOUT * 2);
        std::thread::sleep(Duration::from_millis(20));
        recorder.loaded.events.begin();
        while let Some((head, mut parts)) = recorder.loaded.events.next(u64::MAX) {
            // The first thread only waits for its input.
            let is_of_thread = head.pid == pid as u32 && head.tid != head.pid;
            if head.kind != kind::ON_CPU || !is_of_thread || !is_wanted(parts.clone()) {
                continue;
            }
            let part = parts.find(|part| part.kind == part::USER_STACK).unwrap();
            let mut frames = Vec::new();
            let has_marks = part.outcome != stack_end::BY_FRAME_POINTERS;
            read_user_stack(&mut frames, part.bytes, has_marks);
            let stack = frames.iter().filter_map(Frame::address).collect();
            stacks.push((part.outcome, stack));
        }
    }
    stacks
}

/// The first word of the probe's configuration.
const CONFIGURED: u64 = 0x6f74_656c_6374_7831;

/// Whichever process needs it first.
#[test]
fn the_kernel_takes_each_step_that_is_shipped() {
    for without_loops in [false, true] {
        let mut options = Options::new(Targets::Processes(vec![std::process::id() as i32]));
        options.kernel_object = Some(KernelObject(otelctx_fixtures::kernel::PROGRAMS));
        options.frequency = 1;
        options.without_loops = without_loops;
        let Some(mut recorder) = start(&options) else {
            return;
        };
        // Otherwise these are the programs that follow frame pointers.
        let tables = recorder.without_tables().map_or(Ok(()), Err);
        if Feature::Tables.or_skip(tables).is_none() {
            return;
        }
        let steps: Vec<_> = recorder.loaded.steps.clone().into_iter().collect();
        assert_eq!(steps.len(), 5, "{steps:?}");
        for (name, number) in steps {
            let loaded = recorder.loaded.load_step(number);
            assert!(loaded.is_ok(), "{name}: {loaded:?}");
        }
    }
}

#[test]
fn a_step_adds_its_part_and_an_absent_one_says_so() {
    const ABSENT: u32 = 77;
    let Some(target) = busy() else { return };
    let pid = target.pid() as u32;
    let mut options = Options::new(Targets::Processes(vec![target.pid()]));
    options.kernel_object = Some(KernelObject(otelctx_fixtures::kernel::PROGRAMS));
    let Some(mut recorder) = start(&options) else {
        return;
    };
    let probe = recorder.loaded.steps["probe"];
    let mut configuration = [0; size_of::<StepConfiguration>()];
    configuration[..8].copy_from_slice(&CONFIGURED.to_ne_bytes());
    let key = StepKey { pid, step: probe };
    let configurations = &mut recorder.loaded.configurations;
    configurations.insert(key, configuration, 0).unwrap();
    let toy = recorder.loaded.steps["toy"];
    for step in [probe, toy] {
        recorder.loaded.load_step(step).unwrap();
    }
    let mut known = recorder.loaded.targets.get(pid).unwrap();
    known.steps = probe | ABSENT << 8 | toy << 16 | probe << 24;
    recorder.loaded.targets.insert(pid, known);
    let begin = Instant::now();
    let (mut with_record, mut incomplete) = (false, 0);
    while !with_record {
        assert!(begin.elapsed() < TIMEOUT);
        std::thread::sleep(Duration::from_millis(20));
        recorder.loaded.events.begin();
        while let Some((head, parts)) = recorder.loaded.events.next(u64::MAX) {
            let all: Vec<Part<'_>> = parts.clone().collect();
            let Some(at) = all.iter().position(|found| found.kind >= part::STEP) else {
                // Taken before the steps were configured.
                continue;
            };
            let step = |number: u32| part::STEP + number as u16;
            let [first, absent, unconfigured, second] = all[at..] else {
                panic!("{all:?}")
            };
            let words = |bytes: &[u8]| {
                let word = |word: &[u8]| u64::from_ne_bytes(word.try_into().unwrap());
                bytes.chunks_exact(8).map(word).collect::<Vec<_>>()
            };
            for part in [first, second] {
                assert_eq!((part.kind, part.outcome), (step(probe), step_outcome::DONE));
                let [pointer, word, configured] = words(part.bytes)[..] else {
                    panic!("{part:?}")
                };
                assert_eq!(configured, CONFIGURED);
                assert_ne!(pointer, 0);
                // A thread's pointer points to itself (ELF TLS ABI for x86-64).
                #[cfg(target_arch = "x86_64")]
                assert_eq!(pointer, word);
                let _ = word;
            }
            let of = |part: Part<'_>| (part.kind, part.outcome, part.bytes.len());
            assert_eq!(of(absent), (step(ABSENT), step_outcome::ABSENT, 0));
            let not_configured = (step(toy), step_outcome::UNCONFIGURED, 0);
            assert_eq!(of(unconfigured), not_configured);
            // The parts of every sample are unchanged.
            let before: Vec<u16> = all[..at].iter().map(|found| found.kind).collect();
            assert!(before.contains(&part::USER_STACK), "{before:?}");
            with_record |= before.contains(&part::RECORD) && head.outcome == outcome::ATTACHED;
            incomplete += 1;
        }
    }
    assert_eq!(recorder.processes().counts().incomplete_steps, 0);
    let mut samples = 0;
    while samples == 0 {
        assert!(begin.elapsed() < TIMEOUT);
        recorder.drain(&mut Catalog::new(), &mut |_| samples += 1);
    }
    assert_eq!(
        recorder.processes().counts().incomplete_steps,
        samples,
        "after {incomplete}"
    );
}

/// A record and a stack of the largest sizes leave no room.
#[test]
fn a_step_without_room_for_its_part_is_counted() {
    let Some(program) = Sampled::own().stacks_without_frame_pointers("gcc") else {
        return;
    };
    let target = Target::spawn(Command::new(program).args(["size=4096", "depth=600"]));
    let pid = target.pid() as u32;
    let mut options = Options::new(Targets::Processes(vec![target.pid()]));
    options.kernel_object = Some(KernelObject(otelctx_fixtures::kernel::PROGRAMS));
    options.max_record = RECORD_LIMIT;
    options.frequency = 499;
    let Some(mut recorder) = start(&options) else {
        return;
    };
    if recorder.loaded.max_frames() < 512 {
        return eprintln!("skipped: stacks have fewer frames here");
    }
    recorder.loaded.unwinding.wait(TIMEOUT);
    let probe = recorder.loaded.steps["probe"];
    let steps = [Step {
        number: probe,
        configuration: [0; size_of::<StepConfiguration>()],
    }];
    let configurations = &mut recorder.loaded.configurations;
    let mut known = recorder.loaded.targets.get(pid).unwrap();
    known.steps = configure_steps(configurations, pid, &steps);
    assert_eq!(known.steps, probe);
    recorder.loaded.load_step(probe).unwrap();
    recorder.loaded.targets.insert(pid, known);
    let begin = Instant::now();
    let mut cut = 0;
    while cut < 10 {
        assert!(begin.elapsed() < TIMEOUT);
        std::thread::sleep(Duration::from_millis(20));
        recorder.loaded.events.begin();
        while let Some((head, parts)) = recorder.loaded.events.next(u64::MAX) {
            let sizes: usize = parts.clone().map(|part| 8 + part.bytes.len()).sum();
            let has_step = parts.clone().any(|part| part.kind >= part::STEP);
            let is_cut = head.flags & flag::CUT_STEPS != 0;
            // Earlier samples have shorter stacks, or no step yet.
            assert!(!(has_step && is_cut), "{sizes}");
            assert!(!is_cut || sizes >= 8192, "{sizes}");
            cut += usize::from(is_cut);
        }
    }
    assert_eq!(recorder.processes().counts().incomplete_steps, 0);
    let mut samples = 0;
    while samples == 0 {
        assert!(begin.elapsed() < TIMEOUT);
        recorder.drain(&mut Catalog::new(), &mut |_| samples += 1);
    }
    assert_eq!(recorder.processes().counts().incomplete_steps, samples);
}

/// Its samples say so (see above).
#[test]
fn a_process_without_room_for_its_configuration_keeps_its_steps() {
    let pid = std::process::id();
    let options = Options::new(Targets::Processes(vec![pid as i32]));
    let Some(mut recorder) = start(&options) else {
        return;
    };
    // Without runtimes, there is room for one.
    let configurations = &mut recorder.loaded.configurations;
    let steps = [1, 2].map(|number| Step {
        number,
        configuration: [0; size_of::<StepConfiguration>()],
    });
    assert_eq!(configure_steps(configurations, pid, &steps), 2 << 8 | 1);
    let keys: Vec<_> = configurations.keys().map(Result::unwrap).collect();
    assert_eq!(keys.len(), 1);
    assert_eq!((keys[0].pid, keys[0].step), (pid, 1));
}

/// Without runtimes, the program has room for the word of one thread.
#[test]
fn words_of_threads_are_kept_while_the_threads_live() {
    let Some(target) = busy() else { return };
    let options = Options::new(Targets::Processes(vec![target.pid()]));
    let Some(mut recorder) = start(&options) else {
        return;
    };
    let words = &mut recorder.loaded.words;
    let pid = target.pid() as u32;
    let key = |pid, tid| ThreadKey { pid, tid, step: 1 };
    let none = || -> Result<Option<u64>, RuntimeError> { panic!("it was asked for") };
    let word = |word| move || Ok(Some(word));
    // No thread has such an ID.
    let (thread, ended) = (key(pid, pid), key(pid, u32::MAX));
    assert_eq!(words.look_up(ended, 0, word(7)), Lookup::Late);
    assert_eq!((words.len(), words.get(ended)), (1, Some(7)));
    // There is no room, and each drain asks once.
    assert_eq!(words.look_up(thread, 0, word(8)), Lookup::Late);
    assert_eq!(words.look_up(thread, 0, none), Lookup::Late);
    assert_eq!((words.len(), words.get(thread)), (1, None));
    words.begin();
    words.check_next();
    assert_eq!(words.len(), 0);
    assert_eq!(words.look_up(thread, 0, word(8)), Lookup::Late);
    words.check_next();
    assert_eq!((words.len(), words.get(thread)), (1, Some(8)));
    // What was sampled before does not ask again; later, the word may have changed.
    words.begin();
    assert_eq!(words.look_up(thread, 0, none), Lookup::Late);
    assert_eq!(words.look_up(thread, u64::MAX, word(8)), Lookup::NotFound);
    words.begin();
    assert_eq!(words.look_up(thread, u64::MAX, word(9)), Lookup::Late);
    assert_eq!(words.get(thread), Some(9));
    let failure = || Err(RuntimeError::new("for a test"));
    words.begin();
    assert_eq!(words.look_up(thread, u64::MAX, failure), Lookup::Failed);
    assert_eq!(words.look_up(thread, u64::MAX, none), Lookup::Failed);
    words.begin();
    assert_eq!(
        words.look_up(thread, u64::MAX, || Ok(None)),
        Lookup::NotFound
    );
    assert_eq!(words.len(), 0);
    // A process that has ended, and one that is forgotten.
    words.begin();
    let other = key(u32::MAX, 1);
    assert_eq!(words.look_up(other, 0, word(1)), Lookup::Late);
    words.check_next();
    assert_eq!(words.len(), 0);
    assert_eq!(words.look_up(key(pid, 1), 0, word(1)), Lookup::Late);
    words.forget(pid);
    assert_eq!(words.len(), 0);
}

#[test]
fn each_sample_that_finds_the_ring_full_is_counted() {
    let Some(_target) = busy() else { return };
    let mut options = Options::new(Targets::All);
    options.ring = Some(1);
    options.frequency = 999;
    // Counts the runs of the program while this is open.
    let Ok(_statistics) = aya::sys::enable_stats(aya::sys::Stats::RunTime) else {
        return eprintln!("skipped: no right to count a program's runs");
    };
    let Some(mut recorder) = start(&options) else {
        return;
    };
    let begin = Instant::now();
    while recorder.loaded.counts().lost_samples < 10 {
        assert!(begin.elapsed() < TIMEOUT);
        std::thread::sleep(Duration::from_millis(20));
    }
    recorder.stop();
    let mut samples = 0;
    recorder.drain(&mut Catalog::new(), &mut |_| samples += 1);
    let (_, runs) = recorder.kernel_time().unwrap();
    let counts = recorder.processes().counts();
    assert!(samples > 0);
    assert_eq!(counts.samples(), samples);
    assert_eq!(counts.samples() + counts.lost, runs);
}

/// Bytes of a sample's head in a ring, and of the part with a record: its head, and the 38 bytes of
/// each record of `threads.c`, padded (`bpf/event.h`).
const HEAD_SIZE: u64 = 56;
const RECORD_PART: u64 = 8 + 40;

#[test]
fn samples_arrive_with_and_without_rings() {
    let Some(target) = busy() else { return };
    for without_rings in [false, true] {
        let mut options = Options::new(Targets::Processes(vec![target.pid()]));
        options.without_rings = without_rings;
        options.user_stacks = false;
        options.kernel_stacks = false;
        options.frequency = 999;
        let Some(mut recorder) = start(&options) else {
            return;
        };
        let begin = Instant::now();
        let mut catalog = Catalog::new();
        let (mut samples, mut attached) = (0, 0);
        while attached < 100 {
            assert!(begin.elapsed() < TIMEOUT, "{samples}, {attached} attached");
            std::thread::sleep(Duration::from_millis(20));
            let mut times = Vec::new();
            recorder.drain(&mut catalog, &mut |sample| {
                times.push(sample.time);
                attached += u64::from(matches!(sample.found, Found::Attached(_)));
            });
            samples += times.len() as u64;
            // Samples of all CPUs, in one order. One can begin before another and be written behind it.
            let in_order = |pair: &[u64]| pair[0] < pair[1] + 10_000_000;
            let is_sorted = times.windows(2).all(in_order);
            assert!(without_rings || is_sorted, "{times:?}");
        }
        assert_eq!(recorder.loaded.events.discarded, 0);
        let read = recorder.loaded.events.read_from_rings();
        if without_rings {
            assert_eq!(read, None);
        } else if let Some(read) = Feature::Rings.or_skip(read.ok_or("there are no rings")) {
            // Each takes as much as it needs; samples do not cross the end of a segment.
            let needed = HEAD_SIZE * samples + RECORD_PART * attached;
            let at_ends = read / SEGMENT_SIZE * SAMPLE_LIMIT;
            assert!(
                (needed..=needed + at_ends).contains(&read),
                "{read} for {samples} samples, {attached} attached"
            );
        }
    }
}

/// Samples until there are samples in a context of each of these.
fn sample_all(recorder: &mut Recorder, catalog: &mut Catalog, pids: &[i32]) {
    let begin = Instant::now();
    let mut missing: HashSet<i32> = pids.iter().copied().collect();
    while !missing.is_empty() {
        assert!(begin.elapsed() < TIMEOUT * 2, "no samples of {missing:?}");
        std::thread::sleep(Duration::from_millis(20));
        let mut attached = Vec::new();
        recorder.drain(catalog, &mut |sample| {
            if matches!(sample.found, Found::Attached(_)) {
                attached.push(sample.thread);
            }
        });
        for thread in attached {
            let process = catalog.thread_facts(thread).process;
            missing.remove(&catalog.process(process).pid);
        }
    }
}

/// Starts as many programs as have slots, and one more, and samples each of them, or the whole machine. `None`, with a
/// line, where they cannot be built or the kernel does not permit it.
fn more_than_slots(whole_machine: bool) -> Option<(Vec<Target>, Vec<i32>, Recorder)> {
    let targets: Vec<Target> = (0..9).map(|_| busy()).collect::<Option<_>>()?;
    let pids: Vec<i32> = targets.iter().map(Target::pid).collect();
    let mut options = Options::new(match whole_machine {
        true => Targets::All,
        false => Targets::Processes(pids.clone()),
    });
    options.user_stacks = false;
    Some((targets, pids, start(&options)?))
}

#[test]
fn more_targets_than_slots_are_all_sampled() {
    let Some((mut targets, pids, mut recorder)) = more_than_slots(false) else {
        return;
    };
    let mut catalog = Catalog::new();
    sample_all(&mut recorder, &mut catalog, &pids);
    assert!(!recorder.loaded.targets.all_have_slots());
    targets.truncate(3);
    // The others have slots, or get them.
    let begin = Instant::now();
    while cfg!(target_arch = "x86_64") && !recorder.loaded.targets.all_have_slots() {
        assert!(begin.elapsed() < TIMEOUT);
        sample_all(&mut recorder, &mut catalog, &pids[..1]);
    }
    sample_all(&mut recorder, &mut catalog, &pids[..3]);
}

/// Of a whole machine, some of which started before and some after the recorder.
#[test]
#[cfg_attr(
    target_arch = "aarch64",
    ignore = "an emulator has too little time for ten programs"
)]
fn more_publishers_than_slots_are_all_sampled() {
    let Some((mut targets, mut pids, mut recorder)) = more_than_slots(true) else {
        return;
    };
    let mut catalog = Catalog::new();
    sample_all(&mut recorder, &mut catalog, &pids);
    assert!(!recorder.loaded.targets.all_have_slots());
    let Some(later) = busy() else { return };
    pids.push(later.pid());
    targets.push(later);
    sample_all(&mut recorder, &mut catalog, &pids);
}

#[test]
fn processes_without_room_among_the_targets_are_counted() {
    // More than Linux has processes with these IDs.
    const UNUSED: u32 = 1 << 30;
    const ROOM: u32 = 16_384;
    let mut shell = Command::new("sh");
    shell.args([
        "-c",
        "echo ready; read line; true & true & wait; echo done; read line",
    ]);
    let mut shell = Target::spawn(&mut shell);
    let mut options = Options::new(Targets::Processes(vec![shell.pid()]));
    options.children = true;
    let Some(mut recorder) = start(&options) else {
        return;
    };
    let targets = &mut recorder.loaded.targets;
    for pid in UNUSED..UNUSED + ROOM {
        targets.insert(pid, target(0, &[]));
    }
    // The shell has had room before.
    assert_eq!(targets.refused, 1);
    // Once is not twice.
    targets.insert(UNUSED + ROOM - 1, target(0, &[]));
    assert_eq!(targets.refused, 1);
    shell.command("start");
    recorder.survey(Instant::now());
    assert_eq!(recorder.processes().counts().dropped_processes, 3);
}

/// However busy the machine is, a CPU has at most one sample in each period.
#[test]
fn the_period_changes_while_sampling() {
    const SLOW: u64 = 1_000_000_000 / 7;
    let Some(target) = busy() else {
        return;
    };
    let mut options = Options::new(Targets::Processes(vec![target.pid()]));
    options.frequency = 997;
    let Some(mut recorder) = start(&options) else {
        return;
    };
    let mut catalog = Catalog::new();
    // Takes samples that are not older until there are enough of a CPU; by CPU, their number and the time of the last one.
    let mut samples =
        |recorder: &mut Recorder, since: u64, is_enough: &dyn Fn(u64, u64) -> bool| {
            let mut by_cpu = std::collections::BTreeMap::<u32, (u64, u64)>::new();
            while !by_cpu.values().any(|it| is_enough(it.0, it.1 - since)) {
                std::thread::sleep(INTERVAL);
                recorder.drain(&mut catalog, &mut |sample| {
                    if sample.time > since {
                        let (count, last) = by_cpu.entry(sample.cpu).or_default();
                        (*count, *last) = (*count + 1, sample.time);
                    }
                });
            }
            by_cpu
        };
    let begun = monotonic();
    samples(&mut recorder, begun, &|count, _| count > 20);
    assert!(recorder.set_period(SLOW));
    let changed = monotonic();
    let slow = samples(&mut recorder, changed, &|count, _| count > 5);
    for (cpu, (count, last)) in slow {
        let most = (last - changed) / SLOW + 1;
        assert!(count <= most, "{count} samples of CPU {cpu}, not {most}");
    }
    assert!(recorder.set_period(options.period()));
    let changed = monotonic();
    let is_faster = |count, passed| count > passed / SLOW + 5;
    samples(&mut recorder, changed, &is_faster);
}

/// The kernel disables a CPU's events when it goes offline. This simulates that, without taking a
/// CPU offline.
#[test]
fn a_cpu_that_comes_back_is_sampled() {
    let Some(_target) = busy() else { return };
    let Some(mut recorder) = start(&Options::new(Targets::All)) else {
        return;
    };
    recorder.loaded.clocks.stop();
    recorder.side_band.stop();
    let mut catalog = Catalog::new();
    std::thread::sleep(Duration::from_millis(20));
    recorder.drain(&mut catalog, &mut |_| {});
    let stopped = monotonic();
    let begin = Instant::now();
    let mut found = false;
    while !found {
        assert!(begin.elapsed() < TIMEOUT);
        std::thread::sleep(Duration::from_millis(20));
        recorder.drain(&mut catalog, &mut |sample| found |= sample.time > stopped);
    }
    // So are its programs reported, on each CPU.
    let mut child = Command::new("true").spawn().unwrap();
    let pid = child.id() as i32;
    child.wait().unwrap();
    let reports: Vec<_> = recorder.side_band.read(monotonic()).collect();
    let is_exec = |report: &Report| report.pid == pid && report.change == MemoryChange::Exec;
    assert!(reports.iter().any(is_exec), "{reports:?}");
}

#[test]
fn what_is_kept_of_a_process_whose_end_was_not_reported_is_found() {
    let Some(target) = busy() else { return };
    let Some(mut recorder) = start(&Options::new(Targets::Processes(vec![target.pid()]))) else {
        return;
    };
    // No process has this ID.
    let pid = i32::MAX;
    let parent = target.pid();
    let report = Report {
        time: 1,
        pid,
        change: MemoryChange::Forked { parent },
    };
    recorder.loaded.unwinding.note(&report);
    recorder.processes.report(report);
    let is_kept = |recorder: &Recorder| {
        [
            recorder.processes.untracked.contains(pid),
            recorder.loaded.unwinding.processes().any(|it| it == pid),
        ]
    };
    // Samples of it may still come until the second search.
    for expected in [true, true, false] {
        assert_eq!(is_kept(&recorder), [expected; 2]);
        recorder.sweep();
    }
    assert!(recorder.loaded.unwinding.processes().any(|it| it == parent));
}

#[test]
fn the_recorder_wakes_up_less_often_while_no_process_changes() {
    let mut shell = Command::new("sh");
    shell.args([
        "-c",
        "echo ready; read line; /bin/true; echo done; read line",
    ]);
    let mut target = Target::spawn(&mut shell);
    // Those of other processes do not count.
    let busy = "echo ready; while :; do /bin/true; sleep 0.1; done";
    let _other = Target::spawn(Command::new("sh").args(["-c", busy]));
    let Some(mut recorder) = start(&Options::new(Targets::Processes(vec![target.pid()]))) else {
        return;
    };
    let mut wait_until = |is_quiet: bool| {
        let begin = Instant::now();
        while recorder.is_quiet() != is_quiet {
            assert!(begin.elapsed() < TIMEOUT, "{is_quiet}");
            std::thread::sleep(Duration::from_millis(20));
            recorder.drain(&mut Catalog::new(), &mut |_| {});
        }
    };
    wait_until(true);
    target.command("");
    wait_until(false);
}

/// Takes a CPU offline: `cargo test -p otelctx-sampler -- --ignored`, as root.
#[test]
#[ignore = "takes a CPU away from the machine for a moment"]
fn a_cpu_that_was_away_is_sampled_again() {
    /// Brings it online again, also if the test fails.
    struct Away(std::path::PathBuf);
    impl Drop for Away {
        fn drop(&mut self) {
            let _ = std::fs::write(&self.0, "1");
        }
    }
    let Some(_target) = busy() else { return };
    let Some(mut recorder) = start(&Options::new(Targets::All)) else {
        return;
    };
    let cpus = aya::util::online_cpus().unwrap();
    let cpu = *cpus.last().unwrap();
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/online");
    let away = Away(path.into());
    if let Err(why) = std::fs::write(&away.0, "0") {
        return eprintln!("skipped: {why}");
    }
    std::thread::sleep(Duration::from_millis(100));
    drop(away);
    let back = monotonic();
    let begin = Instant::now();
    let mut catalog = Catalog::new();
    let mut found = false;
    while !found {
        assert!(begin.elapsed() < TIMEOUT);
        std::thread::sleep(Duration::from_millis(20));
        recorder.drain(&mut catalog, &mut |sample| {
            found |= sample.cpu == cpu && sample.time > back;
        });
    }
    eprintln!("sampled again after {:?}", begin.elapsed());
}
