//! Thread states and frames of real interpreters, compared with what the program knows of itself.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use otelctx_fixtures::python::{
    Interpreter, LentState, Linkage, free_threaded_program, program_with_several,
    program_with_shared_python,
};
use otelctx_fixtures::{
    Compiler, CoreDirectory, STOP_TIMEOUT, Target, copy_program, in_pid_namespace,
};
use otelctx_python::Python;
use otelctx_reader::format::process_context::{Attributes, Value};
use otelctx_reader::remote::CoreFile;
use otelctx_reader::runtime::{RuntimeThread, Runtimes};
use otelctx_reader::{Options, Process, StopReason};

const VERSIONS: [&str; 12] = [
    "2.7", "3.6", "3.7", "3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.13t", "3.14", "3.15",
];

const SIGABRT: i32 = 6;

/// A thread by the program's own account.
#[derive(Debug, Default)]
struct Thread {
    tid: i32,
    state: String,
    /// Function, qualified name, file and line.
    frames: Vec<[String; 4]>,
}

/// The threads of `interpreted.py`. The first one holds the GIL, or is attached where there is none.
fn truth(target: &Target) -> Vec<Thread> {
    let mut threads: Vec<Thread> = Vec::new();
    for line in &target.lines {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        match &words[..] {
            [kind, tid, state] if kind == "state" => threads.push(Thread {
                tid: tid.parse().unwrap(),
                state: state.clone(),
                frames: Vec::new(),
            }),
            [kind, _, frame @ ..] if kind == "frame" => {
                let mut frame: [String; 4] = frame.to_vec().try_into().unwrap();
                if frame[1] == "-" {
                    frame[1].clear();
                }
                threads.last_mut().unwrap().frames.push(frame);
            }
            _ => panic!("{line}"),
        }
    }
    let depths = threads.iter().map(|thread| thread.frames.len() > 1);
    assert_eq!(depths.collect::<Vec<_>>(), [true; 3], "{threads:?}");
    threads
}

fn options() -> Options {
    let mut options = Options::default();
    options.runtimes = Runtimes::new(vec![Arc::new(Python::default())]);
    options.stop_timeout = STOP_TIMEOUT;
    options
}

fn fact<'a>(facts: &'a Attributes, name: &str) -> &'a Value {
    let found = facts.iter().find(|(key, _)| key == name);
    &found.unwrap_or_else(|| panic!("no {name}: {facts:?}")).1
}

/// Compares all that is read of a process with the truth.
fn compare(mut process: Process, interpreter: &Interpreter, truth: &[Thread]) {
    let runtimes = process.runtimes().unwrap();
    let [present] = &runtimes[..] else {
        panic!("{interpreter:?}: {runtimes:?}")
    };
    let facts = present.process.as_ref().unwrap().facts();
    assert_eq!(
        fact(&facts, "version"),
        &interpreter.version.as_str().into()
    );
    let threads = process.threads().unwrap();
    for (index, expected) in truth.iter().enumerate() {
        let thread = threads.iter().find(|it| it.tid() == expected.tid).unwrap();
        let state = thread.state(&runtimes, None).unwrap();
        let is_expected = match state.stop {
            None => true,
            // They are known of threads that sleep only where kernel and C library say more.
            Some(reason) => cfg!(target_arch = "aarch64") && reason == StopReason::ThreadPointer,
        };
        assert!(is_expected, "{interpreter:?}: {:?}", state.stop);
        let [reading] = &state.runtimes[..] else {
            panic!("{interpreter:?}: {state:?}")
        };
        assert_eq!(reading.name, "cpython");
        let read = reading.thread.as_ref().unwrap();
        let name = format!("{interpreter:?}, thread {index}");
        assert_eq!(
            fact(&read.facts, "thread_state"),
            &expected.state.as_str().into(),
            "{name}"
        );
        let (has_it, has_it_not) = if interpreter.is_free_threaded {
            ("attached", "holds_gil")
        } else {
            ("holds_gil", "attached")
        };
        assert_eq!(
            fact(&read.facts, has_it),
            &Value::Bool(index == 0),
            "{name}"
        );
        assert!(read.facts.iter().all(|(key, _)| key != has_it_not));
        let holds_gil = read.gil.as_ref().map(|gil| gil.is_held);
        let expected_gil = (!interpreter.is_free_threaded).then_some(index == 0);
        assert_eq!(holds_gil, expected_gil, "{name}");
        let source = if !interpreter.version.starts_with("2.") {
            "tss"
        } else if index == 0 {
            "current"
        } else {
            "list"
        };
        assert_eq!(fact(&read.facts, "source"), &source.into(), "{name}");
        assert_eq!(frames(read), expected.frames, "{name}");
        assert!(!read.stack.is_truncated, "{name}");
    }
}

