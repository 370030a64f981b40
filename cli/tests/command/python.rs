//! Python frames in `otelctx dump`.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::libc;
use opentelemetry_proto::tonic::common::v1::any_value::Value as AnyValue;
use opentelemetry_proto::tonic::profiles::v1development::{Line, Sample};
use otelctx_fixtures::python::{Interpreter, program_with_several};
use otelctx_fixtures::{Compiler, Target, copy_program};
use serde_json::{Value, json};

use crate::no_stop::no_stop;
use crate::otlp;
use crate::run::{Scratch, given_time, otelctx};

fn start() -> Option<Target> {
    let interpreter = Interpreter::with_version("3.12").into_iter().next()?;
    Some(interpreter.start("interpreted.py"))
}

/// The threads by the program's own account: ID, address of the thread state, frames.
fn truth(target: &Target) -> Vec<(i32, String, Vec<Value>)> {
    let mut threads: Vec<(i32, String, Vec<Value>)> = Vec::new();
    for line in &target.lines {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["state", tid, state] => {
                threads.push((tid.parse().unwrap(), state.to_owned(), Vec::new()));
            }
            ["frame", _, function, qualname, file, line] => {
                let line: u32 = line.parse().unwrap();
                let mut frame = json!({"function": function, "file": file, "line": line});
                if qualname != "-" {
                    frame["qualname"] = qualname.into();
                }
                threads.last_mut().unwrap().2.push(frame);
            }
            _ => panic!("{line}"),
        }
    }
    assert_eq!(threads.len(), 3);
    threads
}

