//! Samples of a program whose stacks are known.

mod common;

use std::collections::HashMap;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{Starts, start};
use otelctx_fixtures::kernel::is_emulated;
use otelctx_fixtures::python::{Interpreter, LentState, Linkage, free_threaded_program};
use otelctx_fixtures::{CoreDirectory, Target};
use otelctx_reader::sample::{Catalog, Counts, Frame, GilState, NamedFrame, Sample};
use otelctx_sampler::INTERVAL;

const VERSIONS: [&str; 12] = [
    "2.7", "3.6", "3.7", "3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.13t", "3.14", "3.15",
];
const SAMPLES: usize = 400;
const TIMEOUT: Duration = otelctx_fixtures::HANG_TIMEOUT;

/// The functions of `sampled.py`, outermost first: every stack is the beginning of one of them.
const STACKS: [&[&str]; 4] = [
    &[
        "<module>", "main", "descend", "descend", "descend", "descend", "descend", "descend",
        "<lambda>", "spin",
    ],
    &["<module>", "main", "consume", "numbers", "spin"],
    // `_bootstrap` and its callees are those of the module `threading`.
    &["_bootstrap", "_bootstrap_inner", "run", "digest"],
    &["__bootstrap", "__bootstrap_inner", "run", "digest"],
];

/// The result of comparing a stack with the program's functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StackMatch {
    /// It goes to the innermost function.
    Whole,
    /// A function is being called, or returns.
    Beginning,
    /// Outer functions are missing: a generator of 3.12 is being called.
    Truncated,
    /// It has none of these calls.
    Wrong,
}

fn compare(functions: &[&str]) -> StackMatch {
    if STACKS.contains(&functions) {
        return StackMatch::Whole;
    }
    if STACKS.iter().any(|stack| stack.starts_with(functions)) {
        return StackMatch::Beginning;
    }
    let is_part = |stack: &&[&str]| stack.windows(functions.len()).any(|it| it == functions);
    if STACKS.iter().any(is_part) {
        StackMatch::Truncated
    } else {
        StackMatch::Wrong
    }
}

/// Samples of a program.
struct Recorded {
    catalog: Catalog,
    samples: Vec<Sample>,
    counts: Counts,
}

impl Recorded {
    /// Checks the number of samples without a state or without outer functions: the sampler counts each. Where the
    /// version has no such moments, there are none, but in an emulated machine: reads of an interrupted thread's
    /// memory sometimes fail there.
    fn check_truncated(&self, truncated: usize, has_moments: bool, interpreter: &Interpreter) {
        let counts = &self.counts;
        let counted =
            counts.truncated_runtime_stacks + counts.incomplete_steps + counts.unresolved_threads;
        assert!(
            truncated == 0 || has_moments || is_emulated(),
            "{interpreter:?}: {truncated}"
        );
        assert!(
            truncated as u64 <= counted && truncated * 20 <= self.samples.len(),
            "{interpreter:?}: {truncated}, {counted} counted"
        );
    }
}

/// Samples a program. `None`, with a line, where the kernel does not permit it.
fn record(pid: i32, frequency: u32, count: usize, without_ebpf: bool) -> Option<Recorded> {
    let is_enough = |_: &Catalog, samples: &[Sample]| samples.len() >= count;
    record_until(pid, frequency, without_ebpf, is_enough)
}

fn record_until(
    pid: i32,
    frequency: u32,
    without_ebpf: bool,
    is_enough: impl Fn(&Catalog, &[Sample]) -> bool,
) -> Option<Recorded> {
    let Recorded {
        catalog,
        mut samples,
        counts,
    } = take_until(pid, frequency, without_ebpf, is_enough)?;
    // What identifies a function may be unreadable, too: see `Recorded::check_truncated`.
    let is_unnamed = |frame: &Frame| match frame {
        Frame::Named(named) => named.is_unnamed() && !frame.is_gil_wait(),
        Frame::Native { .. } => false,
    };
    let taken = samples.len();
    samples.retain(|sample| !catalog.frames(sample.user_stack).any(is_unnamed));
    let unnamed = taken - samples.len();
    assert!(unnamed == 0 || is_emulated(), "{unnamed} of {taken}");
    assert!(
        unnamed as u64 <= counts.unnamed_functions && unnamed * 20 <= taken,
        "{unnamed} of {taken}"
    );
    Some(Recorded {
        catalog,
        samples,
        counts,
    })
}

