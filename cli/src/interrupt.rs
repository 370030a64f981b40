//! Ends commands with a result on Ctrl-C, SIGTERM and SIGHUP; and notes SIGUSR1, on which a recording that is kept is
//! written.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

use nix::libc;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal};
use nix::sys::signal::{pthread_sigmask, sigaction, signal};
use nix::sys::time::TimeSpec;

use crate::output::terminal;

/// The signals: Ctrl-C, what `kill` and `timeout` send, and the end of the terminal.
const SIGNALS: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// The number of the signal that arrived, negative if the terminal sent it; 0 before the first.
static CAUGHT: AtomicI32 = AtomicI32::new(0);

/// The numbers of the signals that have arrived, as bits.
static SEEN: AtomicU32 = AtomicU32::new(0);

/// True if a second signal ends the process.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// True if SIGINT was ignored from the start.
static IGNORES_SIGINT: AtomicBool = AtomicBool::new(false);

/// The ID of this process while it has a recording that is not written completely; 0 otherwise.
static UNWRITTEN: AtomicI32 = AtomicI32::new(0);

/// True if SIGUSR1 has arrived, and [`take_write_request`] was not called since.
static WRITE_REQUESTED: AtomicBool = AtomicBool::new(false);

/// True if SIGHUP has arrived, and [`take_reload`] was not called since.
static RELOAD_REQUESTED: AtomicBool = AtomicBool::new(false);

/// The descriptor that ends [`sleep`], which is never closed; -1 before [`wake_on_signals`].
static WAKER: AtomicI32 = AtomicI32::new(-1);

const LOST: &[u8] = b"otelctx: interrupted twice: the recording was not written\n";

extern "C" fn note(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let bit = 1 << signal;
    if SEEN.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
        return end(signal);
    }
    // SAFETY: the kernel passes a valid siginfo_t to a handler with SA_SIGINFO (sigaction(2)), as
    // `catch` installs this one.
    let code = unsafe { (*info).si_code };
    // sigaction(2): positive codes are the kernel's, which sends for the terminal.
    let sign = if code > 0 { -1 } else { 1 };
    CAUGHT.store(sign * signal, Ordering::Relaxed);
    wake();
}

/// Ends [`sleep`], also on another thread.
fn wake() {
    let waker = WAKER.load(Ordering::Relaxed);
    if waker >= 0 {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: write(2) is async-signal-safe and reads as many bytes as the array has. The descriptor does not block.
        unsafe { libc::write(waker, one.as_ptr().cast(), one.len()) };
    }
}

/// Makes signals end [`sleep`], whichever thread handles them. To be called once.
pub(crate) fn wake_on_signals() -> io::Result<()> {
    let waker = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
    WAKER.store(OwnedFd::from(waker).into_raw_fd(), Ordering::Relaxed);
    Ok(())
}

/// Waits for `time`, or until a signal arrives after [`wake_on_signals`] was called.
pub(crate) fn sleep(time: Duration) {
    let waker = WAKER.load(Ordering::Relaxed);
    if waker < 0 {
        return std::thread::sleep(time);
    }
    // SAFETY: `wake_on_signals` has opened it, and nothing closes it.
    let waker = unsafe { BorrowedFd::borrow_raw(waker) };
    let mut polled = [PollFd::new(waker, PollFlags::POLLIN)];
    // An interrupted wait is as good as one that has ended; what was written is read.
    if matches!(
        ppoll(&mut polled, Some(TimeSpec::from(time)), None),
        Ok(1..)
    ) {
        let _ = nix::unistd::read(waker, &mut [0; 8]);
    }
}

/// Reports what is lost, if anything is, and ends the process by the signal's default. A signal that
/// arrives meanwhile, on another thread, is ignored: with SA_RESETHAND it would end the process before
/// the report.
fn end(signal: libc::c_int) {
    if IS_ENDING.swap(true, Ordering::Relaxed) {
        return;
    }
    // SAFETY: getpid(2) has no conditions and is async-signal-safe (signal-safety(7)).
    let pid = unsafe { libc::getpid() };
    // A worker process inherits the handlers; its parent reports.
    if UNWRITTEN.load(Ordering::Relaxed) == pid {
        // SAFETY: write(2) is async-signal-safe and reads as many bytes as the static text has.
        unsafe { libc::write(libc::STDERR_FILENO, LOST.as_ptr().cast(), LOST.len()) };
    }
    // SAFETY: signal(2) is async-signal-safe, and the default action runs no code.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    // SAFETY: raise(3) is async-signal-safe. The signal is blocked until the handler returns.
    unsafe { libc::raise(signal) };
}