/// Waits until the first thread waits for its input: before, it may be waiting for the GIL, for which it wakes up every
/// 5 ms.
fn wait_until_reading(pid: i32) {
    let deadline = Instant::now() + otelctx_fixtures::HANG_TIMEOUT;
    let reading = format!("{} ", libc::SYS_read);
    let call = || fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap();
    while !call().starts_with(&reading) {
        assert!(Instant::now() < deadline, "{}", call());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// One of 50 threads runs, and holds the GIL.
#[test]
fn only_the_thread_that_runs_is_stopped() {
    for interpreter in ["3.11", "3.12", "3.14"]
        .iter()
        .flat_map(|it| Interpreter::with_version(it))
    {
        let target = interpreter.start("crowd.py");
        wait_until_reading(target.pid());
        let pid = target.pid().to_string();
        let answer = otelctx(&["dump", "--json", &pid]).json();
        assert_eq!(answer["threads_stopped"], 1, "{interpreter:?}: {answer:#}");
        let threads = answer["threads"].as_array().unwrap();
        let states = target
            .lines
            .iter()
            .filter_map(|it| it.strip_prefix("state "));
        let states: Vec<(&str, &str)> = states.filter_map(|it| it.split_once(' ')).collect();
        assert_eq!((threads.len(), states.len()), (50, 50), "{interpreter:?}");
        // The main thread is the last one, and the one that runs was started just before.
        for (index, (tid, state)) in states.into_iter().enumerate() {
            let tid: i32 = tid.parse().unwrap();
            let thread = threads.iter().find(|it| it["tid"] == tid).unwrap();
            assert_eq!(thread["cpython"]["thread_state"], state, "{interpreter:?}");
            assert_eq!(
                thread["cpython"]["holds_gil"],
                index == 48,
                "{interpreter:?}"
            );
        }
    }
}

/// The busy thread loops in a function of Python, not in the interpreter's. On a busy machine, some samples are of the kernel,
/// which takes the CPU from it.
#[test]
fn top_names_functions_of_python() {
    let Some(interpreter) = Interpreter::with_version("3.12").into_iter().next() else {
        return;
    };
    let symbols = fs::read_to_string("/proc/kallsyms").unwrap();
    let kernel: HashSet<&str> = symbols
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .collect();
    let target = interpreter.start("crowd.py");
    let pid = target.pid().to_string();
    let by_function = ["top", "--json", "-p", &pid, "--group", "function"];
    let mut samples: BTreeMap<String, u64> = BTreeMap::new();
    // A busy machine gives it little time.
    given_time(|seconds| {
        let options = ["-i", seconds, "--iterations", "4"];
        let answer = otelctx(&[&by_function[..], &options].concat()).expect(0);
        for line in answer.stdout.lines() {
            let picture: Value = serde_json::from_str(line).unwrap();
            for row in picture["rows"].as_array().unwrap() {
                let name = row["name"].as_str().unwrap().to_owned();
                *samples.entry(name).or_default() += row["samples"].as_u64().unwrap();
            }
        }
        samples.retain(|name, _| !kernel.contains(&**name));
        let all: u64 = samples.values().sum();
        (all >= 20).then_some(()).ok_or(all)
    });
    let all: u64 = samples.values().sum();
    let of_run = samples.get("run").copied().unwrap_or_default();
    assert!(of_run * 10 >= all * 9, "{samples:?}");
}

#[test]
fn dump_shows_the_frames_of_each_thread_and_who_holds_the_gil() {
    let Some(target) = start() else { return };
    let pid = target.pid().to_string();
    let answer = otelctx(&["dump", "--json", &pid]).json();
    assert_eq!(answer["threads_stopped"], 0);
    let version = &answer["runtimes"]["cpython"]["version"];
    let text = otelctx(&["dump", &pid]).stdout;
    let verbose = otelctx(&["dump", "-v", &pid]).stdout;
    for (index, (tid, state, frames)) in truth(&target).into_iter().enumerate() {
        let threads = answer["threads"].as_array().unwrap();
        let thread = threads.iter().find(|it| it["tid"] == tid).unwrap();
        let (holds_gil, source) = (index == 0, "tss");
        let expected = json!({"version": version, "holds_gil": holds_gil, "thread_state": state,
            "source": source, "frames": frames});
        assert_eq!(thread["cpython"], expected);
        let name = thread["name"].as_str().unwrap();
        let gil = if holds_gil {
            "GIL held"
        } else {
            "GIL not held"
        };
        let head = format!("\n  thread {tid}  {name}  {gil}");
        let with_addresses = format!("{head}  thread_state={state}  source={source}\n");
        assert!(verbose.contains(&with_addresses), "{verbose}");
        assert!(!text.contains(&state), "{text}");
        let mut expected = head + "\n";
        for frame in &frames {
            let text = |key: &str| frame[key].as_str().unwrap();
            let (name, file, line) = (text("qualname"), text("file"), &frame["line"]);
            expected += &format!("    {name}  {file}:{line}\n");
        }
        assert!(text.contains(&expected), "{expected}{text}");
    }
}

/// Each has the version of the one that it executes with.
#[test]
fn dump_shows_threads_of_two_interpreters() {
    let versions = ["3.11", "3.12"].iter();
    let interpreters = versions.flat_map(|it| Interpreter::with_version(it));
    let libraries = interpreters.filter_map(|it| Some((it.shared_library()?, it)));
    let libraries: Vec<_> = libraries.collect();
    let Some(pair) = libraries.last_chunk::<2>() else {
        return;
    };
    let Some(mut command) = program_with_several(pair) else {
        return;
    };
    let target = Target::spawn(&mut command);
    let pid = target.pid().to_string();
    let answer = otelctx(&["dump", "--json", &pid]).json();
    let others = &answer["runtimes"]["cpython"]["other_versions"];
    assert_eq!(others.as_array().map(Vec::len), Some(1), "{answer:#}");
    for (line, (_, interpreter)) in target.lines.iter().zip(pair) {
        let words: Vec<&str> = line.split(' ').collect();
        let tid: i32 = words[1].parse().unwrap();
        let threads = answer["threads"].as_array().unwrap();
        let thread = threads.iter().find(|it| it["tid"] == tid).unwrap();
        let known = &thread["cpython"];
        assert_eq!(known["version"], interpreter.version, "{answer:#}");
        assert_eq!(known["frames"][0]["function"], words[2], "{answer:#}");
    }
}

/// Each call of the interpreter is replaced by the frames that it executes, with C functions between
/// them.
#[test]
fn stacks_have_python_frames_in_place_of_the_interpreter() {
    let versions = [
        "2.7", "3.6", "3.10", "3.11", "3.12", "3.13", "3.13t", "3.14", "3.15",
    ];
    // From 3.12 on, functions can be called through code that is made for each of them (`-X perf`).
    let ways = versions.iter().flat_map(|version| {
        let interpreters = Interpreter::with_version(version).into_iter();
        let has_trampolines = versions
            .iter()
            .skip_while(|it| **it != "3.12")
            .any(|it| it == version);
        interpreters.flat_map(move |it| {
            let again = has_trampolines.then(|| (it.clone(), true));
            [(it, false)].into_iter().chain(again)
        })
    });
    for (interpreter, through_trampolines) in ways {
        let mut command = interpreter.command("interpreted.py");
        command.env(
            "PYTHONPERFSUPPORT",
            if through_trampolines { "1" } else { "0" },
        );
        let target = Target::spawn(&mut command);
        let pid = target.pid().to_string();
        let arguments = ["dump", "--stacks", "--stop-sleeping", "--json", &pid];
        let answer = otelctx(&arguments).json();
        for (tid, _, frames) in truth(&target) {
            let threads = answer["threads"].as_array().unwrap();
            let thread = threads.iter().find(|it| it["tid"] == tid).unwrap();
            let stack = &thread["stack"];
            assert_eq!(stack["complete"], true, "{interpreter:?} {stack:#}");
            let stack = stack["frames"].as_array().unwrap();
            let is_python = |frame: &&Value| frame["runtime"] == "cpython";
            let python = stack.iter().filter(is_python).map(|frame| {
                let mut frame = frame.clone();
                frame.as_object_mut().unwrap().remove("runtime");
                frame
            });
            assert_eq!(python.collect::<Vec<_>>(), frames, "{interpreter:?}");
            // Nor does generated code that calls one of them have its name once more.
            for native in stack.iter().filter(|frame| !is_python(frame)) {
                let Some(function) = native["function"].as_str() else {
                    continue;
                };
                let is_it = |frame: &Value| frame["qualname"] == function;
                assert!(!frames.iter().any(is_it), "{interpreter:?} {native}");
            }
            // C functions start the thread.
            assert_eq!(
                stack.last().unwrap().get("runtime"),
                None,
                "{interpreter:?}"
            );
            let position = |name| stack.iter().position(|frame| frame["function"] == name);
            if let (Some(wait), Some(pay)) = (position("wait"), position("pay")) {
                // sorted() calls a function, and is called by one.
                let between = stack[wait..pay]
                    .iter()
                    .map(|frame| frame.get("runtime").is_some());
                let between: Vec<bool> = between.collect();
                // The function that waits, and its caller.
                let python = between.iter().filter(|is_python| **is_python).count();
                assert_eq!(
                    (python, between.last()),
                    (2, Some(&false)),
                    "{interpreter:?}"
                );
            }
        }
    }
}

/// Native frames and those of Python are of one moment, or they are not in one stack.
#[test]
fn stacks_of_a_thread_that_wakes_often_are_not_mixed_from_two() {
    for interpreter in Interpreter::with_version("3.11") {
        let target = interpreter.start("woken.py");
        let pid = target.pid().to_string();
        let mut whole = 0;
        for round in 0..30 {
            let arguments = ["--stacks", "--json", "--deadline", "60", &pid];
            let answer = match round % 3 {
                2 => no_stop(&arguments),
                _ => Some(otelctx(&[&["dump"], &arguments[..]].concat())),
            };
            let Some(answer) = answer else {
                continue;
            };
            let answer = answer.json();
            let thread = &answer["threads"][0];
            let stack = &thread["stack"];
            if stack["complete"] != true {
                continue;
            }
            let frames = stack["frames"].as_array().unwrap();
            let is_python = |frame: &&Value| frame["runtime"] == "cpython";
            let python = frames.iter().filter(is_python).count();
            if stack["native_only"] == true {
                assert_eq!((python, round % 3), (0, 2), "{stack:#}");
                continue;
            }
            // With --no-stop, the runtime may not be read.
            let Some(expected) = thread["cpython"]["frames"].as_array() else {
                continue;
            };
            assert_eq!(python, expected.len(), "{stack:#}");
            assert_eq!(frames.last().unwrap().get("runtime"), None, "{stack:#}");
            // One has just begun, or ends.
            let is_call = |frame: &&Value| frame["function"] == "_PyEval_EvalFrameDefault";
            assert!(frames.iter().filter(is_call).count() <= 1, "{stack:#}");
            whole += 1;
        }
        assert!(whole >= 10, "{interpreter:?}: {whole}");
    }
}

/// A sample of `locked.py`, by the recording.
#[derive(Debug)]
struct LockedSample {
    /// `gil.state`; empty if there is none.
    gil: String,
    /// The functions, innermost first, each with its file.
    stack: Vec<(String, String)>,
}

/// The samples in a recorded file.
fn locked_samples(path: &str) -> Vec<LockedSample> {
    let data = otlp::read(path);
    let dictionary = data.dictionary.as_ref().unwrap();
    let text = |index: i32| &dictionary.string_table[index as usize][..];
    let gil = |sample: &Sample| {
        let attributes = sample.attribute_indices.iter();
        let mut attributes = attributes.map(|it| &dictionary.attribute_table[*it as usize]);
        let state = attributes.find(|it| text(it.key_strindex) == "gil.state")?;
        match state.value.clone()?.value? {
            AnyValue::StringValue(text) => Some(text),
            other => panic!("{other:?}"),
        }
    };
    // Inlined functions come first.
    let functions = |index: &i32| {
        let location = &dictionary.location_table[*index as usize];
        let mapping = &dictionary.mapping_table[location.mapping_index as usize];
        let file = text(mapping.filename_strindex).to_owned();
        let name = |line: &Line| {
            let function = &dictionary.function_table[line.function_index as usize];
            text(function.name_strindex).to_owned()
        };
        let mut names: Vec<String> = location.lines.iter().map(name).collect();
        names.resize(names.len().max(1), String::new());
        names.into_iter().map(move |name| (name, file.clone()))
    };
    let scopes = data
        .resource_profiles
        .iter()
        .flat_map(|it| &it.scope_profiles);
    let samples = scopes
        .flat_map(|it| &it.profiles)
        .flat_map(|it| &it.samples);
    let samples = samples.flat_map(|sample| {
        let stack = &dictionary.stack_table[sample.stack_index as usize];
        let stack: Vec<_> = stack.location_indices.iter().flat_map(functions).collect();
        sample
            .timestamps_unix_nano
            .iter()
            .map(move |_| LockedSample {
                gil: gil(sample).unwrap_or_default(),
                stack: stack.clone(),
            })
    });
    samples.collect()
}

const WAITING_FRAME: &str = "[waiting for the GIL]";

/// The samples of a program, and the summary of the recording.
fn record_locked(interpreter: &Interpreter, further: &[&str]) -> (Vec<LockedSample>, Value) {
    let mut command = interpreter.command("locked.py");
    // Free-threaded builds have one then.
    let target = Target::spawn(command.env("PYTHON_GIL", "1"));
    let scratch = Scratch::new("gil");
    let (pid, path) = (target.pid().to_string(), scratch.path("a.otlp"));
    let mut arguments = vec!["record", "-p", &pid, "-o", &path, "--json", "-F", "999"];
    arguments.extend(further);
    given_time(|seconds| {
        let answer = otelctx(&[&arguments[..], &["-d", seconds]].concat());
        let samples = locked_samples(&path);
        let states = ["held", "waiting", "released"];
        let count = |state: &&str| samples.iter().filter(|it| it.gil == *state).count();
        match states.iter().map(count).min() {
            Some(5..) => Ok((samples, answer.json())),
            _ => Err(states.map(|it| count(&it))),
        }
    })
}

#[test]
fn samples_say_who_holds_the_gil_and_who_waits_for_it() {
    // Those of 3.11 to 3.15 that Debian builds have no symbols but the exported ones.
    let versions = ["3.12", "3.8", "3.11", "3.13t", "3.14", "3.15"];
    let by_ebpf = versions.into_iter().map(|version| (version, &[][..]));
    for (version, further) in by_ebpf.chain([("3.12", &["--ptrace"][..])]) {
        let Some(interpreter) = Interpreter::with_version(version).into_iter().next() else {
            continue;
        };
        let (samples, summary) = record_locked(&interpreter, further);
        let count = |state: &str| samples.iter().filter(|it| it.gil == state).count();
        let expected = json!({"held": count("held"), "waiting": count("waiting"),
            "released": count("released"), "none": count("")});
        assert_eq!(summary["gil"], expected);
        // Every thread is one of Python.
        assert_eq!(
            count(""),
            summary["counts"]["incomplete_steps"],
            "{summary:#}"
        );
        let mut wrong = Vec::new();
        for sample in &samples {
            let is_waiting = sample.gil == "waiting";
            let waiting = sample
                .stack
                .iter()
                .position(|(name, _)| name == WAITING_FRAME);
            assert_eq!(waiting.is_some(), is_waiting, "{interpreter:?}: {sample:?}");
            // By symbols, where there are some: what takes the GIL or passes it on, and what that calls. The
            // program has no other condition variables.
            let uses = ["take_gil", "drop_gil", "pthread_cond_timedwait"];
            let is_one = |(name, _): &(String, String)| uses.iter().any(|it| name.contains(it));
            if sample.stack.iter().any(is_one) {
                assert_ne!(sample.gil, "released", "{interpreter:?}: {sample:?}");
            }
            let (innermost, file) = &sample.stack[0];
            if sample.stack.iter().any(|(name, _)| name == "deflate") {
                assert_eq!(sample.gil, "released", "{interpreter:?}: {sample:?}");
            }
            let mut python = sample.stack.iter().filter(|(_, file)| file.is_empty());
            let is_pure = python.any(|(name, _)| name == "spin");
            let is_right = match innermost.as_str() {
                "spin" => sample.gil == "held",
                _ if file.contains("libcrypto") => sample.gil == "released",
                // It executes Python code alone.
                _ => !is_pure || sample.gil != "released",
            };
            if !is_right {
                wrong.push(sample);
            }
        }
        // The GIL may be passed on between two instructions of what is sampled, and libcrypto has functions that
        // are called with it. With ptrace, such moments are sampled more often, and the first stacks are cut.
        let all = samples.len();
        let is_exact = summary["method"] == "ebpf";
        assert!(
            !is_exact || wrong.len() <= 4 + all / 200,
            "{interpreter:?} {all} {wrong:#?}"
        );
    }
}

/// Returns what a report shows about the GIL.
fn reported(path: &str) -> (Value, String) {
    let report = otelctx(&["report", "--json", path]).expect(0).json();
    let text = otelctx(&["report", path]).expect(0).stdout;
    let mut lines = text.lines().filter(|line| line.starts_with("GIL: "));
    let line = lines.next().unwrap_or_default().to_owned();
    (report["gil"].clone(), line)
}

#[test]
fn a_report_and_files_by_state_have_what_a_recording_shows_of_the_gil() {
    let Some(interpreter) = Interpreter::with_version("3.12").into_iter().next() else {
        return;
    };
    let target = interpreter.start("locked.py");
    let scratch = Scratch::new("gil-states");
    let (pid, path) = (target.pid().to_string(), scratch.path("a.otlp"));
    let folded = scratch.path("a.folded");
    let arguments = [
        "record",
        "-p",
        &pid,
        "--no-symbols",
        "--by",
        "gil.state",
        "-o",
        &path,
        "-o",
        &folded,
    ];
    let text = given_time(|seconds| {
        let answer = otelctx(&[&arguments[..], &["-d", seconds]].concat());
        let (gil, line) = reported(&path);
        let states = ["held", "waiting", "released"];
        let counts = states.map(|it| gil[it].as_u64().unwrap());
        if counts.contains(&0) {
            return Err(gil);
        }
        let all = counts.iter().sum::<u64>() as f64;
        let share = |number: u64| format!("{:.1} %", 100.0 * number as f64 / all);
        let [held, waiting, released] = counts.map(share);
        assert!(
            line.starts_with(&format!("GIL: held in {held} of ")),
            "{line}"
        );
        let end = format!(", waited for in {waiting}, released in {released}");
        assert!(line.ends_with(&end), "{line}");
        assert!(
            answer.stdout.contains(&format!("\n  {line}\n")),
            "{answer:?} {line}"
        );
        let text = fs::read_to_string(&folded).unwrap();
        for (state, expected) in states.into_iter().zip(counts) {
            let lines = text
                .lines()
                .filter(|line| line.starts_with(&format!("{state};")));
            let numbers =
                lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
            assert_eq!(numbers.sum::<u64>(), expected, "{state}");
        }
        Ok(text)
    });
    for line in text.lines() {
        let waits = line.contains(&format!(";{WAITING_FRAME};"));
        assert_eq!(waits, line.starts_with("waiting;"), "{line}");
    }
}

#[test]
fn a_recording_of_what_holds_the_gil_accounts_for_the_rest() {
    let Some(interpreter) = Interpreter::with_version("3.12").into_iter().next() else {
        return;
    };
    let target = interpreter.start("locked.py");
    let scratch = Scratch::new("gil-held");
    let (pid, path) = (target.pid().to_string(), scratch.path("a.otlp"));
    let arguments = ["record", "-p", &pid, "--no-symbols", "--gil", "-o", &path];
    given_time(|seconds| {
        let summary = otelctx(&[&arguments[..], &["--json", "-d", seconds]].concat()).json();
        let counts = ["held", "waiting", "released", "none"];
        let counts = counts.map(|it| summary["gil"][it].as_u64().unwrap());
        if counts[0] == 0 || counts[2] == 0 {
            return Err(summary);
        }
        assert_eq!(summary["samples"], counts[0]);
        let all = &summary["counts"];
        let taken = ["attached", "detached", "not_published", "invalid"].map(|it| &all[it]);
        let unreadable = all["unreadable"].as_object().unwrap().values();
        let taken = taken.into_iter().chain(unreadable);
        let taken = taken.map(|it| it.as_u64().unwrap()).sum::<u64>();
        assert_eq!(counts.into_iter().sum::<u64>(), taken, "{summary:#}");
        let expected = json!({"held": counts[0], "waiting": 0, "released": 0, "none": 0});
        assert_eq!(reported(&path).0, expected);
        Ok(())
    });
    given_time(|seconds| {
        let answer = otelctx(&[&arguments[..], &["-d", seconds]].concat()).expect(0);
        let is_there = answer.stdout.contains("\n  dropped by --gil: ");
        is_there.then_some(()).ok_or(answer)
    });
}

#[test]
fn top_shows_which_threads_have_the_gil() {
    let Some(interpreter) = Interpreter::with_version("3.12").into_iter().next() else {
        return;
    };
    let target = interpreter.start("locked.py");
    let pid = target.pid().to_string();
    let top = ["top", "-p", &pid, "--iterations", "1", "--by", "gil.state"];
    given_time(|seconds| {
        let by_state = ["--json", "--group", "attribute", "-i", seconds];
        let picture = otelctx(&[&top[..], &by_state].concat()).expect(0).json();
        let mut by_row = json!({"held": 0, "waiting": 0, "released": 0, "none": 0});
        for row in picture["rows"].as_array().unwrap() {
            let state = row["name"].as_str().unwrap_or("none");
            by_row[state] = row["samples"].clone();
        }
        if by_row["held"] == 0 || by_row["released"] == 0 {
            return Err(picture);
        }
        assert_eq!(picture["gil"], by_row, "{picture:#}");
        Ok(())
    });
    // Threads by what they mostly do.
    given_time(|seconds| {
        let table = otelctx(&[&top[..], &["-i", seconds]].concat())
            .expect(0)
            .stdout;
        let has = |word: &str| table.split_whitespace().any(|it| it == word);
        let is_shown = has("gil.state") && has("held") && has("released");
        is_shown.then_some(()).ok_or(table)
    });
}

#[test]
fn a_recording_of_what_holds_the_gil_says_if_there_is_no_interpreter() {
    let target = crate::target::Target::start("busy");
    check_without_gil(target.pid());
    for interpreter in Interpreter::with_version("3.13t") {
        check_without_gil(interpreter.start("parallel.py").pid());
    }
}

fn check_without_gil(pid: i32) {
    let scratch = Scratch::new("gil-none");
    let path = scratch.path("a.otlp");
    let pid = pid.to_string();
    let answer = given_time(|seconds| {
        let arguments = ["record", "-p", &pid, "--gil", "-o", &path, "-d", seconds];
        let answer = otelctx(&arguments).expect(0);
        match answer.stderr.contains("no samples: ") {
            true => Err(answer),
            false => Ok(answer),
        }
    });
    let message = "was kept: no sampled thread is one of an interpreter with a GIL\n";
    assert!(answer.stderr.contains(message), "{answer:?}");
    assert!(
        answer.stderr.contains(" dump PID` shows whether"),
        "{answer:?}"
    );
    assert!(
        answer.stdout.starts_with("0 samples of 0 processes"),
        "{answer:?}"
    );
    assert!(
        answer.stdout.contains("\n  dropped by --gil: "),
        "{answer:?}"
    );
}

/// The samples would look like those of a program that runs no Python.
#[test]
fn an_unknown_version_is_the_reason_that_record_and_top_give() {
    const RECORD: &str = "without the part of cpython: version 4.0.0 is not supported";
    const TOP: &str = " % of samples without a runtime's part (most since the start: cpython: version 4.0.0 is not supported";
    let sources = ["threads.c", "variable.c", "publish.c", "unknown_python.c"];
    let flags = ["-DLINKED", "-rdynamic", "-DVERSION=0x040000f0"];
    let Some(built) = Compiler::gcc().program(&sources, &flags) else {
        return;
    };
    let scratch = Scratch::new("python-unknown");
    let program = scratch.path("python4.0");
    copy_program(&built, &program);
    let target = Target::spawn(Command::new(&program).arg("busy"));
    let (pid, path) = (target.pid().to_string(), scratch.path("a.otlp"));
    for method in [None, Some("--ptrace")] {
        // On a busy machine, a short recording may have no sample.
        given_time(|seconds| {
            let mut arguments = vec!["record", "-p", &pid, "-d", seconds, "-o", &path];
            arguments.extend(method);
            let run = otelctx(&arguments);
            if run.stdout.contains(RECORD) {
                Ok(())
            } else {
                Err(run)
            }
        });
        let mut arguments = vec!["top", "--iterations", "1", "-p", &pid];
        arguments.extend(method);
        let run = otelctx(&arguments);
        assert!(run.stdout.contains(TOP), "{method:?}: {run:?}");
    }
}