fn frames(thread: &RuntimeThread) -> Vec<[String; 4]> {
    let frames = thread.stack.frames().map(|frame| {
        assert_eq!(frame.kind.name(), "cpython");
        [
            // Words of a line, as in the program.
            frame.function.replace(' ', "_"),
            frame.qualified_name.replace(' ', "_"),
            frame.file.clone(),
            frame.line.to_string(),
        ]
    });
    frames.collect()
}

#[test]
fn threads_have_the_states_and_frames_that_the_interpreter_knows() {
    for interpreter in VERSIONS.iter().flat_map(|it| Interpreter::with_version(it)) {
        let target = interpreter.start("interpreted.py");
        let process = Process::with_options(target.pid(), options()).unwrap();
        compare(process, &interpreter, &truth(&target));
    }
}

#[test]
fn a_core_file_has_what_the_process_had() {
    for interpreter in VERSIONS.iter().flat_map(|it| Interpreter::with_version(it)) {
        let directory = CoreDirectory::new();
        let mut command = interpreter.command("interpreted.py");
        directory.allow(&mut command, u64::MAX);
        let mut target = Target::spawn(&mut command);
        let pid = target.pid();
        let Some(core) = directory.crash(&mut target, pid, SIGABRT) else {
            return;
        };
        let core = CoreFile::open(&core, Path::new("/")).unwrap();
        let process = Process::of_target(core, options());
        compare(process, &interpreter, &truth(&target));
    }
}

/// Threads and the addresses of their thread states, as a program prints them.
fn states(lines: &[String]) -> Vec<(i32, Value)> {
    let lines = lines.iter().map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let [_, tid, state] = words[..] else {
            panic!("{line}")
        };
        (tid.parse().unwrap(), state.into())
    });
    lines.collect()
}

/// Reads a thread by the runtime.
fn read(process: &mut Process, tid: i32) -> RuntimeThread {
    let runtimes = process.runtimes().unwrap();
    let threads = process.threads().unwrap();
    let thread = threads.iter().find(|it| it.tid() == tid).unwrap();
    let mut last = None;
    // On a busy machine a thread that runs may be in the same change each time.
    for _ in 0..20 {
        let mut state = thread.state(&runtimes, None).unwrap();
        match state.runtimes.remove(0).thread {
            Ok(thread) => return thread,
            Err(error) => last = Some(error),
        }
    }
    panic!("{last:?}");
}

/// One of them runs, the others wait without the GIL, in different ways.
#[test]
fn each_of_fifty_threads_has_its_thread_state() {
    for interpreter in VERSIONS.iter().flat_map(|it| Interpreter::with_version(it)) {
        let target = interpreter.start("crowd.py");
        let states = states(&target.lines);
        assert_eq!(states.len(), 50);
        let mut process = Process::with_options(target.pid(), options()).unwrap();
        for (tid, state) in states {
            let thread = read(&mut process, tid);
            assert_eq!(
                fact(&thread.facts, "thread_state"),
                &state,
                "{interpreter:?}"
            );
            let outermost = thread.stack.frames().last().map(|frame| &*frame.function);
            let is_main = tid == target.pid();
            let name = if interpreter.version.starts_with("2.") {
                "__bootstrap"
            } else {
                "_bootstrap"
            };
            let expected = if is_main { "<module>" } else { name };
            assert_eq!(outermost, Some(expected), "{interpreter:?}");
        }
    }
}