/// Like [`record_until`], also with functions that have no name.
fn take_until(
    pid: i32,
    frequency: u32,
    without_ebpf: bool,
    is_enough: impl Fn(&Catalog, &[Sample]) -> bool,
) -> Option<Recorded> {
    let mut sampler = start(pid, frequency, without_ebpf)?;
    let (mut catalog, mut samples) = (Catalog::new(), Vec::new());
    let begin = Instant::now();
    while !is_enough(&catalog, &samples) {
        assert!(begin.elapsed() < TIMEOUT, "{} samples", samples.len());
        std::thread::sleep(INTERVAL);
        sampler.drain(&mut catalog, &mut |sample| samples.push(sample));
    }
    let counts = sampler.counts();
    Some(Recorded {
        catalog,
        samples,
        counts,
    })
}

fn check(interpreter: &Interpreter, target: &Target, without_ebpf: bool) {
    let frequency = if without_ebpf { 99 } else { 499 };
    let Some(recorded) = record(target.pid(), frequency, SAMPLES, without_ebpf) else {
        return;
    };
    let mut counts = [0; 4];
    let mut starts = Starts::default();
    for sample in &recorded.samples {
        let frames = recorded.catalog.frames(sample.user_stack).rev();
        let frames = frames.filter(|frame| !frame.is_gil_wait());
        let named = frames.filter_map(|frame| match frame {
            Frame::Named(named) => Some(&*named.function),
            Frame::Native { .. } => None,
        });
        let functions: Vec<&str> = named.collect();
        let seen = compare(&functions);
        let frames: Vec<&Frame> = recorded.catalog.frames(sample.user_stack).collect();
        starts.add(&recorded.catalog, sample);
        assert_ne!(seen, StackMatch::Wrong, "{interpreter:?}: {frames:x?}");
        counts[seen as usize] += 1;
        // Each is in the place of the native frame that executes it: C is between both. Before the unwind
        // tables are read, native stacks do not reach the start.
        let is_whole = matches!(frames.last(), Some(Frame::Native { .. }));
        if let Some(lambda) = functions.iter().rposition(|it| *it == "<lambda>")
            && is_whole
        {
            assert_eq!(functions[lambda - 1], "descend");
            let place = |name: &str| {
                let is_it =
                    |frame: &&Frame| matches!(frame, Frame::Named(it) if it.function == name);
                frames.iter().position(is_it).unwrap()
            };
            assert!(
                place("descend") > place("<lambda>") + 1,
                "{interpreter:?}: {frames:x?}"
            );
        }
    }
    starts.check(&interpreter.to_string());
    let [whole, beginning, truncated, _] = counts;
    let is_most = whole * 10 >= recorded.samples.len() * 7;
    assert!(
        is_most,
        "{interpreter:?}: {whole}, {beginning}, {truncated}"
    );
    // The chain of frames has such moments on 3.11 and 3.12 alone.
    let version = &interpreter.version;
    let has_moments = version.starts_with("3.11.") || version.starts_with("3.12.");
    recorded.check_truncated(truncated, has_moments, interpreter);
}

#[test]
fn samples_have_the_functions_that_the_program_executes() {
    for version in VERSIONS {
        for interpreter in Interpreter::with_version(version) {
            check(&interpreter, &interpreter.start("sampled.py"), false);
        }
    }
}

#[test]
fn samples_by_ptrace_have_them_too() {
    for version in ["3.9", "3.12"] {
        for interpreter in Interpreter::with_version(version) {
            check(&interpreter, &interpreter.start("sampled.py"), true);
        }
    }
}

#[test]
fn samples_of_programs_that_contain_python_have_them_too() {
    for version in ["2.7", "3.11", "3.13"] {
        for interpreter in Interpreter::with_version(version) {
            for linkage in [Linkage::Stripped, Linkage::Library] {
                if let Some(mut command) = interpreter.embedded(linkage, "sampled.py") {
                    check(&interpreter, &Target::spawn(&mut command), false);
                }
            }
        }
    }
}

