//! Threads that sleep are read without being stopped: what is read is never torn, and their timeouts
//! pass as if nobody had read them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use otelctx_fixtures::{Compiler, STOP_TIMEOUT, Target, system_calls};
use otelctx_reader::remote::threads::{Protocol, ThreadFiles, ThreadPointers};
use otelctx_reader::remote::{self, FileCache, LiveProcess, Memory, tls};
use otelctx_reader::{Error, Found, Options, Process, Reading, StopReason};

fn start(source: &str, flags: &[&str], arguments: &[&str]) -> Option<Target> {
    let program = compile(&Compiler::gcc(), source, flags)?;
    Some(Target::spawn(Command::new(program).args(arguments)))
}

fn compile(compiler: &Compiler, source: &str, flags: &[&str]) -> Option<PathBuf> {
    let flags = [&["-rdynamic"], flags].concat();
    compiler.program(&[source, "variable.c", "publish.c"], &flags)
}

/// The ids of a program's sleepers, in their order.
fn sleepers(target: &Target) -> Vec<i32> {
    let ids = target.lines.iter().filter_map(|line| {
        let id = line.strip_prefix("sleeper ")?.split(' ').next()?;
        id.parse().ok()
    });
    ids.collect()
}

/// Reads every thread.
fn read(process: &mut Process) -> BTreeMap<i32, Reading> {
    let threads = process.threads().unwrap();
    threads
        .iter()
        .map(|thread| (thread.tid(), thread.read()))
        .collect()
}

/// How often each thread has been put on a CPU, and taken off one.
fn switches(tids: &[i32]) -> Vec<(String, Vec<String>)> {
    let of = |tid: &i32| {
        let file = |name: &str| {
            // Each thread has a directory of its own, too.
            std::fs::read_to_string(format!("/proc/{tid}/{name}")).unwrap()
        };
        let switches = file("status")
            .lines()
            .filter(|line| line.contains("ctxt"))
            .map(String::from)
            .collect();
        (file("schedstat"), switches)
    };
    tids.iter().map(of).collect()
}