/// The first 32 keys of thread-specific data are in another place than the others.
#[test]
fn a_thread_state_with_a_large_key_is_found() {
    let Some(keys) = Compiler::gcc().library(&["many_keys.c"], &["-pthread"]) else {
        return;
    };
    for interpreter in VERSIONS.iter().flat_map(|it| Interpreter::with_version(it)) {
        let mut command = interpreter.command("crowd.py");
        let target = Target::spawn(command.arg("3").env("LD_PRELOAD", &keys));
        let mut process = Process::with_options(target.pid(), options()).unwrap();
        for (tid, state) in states(&target.lines) {
            let thread = read(&mut process, tid);
            let found = fact(&thread.facts, "thread_state");
            assert_eq!(found, &state, "{interpreter:?}");
            if !interpreter.version.starts_with("2.") {
                let source = fact(&thread.facts, "source");
                assert_eq!(source, &"tss".into(), "{interpreter:?}");
            }
        }
    }
}

/// It is no other thread's that executes, although its own thread does not store it any more.
#[test]
fn a_thread_state_that_its_thread_deletes_has_the_gil() {
    let Some(library) = Compiler::gcc().library::<&str>(&["ending.c"], &[]) else {
        return;
    };
    for interpreter in Interpreter::with_version("3.11") {
        let mut command = interpreter.command("ending.py");
        let target = Target::spawn(command.env("LD_PRELOAD", &library));
        let mut process = Process::with_options(target.pid(), options()).unwrap();
        let [(first, state), (second, _)] = &states(&target.lines)[..] else {
            panic!("{:?}", target.lines)
        };
        let thread = read(&mut process, *first);
        assert_eq!(fact(&thread.facts, "thread_state"), state);
        assert_eq!(fact(&thread.facts, "holds_gil"), &false.into());
        let functions: Vec<&str> = thread.stack.frames().map(|it| &*it.function).collect();
        assert_eq!(functions.last(), Some(&"<module>"), "{functions:?}");
        let runtimes = process.runtimes().unwrap();
        let threads = process.threads().unwrap();
        let ending = threads.iter().find(|it| it.tid() == *second).unwrap();
        let ending = ending.state(&runtimes, None).unwrap();
        assert_eq!(ending.runtimes.len(), 0, "{ending:?}");
    }
}

/// The thread that forked has another ID in the child.
#[test]
fn a_child_that_goes_on_after_a_fork_has_its_thread_states() {
    for interpreter in VERSIONS.iter().flat_map(|it| Interpreter::with_version(it)) {
        let target = interpreter.start("forked.py");
        let (first, lines) = target.lines.split_first().unwrap();
        let child = first.strip_prefix("child ").unwrap().parse().unwrap();
        let mut process = Process::with_options(child, options()).unwrap();
        let states = states(lines);
        assert_eq!(states.len(), 2, "{interpreter:?}");
        for (tid, state) in states {
            let thread = read(&mut process, tid);
            let found = fact(&thread.facts, "thread_state");
            assert_eq!(found, &state, "{interpreter:?}");
            let outer: Vec<_> = thread.stack.frames().map(|it| &*it.function).collect();
            let expected = if tid == child { "fork" } else { "wait" };
            assert!(outer.contains(&expected), "{interpreter:?}: {outer:?}");
        }
    }
}

/// Their states are inserted into the list and removed from it while it is read.
#[test]
fn threads_are_found_while_others_start_and_end() {
    for interpreter in VERSIONS.iter().flat_map(|it| Interpreter::with_version(it)) {
        let target = interpreter.start("churn.py");
        let mut process = Process::with_options(target.pid(), options()).unwrap();
        for _ in 0..20 {
            for (tid, state) in states(&target.lines) {
                let thread = read(&mut process, tid);
                let found = fact(&thread.facts, "thread_state");
                assert_eq!(found, &state, "{interpreter:?}");
            }
        }
    }
}

