//! Stops a thread with ptrace, and resumes it unchanged.
//!
//! A stop is PTRACE_SEIZE and PTRACE_INTERRUPT; resuming is PTRACE_DETACH. Neither sends a signal.
//! A signal that was being delivered at the stop is passed on, and a system call that the stop
//! ended with EINTR is restarted, with its full timeout.

mod all;
pub mod suspend;
mod tracee;

use std::cell::RefCell;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use nix::errno::Errno;

pub use crate::arch::Registers;
use crate::{Error, Process, permission};
pub use all::StoppedProcess;

use suspend::Traced;
use tracee::{MAX_PAUSE, Outcome, Poll, Stop};

/// Maximum timeout; longer ones, which may not fit into an [`Instant`], are shortened.
const MAX_TIMEOUT: Duration = Duration::from_secs(3600);
/// The time to wait for the end of a thread that was killed while it was stopped.
const DEATH_TIMEOUT: Duration = Duration::from_millis(100);

thread_local! {
    /// Threads (process, thread) that did not stop in time and that this OS thread still traces.
    static LATE: RefCell<Vec<(i32, i32, Traced)>> = const { RefCell::new(Vec::new()) };
}

/// Threads that had not stopped in time when the work of their tracer ended, see [`take_late`].
#[derive(Debug)]
#[must_use = "dropped before the OS thread has exited, this process may be suspended too early"]
pub struct Late(Vec<(i32, i32, Traced)>);

impl Drop for Late {
    fn drop(&mut self) {
        for (.., traced) in self.0.drain(..) {
            traced.forget_joined();
        }
    }
}

/// A stopped thread. Dropping this resumes it.
///
/// ptrace ties a stop to the OS thread that requested it, so this is not `Send`.
#[derive(Debug)]
pub struct Stopped {
    pid: i32,
    tid: i32,
    stop: Stop,
    registers: Registers,
    resumed: bool,
    traced: Option<Traced>,
    /// Makes this neither `Send` nor `Sync`.
    bound: PhantomData<*const ()>,
}

impl Stopped {
    /// Stops thread `tid` of `process`, waiting at most `timeout`.
    ///
    /// A thread in an uninterruptible sleep is not stopped. If it enters one when the stop is
    /// requested, or gets no CPU in time, it stays traced until it stops. The next call in this OS
    /// thread, [`resume_late`], or the OS thread's end resumes it: see [`on_own_thread`].
    #[doc(alias("PTRACE_SEIZE", "PTRACE_INTERRUPT"))]
    pub fn stop(process: &Process, tid: i32, timeout: Duration) -> Result<Self, Error> {
        Self::stop_then(process, tid, timeout, || ())
    }

    /// [`Self::stop`] with a callback that runs as soon as the thread has stopped. Reading its
    /// registers waits until it has left its CPU (kernel/ptrace.c, `ptrace_check_attach`).
    pub fn stop_then(
        process: &Process,
        tid: i32,
        timeout: Duration,
        then: impl FnOnce(),
    ) -> Result<Self, Error> {
        let timeout = timeout.min(MAX_TIMEOUT);
        let deadline = Instant::now() + timeout;
        resume_late();
        wait_until_stoppable(process, tid, timeout, deadline)?;
        Self::trace(process, tid, timeout, deadline, then)
    }

