//! Stopping a thread with ptrace, and letting it go as it was.
//!
//! A stop is PTRACE_SEIZE and PTRACE_INTERRUPT, letting go is PTRACE_DETACH; neither sends a
//! signal. Two things need care so that the thread notices nothing: a signal that was about to be delivered when the thread stopped is handed back, and a
//! system call that the stop ended with EINTR is started anew, its time-out from the beginning.

mod tracee;

use std::cell::RefCell;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use nix::errno::Errno;

pub use crate::arch::Registers;
use crate::{Error, Process, permission};

use tracee::{LONGEST_PAUSE, Outcome, Poll, Stop};

/// Longer time-outs are taken for this one: an hour. Some that a caller can name do not fit into an
/// [`Instant`].
const LONGEST_TIMEOUT: Duration = Duration::from_secs(3600);
/// How long a thread that was killed while it was stopped may take to be gone.
const DEATH: Duration = Duration::from_millis(100);

thread_local! {
    /// Threads (process, thread) that this OS thread still traces although nobody holds a
    /// [`Stopped`]: they did not stop in time, or are dying.
    static LINGERING: RefCell<Vec<(i32, i32)>> = const { RefCell::new(Vec::new()) };
}

/// A stopped thread. It runs on when this is dropped.
///
/// ptrace binds a stop to the OS thread that asked for it, so this cannot be sent to another.
#[derive(Debug)]
pub struct Stopped {
    pid: i32,
    tid: i32,
    stop: Stop,
    registers: Registers,
    resumed: bool,
    /// Not `Send`, not `Sync`.
    bound: PhantomData<*const ()>,
}

impl Stopped {
    /// Stops thread `tid` of `process`, waiting at most `timeout`.
    ///
    /// A thread in an uninterruptible sleep is not stopped. If it falls into one just when it is
    /// asked to stop it stays traced until it wakes, as does one that gets no processor in time. It
    /// is let go by the next call in this OS thread, by [`release_late`], or when this OS thread
    /// ends: see [`on_own_thread`].
    pub fn stop(process: &Process, tid: i32, timeout: Duration) -> Result<Self, Error> {
        let timeout = timeout.min(LONGEST_TIMEOUT);
        let deadline = Instant::now() + timeout;
        release_late();
        wait_while_uninterruptible(process, tid, timeout, deadline)?;
        Self::trace(process, tid, timeout, deadline)
    }