/// Threads have other IDs there.
#[test]
fn threads_in_a_pid_namespace_are_found() {
    for interpreter in VERSIONS.iter().flat_map(|it| Interpreter::with_version(it)) {
        let mut command = interpreter.command("crowd.py");
        let Some(mut command) = in_pid_namespace(command.arg("8")) else {
            return;
        };
        let target = Target::spawn(&mut command);
        let pid = target.child_pid();
        let mut process = Process::with_options(pid, options()).unwrap();
        let mut states = states(&target.lines);
        assert_eq!(states.len(), 8);
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        for task in tasks.map(Result::unwrap) {
            let tid = task.file_name().into_string().unwrap().parse().unwrap();
            let status = fs::read_to_string(task.path().join("status")).unwrap();
            let inner = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
            let inner = inner.unwrap().split_whitespace().last().unwrap();
            let inner: i32 = inner.parse().unwrap();
            let place = states.iter().position(|(tid, _)| *tid == inner).unwrap();
            let (_, state) = states.remove(place);
            let thread = read(&mut process, tid);
            let found = fact(&thread.facts, "thread_state");
            assert_eq!(found, &state, "{interpreter:?}");
        }
        assert_eq!(states, []);
    }
}

/// A thread that is in a subinterpreter has two thread states.
#[test]
fn all_thread_states_of_a_thread_are_found() {
    // Before, an interpreter could not be created by a function of Python.
    for interpreter in VERSIONS[3..]
        .iter()
        .flat_map(|it| Interpreter::with_version(it))
    {
        let target = interpreter.start("subinterpreters.py");
        let states = states(&target.lines);
        let [(tid, outer), (_, inner)] = &states[..] else {
            panic!("{interpreter:?}: {states:?}")
        };
        let mut process = Process::with_options(target.pid(), options()).unwrap();
        let thread = read(&mut process, *tid);
        // Up to 3.11, `PyGILState_GetThisThreadState` returns the outer one.
        let has_outer = ["3.8", "3.9", "3.10", "3.11"];
        let has_outer = has_outer
            .iter()
            .any(|it| interpreter.version.starts_with(it));
        let (chosen, other) = if has_outer {
            (outer, inner)
        } else {
            (inner, outer)
        };
        assert_eq!(
            fact(&thread.facts, "source"),
            &"tss".into(),
            "{interpreter:?}"
        );
        assert_eq!(
            fact(&thread.facts, "thread_state"),
            chosen,
            "{interpreter:?}"
        );
        let others = Value::Array(vec![other.clone()]);
        assert_eq!(
            fact(&thread.facts, "candidates"),
            &others,
            "{interpreter:?}"
        );
        let functions: Vec<&str> = thread.stack.frames().map(|it| &*it.function).collect();
        let expected = if has_outer {
            &["outer", "<module>"][..]
        } else {
            &["wait", "<module>"]
        };
        assert_eq!(functions, expected, "{interpreter:?}");
    }
}

/// The second thread executes with a thread state that the first one has created, and that one C.
#[test]
fn a_thread_that_executes_with_a_state_of_another_thread_has_its_functions() {
    for interpreter in VERSIONS.iter().flat_map(|it| Interpreter::with_version(it)) {
        for by_module in [false, true] {
            let Some(program) = LentState::start(&interpreter, by_module) else {
                continue;
            };
            let mut process = Process::with_options(program.target.pid(), options()).unwrap();
            for _ in 0..20 {
                for (tid, expected) in &program.threads {
                    let thread = read(&mut process, *tid);
                    let name = format!("{interpreter:?} {by_module}: {thread:?}");
                    let state = fact(&thread.facts, "thread_state");
                    assert_eq!(state, &expected.state.as_str().into(), "{name}");
                    let holds_gil = thread.gil.as_ref().map(|gil| gil.is_held);
                    assert!(expected.has_gil(holds_gil), "{name}");
                    let functions = thread.stack.frames().map(|it| &*it.function);
                    let mut functions: Vec<&str> = functions.collect();
                    functions.reverse();
                    let is_truncated = thread.stack.is_truncated;
                    assert!(expected.has(&functions, is_truncated), "{name}");
                }
            }
        }
    }
}

