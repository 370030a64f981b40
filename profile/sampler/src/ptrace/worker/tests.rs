//! Runs the worker without its thread, one tick at a time.

use std::process::Command;
use std::sync::mpsc::{Receiver, sync_channel};

use otelctx_fixtures::{Compiler, Target as Program};
use otelctx_reader::remote::Stopped;
use otelctx_reader::remote::stop::on_own_thread;

use super::*;
use crate::ptrace::tests::refuse;

/// Long enough for everything to happen, even on a slow machine.
const TIMEOUT: Duration = otelctx_fixtures::HANG_TIMEOUT;
/// Enough that most of them wait for a CPU.
const THREADS: usize = 24;

fn crowd() -> Option<Program> {
    let flags = ["-O1", "-fno-omit-frame-pointer", "-pthread", "-rdynamic"];
    let program = Compiler::gcc().program(&["spin.c", "variable.c"], &flags)?;
    let threads = format!("threads={THREADS}");
    Some(Program::spawn(Command::new(program).arg(threads)))
}

/// Runs a test of a worker on its own OS thread. A thread that did not stop in time stays traced
/// until that OS thread ends, and a program cannot be waited for while one of its ended threads is
/// traced.
fn tracing(program: &Program, test: impl FnOnce(i32) + Send) {
    let pid = program.pid();
    on_own_thread(|| test(pid)).unwrap();
}

fn worker(pid: i32) -> (Worker, Receiver<Message>, Arc<Shared>) {
    let mut options = Options::new(Targets::Processes(vec![pid]));
    options.frequency = 999;
    let (sender, messages) = sync_channel(1024);
    let shared = Arc::new(Shared::default());
    let mut worker = Worker::new(&options, 640, sender, shared.clone()).unwrap();
    // All CPU time of its threads counts.
    worker.start = 0;
    worker.add(Process::open(pid).unwrap(), &options).unwrap();
    (worker, messages, shared)
}

fn samples(messages: &Receiver<Message>) -> usize {
    let is_sample = |message: &Message| matches!(message, Message::Sample(_));
    messages.try_iter().filter(is_sample).count()
}

/// Ticks until this many samples have arrived. Returns their number.
fn tick_until(worker: &mut Worker, messages: &Receiver<Message>, wanted: usize) -> usize {
    let (start, mut found) = (Instant::now(), 0);
    while found < wanted {
        assert!(start.elapsed() < TIMEOUT, "{found}");
        std::thread::sleep(Duration::from_millis(10));
        resume_late();
        worker.tick();
        found += samples(messages);
    }
    found
}

/// Stops all threads of a program with SIGSTOP.
fn freeze(pid: i32) -> Vec<i32> {
    // SAFETY: a signal to a child.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGSTOP) }, 0);
    let process = Process::open(pid).unwrap();
    let threads = process.thread_ids().unwrap();
    let start = Instant::now();
    for tid in &threads {
        loop {
            let stat = process.thread_stat(*tid).unwrap();
            // If the worker has tried to stop the thread, it is in a trace stop.
            if matches!(stat.state(), 'T' | 't') {
                break;
            }
            assert!(start.elapsed() < TIMEOUT);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    threads
}

/// A recording of 300 busy threads on two CPUs used to continue for seconds after its end, with
/// nine samples and "0 lost".
#[test]
fn what_is_not_sampled_is_counted_as_lost() {
    let Some(program) = crowd() else { return };
    tracing(&program, |pid| {
        let (mut worker, messages, shared) = worker(pid);
        let found = tick_until(&mut worker, &messages, 2);
        let threads = freeze(pid);
        assert_eq!(threads.len(), THREADS + 1);
        worker.close();
        let process = Process::open(pid).unwrap();
        let times = threads.iter().map(|tid| process.thread_cpu_time(*tid));
        let total: u64 = times.map(Option::unwrap).sum();
        let lost = shared.lost.load(Ordering::Relaxed);
        assert_eq!(found as u64 + lost, total / worker.read_options.period);
    });
}

#[test]
fn no_thread_is_stopped_after_the_end() {
    let Some(program) = crowd() else { return };
    tracing(&program, |pid| {
        let (mut worker, messages, shared) = worker(pid);
        tick_until(&mut worker, &messages, 1);
        shared.stop.store(true, Ordering::Relaxed);
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(10));
            worker.tick();
        }
        assert_eq!(samples(&messages), 0);
    });
}

#[test]
fn no_thread_is_stopped_beyond_the_budget_of_a_tick() {
    let Some(program) = crowd() else { return };
    tracing(&program, |pid| {
        let (mut worker, messages, shared) = worker(pid);
        worker.budget = Duration::ZERO;
        let start = Instant::now();
        // More than each of them can be owed.
        while shared.lost.load(Ordering::Relaxed) == 0 {
            assert!(start.elapsed() < TIMEOUT);
            std::thread::sleep(Duration::from_millis(10));
            worker.tick();
        }
        assert_eq!(samples(&messages), 0);
        worker.budget = TICK_BUDGET;
        tick_until(&mut worker, &messages, 1);
    });
}