    /// Traces a thread in any state, and waits for it to stop.
    fn trace(
        process: &Process,
        tid: i32,
        timeout: Duration,
        deadline: Instant,
        then: impl FnOnce(),
    ) -> Result<Self, Error> {
        let pid = process.pid();
        let traced = Traced::new();
        // EPERM also means that the thread is exiting, or is being killed by an exec in another
        // thread: only repeated errors count.
        tracee::seize(tid)
            .or_else(|_| tracee::seize(tid))
            .or_else(|_| {
                std::thread::sleep(MAX_PAUSE);
                tracee::seize(tid)
            })
            .map_err(|errno| refused(process, tid, errno))?;
        // From here on, the ID cannot be reused for another thread.
        let belongs = process.has_thread(tid);
        // The wait detects a thread that has died since.
        let _ = tracee::interrupt(tid);
        match tracee::wait_for_stop(pid, tid, deadline) {
            Outcome::Stopped(stop) => {
                then();
                let stopped = Self::new(pid, tid, stop, traced)?;
                let stopped = belongs.then_some(stopped);
                stopped.ok_or(Error::NoSuchThread { pid, tid })
            }
            Outcome::Gone => Err(Error::NoSuchThread { pid, tid }),
            Outcome::Executed(stop) => {
                drop(Self::new(pid, pid, stop, traced));
                Err(Error::NoSuchThread { pid, tid })
            }
            Outcome::Late(tid) => {
                LATE.with_borrow_mut(|late| late.push((pid, tid, traced)));
                match process.thread_state(tid) {
                    Ok('Z' | 'X') | Err(_) => Err(Error::NoSuchThread { pid, tid }),
                    Ok(state) => Err(Error::StopTimeout {
                        pid,
                        tid,
                        timeout,
                        state,
                    }),
                }
            }
        }
    }

    /// Reads the registers of a stopped thread. Resumes it if that fails.
    fn new(pid: i32, tid: i32, stop: Stop, traced: Traced) -> Result<Self, Error> {
        let registers = Registers::read(tid);
        let stopped = Stopped {
            pid,
            tid,
            stop,
            registers: registers.unwrap_or_default(),
            resumed: false,
            traced: Some(traced),
            bound: PhantomData,
        };
        match registers {
            Ok(_) => Ok(stopped),
            Err(Errno::EINVAL) => Err(Error::Not64Bit { pid, tid }),
            // It was killed: only SIGKILL ends a stop.
            Err(_) => Err(Error::NoSuchThread { pid, tid }),
        }
    }

    /// The thread's id.
    pub fn tid(&self) -> i32 {
        self.tid
    }

    /// The thread pointer: fs base on x86-64, TPIDR_EL0 on aarch64.
    pub fn thread_pointer(&self) -> u64 {
        self.registers.thread_pointer()
    }

    /// Its registers at the stop.
    #[doc(alias = "PTRACE_GETREGSET")]
    pub fn registers(&self) -> &Registers {
        &self.registers
    }

    /// Resumes the thread. Returns [`Error::NoSuchThread`] if it was killed while it was stopped:
    /// data read from it may be wrong. Dropping does the same without the error.
    #[doc(alias = "PTRACE_DETACH")]
    pub fn resume(mut self) -> Result<(), Error> {
        let (pid, tid) = (self.pid, self.tid);
        let is_alive = self.release().then_some(());
        is_alive.ok_or(Error::NoSuchThread { pid, tid })
    }

    /// Resumes the thread; false if it was killed while it was stopped.
    fn release(&mut self) -> bool {
        if std::mem::replace(&mut self.resumed, true) {
            return true;
        }
        // A group-stopped thread would have received EINTR without this tracer, too.
        if self.registers.is_interrupted_call() && !self.stop.group_stop {
            // Fails only if the thread has died: there is nothing to restart.
            let _ = self.registers.restart_call(self.tid);
        }
        if tracee::detach(self.tid, self.stop.signal).is_ok() {
            return true;
        }
        // It was killed. An exec in another thread waits until the tracer has reaped it.
        let deadline = Instant::now() + DEATH_TIMEOUT;
        match tracee::wait_for_stop(self.pid, self.tid, deadline) {
            Outcome::Gone => {}
            Outcome::Executed(stop) => drop(tracee::detach(self.pid, stop.signal)),
            Outcome::Stopped(stop) => drop(tracee::detach(self.tid, stop.signal)),
            Outcome::Late(tid) => {
                if let Some(traced) = self.traced.take() {
                    LATE.with_borrow_mut(|late| late.push((self.pid, tid, traced)));
                }
            }
        }
        false
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.release();
    }
}

/// Resumes threads that stopped only after their timeout. Returns whether others have not stopped
/// yet: a long-lived OS thread should then call this again soon.
pub fn resume_late() -> bool {
    let waiting = LATE.with_borrow_mut(std::mem::take);
    for (pid, tid, traced) in waiting {
        match tracee::poll(pid, tid) {
            Poll::Stopped(stop) => drop(Stopped::new(pid, tid, stop, traced)),
            Poll::Gone => {}
            Poll::Running => LATE.with_borrow_mut(|late| late.push((pid, tid, traced))),
        }
    }
    LATE.with_borrow(|late| !late.is_empty())
}

