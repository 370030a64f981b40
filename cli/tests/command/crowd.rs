//! `otelctx dump`, `check` and `ps --threads` where there are very many threads, or ones that take time.

use std::collections::BTreeSet;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use otelctx_fixtures::{Compiler, RaisedLimits, Target as ProgramTarget};
use serde_json::Value;

use crate::run::{Answer, command, otelctx, temporary, under_strace};
use crate::target::{STUCK, TRACE, Target, wait_until_asleep};

/// A process with this many threads beside its first, each with a record attached.
fn crowd(count: u64) -> Target {
    Target::start_with("crowd", |command| {
        command.arg(count.to_string());
    })
}

/// Runs a command, and returns what it answered and the most memory that it had, with its child, in
/// KiB: as it was whenever a part of the answer was read, and every few milliseconds.
fn run_measured(mut command: Command) -> (Answer, u64) {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let id = child.id();
    let mut stdout = child.stdout.take().unwrap();
    let (most, has_ended) = (AtomicU64::new(0), AtomicBool::new(false));
    let measure = || {
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        let children = children.unwrap_or_default();
        let children = children.split_whitespace().map(|it| it.parse().unwrap());
        most.fetch_max(children.chain([id]).map(peak_of).sum(), Relaxed);
    };
    let mut written = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !has_ended.load(Relaxed) {
                measure();
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let mut chunk = vec![0; 16 << 10];
        loop {
            let size = stdout.read(&mut chunk).unwrap();
            if size == 0 {
                break;
            }
            written.extend_from_slice(&chunk[..size]);
            measure();
        }
        has_ended.store(true, Relaxed);
    });
    let most = most.into_inner();
    assert!(most > 0, "it ended before it could be measured");
    let mut output = child.wait_with_output().unwrap();
    output.stdout = written;
    (Answer::of(output), most)
}

/// The most memory that a process has had, in KiB; 0 once it has ended.
fn peak_of(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.and_then(|peak| peak.trim().strip_suffix(" kB"));
    kib.map_or(0, |kib| kib.trim().parse().unwrap())
}

fn dump(target: &Target, more: &[&str]) -> Command {
    let pid = target.pid().to_string();
    let mut arguments = vec!["dump", &pid];
    arguments.extend(more);
    command(&arguments)
}

/// The numbers of the crowd's threads in an answer. Each occurs once and has the right trace.
fn members(answer: &Value) -> BTreeSet<u64> {
    let mut members = BTreeSet::new();
    let mut threads = &answer["threads"].as_array().unwrap()[..];
    // On a busy machine the last one may not stop in the time that is left.
    if let (false, [first @ .., last]) = (answer["partial"].is_null(), threads)
        && last["context"]["error"].is_string()
    {
        let error = last["context"]["error"].as_str().unwrap();
        assert!(
            error.contains("did not stop within ") || error.contains("the deadline left no time")
        );
        threads = first;
    }
    for thread in threads {
        let context = &thread["context"];
        assert_eq!(context.get("error"), None, "{thread}");
        // The program's first thread has none, nor has one that was just created.
        if !context.is_null() {
            assert_eq!(context["trace_id"], TRACE);
            let span = context["span_id"].as_str().unwrap();
            let number = u64::from_str_radix(span, 16).unwrap();
            assert!(members.insert(number), "{number} twice");
        }
    }
    members
}

#[test]
fn a_thousand_threads_take_little_memory() {
    let target = crowd(1000);
    let (answer, most) = run_measured(dump(&target, &["--json", "--deadline", "60"]));
    let answer = answer.expect(0).json();
    assert_eq!(members(&answer), (1..=1000).collect());
    assert!(most <= 40 << 10, "{most} KiB");
    println!("1,000 threads: {most} KiB");
}