/// A thread that is in a subinterpreter has two thread states, and a sample the functions of one. Up to
/// 3.11, threads that have released the GIL store the outer one, and up to 3.9, it is unknown which one they use.
#[test]
fn samples_in_a_subinterpreter_have_the_functions_of_one_thread_state() {
    for version in ["3.8", "3.10", "3.11", "3.12", "3.13", "3.14", "3.15"] {
        for interpreter in Interpreter::with_version(version) {
            let mut command = interpreter.command("subinterpreters.py");
            let target = Target::spawn(command.arg("busy"));
            let Some(recorded) = record(target.pid(), 499, SAMPLES, false) else {
                return;
            };
            let is_of = |series: &str| interpreter.version.starts_with(series);
            let is_unknown = is_of("3.8.");
            let stores_outer = is_unknown || is_of("3.10.") || is_of("3.11.");
            let (mut whole, mut truncated) = ([0; 3], 0);
            for sample in &recorded.samples {
                let (_, is_held, frames) = named(&recorded.catalog, sample);
                let functions: Vec<&str> = frames.iter().map(|it| &*it.function).collect();
                let expected: [&[&str]; 3] = [
                    &["<module>", "inner", "spin"],
                    &["<module>", "inner", "digest"],
                    &["<module>", "outer"],
                ];
                if !expected.iter().any(|it| it.starts_with(&functions)) {
                    let is_part = expected.iter().any(|it| it.ends_with(&functions));
                    assert!(is_part, "{interpreter:?}: {functions:?}");
                    truncated += 1;
                }
                if let Some(index) = expected.iter().position(|it| *it == functions) {
                    whole[index] += 1;
                    let is_released = is_held == Some(false);
                    let has_outer = is_unknown || stores_outer && is_released;
                    assert_eq!(index == 2, has_outer, "{interpreter:?}: {sample:?}");
                    assert!(!is_unknown || is_held != Some(true), "{sample:?}");
                }
            }
            let [spin, digest, outer] = whole;
            // Without OpenSSL, `hashlib` of 3.11 holds the GIL.
            assert!(
                (is_unknown || spin * 10 > recorded.samples.len())
                    && (digest + outer) * 10 > recorded.samples.len(),
                "{interpreter:?}: {whole:?}"
            );
            assert!(
                (spin + digest + outer) * 10 > recorded.samples.len() * 9,
                "{interpreter:?}: {whole:?}"
            );
            recorded.check_truncated(truncated, false, &interpreter);
        }
    }
}

/// Samples a process until each of two threads has been sampled often.
fn record_both(pid: i32) -> Option<Recorded> {
    record_until(pid, 999, false, has_sampled_two(SAMPLES / 2))
}

/// Returns true if two threads have this many samples each.
fn has_sampled_two(least: usize) -> impl Fn(&Catalog, &[Sample]) -> bool {
    move |catalog, samples| {
        let mut counts = HashMap::<i32, usize>::new();
        for sample in samples {
            let tid = catalog.thread_facts(sample.thread).tid;
            *counts.entry(tid).or_default() += 1;
        }
        counts.values().filter(|count| **count >= least).count() >= 2
    }
}

/// A sample's thread, true if it held the GIL (if there is one), and its named frames, outermost first.
type NamedSample<'c> = (i32, Option<bool>, Vec<&'c NamedFrame>);

fn named<'c>(catalog: &'c Catalog, sample: &Sample) -> NamedSample<'c> {
    let frames = catalog.frames(sample.user_stack).rev();
    let frames = frames.filter(|frame| !frame.is_gil_wait());
    let frames = frames.filter_map(|frame| match frame {
        Frame::Named(named) => Some(named),
        Frame::Native { .. } => None,
    });
    let is_held = sample.gil.map(|state| state == GilState::Held);
    let tid = catalog.thread_facts(sample.thread).tid;
    (tid, is_held, frames.map(AsRef::as_ref).collect())
}

/// The second thread executes with a thread state that the first one has created, and that one C.
#[test]
fn samples_with_a_state_of_another_thread_have_its_functions() {
    for interpreter in VERSIONS.iter().flat_map(|it| Interpreter::with_version(it)) {
        // One of each way in which versions store what threads use.
        let mut series = ["3.9.", "3.11.", "3.12."].into_iter();
        let is_one = series.any(|it| interpreter.version.starts_with(it));
        let modes = [(false, false), (true, false), (false, true)];
        for (by_module, without_ebpf) in &modes[..if is_one { 3 } else { 1 }] {
            let (by_module, without_ebpf) = (*by_module, *without_ebpf);
            let Some(program) = LentState::start(&interpreter, by_module) else {
                continue;
            };
            let frequency = if without_ebpf { 99 } else { 499 };
            let is_enough = has_sampled_two(50);
            let pid = program.target.pid();
            let Some(recorded) = record_until(pid, frequency, without_ebpf, is_enough) else {
                return;
            };
            let mut counts = HashMap::<i32, [usize; 2]>::new();
            for sample in &recorded.samples {
                let (tid, is_held, frames) = named(&recorded.catalog, sample);
                let count = counts.entry(tid).or_default();
                // The first samples precede what the recorder reads of the process.
                if frames.is_empty() && is_held.is_none() && *count == [0, 0] {
                    continue;
                }
                let mut expected = program.threads.iter();
                let (_, expected) = expected.find(|it| it.0 == tid).unwrap();
                let functions: Vec<&str> = frames.iter().map(|it| &*it.function).collect();
                let name = format!("{interpreter:?} {by_module}: {is_held:?} {functions:?}");
                assert!(expected.has_gil(is_held), "{name}");
                let is_whole = expected.has(&functions, false);
                let is_truncated = !is_whole && expected.has(&functions, true);
                // See `chains.rs`.
                let may_be_truncated = ["3.11.", "3.12."];
                let mut may_be_truncated = may_be_truncated.iter();
                let may_be_truncated =
                    may_be_truncated.any(|it| interpreter.version.starts_with(it));
                assert!(is_whole || is_truncated && may_be_truncated, "{name}");
                count[usize::from(is_truncated)] += 1;
            }
            for (tid, _) in &program.threads {
                let [whole, truncated] = counts[tid];
                let name = format!("{interpreter:?} {by_module}: {counts:?}");
                assert!(whole > 20 && truncated * 10 <= whole, "{name}");
            }
        }
    }
}