/// The first thread executes Python in one, and C without the GIL. Up to 3.11, it stores the outer thread state, and up to
/// 3.9, it is unknown which one it uses. In the core file, the same.
#[test]
fn a_thread_that_executes_a_subinterpreter_has_its_functions() {
    for interpreter in VERSIONS[3..]
        .iter()
        .flat_map(|it| Interpreter::with_version(it))
    {
        let is_of = |series: &&str| interpreter.version.starts_with(*series);
        let is_unknown = ["3.8.", "3.9."].iter().any(is_of);
        let stores_outer = is_unknown || ["3.10.", "3.11."].iter().any(is_of);
        let directory = CoreDirectory::new();
        let mut command = interpreter.command("subinterpreters.py");
        directory.allow(command.arg("busy"), u64::MAX);
        let mut target = Target::spawn(&mut command);
        let states = states(&target.lines);
        let [(tid, outer), (_, inner)] = &states[..] else {
            panic!("{interpreter:?}: {states:?}")
        };
        let check = |process: &mut Process| {
            let thread = read(process, *tid);
            let name = format!("{interpreter:?}: {thread:?}");
            let is_held = thread.gil.as_ref().map(|gil| gil.is_held);
            let has_outer = is_unknown || stores_outer && is_held == Some(false);
            let state = if has_outer { outer } else { inner };
            assert_eq!(fact(&thread.facts, "thread_state"), state, "{name}");
            let functions = thread.stack.frames().map(|it| &*it.function);
            let functions: Vec<&str> = functions.collect();
            let expected = if has_outer {
                &["outer", "<module>"][..]
            } else {
                &["inner", "<module>"]
            };
            let is_truncated = thread.stack.is_truncated;
            assert!(is_truncated || functions.ends_with(expected), "{name}");
            assert!(!is_unknown || is_held != Some(true), "{name}");
            is_held
        };
        let mut process = Process::with_options(target.pid(), options()).unwrap();
        let has_gil = !is_unknown && !interpreter.is_free_threaded;
        let (begin, mut checks, mut is_seen) = (Instant::now(), 0, false);
        // On a busy machine, it advances little between two checks.
        while checks < 20 || has_gil && !is_seen {
            assert!(begin.elapsed() < STOP_TIMEOUT, "{interpreter:?}");
            is_seen |= check(&mut process) == Some(true);
            checks += 1;
        }
        let pid = target.pid();
        if let Some(core) = directory.crash(&mut target, pid, SIGABRT) {
            let core = CoreFile::open(&core, Path::new("/")).unwrap();
            check(&mut Process::of_target(core, options()));
        }
    }
}

/// The program has three threads, two of which execute Python at the same time.
#[test]
fn threads_in_interpreters_with_gils_of_their_own_have_their_states() {
    for version in ["3.12", "3.13", "3.14", "3.15"] {
        for interpreter in Interpreter::with_version(version) {
            let target = interpreter.start("own_gil.py");
            let mut process = Process::with_options(target.pid(), options()).unwrap();
            let mut outer = BTreeSet::new();
            for line in target.lines.iter().cycle().take(60) {
                let words: Vec<&str> = line.split(' ').collect();
                let [_, tid, state, function] = words[..] else {
                    panic!("{line}")
                };
                let thread = read(&mut process, tid.parse().unwrap());
                let name = format!("{interpreter:?}, {function}: {thread:?}");
                assert_eq!(fact(&thread.facts, "thread_state"), &state.into(), "{name}");
                let is_held = function != "wait_run";
                assert_eq!(fact(&thread.facts, "holds_gil"), &is_held.into(), "{name}");
                assert_eq!(thread.gil.map(|gil| gil.is_held), Some(is_held), "{name}");
                let Value::Array(others) = fact(&thread.facts, "candidates") else {
                    panic!("{name}")
                };
                outer.insert(format!("{others:?}"));
                let functions: Vec<&str> = thread.stack.frames().map(|it| &*it.function).collect();
                if !thread.stack.is_truncated {
                    assert!(functions.ends_with(&[function, "<module>"]), "{name}");
                }
                let prefix = function.trim_end_matches("run");
                let is_own =
                    |it: &&&str| it.starts_with(prefix) || ["<module>", "<lambda>"].contains(*it);
                assert_eq!(functions.iter().find(|it| !is_own(it)), None, "{name}");
            }
            // One for each thread, of the main interpreter.
            assert_eq!(outer.len(), 3, "{interpreter:?}: {outer:?}");
            let first = read(&mut process, target.pid());
            assert_eq!(fact(&first.facts, "holds_gil"), &false.into());
            assert_eq!(first.stack.frames().count(), 1, "{interpreter:?}");
        }
    }
}