#[test]
fn a_dump_ends_at_its_deadline_and_says_how_far_it_came() {
    let count = 30_000;
    let Some(_limits) = RaisedLimits::for_threads(count) else {
        return;
    };
    let target = crowd(count);
    for json in [true, false] {
        let (answer, most) = reaching_threads(|| {
            let run = run_measured(dump(&target, if json { &["--json"] } else { &[] }));
            (run.0.status != 2).then_some(run)
        });
        println!("30,000 threads: {most} KiB, {}", answer.stderr.trim());
        assert!(most <= 64 << 10, "{most} KiB");
        // A fast machine reads all in time.
        let status = answer.status;
        if json {
            let value = answer.json();
            let read = members(&value);
            assert!(read.iter().all(|number| (1..=count).contains(number)));
            let threads = value["threads"].as_array().unwrap().len();
            match status {
                0 => assert_eq!(read.len() as u64, count),
                _ => assert_partial(&value["partial"], threads, &answer),
            }
        } else if status != 0 {
            let line = answer
                .stdout
                .lines()
                .find(|it| it.starts_with("  partial "));
            assert!(line.unwrap().contains(" of 30,001 threads: "));
        }
    }
    let late = |text: &str| text.ends_with(" of 30,001 threads: the deadline of 2 s has passed");
    let answer = check(&target, &[]);
    match text_of(&answer, "partial") {
        Some(text) => assert!(late(&text), "{text}"),
        None => assert!(
            text_of(&answer, "threads")
                .unwrap()
                .contains(" 30,001 threads")
        ),
    }
    let (row, _) = counted(&target, &[]);
    match row["partial"]["text"].as_str() {
        Some(text) => assert!(late(text), "{text}"),
        None => assert_eq!(row["threads_with_trace"], count),
    }
    assert_none_is_stopped(&target);
}

/// Runs a command on a target that sometimes cannot be read, if the machine is so busy that
/// the deadline comes before its threads are reached.
fn reaching_threads<T>(mut run: impl FnMut() -> Option<T>) -> T {
    (0..20).find_map(|_| run()).expect("threads are reached")
}

/// Returns the answer of `check` about a target.
fn check(target: &Target, more: &[&str]) -> Value {
    let pid = target.pid().to_string();
    reaching_threads(|| {
        let mut command = command(&[&["check", "--json", &pid], more].concat());
        let answer = Answer::of(command.output().unwrap());
        let is_late = answer.status == 2 && answer.stderr.contains("the deadline left no time");
        (!is_late).then(|| answer.json())
    })
}

/// The text of a finding, if there is one.
fn text_of(answer: &Value, id: &str) -> Option<String> {
    let findings = answer["findings"].as_array().unwrap();
    let finding = findings.iter().find(|it| it["id"] == id)?;
    Some(finding["text"].as_str().unwrap().to_owned())
}

/// The row of a target in the list of `ps --threads`, and what that says on standard error.
fn counted(target: &Target, more: &[&str]) -> (Value, String) {
    reaching_threads(|| {
        let answer = otelctx(&[&["ps", "--json", "--threads"], more].concat()).expect(0);
        let listing = answer.json();
        let mut rows = listing["processes"].as_array().unwrap().iter();
        let row = rows.find(|row| row["pid"] == target.pid())?;
        row["unreadable"]
            .is_null()
            .then(|| (row.clone(), answer.stderr))
    })
}

/// Each thread takes half a second, and all of them longer than 2 s: that is the deadline where none
/// is given. A machine that is too busy to find out whether libraries went says the same of `dump`.
#[test]
fn without_a_deadline_of_their_own_commands_end_after_2_s() {
    let target = Target::start("all_stuck");
    let answer = reaching_threads(|| {
        let answer = Answer::of(dump(&target, &["--json"]).output().unwrap());
        (answer.status != 2).then_some(answer)
    });
    let partial = &answer.expect(1).json()["partial"];
    let text = partial["text"].as_str().unwrap();
    assert!(partial["read"].as_u64().unwrap() < STUCK as u64, "{text}");
    let late = "the deadline of 2 s has passed";
    assert!(
        text.ends_with(late) || text.contains("and the deadline of 2 s"),
        "{text}"
    );

    let all = partial["of"].as_u64().unwrap();
    let answer = check(&target, &[]);
    let text = text_of(&answer, "partial").unwrap();
    assert!(
        text.ends_with(&format!(" of {all} threads: {late}")),
        "{text}"
    );
    let (row, said) = counted(&target, &[]);
    let text = row["partial"]["text"].as_str().unwrap();
    assert!(
        text.ends_with(&format!(" of {all} threads: {late}")),
        "{text}"
    );
    let expected = format!(
        "process {}: {text}\n  raise the limit with --deadline SECONDS",
        target.pid()
    );
    assert!(said.contains(&expected), "{said}");
    assert_none_is_stopped(&target);
}