/// Makes a second signal report that the recording is lost, or no longer.
pub(crate) fn report_loss(is_unwritten: bool) {
    let pid = std::process::id() as i32;
    UNWRITTEN.store(if is_unwritten { pid } else { 0 }, Ordering::Relaxed);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caught {
    pub(crate) signal: Signal,
    /// True if it came from the terminal, and so to every process of the command.
    pub(crate) by_terminal: bool,
}

pub(crate) fn caught() -> Option<Caught> {
    let number = CAUGHT.load(Ordering::Relaxed);
    let signal = Signal::try_from(number.abs()).ok()?;
    Some(Caught {
        signal,
        by_terminal: number < 0,
    })
}

/// Catches the signals: the first of each is only recorded, a second one ends the process as usual, see
/// also [`report_loss`]. An ignored signal, as under `nohup`, stays ignored.
pub(crate) fn catch() -> io::Result<()> {
    let noted = SigAction::new(
        SigHandler::SigAction(note),
        SaFlags::SA_SIGINFO,
        SigSet::empty(),
    );
    // SAFETY: `note` and what it calls only access atomics and call functions that are async-signal-safe.
    let ignored = unsafe { catch_unless_ignored(&SIGNALS, &noted) }?;
    IGNORES_SIGINT.store(ignored.contains(&Signal::SIGINT), Ordering::Relaxed);
    Ok(())
}

extern "C" fn note_write_request(_: libc::c_int) {
    WRITE_REQUESTED.store(true, Ordering::Relaxed);
}

/// Catches SIGUSR1, also if it was ignored or blocked, and notes it for [`take_write_request`].
pub(crate) fn catch_write_requests() -> io::Result<()> {
    let noted = SigAction::new(
        SigHandler::Handler(note_write_request),
        SaFlags::SA_RESTART,
        SigSet::empty(),
    );
    // SAFETY: `note_write_request` only stores to an atomic.
    unsafe { sigaction(Signal::SIGUSR1, &noted) }?;
    let mut requests = SigSet::empty();
    requests.add(Signal::SIGUSR1);
    pthread_sigmask(SigmaskHow::SIG_UNBLOCK, Some(&requests), None)?;
    Ok(())
}

/// Returns whether SIGUSR1 has arrived since the last call, once or several times.
pub(crate) fn take_write_request() -> bool {
    WRITE_REQUESTED.swap(false, Ordering::Relaxed)
}

extern "C" fn note_reload(_: libc::c_int) {
    RELOAD_REQUESTED.store(true, Ordering::Relaxed);
    wake();
}

/// Notes SIGHUP for [`take_reload`], also if it was ignored, in place of ending the command on it.
pub(crate) fn catch_reloads() -> io::Result<()> {
    let noted = SigAction::new(
        SigHandler::Handler(note_reload),
        SaFlags::SA_RESTART,
        SigSet::empty(),
    );
    // SAFETY: `note_reload` and what it calls only access atomics and call functions that are async-signal-safe.
    unsafe { sigaction(Signal::SIGHUP, &noted) }?;
    Ok(())
}

/// Returns whether SIGHUP has arrived since the last call, once or several times.
pub(crate) fn take_reload() -> bool {
    RELOAD_REQUESTED.swap(false, Ordering::Relaxed)
}

/// Says that SIGINT does not end the command, as in the background of a shell's script, if so.
pub(crate) fn say_if_ignored() {
    if IGNORES_SIGINT.load(Ordering::Relaxed) {
        terminal::complain("SIGINT is ignored here: end with SIGTERM", None);
    }
}

/// Sets the action of those of the signals that are not ignored, and returns the others.
///
/// # Safety
///
/// The action's handler must be async-signal-safe (signal-safety(7)).
pub(crate) unsafe fn catch_unless_ignored(
    signals: &[Signal],
    action: &SigAction,
) -> io::Result<Vec<Signal>> {
    let mut ignored = Vec::new();
    for signal in signals {
        // SAFETY: the caller ensures that the handler is async-signal-safe.
        let before = unsafe { sigaction(*signal, action) }?;
        if matches!(before.handler(), SigHandler::SigIgn) {
            // SAFETY: ignoring a signal runs no code.
            unsafe { sigaction(*signal, &before) }?;
            ignored.push(*signal);
        }
    }
    Ok(ignored)
}

/// Restores the default for SIGCHLD. A parent that ignores it passes that on, and then the exit status
/// of a child is lost (wait(2)).
pub(crate) fn reset_sigchld() {
    // SAFETY: a handler must be async-signal-safe; the default runs no code.
    let _ = unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) };
}

/// Ignores Ctrl-C, which a terminal sends to every process of a command: the parent handles it.
pub(crate) fn ignore_ctrl_c() -> io::Result<()> {
    let ignored = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
    // SAFETY: a handler must be async-signal-safe; ignoring a signal runs no code.
    unsafe { sigaction(Signal::SIGINT, &ignored) }?;
    Ok(())
}

pub(crate) fn is_caught() -> bool {
    CAUGHT.load(Ordering::Relaxed) != 0
}

/// Waits for `time`, or until a signal arrives or the reader of standard output has gone. Returns
/// whether to continue.
pub(crate) fn wait(time: Duration) -> io::Result<bool> {
    // A signal between the check and the wait would be missed: it is blocked until the wait.
    let mut held = SigSet::empty();
    SIGNALS.iter().for_each(|signal| held.add(*signal));
    let mut before = SigSet::empty();
    pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&held), Some(&mut before))?;
    let stdout = io::stdout();
    // No events requested: POLLERR for a pipe without a reader is always reported (poll(2)).
    let mut stdout = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
    let ended = if is_caught() {
        Ok(1)
    } else {
        ppoll(&mut stdout, Some(TimeSpec::from(time)), Some(before))
    };
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None)?;
    match ended {
        Ok(events) => Ok(events == 0),
        Err(nix::Error::EINTR) => Ok(!is_caught()),
        Err(errno) => Err(errno.into()),
    }
}