/// Waits until each of the threads sleeps.
fn wait_until_asleep(tids: &[i32]) {
    let deadline = Instant::now() + otelctx_fixtures::HANG_TIMEOUT;
    for tid in tids {
        let state = || std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap();
        while !state().contains("\nState:\tS") {
            assert!(Instant::now() < deadline, "thread {tid} does not sleep");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn a_thousand_sleepers_are_not_disturbed() {
    let Some(target) = start("idle.c", &[], &["workers=1000"]) else {
        return;
    };
    let tids = sleepers(&target);
    assert_eq!(tids.len(), 1000);
    wait_until_asleep(&tids);
    let before = switches(&tids);
    let mut process = Process::open(target.pid()).unwrap();
    // The second time with what is known from the first.
    for _ in 0..2 {
        let readings = read(&mut process);
        for tid in &tids {
            let Reading { outcome, stop, .. } = &readings[tid];
            assert_eq!(*stop, None);
            let context = outcome.as_ref().unwrap().attached().unwrap();
            assert_eq!(context.span_id.to_string(), "2222222222222222");
        }
    }
    assert_eq!(switches(&tids), before);
}

/// Every thread of these ids is read, and none notices.
fn assert_undisturbed(pid: i32, tids: &[i32], what: &str) {
    assert!(tids.len() > 1, "{what}");
    wait_until_asleep(tids);
    let before = switches(tids);
    let mut process = Process::open(pid).unwrap();
    for _ in 0..2 {
        let readings = read(&mut process);
        for tid in tids {
            let Reading { outcome, stop, .. } = &readings[tid];
            assert!(
                matches!(outcome, Ok(Found::Attached(_))),
                "{what}: {outcome:?}"
            );
            assert_eq!(*stop, None, "{what}");
        }
    }
    assert_eq!(switches(tids), before, "{what}");
}

#[test]
fn sleepers_of_each_c_library_are_not_disturbed() {
    let mut kinds = 0;
    for (compiler, name) in [(Compiler::gcc(), "glibc"), (Compiler::musl_gcc(), "musl")] {
        for flags in [&[][..], &["-static"], &["-static-pie"]] {
            if cfg!(target_arch = "aarch64") && name == "musl" {
                continue;
            }
            if let Some(program) = compile(&compiler, "idle.c", flags) {
                let target = Target::spawn(&mut Command::new(program));
                let tids = sleepers(&target);
                assert_undisturbed(target.pid(), &tids, &format!("{name} {flags:?}"));
                kinds += 1;
            }
        }
    }
    println!("{kinds} kinds of programs");
}

/// Before 2.34, libpthread was a library of its own and `_rtld_global` had no list of threads.
#[test]
fn sleepers_of_an_older_glibc_are_not_disturbed() {
    let setup = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/setup/glibc-2.31");
    let Ok(folder) = setup.canonicalize() else {
        return eprintln!("skipped: no glibc 2.31: run `cargo xtask setup`");
    };
    if cfg!(not(target_arch = "x86_64")) {
        return eprintln!("skipped: that glibc is for x86-64");
    }
    let path = |part: &str| folder.join(part).display().to_string();
    let flags = [
        format!("--sysroot={}", path("tree")),
        format!("-B{}", path("tree/usr/lib/x86_64-linux-gnu")),
        path("lib/libpthread.so.0"),
        path("lib/libdl.so.2"),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let Some(program) = compile(&Compiler::gcc(), "idle.c", &flags) else {
        return;
    };
    let mut command = Command::new(path("ld.so"));
    command.args(["--library-path", &path("lib")]).arg(program);
    let target = Target::spawn(&mut command);
    assert_undisturbed(target.pid(), &sleepers(&target), "glibc 2.31");
}

/// The ids in the C library's list are those of the process's own PID namespace.
#[test]
fn sleepers_of_another_pid_namespace_are_not_disturbed() {
    let unshare = |program: &Path| {
        let mut command = Command::new("unshare");
        command
            .args(["--pid", "--fork", "--kill-child", "--"])
            .arg(program);
        command
    };
    let is_allowed = unshare(Path::new("true")).status();
    if !is_allowed.is_ok_and(|status| status.success()) {
        return eprintln!("skipped: unshare cannot create a PID namespace");
    }
    let Some(program) = compile(&Compiler::gcc(), "idle.c", &[]) else {
        return;
    };
    let target = Target::spawn(&mut unshare(&program));
    let process = remote::Process::open(target.child_pid()).unwrap();
    let inner = |tid: &i32| process.thread_status(*tid).unwrap().namespace_pids[1];
    let inside = sleepers(&target);
    let tids: Vec<i32> = process.thread_ids().unwrap();
    let tids: Vec<i32> = tids
        .into_iter()
        .filter(|tid| inside.contains(&inner(tid)))
        .collect();
    assert_eq!(tids.len(), inside.len());
    assert_undisturbed(process.pid(), &tids, "another PID namespace");
}

/// It executes no code of the process and cannot be traced.
#[test]
fn an_io_uring_worker_is_recognized() {
    let Some(target) = start("uring.c", &[], &[]) else {
        return;
    };
    if target.lines.iter().any(|line| line == "refused") {
        return eprintln!("skipped: io_uring is not allowed");
    }
    let process = remote::Process::open(target.pid()).unwrap();
    let deadline = Instant::now() + otelctx_fixtures::HANG_TIMEOUT;
    let tids = loop {
        let tids = process.thread_ids().unwrap();
        if tids.len() > 1 {
            break tids;
        }
        assert!(Instant::now() < deadline, "there is no worker");
        std::thread::sleep(Duration::from_millis(1));
    };
    wait_until_asleep(&tids);
    let before = switches(&tids);
    let readings = read(&mut Process::open(target.pid()).unwrap());
    assert_eq!(readings.len(), 2);
    let first = &readings[&target.pid()];
    assert!(matches!(first.outcome, Ok(Found::Attached(_))), "{first:?}");
    let worker = readings.iter().find(|(tid, _)| **tid != target.pid());
    let (worker, reading) = worker.unwrap();
    let is_worker = |error: &Error| matches!(error, Error::Remote(remote::Error::KernelWorker { tid, .. }) if tid == worker);
    assert!(
        reading.outcome.as_ref().is_err_and(is_worker),
        "{reading:?}"
    );
    assert_eq!((first.stop, reading.stop), (None, None));
    assert_eq!(switches(&tids), before);
}

/// What the program below reads, how often, and how many threads have a context.
const PID: &str = "OTELCTX_TEST_PID";
const READINGS: &str = "OTELCTX_TEST_READINGS";
const ATTACHED: &str = "OTELCTX_TEST_ATTACHED";

/// The number of system calls a thread that one more reading takes.
fn calls_per_thread(pid: i32, attached: i64) -> f64 {
    let count = |readings: i64| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "readings", "--ignored", "--test-threads=1"])
            .env(PID, pid.to_string())
            .env(READINGS, readings.to_string())
            .env(ATTACHED, attached.to_string());
        system_calls::count(command).unwrap()
    };
    (count(5) - count(2)) as f64 / 3.0 / (attached + 1) as f64
}

/// Three are for its memory, and one shows that it went on sleeping. No call reads that of many threads: it could wait for a
/// page that never comes.
#[test]
fn reading_a_sleeper_again_takes_few_system_calls() {
    let Some(target) = start("idle.c", &[], &["workers=1000"]) else {
        return;
    };
    wait_until_asleep(&sleepers(&target));
    // The rest lists all of them.
    let calls = calls_per_thread(target.pid(), 1000);
    assert!(calls < 4.2, "{calls} system calls a thread");
}

/// The page was there when the threads were read first, and is removed: process_vm_readv(2) would wait for it until the reader
/// is killed, with a thread of the target stopped.
#[test]
fn a_page_that_never_comes_is_an_error_at_once() {
    for running in [&[][..], &["spinning"]] {
        let arguments = [&["workers=3", "withheld"], running].concat();
        let Some(mut target) = start("idle.c", &[], &arguments) else {
            return;
        };
        if target.lines.iter().any(|line| line == "refused") {
            return eprintln!("skipped: this user may not have pages that another thread provides");
        }
        let tids = sleepers(&target);
        wait_until_asleep(&tids[..2]);
        let mut process = Process::open(target.pid()).unwrap();
        let attached = |readings: &BTreeMap<i32, Reading>| {
            let is_attached = |tid: &i32| matches!(readings[tid].outcome, Ok(Found::Attached(_)));
            tids.iter().map(is_attached).collect::<Vec<_>>()
        };
        assert_eq!(attached(&read(&mut process)), [true; 3]);
        target.command("drop");
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let readings = read(&mut process);
            sender.send(readings).unwrap();
        });
        let readings = receiver.recv_timeout(otelctx_fixtures::HANG_TIMEOUT);
        let readings = readings.expect("it does not wait for the page");
        assert_eq!(attached(&readings), [false, true, false], "{readings:?}");
    }
}