/// In 3.12, each thread has a thread state that the first thread has created.
#[test]
fn samples_in_interpreters_with_gils_of_their_own_hold_these() {
    for version in ["3.12", "3.13", "3.14", "3.15"] {
        for interpreter in Interpreter::with_version(version) {
            let target = interpreter.start("own_gil.py");
            let threads = target.lines.iter().map(|line| {
                let words: Vec<&str> = line.split(' ').collect();
                let name = words[3].trim_end_matches("_run");
                (words[1].parse().unwrap(), name)
            });
            let threads: HashMap<i32, &str> = threads.collect();
            let Some(recorded) = record_both(target.pid()) else {
                return;
            };
            let (mut counts, mut truncated) = (HashMap::<&str, usize>::new(), 0);
            for sample in &recorded.samples {
                let (tid, is_held, frames) = named(&recorded.catalog, sample);
                let Some(name) = threads.get(&tid) else {
                    continue;
                };
                // The first samples precede what the recorder reads of the process.
                if frames.is_empty() && is_held.is_none() && !counts.contains_key(name) {
                    continue;
                }
                *counts.entry(name).or_default() += 1;
                if is_emulated() && is_held.is_none() && frames.is_empty() {
                    truncated += 1;
                    continue;
                }
                assert_eq!(is_held, Some(true), "{interpreter:?}: {name}");
                let [run, call, leaf] = ["run", "call", "leaf"].map(|it| format!("{name}_{it}"));
                let [run, call, leaf] = [&*run, &*call, &*leaf];
                let whole = ["<module>", run, call, call, call, call, "<lambda>", leaf];
                let functions = frames.iter().map(|frame| &*frame.function);
                let functions: Vec<&str> = functions.collect();
                if !whole.starts_with(&functions) {
                    let is_part = whole.windows(functions.len()).any(|it| it == functions);
                    assert!(is_part, "{interpreter:?}: {functions:?}");
                    truncated += 1;
                }
            }
            let counts = [counts["left"], counts["right"]];
            assert!(counts.iter().all(|count| *count > 20), "{counts:?}");
            // See `chains.rs`.
            recorded.check_truncated(truncated, version == "3.12", &interpreter);
        }
    }
}

/// Without a GIL, threads run on two CPUs at once.
#[test]
fn threads_that_execute_python_at_the_same_time_have_their_own_functions() {
    for interpreter in Interpreter::with_version("3.13t") {
        for has_gil in [false, true] {
            let mut command = interpreter.command("parallel.py");
            command.env("PYTHON_GIL", if has_gil { "1" } else { "0" });
            let target = Target::spawn(&mut command);
            let threads = target.lines.iter().map(|line| {
                let words: Vec<&str> = line.split(' ').collect();
                (words[1].parse::<i32>().unwrap(), words[2])
            });
            let threads: Vec<(i32, &str)> = threads.collect();
            let Some(recorded) = record_both(target.pid()) else {
                return;
            };
            let mut counts = [0, 0];
            for sample in &recorded.samples {
                let (tid, is_held, frames) = named(&recorded.catalog, sample);
                let Some(index) = threads.iter().position(|it| it.0 == tid) else {
                    continue;
                };
                // The first samples precede what the recorder reads of the process.
                if frames.is_empty() && is_held.is_none() && counts[index] == 0 {
                    continue;
                }
                assert_eq!(is_held.is_some(), has_gil);
                counts[index] += 1;
                let functions = frames.iter().map(|frame| &*frame.function);
                let functions: Vec<&str> = functions.collect();
                let whole: &[&str] = match threads[index].1 {
                    "left" => &[
                        "left_run",
                        "left_call",
                        "left_call",
                        "left_call",
                        "left_call",
                        "<lambda>",
                        "left_leaf",
                    ],
                    _ => &["right_run", "right_numbers", "right_leaf"],
                };
                let start = ["_bootstrap", "_bootstrap_inner", "run"];
                let whole: Vec<&str> = start.iter().chain(whole).copied().collect();
                assert!(whole.starts_with(&functions), "{functions:?}");
                assert!(functions.len() >= 4, "{functions:?}");
            }
            assert!(counts.iter().all(|count| *count > 20), "{counts:?}");
        }
    }
}