/// Takes the threads that [`suspend`] must not count as resumed until this OS thread has exited:
/// the kernel resumes late threads only then.
///
/// An OS thread that stops threads calls this at its end and returns the result; drop that after
/// joining the OS thread. [`on_own_thread`] does this.
pub fn take_late() -> Late {
    Late(LATE.take())
}

/// Waits while the thread is in an uninterruptible sleep, in which it cannot stop.
fn wait_until_stoppable(
    process: &Process,
    tid: i32,
    timeout: Duration,
    deadline: Instant,
) -> Result<(), Error> {
    let pid = process.pid();
    loop {
        let stat = process.thread_stat(tid)?;
        match stat.state() {
            'Z' | 'X' => return Err(Error::NoSuchThread { pid, tid }),
            'D' if Instant::now() >= deadline => {
                return Err(Error::StopTimeout {
                    pid,
                    tid,
                    timeout,
                    state: 'D',
                });
            }
            'D' => std::thread::sleep(MAX_PAUSE),
            // Its registers would be those of the thread that it works for.
            _ if stat.is_kernel_worker() => return Err(Error::KernelWorker { pid, tid }),
            _ => return Ok(()),
        }
    }
}

/// Checks, without tracing, that a readable process can be traced: not if a sandbox denies
/// ptrace(2), or another process already traces it.
///
/// # Errors
///
/// [`Error::NotPermitted`] and [`Error::AlreadyTraced`].
pub fn check_traceable(process: &Process) -> Result<(), Error> {
    let (pid, mut tracer) = (process.pid(), process.status()?.tracer);
    if tracer != 0 {
        // Another reader may have stopped the thread, which takes less time.
        std::thread::sleep(MAX_PAUSE);
        tracer = process.status()?.tracer;
    }
    if tracer != 0 {
        let tid = pid;
        return Err(Error::AlreadyTraced { pid, tid, tracer });
    }
    // No thread has ID 0.
    match tracee::seize(0) {
        Err(Errno::ESRCH) => Ok(()),
        Ok(()) | Err(_) => Err(not_permitted(pid)),
    }
}

fn not_permitted(pid: i32) -> Error {
    Error::NotPermitted {
        pid,
        action: "stop a thread",
        hint: permission::hint(),
    }
}

/// The reason why the kernel refused to trace a thread.
fn refused(process: &Process, tid: i32, errno: Errno) -> Error {
    let pid = process.pid();
    let status = match process.thread_status(tid) {
        Ok(status) => status,
        Err(error) => return error,
    };
    match errno {
        _ if u32::try_from(status.process) == Ok(std::process::id()) => Error::Unsupported {
            pid,
            reason: "a process cannot stop its own threads: read them from another process",
        },
        Errno::ESRCH => Error::NoSuchThread { pid, tid },
        _ if matches!(status.state, 'Z' | 'X') => Error::NoSuchThread { pid, tid },
        _ if status.tracer != 0 => Error::AlreadyTraced {
            pid,
            tid,
            tracer: status.tracer,
        },
        _ if status.kernel_thread => Error::Unsupported {
            pid,
            reason: "it is a kernel thread, which has no thread pointer",
        },
        Errno::EPERM | Errno::EACCES => not_permitted(pid),
        errno => Error::io(format!("/proc/{pid}/task/{tid}"))(errno),
    }
}