/// A thread that can't be stopped takes all the time that there is; those behind it are not read.
#[test]
fn a_deadline_also_ends_the_wait_for_a_thread() {
    let target = Target::start("stuck");
    let stat = format!(
        "/proc/{0}/task/{1}/stat",
        target.pid(),
        target.number("stuck")
    );
    while !std::fs::read_to_string(&stat).unwrap().contains(") D ") {
        std::thread::sleep(Duration::from_millis(1));
    }
    // On a busy machine the time may be over before it comes to that thread.
    let dump_shortly = |more: &[&str]| {
        let mut command = dump(&target, &[&["--deadline", "0.2"], more].concat());
        Answer::of(command.output().unwrap())
    };
    let answer = reaching_threads(|| {
        let answer = dump_shortly(&["--json"]);
        (answer.status != 2 && answer.json()["partial"]["read"] != 1).then_some(answer)
    });
    let answer = answer.expect(1);
    let value = answer.json();
    let threads = value["threads"].as_array().unwrap();
    assert_partial(&value["partial"], threads.len(), &answer);
    assert_eq!(value["partial"]["of"], 5);
    // On a machine that is too busy to find out whether libraries went, what was read does not count.
    if !threads.is_empty() {
        let sentence = "2 of 5 threads: the deadline of 0.2 s has passed";
        assert_eq!(value["partial"]["text"], sentence);
        assert_eq!(threads[1]["tid"], target.number("stuck"));
        let error = threads[1]["context"]["error"].as_str().unwrap();
        assert!(error.contains("did not stop within "), "{error}");
    }
    let answer = reaching_threads(|| {
        let answer = dump_shortly(&[]);
        (answer.status != 2).then_some(answer)
    });
    let line = answer
        .stdout
        .lines()
        .find(|it| it.starts_with("  partial   "));
    assert!(line.unwrap().contains(" of 5 threads: "), "{answer:?}");
    // With more time the others are reached.
    let answer = Answer::of(
        dump(&target, &["--json", "--deadline", "60"])
            .output()
            .unwrap(),
    );
    let value = answer.expect(1).json();
    let threads = value["threads"].as_array().unwrap();
    let spans = threads
        .iter()
        .filter(|it| it["context"]["span_id"].is_string());
    assert_eq!(
        (value.get("partial"), threads.len(), spans.count()),
        (None, 5, 3)
    );
    assert_none_is_stopped(&target);
}

/// Compares with the kernel: which threads the command traces.
#[test]
fn threads_that_sleep_are_not_stopped() {
    let target = crowd(1000);
    let file = temporary("stops");
    let dump = dump(&target, &["--json", "--deadline", "60"]);
    let Some(mut strace) = under_strace(&dump, "trace=ptrace", &file) else {
        return;
    };
    let answer = Answer::of(strace.output().unwrap()).expect(0).json();
    let calls = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(!calls.contains("ptrace("), "{calls}");
    assert_eq!(answer["threads_stopped"], 0);
    assert_eq!(members(&answer), (1..=1000).collect());
}

