//! Faults injected by strace into each system call of `dump`, one at a time: the answer is right, or
//! says what is missing, and nothing stays stopped.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use otelctx_fixtures::{Compiler, Target, tier};
use serde_json::{Value, json};

use crate::run::{Answer, command};

/// Errors that each call is made to fail with.
const ERRORS: [&str; 5] = ["EINTR", "EPERM", "ESRCH", "EIO", "ENOMEM"];
/// Calls of the C library's and Rust's own making, for memory, hashing and to start: they end a
/// program that is refused them.
const RUNTIME: [&str; 10] = [
    "brk",
    "futex",
    "getrandom",
    "mmap",
    "mprotect",
    "munmap",
    "poll",
    "rseq",
    "rt_sigaction",
    "sigaltstack",
];
/// The message when that happens to the worker process.
const CHILD_ENDED: &str = "otelctx: the worker process ended unexpectedly\n";
/// Calls that do not fail, or whose failure is not reported.
const NEVER_FAIL: [&str; 8] = [
    "exit",
    "exit_group",
    "execve",
    "getpid",
    "getppid",
    "rt_sigreturn",
    "restart_syscall",
    "sched_yield",
];
/// Runs of one test; [`every_fault`] has all that there are.
fn some() -> usize {
    tier::usual_or_all(60, 250)
}
/// A command that does not end within this time, to which the time that a machine is paused does not count, hangs.
const TIMEOUT: Duration = otelctx_fixtures::HANG_TIMEOUT;

/// Long enough for a busy machine, in seconds.
const DEADLINE: &str = "30";

/// A target of threads.c, and the answer that a reader has to give of it.
struct Subject {
    target: Target,
    truth: Value,
    preload: PathBuf,
}

/// The way in which the target reaches its variable.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// The variable is in the program, at a fixed distance from the thread pointer.
    Static,
    /// It is in a library that was loaded late, in blocks that threads allocate.
    Dynamic,
}

impl Subject {
    fn start(kind: Kind) -> Option<Self> {
        let strace = Command::new("strace").arg("-V").output();
        if strace.is_err() {
            eprintln!("skipped: strace is not installed");
            return None;
        }
        let gcc = Compiler::gcc();
        let preload = gcc.library(&["preload.c"], &["-ldl"])?;
        let mut target = match kind {
            Kind::Static => {
                let sources = ["threads.c", "variable.c", "publish.c"];
                Command::new(gcc.program(&sources, &["-DLINKED", "-rdynamic"])?)
            }
            Kind::Dynamic => {
                let mut target = Command::new(gcc.program(&["threads.c", "publish.c"], &["-ldl"])?);
                let library = gcc.library(&["variable.c"], &["-mtls-dialect=gnu2"])?;
                target.arg(format!("lib={}", library.display()));
                target.env("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=0");
                target
            }
        };
        let target = Target::spawn(&mut target);
        let answer = Answer::of(
            command(&[
                "dump",
                "--json",
                "--deadline",
                DEADLINE,
                &target.pid().to_string(),
            ])
            .output()
            .unwrap(),
        );
        let truth = without_stops(answer.expect(0).json());
        check_truth(&truth, &target, kind);
        Some(Self {
            target,
            truth,
            preload,
        })
    }

    /// `dump --json` with the preloaded library, configured like this.
    fn dump(&self, option: &str, value: &str) -> Child {
        let pid = self.target.pid().to_string();
        let mut dump = command(&["dump", "--json", "--deadline", DEADLINE, &pid]);
        dump.env("LD_PRELOAD", &self.preload).env(option, value);
        dump.stdout(Stdio::piped()).stderr(Stdio::piped());
        dump.spawn().unwrap()
    }

    /// Runs `dump --json` under strace, from its `main` on; returns its answer and the trace.
    fn traced(&self, inject: Option<&str>) -> (Answer, String) {
        let dump = self.dump("PRELOAD_STOP", "1");
        let pid = dump.id();
        wait_until("the stop before main", || {
            field(pid, "State:").starts_with('T')
        });
        // A busy disk can keep a file from being truncated for minutes.
        let mut trace = File::from(memfd_create(c"trace", MFdFlags::MFD_CLOEXEC).unwrap());
        let mut strace = Command::new("strace");
        strace
            .args(["-f", "-qqq", "-p", &pid.to_string(), "-o", "/dev/stdout"])
            .stdout(trace.try_clone().unwrap());
        strace.args(inject.map(|it| format!("--inject={it}")));
        let mut tracer = strace.spawn().unwrap();
        wait_until("strace", || {
            // Another test's recorder may trace the process just then: strace gives up.
            if tracer.try_wait().unwrap().is_some() {
                tracer = strace.spawn().unwrap();
            }
            field(pid, "TracerPid:") == tracer.id().to_string()
        });
        kill(Pid::from_raw(pid as i32), Signal::SIGCONT).unwrap();
        let answer = finish(dump);
        tracer.wait().unwrap();
        let mut text = String::new();
        trace.rewind().unwrap();
        trace.read_to_string(&mut text).unwrap();
        (answer, text)
    }