/// Runs `work` on a new OS thread and returns its result. No thread stays traced, even one that
/// `work` requested to stop and that did not stop in time.
///
/// # Errors
///
/// [`Error::NoOwnThread`] when the system cannot start another thread.
pub fn on_own_thread<R: Send>(work: impl FnOnce() -> R + Send) -> Result<R, Error> {
    crate::descriptors::reserve();
    let work = || {
        let result = catch_unwind(AssertUnwindSafe(work));
        (result, take_late())
    };
    let ended = std::thread::scope(|scope| {
        let worker = std::thread::Builder::new().spawn_scoped(scope, work);
        worker.map_err(Error::NoOwnThread).map(|it| it.join())
    })?;
    let (result, late) = ended.unwrap_or_else(|panic| resume_unwind(panic));
    drop(late);
    result.map_or_else(|panic| resume_unwind(panic), Ok)
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicI32, Ordering};

    use otelctx_fixtures::{Compiler, STOP_TIMEOUT, Target};

    use super::*;

    fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
        let deadline = Instant::now() + STOP_TIMEOUT;
        while !condition() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// An exec in another thread transfers the ID of a traced leader to a thread that is not
    /// traced. On a busy machine, the deadline passes before the second poll.
    #[test]
    fn an_id_that_is_not_traced_any_more_is_not_late() {
        let Some(program) = Compiler::gcc().program::<&str>(&["signals.c"], &[]) else {
            return;
        };
        let target = Target::spawn(&mut Command::new(program));
        let pid = target.pid();
        assert_eq!(
            tracee::wait_for_stop(pid, pid, Instant::now()),
            Outcome::Gone
        );
    }

    /// The process whose main thread must not be traced when this process is suspended.
    static LATE_PROCESS: AtomicI32 = AtomicI32::new(0);
    /// True if that was so.
    static DETACHED: OnceLock<bool> = OnceLock::new();

    /// Instead of suspending: the OS thread that runs this cannot exit meanwhile.
    fn note_tracer() {
        let process = Process::open(LATE_PROCESS.load(Ordering::SeqCst)).unwrap();
        let deadline = Instant::now() + STOP_TIMEOUT;
        let is_traced = || process.status().unwrap().tracer != 0;
        while is_traced() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        DETACHED.set(!is_traced()).unwrap();
    }

    /// A thread that enters an uninterruptible sleep (here by vfork) just when the stop is
    /// requested stays traced until the next stop, the end of the OS thread, or [`resume_late`].
    #[test]
    fn a_thread_that_stops_too_late_is_resumed() {
        #[derive(PartialEq)]
        enum By {
            NextStop,
            OwnThread,
            Release,
        }
        use By::{NextStop, OwnThread, Release};
        let flags = ["-DLINKED", "-rdynamic"];
        let Some(program) = Compiler::gcc().program(&["threads.c", "variable.c"], &flags) else {
            return;
        };
        for way in [NextStop, OwnThread, Release] {
            let target = Target::spawn(Command::new(&program).arg("vfork"));
            let pid = target.pid();
            let process = Process::open(pid).unwrap();
            let state = || process.thread_state(pid).unwrap();
            let tracer = || process.thread_status(pid).unwrap().tracer;
            wait_until("vfork", || state() == 'D');
            let late = || {
                let timeout = Duration::from_millis(5);
                let deadline = Instant::now() + timeout;
                let stopped = Stopped::trace(&process, pid, timeout, deadline, || ());
                match stopped {
                    Err(Error::StopTimeout { state: 'D', .. }) => assert_ne!(tracer(), 0),
                    other => panic!("{other:?}"),
                }
            };
            if way == OwnThread {
                suspend::set_action(note_tracer);
                LATE_PROCESS.store(pid, Ordering::SeqCst);
                on_own_thread(|| {
                    late();
                    suspend::request();
                })
                .unwrap();
                wait_until("suspended", || !suspend::is_requested());
                assert_eq!(DETACHED.get(), Some(&true));
            } else {
                late();
            }
            // The child sleeps; once it is killed, the parent continues and stops as requested.
            let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
            let child = children.unwrap().trim().parse().unwrap();
            let killed = nix::sys::signal::kill(
                nix::unistd::Pid::from_raw(child),
                nix::sys::signal::Signal::SIGKILL,
            );
            killed.unwrap();
            if way != OwnThread {
                wait_until("the late stop", || state() == 't');
                if way == Release {
                    resume_late();
                } else {
                    // Any stop in this OS thread, here of another thread.
                    let other = target.threads[0].tid;
                    drop(Stopped::stop(&process, other, STOP_TIMEOUT).unwrap());
                }
                assert_eq!(LATE.with_borrow(Vec::len), 0);
            }
            wait_until("the thread runs", || matches!(state(), 'S' | 'R'));
            assert_eq!(tracer(), 0);
        }
    }
}
