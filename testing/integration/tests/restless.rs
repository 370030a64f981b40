//! Whatever a target does while it is inspected: no inspection hangs, no thread
//! stays stopped, no descriptor stays open.

use std::process::Command;
use std::time::{Duration, Instant};

use otelctx_fixtures::{Compiler, Target, thread_cpu_time};
use otelctx_reader::{Error, Found, Process};

/// Reads all threads, and returns how many contexts it found. A thread or process that has ended is
/// not an error; everything else is one here.
fn inspect(process: &mut Process) -> usize {
    let start = thread_cpu_time();
    let found = match process.threads() {
        Ok(threads) => {
            let contexts = threads.iter().map(otelctx_reader::Thread::context);
            contexts
                .filter(|context| matches!(context, Ok(Found::Attached(_))))
                .count()
        }
        Err(Error::Remote(_)) => 0,
        Err(error) => panic!("{error}"),
    };
    let took = thread_cpu_time() - start;
    // Some milliseconds.
    assert!(took < Duration::from_secs(5), "it took {took:?}");
    found
}

/// The state letter and tracer of every thread.
fn states(pid: i32) -> Vec<(String, String)> {
    let field = |status: &str, name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(|value| {
            value
                .trim()
                .chars()
                .take_while(|c| *c != ' ')
                .collect::<String>()
        })
    };
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    tasks
        .filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok())
        .filter_map(|status| Some((field(&status, "State:")?, field(&status, "TracerPid:")?)))
        .collect()
}

fn assert_running(pid: i32, task: &str) {
    let states = states(pid);
    assert!(!states.is_empty(), "{task}: the target is gone");
    for (state, tracer) in states {
        assert!(
            !["t", "T"].contains(&state.as_str()),
            "{task}: a thread was left stopped"
        );
        assert_eq!(tracer, "0", "{task}: a thread was left traced");
    }
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn restless(arguments: &[&str]) -> Target {
    Target::spawn(Command::new(env!("CARGO_BIN_EXE_restless")).args(arguments))
}

/// Inspects a target that repeats `arguments[0]`, `count` times and until a context was found; returns
/// the number of contexts.
fn inspect_repeatedly(arguments: &[&str], count: usize) -> usize {
    let target = restless(arguments);
    let deadline = Instant::now() + otelctx_fixtures::HANG_TIMEOUT;
    let mut found = 0;
    let mut process = Process::open(target.pid()).unwrap();
    for round in 0.. {
        found += inspect(&mut process);
        if round >= count && (found > 0 || Instant::now() > deadline) {
            break;
        }
        if round % 10 == 0 {
            process = Process::open(target.pid()).unwrap();
        }
    }
    std::thread::sleep(Duration::from_millis(20));
    assert_running(target.pid(), arguments[0]);
    found
}

/// Kills the target while it is inspected, `delay` after the first inspection.
fn inspect_and_kill(delay: Duration) {
    let target = restless(&["work"]);
    let pid = target.pid();
    let mut process = Process::open(pid).unwrap();
    // Its threads may be starting only now, and are between two records at times.
    let found = (0..1000).any(|_| inspect(&mut process) > 0);
    assert!(found, "the target is read while it lives");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(delay);
            drop(target);
        });
        while process.running().unwrap().exists() {
            inspect(&mut process);
        }
    });
    assert_eq!(states(pid), [], "the target is gone");
}

#[test]
fn a_target_may_do_anything_at_any_moment() {
    let before = open_descriptors();
    for round in 0..200 {
        inspect_and_kill(Duration::from_micros(round * 37 % 2000));
    }
    for task in ["exec", "fork", "unpublish"] {
        let found = inspect_repeatedly(&[task], 200);
        println!("{task}: {found} contexts in 200 inspections");
        assert!(found > 0, "{task}: not one context was read");
    }
    if let Some(library) = Compiler::gcc().library::<&str>(&["variable.c"], &[]) {
        let found = inspect_repeatedly(&["dlclose", &library.to_string_lossy()], 200);
        println!("dlclose: {found} contexts in 200 inspections");
        assert!(found > 0, "dlclose: not one context was read");
    }
    // The threads that read what the targets printed close their pipes when these have ended.
    let deadline = Instant::now() + otelctx_fixtures::HANG_TIMEOUT;
    while open_descriptors() > before && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(open_descriptors(), before, "descriptors were left open");
}