/// It used to stay stopped until the next tick, which is a second later at 1 Hz.
#[test]
fn a_thread_that_stops_late_is_resumed_before_the_next_tick() {
    let flags = ["-DLINKED", "-rdynamic"];
    let Some(program) = Compiler::gcc().program(&["threads.c", "variable.c"], &flags) else {
        return;
    };
    let program = Program::spawn(Command::new(program).arg("vfork"));
    let pid = program.pid();
    let process = Process::open(pid).unwrap();
    let start = Instant::now();
    // It cannot be stopped until its child ends.
    while process.thread_state(pid).unwrap() != 'D' {
        assert!(start.elapsed() < TIMEOUT);
        std::thread::sleep(Duration::from_millis(1));
    }
    let (sender, receiver) = sync_channel(0);
    // Not joined: it sleeps for longer than the test may take.
    std::thread::spawn(move || {
        let process = Process::open(pid).unwrap();
        let stopped = Stopped::stop(&process, pid, Duration::ZERO);
        let is_late = matches!(stopped, Err(remote::Error::StopTimeout { .. }));
        sender.send(is_late).unwrap();
        sleep_until(start + 2 * TIMEOUT);
    });
    assert!(receiver.recv_timeout(TIMEOUT).unwrap());
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let child: i32 = children.trim().parse().unwrap();
    // SAFETY: a plain system call; the process is a child of the target, which does not wait for it.
    assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
    while process.status().unwrap().tracer != 0 {
        assert!(start.elapsed() < TIMEOUT);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The CPU time of such a thread used to be dropped in each tick.
#[test]
fn a_thread_that_another_process_traces_is_lost_and_counted() {
    let program =
        Program::spawn(Command::new("sh").args(["-c", "echo ready; while :; do :; done"]));
    tracing(&program, |pid| {
        let (mut worker, messages, shared) = worker(pid);
        tick_until(&mut worker, &messages, 1);
        // It is traced until the OS thread ends, and keeps running.
        let (seized, ended) = (sync_channel(1), sync_channel::<()>(1));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // SAFETY: numbers only.
                let seize = || unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0, 0) };
                seized.0.send(seize()).unwrap();
                // Fails when the test has ended.
                let _ = ended.1.recv();
            });
            assert_eq!(seized.1.recv().unwrap(), 0);
            let start = Instant::now();
            while shared.lost.load(Ordering::Relaxed) < 5 {
                assert!(start.elapsed() < TIMEOUT);
                std::thread::sleep(Duration::from_millis(10));
                worker.tick();
            }
            assert_eq!(samples(&messages), 0);
            drop(ended.0);
        });
        tick_until(&mut worker, &messages, 1);
    });
}

/// As if no descriptors were left. A process of which nothing could be read counted as ended.
#[test]
fn only_a_process_that_does_not_exist_has_ended() {
    let program = Program::spawn(Command::new("sh").args(["-c", "echo ready; read line"]));
    tracing(&program, |pid| {
        let (mut worker, messages, shared) = worker(pid);
        worker.whole_machine = true;
        let process = Process::open(pid).unwrap();
        let lost = || shared.lost.swap(0, Ordering::Relaxed);
        // No process can be opened.
        refuse(libc::SYS_openat, 2, libc::O_PATH as u32, libc::EMFILE);
        worker.survey();
        assert_eq!((worker.targets.len(), lost()), (1, 1));
        // No file can be opened.
        refuse(libc::SYS_openat, 2, libc::O_CLOEXEC as u32, libc::EMFILE);
        worker.survey();
        assert_eq!((worker.targets.len(), lost()), (1, 1));
        worker.close();
        assert_eq!(lost(), 1);
        assert!(messages.try_recv().is_err());
        assert_eq!((process.exists(), process.has_ended()), (true, false));
    });
}

/// Sets whether this thread may trace more than its user's own processes. False if it must not.
fn may_trace_all(may: bool) -> bool {
    // <linux/capability.h>: version 3 and the calling thread; then the effective, permitted and
    // inheritable capabilities, as two words each.
    const CAP_SYS_PTRACE: u32 = 1 << 19;
    let header = [0x2008_0522_u32, 0];
    let mut sets = [0_u32; 6];
    // SAFETY: both arrays have the sizes of the kernel's structures.
    let result = unsafe { libc::syscall(libc::SYS_capget, &raw const header, &raw mut sets) };
    assert_eq!(result, 0);
    sets[0] = match may {
        true => sets[0] | CAP_SYS_PTRACE & sets[1],
        false => sets[0] & !CAP_SYS_PTRACE,
    };
    // SAFETY: as above.
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw const header, &raw const sets) };
    assert_eq!(result, 0);
    sets[1] & CAP_SYS_PTRACE != 0
}

/// A process that could not be traced once used to be skipped until it ended.
#[test]
fn a_process_is_sampled_as_soon_as_it_can_be_traced() {
    let program =
        Program::spawn(Command::new("sh").args(["-c", "echo ready; while :; do :; done"]));
    tracing(&program, |pid| {
        // The program has the capability, and can be traced only by those who have it, too.
        if !may_trace_all(false) {
            eprintln!("skipped: needs CAP_SYS_PTRACE");
            return;
        }
        let (mut worker, messages, shared) = worker(pid);
        let start = Instant::now();
        let mut survey_until = |is_done: &dyn Fn(&Worker) -> bool| {
            while !is_done(&worker) {
                assert!(start.elapsed() < TIMEOUT);
                std::thread::sleep(Duration::from_millis(10));
                worker.survey();
                worker.tick();
            }
        };
        survey_until(&|_| shared.not_traceable.load(Ordering::Relaxed) > 0);
        assert_eq!(samples(&messages), 0);
        may_trace_all(true);
        survey_until(&|worker| worker.targets[&pid].is_traceable);
        tick_until(&mut worker, &messages, 1);
        let process = Process::open(pid).unwrap();
        // What was skipped is not lost in addition.
        let skipped = shared.not_traceable.load(Ordering::Relaxed) * worker.read_options.period;
        let counted = shared.lost.load(Ordering::Relaxed) * worker.read_options.period;
        assert!(skipped + counted <= process.thread_cpu_time(pid).unwrap());
    });
}
