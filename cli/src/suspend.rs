//! Ctrl-Z: this process is suspended only while it has no thread of a target stopped.
//!
//! The default action of SIGTSTP would suspend it during a stop, and the target's thread would stay
//! stopped until the job continues. SIGSTOP cannot be caught, and still has this effect.

use std::io;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread::sleep;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal};
use nix::sys::signal::{kill, pthread_sigmask, raise, sigaction};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use otelctx_reader::remote::stop::suspend;

use crate::interrupt;

/// The signals that suspend a job: Ctrl-Z, and reading from or writing to the terminal in the
/// background.
const SIGNALS: [Signal; 3] = [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU];
/// The time to wait for the worker process to be suspended. It stops a target's thread for less
/// time, unless a page of that target never arrives.
const WORKER_TIMEOUT: Duration = Duration::from_secs(2);
/// The interval of checks whether it is suspended.
const PERIOD: Duration = Duration::from_millis(1);

/// The signal that suspends this process.
static SIGNAL: AtomicI32 = AtomicI32::new(libc::SIGTSTP);
/// The worker process that stops threads for this one, [`NO_WORKER`], or [`IS_WORKER`].
static WORKER: AtomicI32 = AtomicI32::new(NO_WORKER);
const NO_WORKER: i32 = 0;
/// Marks the worker process itself.
const IS_WORKER: i32 = -1;

/// Catches the signals that suspend a job. An ignored signal, as without job control, stays ignored.
pub(crate) fn catch() -> io::Result<()> {
    suspend::set_action(suspend_now);
    let caught = SigAction::new(SigHandler::Handler(handle), SaFlags::SA_RESTART, all());
    // SAFETY: `handle` and what it calls only store to atomics and make system calls.
    unsafe { interrupt::catch_unless_ignored(&SIGNALS, &caught) }.map(drop)
}

fn all() -> SigSet {
    let mut all = SigSet::empty();
    SIGNALS.iter().for_each(|signal| all.add(*signal));
    all
}

/// Blocks the signals while a worker process is started, until both know which of them they are.
#[must_use]
pub(crate) fn block() -> Blocked {
    let mut before = SigSet::empty();
    let blocked = pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&all()), Some(&mut before));
    Blocked(blocked.is_ok().then_some(before))
}

/// See [`block`].
pub(crate) struct Blocked(Option<SigSet>);

impl Drop for Blocked {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(before), None);
        }
    }
}

/// Suspends this process with `signal` once it has no thread stopped. Returns when it continues.
pub(crate) fn suspend(signal: Signal) {
    SIGNAL.store(signal as libc::c_int, Ordering::SeqCst);
    suspend::request();
    while suspend::is_requested() {
        sleep(PERIOD);
    }
}

/// Sets the worker process that stops threads for this one, until the result is dropped.
#[must_use]
pub(crate) fn with_worker(worker: Pid) -> ForgetWorker {
    WORKER.store(worker.as_raw(), Ordering::SeqCst);
    ForgetWorker(())
}

/// See [`with_worker`].
pub(crate) struct ForgetWorker(());

impl Drop for ForgetWorker {
    fn drop(&mut self) {
        WORKER.store(NO_WORKER, Ordering::SeqCst);
    }
}

/// Marks this process as a worker, which its parent suspends and continues.
pub(crate) fn be_worker() {
    WORKER.store(IS_WORKER, Ordering::SeqCst);
}

extern "C" fn handle(signal: libc::c_int) {
    let errno = Errno::last_raw();
    SIGNAL.store(signal, Ordering::SeqCst);
    suspend::request();
    Errno::set_raw(errno);
}

/// Suspends the worker, and then this process. Returns when both continue.
fn suspend_now() {
    let Ok(signal) = Signal::try_from(SIGNAL.load(Ordering::SeqCst)) else {
        return;
    };
    let worker = match WORKER.load(Ordering::SeqCst) {
        IS_WORKER => {
            // Not by the default action, so that the same signal, sent by the terminal and by the
            // parent, suspends it only once.
            let _ = raise(Signal::SIGSTOP);
            return;
        }
        worker => Some(Pid::from_raw(worker)).filter(|_| worker != NO_WORKER),
    };
    if let Some(worker) = worker {
        let _ = kill(worker, signal);
        wait_until_suspended(worker);
    }
    take_default_action(signal);
    if let Some(worker) = worker {
        let _ = kill(worker, Signal::SIGCONT);
    }
}

/// Suspends this process, unless no process could continue it (an orphaned process group).
fn take_default_action(signal: Signal) {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: a handler must be async-signal-safe; the default runs no code.
    let Ok(before) = (unsafe { sigaction(signal, &default) }) else {
        return;
    };
    let mut set = SigSet::empty();
    set.add(signal);
    let mut mask = SigSet::empty();
    // In the handler the signal is blocked.
    let unblocked = pthread_sigmask(SigmaskHow::SIG_UNBLOCK, Some(&set), Some(&mut mask));
    let _ = raise(signal);
    if unblocked.is_ok() {
        let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&mask), None);
    }
    // SAFETY: this action was in place before, and who set it ensured the same of its handler.
    let _ = unsafe { sigaction(signal, &before) };
}

fn wait_until_suspended(worker: Pid) {
    let flags =
        WaitPidFlag::WSTOPPED | WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    let attempts = WORKER_TIMEOUT.as_millis() / PERIOD.as_millis();
    for _ in 0..attempts {
        match waitid(Id::Pid(worker), flags) {
            Ok(WaitStatus::StillAlive) => sleep(PERIOD),
            _ => return,
        }
    }
}