    /// Returns the maximum number of occurrences of each call in one thread.
    fn occurrences(&self) -> Vec<(String, usize)> {
        let (answer, trace) = self.traced(None);
        assert_eq!(without_stops(answer.expect(0).json()), self.truth);
        let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for line in trace.lines() {
            let Some((thread, call)) = line.split_once(char::is_whitespace) else {
                continue;
            };
            // Not `+++ exited with 0 +++`, nor `<... futex resumed>`.
            let name = call.trim_start().split('(').next().unwrap_or_default();
            if call.contains('(')
                && name
                    .bytes()
                    .all(|it| it.is_ascii_alphanumeric() || it == b'_')
            {
                *counts.entry((name, thread)).or_default() += 1;
            }
        }
        let mut most: BTreeMap<&str, usize> = BTreeMap::new();
        for ((name, _), count) in counts {
            let known = most.entry(name).or_default();
            *known = count.max(*known);
        }
        let injectable = most
            .into_iter()
            .filter(|(name, _)| !NEVER_FAIL.contains(name));
        injectable
            .map(|(name, count)| (name.to_owned(), count))
            .collect()
    }

    /// Lets the `at`th `call` of each thread fail with `error`, and says how it ended, or what is
    /// wrong with that.
    fn inject(&self, call: &str, error: &str, at: usize) -> Result<Ending, String> {
        let what = format!("{call}:error={error}:when={at}");
        let (answer, trace) = self.traced(Some(&what));
        let ending = match answer.status {
            2 if RUNTIME.contains(&call) && answer.stderr.contains(CHILD_ENDED) => {
                Ok(Ending::RuntimeEnded)
            }
            0..=2 if answer.stderr.contains("panicked") => Err("a panic".to_owned()),
            0 | 1 if answer.stdout.is_empty() => Err("no answer".to_owned()),
            0 if without_unreadable(&answer) != self.truth => {
                Err("an answer that is not true".to_owned())
            }
            0 if has_unreadable(&answer) => Ok(Ending::Partial),
            0 if !trace.contains("(INJECTED)") => Ok(Ending::NotReached),
            0 => Ok(Ending::Right),
            1 => self
                .judge(&without_unreadable(&answer))
                .map(|()| Ending::Partial),
            2 if answer.stdout.is_empty() && answer.stderr.starts_with("otelctx: ") => {
                Ok(Ending::Error)
            }
            3.. | ..0 if RUNTIME.contains(&call) => Ok(Ending::RuntimeEnded),
            status => Err(format!("status {status}")),
        };
        self.none_stopped()
            .and(ending)
            .map_err(|why| format!("{what}: {why}: {answer:?}"))
    }

    /// Each part has to be the truth or an error, at least one an error, and no thread missing.
    fn judge(&self, answer: &Value) -> Result<(), String> {
        let threads = |of: &Value| of["threads"].as_array().cloned().unwrap();
        let parts = |of: &Value| {
            let whole = ["pid", "comm", "process_context", "thread_context"];
            let whole = whole.map(|part| of[part].clone());
            let contexts = threads(of).into_iter().map(|it| it["context"].clone());
            whole.into_iter().chain(contexts).collect::<Vec<_>>()
        };
        let tids = |of: &Value| {
            let threads = threads(of).into_iter();
            threads.map(|it| it["tid"].clone()).collect::<Vec<_>>()
        };
        if tids(answer) != tids(&self.truth) {
            return Err("other threads than there are".into());
        }
        let is_error = |part: &Value| part.get("error").is_some_and(Value::is_string);
        for (thread, truth) in threads(answer).iter().zip(threads(&self.truth)) {
            let unnamed = thread["name"].is_null() && is_error(&thread["context"]);
            if thread["name"] != truth["name"] && !unnamed {
                return Err(format!("{thread} is not {truth}"));
            }
        }
        let mut errors = 0;
        for (part, truth) in parts(answer).iter().zip(&parts(&self.truth)) {
            errors += usize::from(is_error(part));
            if part != truth && !is_error(part) {
                return Err(format!("{part} is not {truth}"));
            }
        }
        if errors == 0 {
            return Err("status 1 without an error".into());
        }
        Ok(())
    }