/// Made by hand: nobody packages 3.14 and 3.15 without a GIL.
#[test]
fn samples_of_copies_of_the_instructions_have_the_lines_of_these() {
    for series in ["3.14", "3.15"] {
        let directory = CoreDirectory::new();
        let Some(program) = free_threaded_program(series, directory.path()) else {
            return;
        };
        for has_gil in [false, true] {
            let mut command = Command::new(&program);
            let target = Target::spawn(command.args(has_gil.then_some("gil")));
            let Some(recorded) = record_both(target.pid()) else {
                return;
            };
            // The state of the first thread, which holds the GIL, has the lower address.
            let mut threads: Vec<Vec<&str>> = target
                .lines
                .iter()
                .map(|line| line.split(' ').collect())
                .collect();
            threads.sort_unstable_by_key(|words| words[2]);
            let mut counts = [0, 0];
            for sample in &recorded.samples {
                let (tid, is_held, frames) = named(&recorded.catalog, sample);
                if frames.is_empty() && is_held.is_none() && counts == [0, 0] {
                    continue;
                }
                let index = threads.iter().position(|it| it[1] == tid.to_string());
                let index = index.unwrap();
                counts[index] += 1;
                assert_eq!(is_held, has_gil.then_some(index == 0), "{series}");
                let lines = frames
                    .iter()
                    .map(|it| (&*it.function, it.line.to_string()))
                    .collect::<Vec<_>>();
                let [inner, outer] = [3, 4].map(|word| threads[index][word].to_owned());
                assert_eq!(lines, [("outer", outer), ("inner", inner)], "{series}");
            }
            assert!(counts.iter().all(|count| *count > 20), "{counts:?}");
        }
    }
}

/// The recorder does not know its runtime at once, and it may have ended when its samples are read.
#[test]
fn samples_of_a_child_have_its_functions_or_are_counted() {
    for version in ["2.7", "3.11", "3.12", "3.14"] {
        for interpreter in Interpreter::with_version(version) {
            let target = interpreter.start("forking.py");
            let parent = target.pid();
            let is_child = |catalog: &Catalog, sample: &Sample| {
                let thread = catalog.thread_facts(sample.thread);
                catalog.process(thread.process).pid != parent
            };
            let recorded = take_until(parent, 499, false, |catalog, samples| {
                let children = samples.iter().filter(|it| is_child(catalog, it));
                children.count() >= SAMPLES
            });
            let Some(recorded) = recorded else { return };
            let (catalog, counts) = (&recorded.catalog, &recorded.counts);
            let samples = recorded.samples.iter();
            let children: Vec<_> = samples.filter(|it| is_child(catalog, it)).collect();
            let executes = |sample: &Sample, function: &str| {
                let mut frames = catalog.frames(sample.user_stack);
                frames.any(|it| matches!(it, Frame::Named(it) if it.function == function))
            };
            // While it is forked, it is in the caller of its own function, and when its memory is gone in none.
            let lacks_name = |it: &&&Sample| {
                let is_own = executes(it, "child") || executes(it, "fork");
                !is_own && catalog.frames(it.user_stack).len() > 1
            };
            let without = children.iter().filter(lacks_name).count();
            let counted = counts.unresolved_threads
                + counts.incomplete_steps
                + counts.unnamed_functions
                + counts.truncated_runtime_stacks;
            let said = format!(
                "{interpreter:?}: {without} of {}, {counts:?}",
                children.len()
            );
            assert!(without as u64 <= counted, "{said}");
            // In 2.7, the thread's state has to be found in a list. Some memory of a child that ends is unreadable in an emulated machine.
            let is_exempt = version == "2.7" || is_emulated();
            assert!(is_exempt || without * 20 <= children.len(), "{said}");
        }
    }
}
