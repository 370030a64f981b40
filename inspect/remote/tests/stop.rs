//! Stops threads, and asks the program afterwards whether it noticed anything.

use std::process::Command;
use std::time::{Duration, Instant};

use nix::libc;
use otelctx_fixtures::{Compiler, STOP_TIMEOUT, Target};
use otelctx_remote::stop::{StoppedProcess, on_own_thread};
use otelctx_remote::{Error, Process, Stopped};

fn spawn(source: &str) -> Option<Target> {
    let program = Compiler::gcc().program::<&str>(&[source], &[])?;
    Some(Target::spawn(&mut Command::new(program)))
}

/// Thread ids and names of the calls of sleepers.c; the id of signals.c's thread.
fn sleepers(target: &Target) -> Vec<(i32, String)> {
    target
        .lines
        .iter()
        .filter_map(|line| {
            let mut words = line.strip_prefix("sleeper ")?.split(' ');
            Some((
                words.next()?.parse().ok()?,
                words.next().unwrap_or_default().to_string(),
            ))
        })
        .collect()
}

/// Lines `result …` since the last call, as words.
fn report(target: &mut Target) -> Vec<Vec<String>> {
    target.lines.clear();
    target.command("report");
    let results = target
        .lines
        .iter()
        .filter_map(|line| line.strip_prefix("result "));
    results
        .map(|line| line.split(' ').map(String::from).collect())
        .collect()
}

fn numbers(target: &mut Target) -> (i32, i32) {
    let results = report(target);
    (
        results[0][0].parse().unwrap(),
        results[0][1].parse().unwrap(),
    )
}

fn send(pid: i32, tid: i32, signal: i32) {
    // SAFETY: tgkill takes numbers only.
    let result = unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, signal) };
    assert_eq!(result, 0);
}

fn wait_for_state(process: &Process, tid: i32, wanted: char) {
    let deadline = Instant::now() + STOP_TIMEOUT;
    while process.thread_state(tid).unwrap() != wanted {
        assert!(Instant::now() < deadline, "no state {wanted}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_timeout_may_be_as_long_as_there_is() {
    let Some(target) = spawn("sleepers.c") else {
        return;
    };
    let process = Process::open(target.pid()).unwrap();
    let stopped = Stopped::stop(&process, target.pid(), Duration::MAX).unwrap();
    stopped.resume().unwrap();
}

#[test]
fn a_stop_is_not_the_sleepers_eintr() {
    if cfg!(target_arch = "aarch64") {
        // The kernel tells no tracer what the call's first argument was.
        return eprintln!("skipped: on aarch64 such a call can't be made again");
    }
    let Some(mut target) = spawn("sleepers.c") else {
        return;
    };
    let process = Process::open(target.pid()).unwrap();
    let threads = sleepers(&target);
    assert_eq!(threads.len(), 10);
    for round in 0..100 {
        for (tid, _) in &threads {
            Stopped::stop(&process, *tid, STOP_TIMEOUT)
                .unwrap()
                .resume()
                .unwrap();
        }
        // Let a call reach its timeout now and then.
        std::thread::sleep(Duration::from_millis(if round % 10 == 0 { 50 } else { 3 }));
    }
    for result in report(&mut target) {
        let [call, rounds, failures] = &result[..] else {
            panic!("{result:?}")
        };
        assert_ne!(rounds, "0", "{call} does not go on");
        assert_eq!(failures, "0", "{call} failed in {rounds} rounds");
    }
}

#[test]
fn a_signal_that_arrives_during_a_stop_still_interrupts() {
    let Some(mut target) = spawn("signals.c") else {
        return;
    };
    let process = Process::open(target.pid()).unwrap();
    let (tid, _) = sleepers(&target)[0];
    wait_for_state(&process, tid, 'S');
    for count in 1..=20 {
        let stopped = Stopped::stop(&process, tid, STOP_TIMEOUT).unwrap();
        send(target.pid(), tid, libc::SIGRTMIN());
        stopped.resume().unwrap();
        let deadline = Instant::now() + STOP_TIMEOUT;
        while numbers(&mut target) != (count, count) {
            assert!(Instant::now() < deadline, "{:?}", numbers(&mut target));
        }
        wait_for_state(&process, tid, 'S');
    }
}

#[test]
fn a_signal_without_effect_does_not_interrupt() {
    let Some(mut target) = spawn("signals.c") else {
        return;
    };
    let process = Process::open(target.pid()).unwrap();
    let (tid, _) = sleepers(&target)[0];
    wait_for_state(&process, tid, 'S');
    for _ in 0..20 {
        let stopped = Stopped::stop(&process, tid, STOP_TIMEOUT).unwrap();
        // A tracee gets signals that it would not get otherwise.
        send(target.pid(), tid, libc::SIGCHLD);
        stopped.resume().unwrap();
    }
    wait_for_state(&process, tid, 'S');
    assert_eq!(numbers(&mut target), (0, 0));
}

#[test]
fn no_signal_is_lost_or_doubled() {
    let Some(mut target) = spawn("signals.c") else {
        return;
    };
    let pid = target.pid();
    let process = Process::open(pid).unwrap();
    let (tid, _) = sleepers(&target)[0];
    let sent = 2000;
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            for _ in 0..sent {
                // Real-time signals queue: each one counts.
                send(pid, tid, libc::SIGRTMIN());
                std::thread::yield_now();
            }
        });
        while !sender.is_finished() {
            Stopped::stop(&process, tid, STOP_TIMEOUT)
                .unwrap()
                .resume()
                .unwrap();
        }
    });
    let deadline = Instant::now() + STOP_TIMEOUT;
    while numbers(&mut target).0 < sent && Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert_eq!(numbers(&mut target).0, sent);
}