/// They have one if the user wants it, and once a module that needs it is imported.
#[test]
fn a_free_threaded_build_with_a_gil_has_its_state() {
    for interpreter in Interpreter::with_version("3.13t") {
        let mut command = interpreter.command("interpreted.py");
        let target = Target::spawn(command.env("PYTHON_GIL", "1"));
        let mut process = Process::with_options(target.pid(), options()).unwrap();
        for (index, expected) in truth(&target).iter().enumerate() {
            let thread = read(&mut process, expected.tid);
            let held = Value::Bool(index == 0);
            assert_eq!(fact(&thread.facts, "holds_gil"), &held, "{thread:?}");
            assert_eq!(fact(&thread.facts, "attached"), &held, "{thread:?}");
            assert_eq!(thread.gil.as_ref().unwrap().is_held, index == 0);
            assert_eq!(frames(&thread), expected.frames);
        }
    }
}

/// Without a GIL, all threads that execute Python are attached at the same time.
#[test]
fn threads_that_execute_python_at_the_same_time_have_their_frames() {
    for interpreter in Interpreter::with_version("3.13t") {
        let target = interpreter.start("parallel.py");
        let mut process = Process::with_options(target.pid(), options()).unwrap();
        assert_eq!(target.lines.len(), 2);
        let mut attached = 0;
        for line in target.lines.iter().cycle().take(200) {
            let words: Vec<&str> = line.split(' ').collect();
            let [_, tid, name] = words[..] else {
                panic!("{line}")
            };
            let thread = read(&mut process, tid.parse().unwrap());
            assert_eq!(thread.gil, None);
            attached += usize::from(fact(&thread.facts, "attached") == &Value::Bool(true));
            let functions: Vec<&str> = thread.stack.frames().map(|it| &*it.function).collect();
            let (outer, own) = functions.split_at(functions.len() - 3);
            assert_eq!(own, ["run", "_bootstrap_inner", "_bootstrap"]);
            let is_own = |function: &&str| function.starts_with(name) || *function == "<lambda>";
            assert!(outer.iter().all(is_own), "{functions:?}");
            assert_eq!(outer.last(), Some(&&*format!("{name}_run")));
            assert!(!thread.stack.is_truncated, "{functions:?}");
        }
        // Sometimes it waits for its turn to collect garbage.
        assert!(attached > 150, "{attached}");
    }
}

/// Made by hand: nobody packages 3.14 and 3.15 without a GIL.
#[test]
fn threads_that_execute_copies_of_the_instructions_have_the_lines_of_these() {
    for series in ["3.14", "3.15"] {
        let directory = CoreDirectory::new();
        let Some(program) = free_threaded_program(series, directory.path()) else {
            return;
        };
        for has_gil in [false, true] {
            let mut command = Command::new(&program);
            command.args(has_gil.then_some("gil"));
            let target = Target::spawn(&mut command);
            let mut process = Process::with_options(target.pid(), options()).unwrap();
            let runtimes = process.runtimes().unwrap();
            let facts = runtimes[0].process.as_ref().unwrap().facts();
            assert_eq!(fact(&facts, "free_threaded"), &Value::Bool(true));
            let mut gil = Vec::new();
            for line in &target.lines {
                let words: Vec<&str> = line.split(' ').collect();
                let [_, tid, state, inner, outer] = words[..] else {
                    panic!("{line}")
                };
                let thread = read(&mut process, tid.parse().unwrap());
                assert_eq!(fact(&thread.facts, "thread_state"), &state.into());
                assert_eq!(fact(&thread.facts, "source"), &"tss".into());
                assert_eq!(fact(&thread.facts, "attached"), &Value::Bool(true));
                let expected = [
                    ["inner", "Made.outer.<locals>.inner", "made.py", inner],
                    ["outer", "Made.outer", "made.py", outer],
                ];
                assert_eq!(frames(&thread), expected, "{series}");
                gil.push((state.to_owned(), thread.gil.map(|gil| gil.is_held)));
            }
            // The state of the first thread has the lower address.
            gil.sort_unstable();
            let gil: Vec<_> = gil.into_iter().map(|(_, is_held)| is_held).collect();
            let expected = if has_gil {
                [Some(true), Some(false)]
            } else {
                [None; 2]
            };
            assert_eq!(gil, expected, "{series}");
        }
    }
}