    /// Another test may count the threads of all processes and stop each for a moment: only a stop
    /// that stays is one.
    fn none_stopped(&self) -> Result<(), String> {
        let pid = self.target.pid();
        let stopped = || {
            let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
            let tids = tasks.map(|it| it.unwrap().file_name().to_string_lossy().parse().unwrap());
            tids.map(|tid| (tid, field(tid, "State:"), field(tid, "TracerPid:")))
                .find(|(_, state, tracer)| tracer != "0" || state.starts_with(['t', 'T']))
        };
        let deadline = Instant::now() + TIMEOUT;
        while let Some((tid, state, tracer)) = stopped() {
            if Instant::now() > deadline {
                return Err(format!("thread {tid} is in {state}, traced by {tracer}"));
            }
            sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// The outcome of a run with a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ending {
    /// The whole answer.
    Right,
    /// An answer that says what is missing.
    Partial,
    /// No answer, and the reason.
    Error,
    /// The runtime gave up, see [`RUNTIME`].
    RuntimeEnded,
    /// This run did not come to that call.
    NotReached,
}

/// Waits for the end of the command. If a signal ended it, the status is that signal's number,
/// negative.
fn finish(mut child: Child) -> Answer {
    const PAUSE: Duration = Duration::from_micros(500);
    let mut pauses = 0;
    while child.try_wait().unwrap().is_none() {
        if PAUSE * pauses > TIMEOUT {
            let [state, tracer] = ["State:", "TracerPid:"].map(|it| field(child.id(), it));
            let _ = child.kill();
            let output = child.wait_with_output();
            panic!("the command hangs, in {state}, traced by {tracer}: {output:?}");
        }
        sleep(PAUSE);
        pauses += 1;
    }
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
    Answer {
        status: output.status.code().or(signal.map(|it| -it)).unwrap(),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

/// An answer without the modules that could not be inspected, and without the number of stopped threads:
/// a sleeping thread that cannot be read as it is gets stopped.
fn without_unreadable(answer: &Answer) -> Value {
    without_stops(answer.json())
}

fn without_stops(mut value: Value) -> Value {
    value.as_object_mut().unwrap().remove("threads_stopped");
    if let Some(context) = value["thread_context"].as_object_mut() {
        context.remove("unreadable_modules");
    }
    value
}

/// Returns whether an answer names modules that could not be inspected.
fn has_unreadable(answer: &Answer) -> bool {
    !answer.json()["thread_context"]["unreadable_modules"].is_null()
}

/// A field of a task's status; empty once it is gone.
fn field(task: u32, name: &str) -> String {
    let status = fs::read_to_string(Path::new("/proc").join(task.to_string()).join("status"));
    let status = status.unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_default().trim().to_owned()
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        sleep(Duration::from_micros(200));
    }
}

/// Compares an answer with what the target says of itself.
fn check_truth(answer: &Value, target: &Target, kind: Kind) {
    let storage = match kind {
        Kind::Static => "static",
        Kind::Dynamic => "dynamic",
    };
    assert_eq!(answer["thread_context"]["storage"], storage);
    for thread in answer["threads"].as_array().unwrap() {
        let printed = target.threads.iter().find(|it| thread["tid"] == it.tid);
        let context = printed
            .and_then(|it| Some((it, it.attached.as_ref()?)))
            .map(|(it, attached)| {
                json!({"trace_id": attached.trace_id, "span_id": attached.span_id, "trace_flags": 1,
                   "attributes": {"worker": it.name}})
            });
        assert_eq!(thread["context"], json!(context));
    }
}

/// One run for each of at most `most` faults, spread evenly over all there are.
fn inject(kind: Kind, most: usize) {
    let Some(subject) = Subject::start(kind) else {
        return;
    };
    let occurrences = subject.occurrences();
    let faults: Vec<(&str, &str, usize)> = occurrences
        .iter()
        .flat_map(|(call, count)| (1..=*count).map(move |at| (call.as_str(), at)))
        .flat_map(|(call, at)| ERRORS.map(|error| (call, error, at)))
        .collect();
    assert!(!faults.is_empty(), "strace has shown no calls");
    // No multiple of the number of errors, so that each has its turn.
    let mut stride = faults.len().div_ceil(most);
    stride += usize::from(stride > 1 && stride.is_multiple_of(ERRORS.len()));
    let mut table: BTreeMap<&str, BTreeMap<Ending, usize>> = BTreeMap::new();
    let mut wrong = Vec::new();
    for (call, error, at) in faults.iter().step_by(stride) {
        match subject.inject(call, error, *at) {
            Ok(ending) => *table.entry(call).or_default().entry(ending).or_default() += 1,
            Err(why) => wrong.push(why),
        }
    }
    println!(
        "{kind:?}: {} of {} faults",
        faults.len().div_ceil(stride),
        faults.len()
    );
    for (call, endings) in table {
        println!("{call:20} {endings:?}");
    }
    assert!(wrong.is_empty(), "{} wrong: {wrong:#?}", wrong.len());
}

#[test]
fn a_fault_in_any_system_call_makes_no_wrong_answer() {
    std::thread::scope(|scope| {
        scope.spawn(|| inject(Kind::Static, some()));
        inject(Kind::Dynamic, some());
    });
}

/// Some thousand runs:
/// `cargo test --release -p otelctx-cli --test command every_fault -- --ignored --nocapture`
#[test]
#[ignore = "takes minutes"]
fn every_fault() {
    std::thread::scope(|scope| {
        scope.spawn(|| inject(Kind::Static, usize::MAX));
        inject(Kind::Dynamic, usize::MAX);
    });
}

#[test]
fn reads_that_return_less_than_asked_for_change_nothing() {
    for kind in [Kind::Static, Kind::Dynamic] {
        let Some(subject) = Subject::start(kind) else {
            return;
        };
        // Every read, then one after the other.
        for which in 0..=250 {
            let answer = finish(subject.dump("PRELOAD_SHORT", &which.to_string()));
            let answer = without_stops(answer.expect(0).json());
            assert_eq!(answer, subject.truth, "read {which}");
        }
    }
}
