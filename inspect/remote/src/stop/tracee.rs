//! The system calls ptrace and waitid, as functions that return values.

use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc::{self, c_int, c_void};

use crate::Process;

/// Number of polls without a delay: a sleeping thread stops within about 20 µs.
const SPINS: u32 = 100;
/// The first and the longest delay between later polls.
const MIN_PAUSE: Duration = Duration::from_micros(20);
pub(super) const MAX_PAUSE: Duration = Duration::from_millis(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stop {
    /// The signal that was being delivered, which must be passed on; 0 if none.
    pub(super) signal: c_int,
    /// True if a signal has stopped the whole process: the thread stays stopped when detached.
    pub(super) group_stop: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Poll {
    Running,
    Stopped(Stop),
    /// It has ended, or is no longer traced by this process.
    Gone,
}

/// The result of waiting for a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Stopped(Stop),
    Gone,
    /// The thread has become the thread-group leader by executing a program, and has stopped.
    Executed(Stop),
    /// The deadline has passed, and this thread is still traced.
    Late(i32),
}

/// The type of the request in the C library's `ptrace`.
#[cfg(target_env = "musl")]
type Request = c_int;
#[cfg(not(target_env = "musl"))]
type Request = libc::c_uint;

fn ptrace(request: Request, tid: i32, data: usize) -> Result<(), Errno> {
    // SAFETY: the callers below pass SEIZE, INTERRUPT or DETACH, which take only numbers.
    let result = unsafe { libc::ptrace(request, tid, std::ptr::null_mut::<c_void>(), data) };
    Errno::result(result).map(drop)
}

pub(super) fn seize(tid: i32) -> Result<(), Errno> {
    ptrace(libc::PTRACE_SEIZE, tid, 0)
}

pub(super) fn interrupt(tid: i32) -> Result<(), Errno> {
    ptrace(libc::PTRACE_INTERRUPT, tid, 0)
}

/// Detaches from a stopped thread, delivering `signal` if it is not 0. A group-stopped thread stays
/// stopped (kernel/ptrace.c, `__ptrace_unlink`).
pub(super) fn detach(tid: i32, signal: c_int) -> Result<(), Errno> {
    ptrace(libc::PTRACE_DETACH, tid, signal as usize)
}

/// Checks whether a tracee has stopped (reported with any flags: kernel/exit.c,
/// `wait_task_stopped`) or ended. WNOWAIT leaves it waitable.
pub(super) fn poll(pid: i32, tid: i32) -> Poll {
    let (code, status) = match wait(tid, libc::WEXITED | libc::WNOWAIT) {
        Ok(Some(news)) => news,
        Err(Errno::ECHILD) => return Poll::Gone,
        // Only ECHILD means that it is no longer traced.
        Ok(None) | Err(_) => return Poll::Running,
    };
    if code == libc::CLD_TRAPPED {
        return Poll::Stopped(Stop::from_status(status));
    }
    // The process's parent waits until the tracer has reaped a thread. A child of this process is
    // left to the code that waits for it.
    if tid != pid || !is_own_child(pid) {
        let _ = wait(tid, libc::WEXITED);
    }
    Poll::Gone
}

/// A tracee's `si_code` and `si_status`, without waiting; `None` if its state has not changed.
fn wait(tid: i32, flags: c_int) -> Result<Option<(c_int, c_int)>, Errno> {
    // SAFETY: siginfo_t consists of integers, unions of them and pointers: all-zero is valid.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = flags | libc::WNOHANG | libc::__WALL;
    // SAFETY: `info` lives through the call, and waitid(2) writes nothing but a siginfo_t.
    let result = unsafe { libc::waitid(libc::P_PID, tid as libc::id_t, &raw mut info, flags) };
    Errno::result(result)?;
    // SAFETY: waitid(2) fills in the union's SIGCHLD fields; without a change of state they stay 0.
    let (found, status) = unsafe { (info.si_pid(), info.si_status()) };
    Ok((found != 0).then_some((info.si_code, status)))
}

fn is_own_child(pid: i32) -> bool {
    let stat = Process::open(pid).and_then(|process| process.stat());
    stat.is_ok_and(|stat| stat.parent() == Some(u64::from(std::process::id())))
}

/// Waits until thread `tid` of process `pid` has stopped, or until `deadline`: polls, as waitpid(2)
/// has no timeout.
pub(super) fn wait_for_stop(pid: i32, tid: i32, deadline: Instant) -> Outcome {
    let mut pause = MIN_PAUSE;
    let mut polls = 0;
    let mut current = tid;
    loop {
        match poll(pid, current) {
            Poll::Stopped(stop) if current == tid => return Outcome::Stopped(stop),
            Poll::Stopped(stop) => return Outcome::Executed(stop),
            Poll::Running => {}
            // A thread that executes a program takes over its process's ID.
            Poll::Gone if current != pid && interrupt(pid).is_ok() => current = pid,
            Poll::Gone => return Outcome::Gone,
        }
        polls += 1;
        if polls < SPINS {
            std::thread::yield_now();
            continue;
        }
        // If another thread executes a program, this ID may live on untraced, as a request shows.
        let late = Instant::now() >= deadline;
        if (late || pause == MAX_PAUSE)
            && interrupt(current).is_err()
            && poll(pid, current) == Poll::Running
        {
            return Outcome::Gone;
        }
        if late {
            return Outcome::Late(current);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

impl Stop {
    /// `status` is signal + event × 256 (ptrace(2), "Stopped states").
    fn from_status(status: c_int) -> Self {
        let (signal, event) = (status & 0xff, status >> 8);
        Stop {
            // An event is an interrupt or a stop of the whole process: no signal is delivered.
            signal: if event == 0 { signal } else { 0 },
            group_stop: event == libc::PTRACE_EVENT_STOP && signal != libc::SIGTRAP,
        }
    }
}