/// 3.15 stores it in a thread-local variable, which functions of a shared library get to in two ways.
#[test]
fn a_thread_state_in_a_variable_of_a_shared_library_is_found() {
    for dialect in ["gnu", "gnu2"] {
        let directory = CoreDirectory::new();
        let Some(mut program) = program_with_shared_python(dialect, directory.path()) else {
            return;
        };
        let target = Target::spawn(&mut program);
        let mut process = Process::with_options(target.pid(), options()).unwrap();
        assert_eq!(target.lines.len(), 2);
        for line in &target.lines {
            let words: Vec<&str> = line.split(' ').collect();
            let [_, tid, state, ..] = words[..] else {
                panic!("{line}")
            };
            let thread = read(&mut process, tid.parse().unwrap());
            assert_eq!(fact(&thread.facts, "thread_state"), &state.into());
            assert_eq!(fact(&thread.facts, "source"), &"tss".into(), "{dialect}");
        }
    }
}

/// Each thread executes with one of them, which knows nothing of the other one.
#[test]
fn threads_of_two_interpreters_in_one_process_have_their_frames() {
    let versions = VERSIONS.iter().flat_map(|it| Interpreter::with_version(it));
    let libraries = versions.filter_map(|it| Some((it.shared_library()?, it)));
    let libraries: Vec<(PathBuf, Interpreter)> = libraries.collect();
    if libraries.len() < 2 {
        return eprintln!("skipped: there are no two shared libraries of Python");
    }
    for pair in libraries.windows(2).chain([&libraries[..]]) {
        let pair = &pair[..pair.len().min(4)];
        let Some(mut command) = program_with_several(pair) else {
            return;
        };
        let target = Target::spawn(&mut command);
        let mut process = Process::with_options(target.pid(), options()).unwrap();
        let runtimes = process.runtimes().unwrap();
        let [present] = &runtimes[..] else {
            panic!("{runtimes:?}")
        };
        let facts = present.process.as_ref().unwrap().facts();
        let first = fact(&facts, "version").clone();
        let Value::Array(others) = fact(&facts, "other_versions") else {
            panic!("{facts:?}")
        };
        let found = others.iter().chain([&first]).map(|it| format!("{it:?}"));
        let expected = pair.iter().map(|(_, it)| Value::from(it.version.as_str()));
        let expected = expected.map(|it| format!("{it:?}"));
        let [found, expected]: [BTreeSet<String>; 2] = [found.collect(), expected.collect()];
        assert_eq!(found, expected);
        assert_eq!(target.lines.len(), pair.len());
        for (line, (_, interpreter)) in target.lines.iter().zip(pair) {
            let words: Vec<&str> = line.split(' ').collect();
            let thread = read(&mut process, words[1].parse().unwrap());
            let functions = thread.stack.frames().map(|it| &*it.function);
            let functions: Vec<&str> = functions.collect();
            assert_eq!(functions, [words[2], "<module>"], "{interpreter:?}");
            let version = thread.facts.iter().find(|(key, _)| key == "version");
            let version = version.map_or(&first, |it| &it.1);
            assert_eq!(version, &interpreter.version.as_str().into());
        }
        let threads = process.threads().unwrap();
        let main = threads.iter().find(|it| it.tid() == target.pid()).unwrap();
        assert_eq!(main.state(&runtimes, None).unwrap().runtimes, []);
    }
}