/// A publisher that detaches by the record's `valid` field, in all threads but one.
#[test]
fn records_that_stay_invalid_are_detached() {
    let sources = ["idle.c", "variable.c", "publish.c"];
    let Some(program) = Compiler::gcc().program(&sources, &["-rdynamic"]) else {
        return;
    };
    for (kind, stopped) in [("sleeping", 0), ("spinning", 1)] {
        let mut command = Command::new(&program);
        let target = ProgramTarget::spawn(command.args(["workers=232", "invalid", kind]));
        let sleepers = target.lines.iter().filter(|it| it.starts_with("sleeper "));
        let ids: Vec<u64> = sleepers.map(|it| it[8..].parse().unwrap()).collect();
        wait_until_asleep(target.pid(), stopped);
        let pid = target.pid().to_string();
        let file = temporary("invalid");
        let dump = crate::run::command(&["dump", &pid, "--json"]);
        let Some(mut strace) = under_strace(&dump, "trace=ptrace", &file) else {
            return;
        };
        let answer = Answer::of(strace.output().unwrap()).expect(0).json();
        let calls = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert_eq!(calls.matches("PTRACE_SEIZE").count(), stopped, "{calls}");
        assert_eq!(answer["threads_stopped"], stopped);
        let threads = answer["threads"].as_array().unwrap();
        assert_eq!(threads.len(), 233);
        for thread in threads {
            assert_eq!(thread.get("invalid"), None, "{thread}");
            let is_last = thread["tid"] == ids[231];
            assert_eq!(thread["context"].is_object(), is_last, "{thread}");
            assert!(is_last || thread["context"].is_null(), "{thread}");
        }
        let checked = otelctx(&["check", &pid, "--json"]).json();
        let text = text_of(&checked, "threads").unwrap();
        assert!(
            text.ends_with("contexts of its 233 threads; 1 attached now"),
            "{text}"
        );
        let text = crate::run::command(&["dump", &pid]).output().unwrap();
        let text = Answer::of(text).expect(0).stdout;
        let line = match stopped {
            0 => "  read      233 threads, none stopped\n",
            _ => "  read      233 threads, 1 stopped (it was running)\n",
        };
        assert!(text.contains(line), "{text}");
    }
}

/// The list of its threads need not have an end.
#[test]
fn a_process_that_creates_threads_forever_is_dumped() {
    let target = Target::start("restless");
    let answer = Answer::of(dump(&target, &["--json"]).output().unwrap());
    let value = answer.json();
    // The first to stay comes early in the list. A machine that is too busy to find out whether
    // libraries went says that nothing counts.
    if value["partial"]["read"] != 0 {
        assert_eq!(value["thread_context"]["symbol"], "otel_thread_ctx_v1");
        assert!(!members(&value).is_empty(), "{value:#}");
    }
    assert_eq!(
        answer.status,
        i32::from(!value["partial"].is_null()),
        "{value:#}"
    );
    assert_none_is_stopped(&target);
}

#[test]
fn a_process_that_creates_threads_forever_is_checked_and_counted() {
    let target = Target::start("restless");
    let deadline = ["--deadline", "0.5"];
    let answer = check(&target, &deadline);
    let reported = ["threads", "partial"].map(|id| text_of(&answer, id));
    assert!(reported.iter().any(Option::is_some), "{answer:#}");
    let (row, _) = counted(&target, &deadline);
    assert!(row["threads_with_trace"].is_u64(), "{row:#}");
    assert_none_is_stopped(&target);
}

/// Threads were skipped, which is reported everywhere.
fn assert_partial(partial: &Value, threads: usize, answer: &Answer) {
    assert_eq!(answer.status, 1);
    assert_eq!(partial["read"], threads, "{partial}");
    assert!(
        partial["of"].as_u64().unwrap() > threads as u64,
        "{partial}"
    );
    let text = partial["text"].as_str().unwrap();
    let grouped = |number: usize| {
        let text = number.to_string();
        match text.len() {
            ..=3 => text,
            length => format!("{},{}", &text[..length - 3], &text[length - 3..]),
        }
    };
    let of = partial["of"].as_u64().unwrap() as usize;
    let head = format!("{} of {} threads: ", grouped(threads), grouped(of));
    assert!(text.starts_with(&head), "{text}");
    assert!(answer.stderr.contains(text), "{}", answer.stderr);
    assert!(
        answer.stderr.contains("--deadline SECONDS"),
        "{}",
        answer.stderr
    );
}

/// No thread is stopped. Another test may count the threads of all processes and stop each for a
/// moment: only a stop that stays is one.
fn assert_none_is_stopped(target: &Target) {
    let tasks = format!("/proc/{}/task", target.pid());
    let stopped = || {
        let tasks = std::fs::read_dir(&tasks);
        let tasks = tasks.unwrap_or_else(|error| panic!("the target has ended: {error}"));
        tasks.flatten().find_map(|task| {
            // A thread that has ended meanwhile is not stopped.
            let stat = std::fs::read_to_string(task.path().join("stat")).ok()?;
            let state = stat.rsplit(") ").next()?;
            state.starts_with(['t', 'T']).then_some(stat)
        })
    };
    let deadline = Instant::now() + otelctx_fixtures::HANG_TIMEOUT;
    while let Some(stat) = stopped() {
        assert!(Instant::now() < deadline, "{stat}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