/// Each thread that runs is inspected once, however many others run.
#[test]
fn a_running_thread_costs_the_same_among_many() {
    let flags = ["-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"];
    let calls = [4, 24].map(|threads| {
        let argument = format!("threads={threads}");
        let target = start("spin.c", &flags, &[&argument])?;
        Some(calls_per_thread(target.pid(), threads))
    });
    let [Some(few), Some(many)] = calls else {
        return;
    };
    // Once for each of the others would be 20 calls more. On a busy machine, attempts are repeated.
    assert!(many < few + 12.0, "{few} and {many} system calls a thread");
}

#[test]
#[ignore = "the other process of a test"]
fn readings() {
    let Ok(pid) = std::env::var(PID) else { return };
    let number = |name: &str| -> usize { std::env::var(name).unwrap().parse().unwrap() };
    let mut options = Options::default();
    options.stop_timeout = STOP_TIMEOUT;
    let mut process = Process::with_options(pid.parse().unwrap(), options).unwrap();
    for _ in 0..number(READINGS) {
        let attached = read(&mut process);
        let attached = attached
            .values()
            .filter(|it| matches!(it.outcome, Ok(Found::Attached(_))));
        assert_eq!(attached.count(), number(ATTACHED));
    }
}

#[test]
fn only_the_thread_that_runs_is_stopped() {
    let Some(target) = start("idle.c", &[], &["workers=10", "spinning"]) else {
        return;
    };
    let tids = sleepers(&target);
    let (busy, asleep) = tids.split_last().unwrap();
    wait_until_asleep(asleep);
    let before = switches(asleep);
    let readings = read(&mut Process::open(target.pid()).unwrap());
    assert_eq!(readings[busy].stop, Some(StopReason::Running));
    for tid in &tids {
        assert!(matches!(readings[tid].outcome, Ok(Found::Attached(_))));
        assert_eq!(readings[tid].stop.is_some(), tid == busy);
    }
    assert_eq!(switches(asleep), before);
}