    /// Traces a thread, whatever it does, and waits for it to stop.
    fn trace(
        process: &Process,
        tid: i32,
        timeout: Duration,
        deadline: Instant,
    ) -> Result<Self, Error> {
        let pid = process.pid();
        // EPERM also means that the thread was just ending, or giving way to an exec, of which
        // nothing may be seen any more: only a refusal that lasts is one.
        tracee::seize(tid)
            .or_else(|_| tracee::seize(tid))
            .or_else(|_| {
                std::thread::sleep(LONGEST_PAUSE);
                tracee::seize(tid)
            })
            .map_err(|errno| refused(process, tid, errno))?;
        // From here on the id cannot pass to another thread; before, it could have.
        let belongs = process.has_thread(tid);
        // A thread that has died since is met by the wait.
        let _ = tracee::interrupt(tid);
        match tracee::wait_for_stop(pid, tid, deadline) {
            Outcome::Stopped(stop) => {
                let stopped = Self::hold(pid, tid, stop)?;
                if belongs {
                    Ok(stopped)
                } else {
                    Err(Error::NoSuchThread { pid, tid })
                }
            }
            Outcome::Gone => Err(Error::NoSuchThread { pid, tid }),
            Outcome::Executed(stop) => {
                drop(Self::hold(pid, pid, stop));
                Err(Error::NoSuchThread { pid, tid })
            }
            Outcome::Late(tid) => {
                LINGERING.with_borrow_mut(|lingering| lingering.push((pid, tid)));
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

    /// Takes hold of a thread that has stopped. On an error it is let go.
    fn hold(pid: i32, tid: i32, stop: Stop) -> Result<Self, Error> {
        let registers = Registers::read(tid);
        let stopped = Stopped {
            pid,
            tid,
            stop,
            registers: registers.unwrap_or_default(),
            resumed: false,
            bound: PhantomData,
        };
        match registers {
            Ok(_) => Ok(stopped),
            Err(Errno::EINVAL) => Err(Error::Not64Bit { pid, tid }),
            // Killed meanwhile: only SIGKILL ends a stop.
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

    /// The registers that it stopped with.
    pub fn registers(&self) -> &Registers {
        &self.registers
    }

    /// Lets the thread run on, and reports [`Error::NoSuchThread`] if it was killed while it was
    /// stopped: what was read of it meanwhile may be no longer true. Dropping does the same and
    /// reports nothing.
    pub fn resume(mut self) -> Result<(), Error> {
        if self.release() {
            Ok(())
        } else {
            Err(Error::NoSuchThread {
                pid: self.pid,
                tid: self.tid,
            })
        }
    }

    /// Lets the thread go; false if it was killed meanwhile.
    fn release(&mut self) -> bool {
        if std::mem::replace(&mut self.resumed, true) {
            return true;
        }
        // A group-stopped thread would have seen EINTR without this tracer, too.
        if self.registers.is_interrupted_call() && !self.stop.group_stop {
            // If the thread dies just now there is nothing to restart.
            let _ = self.registers.restart_call(self.tid);
        }
        if tracee::detach(self.tid, self.stop.signal).is_ok() {
            return true;
        }
        // Killed. An exec in another thread waits until its tracer has seen it die.
        let deadline = Instant::now() + DEATH;
        match tracee::wait_for_stop(self.pid, self.tid, deadline) {
            Outcome::Gone => {}
            Outcome::Executed(stop) => {
                let _ = tracee::detach(self.pid, stop.signal);
            }
            Outcome::Stopped(stop) => {
                let _ = tracee::detach(self.tid, stop.signal);
            }
            Outcome::Late(tid) => {
                LINGERING.with_borrow_mut(|lingering| lingering.push((self.pid, tid)));
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

/// Lets go of threads that this OS thread has asked to stop and that have stopped since, after
/// their time was over. To be called now and then where one OS thread stops threads for long:
/// whoever stops too late stands still until then.
pub fn release_late() {
    let waiting = LINGERING.with_borrow_mut(std::mem::take);
    for (pid, tid) in waiting {
        match tracee::poll(pid, tid) {
            Poll::Stopped(stop) => drop(Stopped::hold(pid, tid, stop)),
            Poll::Gone => {}
            Poll::Running => {
                LINGERING.with_borrow_mut(|lingering| lingering.push((pid, tid)));
            }
        }
    }
}

/// Asking a thread in an uninterruptible sleep to stop would leave it traced until it wakes.
fn wait_while_uninterruptible(
    process: &Process,
    tid: i32,
    timeout: Duration,
    deadline: Instant,
) -> Result<(), Error> {
    let pid = process.pid();
    loop {
        match process.thread_state(tid)? {
            'Z' | 'X' => return Err(Error::NoSuchThread { pid, tid }),
            'D' if Instant::now() >= deadline => {
                return Err(Error::StopTimeout {
                    pid,
                    tid,
                    timeout,
                    state: 'D',
                });
            }
            'D' => std::thread::sleep(LONGEST_PAUSE),
            _ => return Ok(()),
        }
    }
}

/// Says why the kernel did not let us trace a thread.
fn refused(process: &Process, tid: i32, errno: Errno) -> Error {
    let pid = process.pid();
    let status = match process.thread_status(tid) {
        Ok(status) => status,
        Err(error) => return error,
    };
    match errno {
        _ if u32::try_from(status.process) == Ok(std::process::id()) => Error::Unsupported {
            pid,
            reason: "a process cannot stop its own threads: let a process of its own read them",
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
        Errno::EPERM | Errno::EACCES => Error::NotPermitted {
            pid,
            action: "stop a thread",
            mend: permission::mend(),
        },
        errno => Error::Io {
            path: format!("/proc/{pid}/task/{tid}").into(),
            source: errno.into(),
        },
    }
}

/// Runs `work` on an OS thread of its own, and returns what it returns.
///
/// A thread of the target that did not stop in time stays traced until it stops, or until the OS
/// thread that asked for the stop ends. So whoever stops threads in a long-lived OS thread does
/// it in here: nothing stays traced behind.
///
/// # Errors
///
/// [`Error::NoOwnThread`] when the system starts no further thread.
pub fn on_own_thread<R: Send>(work: impl FnOnce() -> R + Send) -> Result<R, Error> {
    std::thread::scope(|scope| {
        let worker = std::thread::Builder::new().spawn_scoped(scope, work);
        match worker.map_err(Error::NoOwnThread)?.join() {
            Ok(result) => Ok(result),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use otelctx_fixtures::{Compiler, Target};

    use super::*;

    fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(5);
        while !condition() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// An exec in another thread hands the id of a traced leader to a thread that is not traced.
    /// On a busy machine the time is over before the second look.
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

    /// A thread that falls into an uninterruptible sleep (here vfork's) just when it is asked to
    /// stop: it stays traced until somebody lets it go, which the next stop, the end of the OS
    /// thread or who is asked to does.
    #[test]
    fn a_thread_that_stops_too_late_is_let_go() {
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
                let stopped = Stopped::trace(&process, pid, timeout, Instant::now() + timeout);
                match stopped {
                    Err(Error::StopTimeout { state: 'D', .. }) => assert_ne!(tracer(), 0),
                    other => panic!("{other:?}"),
                }
            };
            if way == OwnThread {
                on_own_thread(late).unwrap();
                assert_eq!(tracer(), 0);
            } else {
                late();
            }
            // The child sleeps; without it the parent goes on, and into the stop asked for.
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
                    release_late();
                } else {
                    // Any stop in this OS thread, here of another thread.
                    let other = target.threads[0].tid;
                    let timeout = Duration::from_secs(5);
                    drop(Stopped::stop(&process, other, timeout).unwrap());
                }
                assert_eq!(LINGERING.with_borrow(Vec::len), 0);
            }
            wait_until("the thread runs", || matches!(state(), 'S' | 'R'));
            assert_eq!(tracer(), 0);
        }
    }
}