/// None of its files is named for Python.
#[test]
fn a_program_that_contains_python_has_its_states_and_frames() {
    for interpreter in VERSIONS.iter().flat_map(|it| Interpreter::with_version(it)) {
        for linkage in [Linkage::Exported, Linkage::Stripped, Linkage::Library] {
            let Some(mut command) = interpreter.embedded(linkage, "interpreted.py") else {
                continue;
            };
            let target = Target::spawn(&mut command);
            let process = Process::with_options(target.pid(), options()).unwrap();
            compare(process, &interpreter, &truth(&target));
        }
    }
}

#[test]
fn python_in_a_program_that_exports_nothing_is_found() {
    for interpreter in VERSIONS.iter().flat_map(|it| Interpreter::with_version(it)) {
        let Some(mut command) = interpreter.embedded(Linkage::Hidden, "minimal.py") else {
            continue;
        };
        let target = Target::spawn(&mut command);
        let mut process = Process::with_options(target.pid(), options()).unwrap();
        let read = read(&mut process, target.pid());
        let frames = frames(&read).into_iter().map(|[function, _, file, line]| {
            assert!(file.ends_with("/minimal.py"), "{file}");
            (function, line)
        });
        let expected = [("wait", "10"), ("<module>", "13")];
        let expected = expected.map(|(function, line)| (function.to_owned(), line.to_owned()));
        assert_eq!(frames.collect::<Vec<_>>(), expected, "{interpreter:?}");
    }
}

/// Its published context is read nevertheless.
#[test]
fn an_unknown_version_is_an_error_that_says_so() {
    let known = "version 4.0.0 is not supported, only 2.7, 3.6, 3.7, 3.8, 3.9, 3.10, 3.11, 3.12, \
                 3.13, 3.14, 3.15";
    check_unknown(
        "python4.0",
        &["unknown_python.c"],
        "-DVERSION=0x040000f0",
        known,
    );
    // Its functions do not say where it keeps its data.
    let unlike =
        "version 3.11.1 is not supported: its layout cannot be compared with that of 3.11.2";
    check_unknown(
        "python3.11",
        &["unknown_python.c"],
        "-DVERSION=0x030b01f0",
        unlike,
    );
}

#[test]
fn pypy_is_an_error_that_says_so() {
    check_unknown(
        "pypy3.11",
        &[],
        "-g",
        "this is PyPy; only CPython is supported",
    );
}

fn check_unknown(name: &str, interpreter: &[&str], version: &str, expected: &str) {
    let sources = [&["threads.c", "variable.c", "publish.c"], interpreter].concat();
    let compiler = Compiler::gcc();
    let flags = ["-DLINKED", "-rdynamic", version];
    let Some(program) = compiler.program(&sources, &flags) else {
        return;
    };
    let directory = CoreDirectory::new();
    let named = directory.path().join(name);
    copy_program(&program, &named);
    let target = Target::spawn(&mut Command::new(named));
    let mut process = Process::with_options(target.pid(), options()).unwrap();
    let runtimes = process.runtimes().unwrap();
    let [present] = &runtimes[..] else {
        panic!("{runtimes:?}")
    };
    let error = present.process.as_ref().unwrap_err().to_string();
    assert_eq!(error, expected);
    let threads = process.threads().unwrap();
    let attached = target
        .threads
        .iter()
        .filter_map(|it| Some((it.tid, it.attached.as_ref()?)));
    assert_eq!(attached.clone().count(), 2);
    for (tid, expected) in attached {
        let thread = threads.iter().find(|it| it.tid() == tid).unwrap();
        let state = thread.state(&runtimes, None).unwrap();
        assert_eq!(state.runtimes, []);
        let context = state.choose().unwrap().context;
        let trace_id = context.attached().unwrap().trace_id.to_string();
        assert_eq!(trace_id, expected.trace_id);
    }
}