/// The C library does not list them. Reading them takes a stop, which would lengthen their sleep.
#[test]
fn a_sleep_with_a_timeout_is_not_lengthened_for_an_unknown_thread_pointer() {
    let Some(target) = start("idle.c", &[], &["workers=5", "own=2"]) else {
        return;
    };
    let tids = sleepers(&target);
    wait_until_asleep(&tids);
    let before = switches(&tids);
    let readings = read(&mut Process::open(target.pid()).unwrap());
    for (index, tid) in tids.iter().enumerate() {
        let Reading { outcome, stop, .. } = &readings[tid];
        assert_eq!(*stop, None);
        match outcome {
            Err(Error::WouldLengthen { tid: at }) if index < 2 => assert_eq!(at, tid),
            Ok(Found::Attached(_)) if index >= 2 => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(switches(&tids), before);
}

/// How long to read; `cargo xtask soak` reads for longer.
fn seconds(short: u64) -> u64 {
    let long = std::env::var("OTELCTX_SOAK_SECONDS").ok();
    long.and_then(|long| long.parse().ok()).unwrap_or(short)
}

/// A record that was being written when it was read has two different numbers.
fn reads_nothing_torn(protocol: Protocol) {
    let Some(target) = start("torn.c", &[], &["3"]) else {
        return;
    };
    let process = remote::Process::open(target.pid()).unwrap();
    let memory = process.memory().unwrap();
    let live = LiveProcess::new(&process, &memory);
    let resolution = tls::resolve(&live, &FileCache::new(), otelctx_reader::SYMBOL).unwrap();
    let pointers = ThreadPointers::find(&resolution.threads, &live, target.pid(), 5);
    let threads = sleepers(&target).into_iter().map(|tid| {
        let files = ThreadFiles::open_for(&process, tid, protocol);
        let pointer = pointers.get(tid).unwrap().address;
        let slot = resolution.variables[0]
            .address(&memory, pointer)
            .unwrap()
            .unwrap();
        (files, memory.read_u64(slot).unwrap())
    });
    let mut threads: Vec<_> = threads.collect();
    let start = Instant::now();
    let (mut accepted, mut refused, mut stayed) = (0_u64, 0_u64, 0_u64);
    loop {
        let has_enough = accepted > 100
            && refused > 100
            && (protocol == Protocol::Status || (1..accepted).contains(&stayed));
        match start.elapsed().as_secs() {
            elapsed if elapsed < seconds(5) => {}
            elapsed if has_enough || elapsed > seconds(5) + 60 => break,
            // On a busy machine, threads may run each time they are read: at other moments, they may not.
            _ => std::thread::sleep(Duration::from_micros(100)),
        }
        for (files, record) in &mut threads {
            let Ok(files) = files else {
                return eprintln!("skipped: the kernel does not count how often a thread runs");
            };
            let words = || {
                let mut words = [0; 24];
                memory.read(*record, &mut words).unwrap();
                words
            };
            let Some(first) = files.read_asleep(words).unwrap() else {
                refused += 1;
                continue;
            };
            accepted += 1;
            let again = words();
            let has_stayed = files.has_stayed_asleep().unwrap();
            stayed += u64::from(has_stayed);
            for words in [Some(first), has_stayed.then_some(again)] {
                let Some((first, rest)) = words.as_ref().map(|words| words.split_at(8)) else {
                    continue;
                };
                assert!(
                    rest.chunks(8).all(|word| word == first),
                    "{protocol:?}: torn after {accepted} were accepted: {words:?}"
                );
            }
            assert!(!has_stayed || first == again, "{first:?}, {again:?}");
        }
    }
    println!(
        "{protocol:?}: {accepted} accepted, none torn; {refused} refused; {stayed} stayed asleep"
    );
    assert!(
        accepted > 100 && refused > 100,
        "{accepted} accepted, {refused} refused"
    );
    match protocol {
        Protocol::Schedstat => assert!((1..accepted).contains(&stayed), "{stayed} of {accepted}"),
        Protocol::Status => assert_eq!(stayed, 0),
    }
}

#[test]
fn a_record_that_is_rewritten_between_sleeps_is_never_torn() {
    reads_nothing_torn(Protocol::Schedstat);
    reads_nothing_torn(Protocol::Status);
}

/// The second time, a thread is read by what is known of its last sleep.
#[test]
fn what_is_read_again_is_neither_torn_nor_stale() {
    reads_no_older_record(3, false);
}

/// Many threads are found asleep before the first of them is read.
#[test]
fn threads_that_were_found_asleep_together_are_read_as_they_are() {
    reads_no_older_record(24, true);
}

/// Each number that is written is larger than the one before.
fn reads_no_older_record(threads: u32, is_first: bool) {
    let Some(target) = start("torn.c", &[], &[&threads.to_string()]) else {
        return;
    };
    let mut process = Process::open(target.pid()).unwrap();
    let mut last = BTreeMap::new();
    let mut asleep = 0;
    let deadline = Instant::now() + otelctx_fixtures::HANG_TIMEOUT;
    while asleep < 1000 {
        assert!(Instant::now() < deadline, "{asleep} were read asleep");
        if is_first {
            process = Process::open(target.pid()).unwrap();
        }
        for (tid, reading) in read(&mut process) {
            // A thread that is stopped may be writing its record.
            let (Ok(Found::Attached(context)), None) = (reading.outcome, reading.stop) else {
                continue;
            };
            let trace = context.trace_id.to_bytes();
            let (first, second) = trace.split_at(8);
            let span = context.span_id.to_bytes();
            assert_eq!((first, second), (&span[..], &span[..]));
            let number = u64::from_ne_bytes(span);
            let before = last.insert(tid, number).unwrap_or(0);
            assert!(before <= number, "{number} after {before}");
            asleep += 1;
        }
    }
}

/// What each call came to since the last report: rounds, and ends other than its timeout.
fn report(target: &mut Target) -> BTreeMap<String, (i32, i32)> {
    target.lines.clear();
    target.command("report");
    let results = target.lines.iter().filter_map(|line| {
        let words: Vec<&str> = line.strip_prefix("result ")?.split(' ').collect();
        let [call, rounds, failures] = words[..] else {
            panic!("{line}")
        };
        Some((
            call.to_owned(),
            (rounds.parse().ok()?, failures.parse().ok()?),
        ))
    });
    results.collect()
}

/// Reads a process 14 times a second, opened again each time, as the command does. A timeout that each reading started again
/// would never pass, so that half of the undisturbed process's are sufficient; `cargo xtask soak` wants nearly all.
#[test]
fn timeouts_pass_as_without_a_reader() {
    let flags = ["-DMILLISECONDS=500"];
    let (Some(mut read_target), Some(mut other)) = (
        start("sleepers.c", &flags, &[]),
        start("sleepers.c", &flags, &[]),
    ) else {
        return;
    };
    report(&mut read_target);
    report(&mut other);
    let mut stops = 0;
    let (mut with, mut without) = (BTreeMap::new(), BTreeMap::new());
    let least = 2 * seconds(6) as i32;
    let has_all = |rounds: &BTreeMap<String, i32>| {
        !rounds.is_empty() && rounds.values().all(|count| *count >= least)
    };
    let is_soak = seconds(6) != 6;
    let deadline =
        Instant::now() + otelctx_fixtures::HANG_TIMEOUT + Duration::from_secs(seconds(6));
    while !has_all(&without) {
        assert!(Instant::now() < deadline, "{without:?}");
        for _ in 0..14 {
            let readings = read(&mut Process::open(read_target.pid()).unwrap());
            for (tid, reading) in &readings {
                assert!(
                    matches!(reading.outcome, Ok(Found::Detached)),
                    "{tid}: {reading:?}"
                );
                stops += usize::from(reading.stop.is_some());
            }
            std::thread::sleep(Duration::from_millis(1000 / 14));
        }
        for (target, rounds) in [(&mut read_target, &mut with), (&mut other, &mut without)] {
            for (call, (count, failures)) in report(target) {
                assert_eq!(failures, 0, "{call}");
                *rounds.entry(call).or_default() += count;
            }
        }
    }
    println!("{stops} stops; with a reader {with:?}, without {without:?}");
    for (call, rounds) in &with {
        let least = if is_soak {
            without[call] - 1
        } else {
            least / 2
        };
        assert!(*rounds >= least, "{call}: {with:?}, without: {without:?}");
    }
}
