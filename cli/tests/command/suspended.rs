//! Ctrl-Z while the command has threads of a target stopped: it is suspended only after it has resumed
//! them.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::run::{Scratch, command};
use crate::target::Target;

const TRIES: u64 = 40;

/// State letters of the threads of a process, except threads that have exited.
fn states(pid: i32) -> Vec<(i32, char)> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let state = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).ok()?;
        let state = stat.rsplit(") ").next()?.chars().next()?;
        Some((task.file_name().to_str()?.parse().ok()?, state))
    };
    tasks.filter_map(state).collect()
}

/// Nanoseconds that a thread has run.
fn run_time(pid: i32, tid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

/// Starts a command as a job of its own.
fn job(arguments: &[&str]) -> Child {
    let mut command: Command = command(arguments);
    command.process_group(0).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// Waits until the process is suspended; false if it has ended.
fn is_suspended(child: &mut Child) -> bool {
    let pid = child.id() as i32;
    let deadline = Instant::now() + otelctx_fixtures::HANG_TIMEOUT;
    while child.try_wait().unwrap().is_none() {
        if states(pid).iter().all(|(_, state)| *state == 'T') {
            return true;
        }
        assert!(
            Instant::now() < deadline,
            "not suspended: {:?}",
            states(pid)
        );
        std::thread::sleep(Duration::from_micros(200));
    }
    false
}

/// No thread of the target stays stopped, and the computing ones continue.
fn assert_runs(target: &Target) {
    let pid = target.pid();
    let busy: Vec<i32> = states(pid)
        .into_iter()
        .filter(|(_, state)| *state == 'R')
        .map(|(tid, _)| tid)
        .collect();
    for _ in 0..5 {
        let stopped = states(pid)
            .into_iter()
            .find(|(_, state)| "tT".contains(*state));
        assert_eq!(stopped, None);
        std::thread::sleep(Duration::from_micros(500));
    }
    assert_eq!(busy.len(), 2);
    let deadline = Instant::now() + otelctx_fixtures::HANG_TIMEOUT;
    for tid in busy {
        let before = run_time(pid, tid);
        while run_time(pid, tid) == before {
            assert!(Instant::now() < deadline, "thread {tid} does not run");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn a_recording_by_ptrace_resumes_every_thread_before_it_is_suspended() {
    let target = Target::start("busy");
    let pid = target.pid().to_string();
    let scratch = Scratch::new("suspended");
    let output = scratch.path("out.folded");
    let arguments = [
        "record", "--ptrace", "-F", "999", "-d", "600", "-p", &pid, "-o", &output,
    ];
    let mut recording = job(&arguments);
    let group = Pid::from_raw(recording.id() as i32);
    std::thread::sleep(Duration::from_millis(500));
    for attempt in 0..TRIES {
        std::thread::sleep(Duration::from_micros(2000 + attempt * 737 % 5000));
        nix::sys::signal::killpg(group, Signal::SIGTSTP).unwrap();
        assert!(is_suspended(&mut recording), "the recording has ended");
        assert_runs(&target);
        nix::sys::signal::killpg(group, Signal::SIGCONT).unwrap();
    }
    recording.kill().unwrap();
    recording.wait().unwrap();
    assert_runs(&target);
}

#[test]
fn a_dump_resumes_every_thread_before_it_is_suspended() {
    let target = Target::start("busy");
    let pid = target.pid().to_string();
    let mut suspended = 0;
    for attempt in 0..TRIES {
        let mut dump = job(&["dump", &pid, "--deadline", "60"]);
        let group = Pid::from_raw(dump.id() as i32);
        std::thread::sleep(Duration::from_micros(1000 + attempt * 737 % 9000));
        // The terminal signals the whole job, kill(1) one process.
        let _ = match attempt % 2 {
            0 => nix::sys::signal::killpg(group, Signal::SIGTSTP),
            _ => kill(group, Signal::SIGTSTP),
        };
        if is_suspended(&mut dump) {
            suspended += 1;
            assert_runs(&target);
            kill(group, Signal::SIGCONT).unwrap();
        }
        let answer = dump.wait_with_output().unwrap();
        // A thread that gets no CPU time, or a dump that is suspended meanwhile, misses the time limit of a stop.
        let is_late = String::from_utf8_lossy(&answer.stdout).contains("did not stop within");
        assert!(answer.status.success() || is_late, "{answer:?}");
    }
    println!("{suspended} of {TRIES} dumps were suspended");
    assert!(suspended > 0);
    assert_runs(&target);
}