#[test]
fn a_stopped_process_stays_stopped() {
    let Some(mut target) = spawn("signals.c") else {
        return;
    };
    let process = Process::open(target.pid()).unwrap();
    let (tid, _) = sleepers(&target)[0];
    send(target.pid(), target.pid(), libc::SIGSTOP);
    wait_for_state(&process, tid, 'T');
    wait_for_state(&process, target.pid(), 'T');
    for _ in 0..20 {
        for tid in [tid, target.pid()] {
            let stopped = Stopped::stop(&process, tid, STOP_TIMEOUT).unwrap();
            assert_eq!(process.thread_state(tid).unwrap(), 't');
            stopped.resume().unwrap();
            wait_for_state(&process, tid, 'T');
        }
    }
    send(target.pid(), target.pid(), libc::SIGCONT);
    wait_for_state(&process, tid, 'S');
    let _ = numbers(&mut target);
}

/// Stops and continuations by signal, at any moment of a stop by ptrace.
#[test]
fn a_process_is_stopped_and_continued_as_without_a_tracer() {
    let Some(mut target) = spawn("signals.c") else {
        return;
    };
    let pid = target.pid();
    let process = Process::open(pid).unwrap();
    let threads = process.thread_ids().unwrap();
    for last in [libc::SIGSTOP, libc::SIGCONT] {
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                for _ in 0..500 {
                    send(pid, pid, libc::SIGSTOP);
                    std::thread::yield_now();
                    send(pid, pid, libc::SIGCONT);
                    std::thread::yield_now();
                }
                send(pid, pid, last);
            });
            let mut after = 0;
            while after < 10 {
                after += i32::from(sender.is_finished());
                for tid in &threads {
                    Stopped::stop(&process, *tid, STOP_TIMEOUT)
                        .unwrap()
                        .resume()
                        .unwrap();
                }
            }
        });
        for tid in &threads {
            let wanted = if last == libc::SIGSTOP { 'T' } else { 'S' };
            wait_for_state(&process, *tid, wanted);
            assert_eq!(process.thread_status(*tid).unwrap().tracer, 0);
        }
    }
    assert_eq!(numbers(&mut target).0, 0);
}

#[test]
fn no_thread_is_stopped_after_the_deadline() {
    let Some(target) = spawn("signals.c") else {
        return;
    };
    let pid = target.pid();
    let process = Process::open(pid).unwrap();
    on_own_thread(|| {
        let stopped = StoppedProcess::stop(&process, STOP_TIMEOUT, Instant::now()).unwrap();
        match stopped.running() {
            [(first, Error::Deadline { .. })] if *first == pid => {}
            other => panic!("{other:?}"),
        }
        for tid in process.thread_ids().unwrap() {
            assert!(stopped.thread(tid).is_none());
            assert_eq!(process.thread_status(tid).unwrap().tracer, 0);
        }
    })
    .unwrap();
}

/// The timeouts of the other calls continue: the kernel restarts these with the remaining time.
#[test]
fn no_stop_of_a_whole_process_restarts_a_timeout() {
    let flags = ["-DMILLISECONDS=600000"];
    let Some(program) = Compiler::gcc().program(&["sleepers.c"], &flags) else {
        return;
    };
    let target = Target::spawn(&mut Command::new(program));
    let process = Process::open(target.pid()).unwrap();
    let threads = sleepers(&target);
    for (tid, _) in &threads {
        wait_for_state(&process, *tid, 'S');
    }
    let deadline = Instant::now() + STOP_TIMEOUT;
    let stopped = StoppedProcess::stop(&process, STOP_TIMEOUT, deadline).unwrap();
    let is_lengthened = |tid: i32| {
        let running = stopped.running().iter().find(|(other, _)| *other == tid);
        match running {
            Some((_, Error::WouldLengthen { .. })) => true,
            Some((_, error)) => panic!("{error}"),
            None => false,
        }
    };
    let (running, others): (Vec<_>, Vec<_>) =
        threads.iter().partition(|(tid, _)| is_lengthened(*tid));
    let names = |threads: &[&(i32, String)]| -> Vec<String> {
        threads.iter().map(|(_, call)| call.clone()).collect()
    };
    let lengthened = [
        "epoll_wait",
        "epoll_pwait",
        "semtimedop",
        "sigtimedwait",
        "recv",
        "read",
    ];
    assert_eq!(names(&running), lengthened);
    let continued = ["nanosleep", "poll", "select", "sem_timedwait"];
    assert_eq!(names(&others), continued);
    for (tid, _) in running {
        assert_eq!(process.thread_status(*tid).unwrap().tracer, 0);
    }
    for (tid, _) in others {
        assert!(stopped.thread(*tid).is_some());
    }
    assert!(stopped.thread(target.pid()).is_some());
}

#[test]
fn stopping_the_reader_itself_is_an_error() {
    let own = i32::try_from(std::process::id()).unwrap();
    let process = Process::open(own).unwrap();
    let error = Stopped::stop(&process, own, STOP_TIMEOUT).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
}

#[test]
fn an_uninterruptible_thread_is_reported_and_left_alone() {
    let flags = ["-DLINKED", "-rdynamic"];
    let Some(program) = Compiler::gcc().program(&["threads.c", "variable.c"], &flags) else {
        return;
    };
    let mut target = Target::spawn(Command::new(program).arg("vfork"));
    let pid = target.pid();
    let process = Process::open(pid).unwrap();
    wait_for_state(&process, pid, 'D');
    let timeout = Duration::from_millis(50);
    match Stopped::stop(&process, pid, timeout) {
        Err(Error::StopTimeout {
            tid, state: 'D', ..
        }) if tid == pid => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(process.thread_status(pid).unwrap().tracer, 0);
    // The child, which shares the memory, must not outlive the test.
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let child: i32 = children.trim().parse().unwrap();
    send(child, child, libc::SIGKILL);
    wait_for_state(&process, pid, 'S');
    target.command("attach");
    Stopped::stop(&process, pid, STOP_TIMEOUT)
        .unwrap()
        .resume()
        .unwrap();
}

#[test]
fn a_thread_that_others_trace_is_reported_with_its_tracer() {
    let Some(target) = spawn("signals.c") else {
        return;
    };
    let process = Process::open(target.pid()).unwrap();
    let (tid, _) = sleepers(&target)[0];
    let _stopped = Stopped::stop(&process, tid, STOP_TIMEOUT).unwrap();
    // SAFETY: gettid takes nothing.
    let own = unsafe { libc::gettid() };
    on_own_thread(|| match Stopped::stop(&process, tid, STOP_TIMEOUT) {
        Err(Error::AlreadyTraced { tracer, .. }) => assert_eq!(tracer, own),
        other => panic!("{other:?}"),
    })
    .unwrap();
}

#[test]
fn a_thread_of_another_process_is_refused_and_runs_on() {
    let (Some(one), Some(mut other)) = (spawn("signals.c"), spawn("signals.c")) else {
        return;
    };
    let process = Process::open(one.pid()).unwrap();
    let (tid, _) = sleepers(&other)[0];
    let error = Stopped::stop(&process, tid, STOP_TIMEOUT).unwrap_err();
    assert!(matches!(error, Error::NoSuchThread { .. }), "{error}");
    let other_process = Process::open(other.pid()).unwrap();
    assert_eq!(other_process.thread_status(tid).unwrap().tracer, 0);
    assert_eq!(numbers(&mut other).0, 0);
}

#[test]
fn killed_while_stopped() {
    for leader in [true, false] {
        let Some(mut target) = spawn("signals.c") else {
            return;
        };
        let process = Process::open(target.pid()).unwrap();
        let tid = if leader {
            target.pid()
        } else {
            sleepers(&target)[0].0
        };
        let stopped = Stopped::stop(&process, tid, STOP_TIMEOUT).unwrap();
        send(target.pid(), target.pid(), libc::SIGKILL);
        while process.thread_state(tid).is_ok_and(|state| state == 't') {
            std::thread::yield_now();
        }
        // A hang ends with the test.
        let error = stopped.resume().unwrap_err();
        assert!(matches!(error, Error::NoSuchThread { .. }), "{error}");
        // The end of a child of ours is for its owner to see.
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(target.child().wait().unwrap().signal(), Some(libc::SIGKILL));
    }
}

#[test]
fn an_exec_while_a_thread_is_stopped_completes() {
    for leader in [true, false] {
        let Some(mut target) = spawn("signals.c") else {
            return;
        };
        let process = Process::open(target.pid()).unwrap();
        let tid = if leader {
            target.pid()
        } else {
            sleepers(&target)[0].0
        };
        let stopped = Stopped::stop(&process, tid, STOP_TIMEOUT).unwrap();
        target.command("execute");
        // The exec kills the other threads first.
        let deadline = Instant::now() + STOP_TIMEOUT;
        while process.thread_state(tid).is_ok_and(|state| state == 't') {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
        drop(stopped);
        // In the middle of it the process is, for a moment, not to be found.
        while !process.comm().is_ok_and(|name| name == "sleep") {
            assert!(Instant::now() < deadline, "{:?}", process.comm());
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(process.status().unwrap().tracer, 0);
    }
}
