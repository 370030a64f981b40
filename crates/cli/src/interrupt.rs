//! Ctrl-C as an end that something is still said at.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use nix::libc;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal};
use nix::sys::signal::{pthread_sigmask, sigaction, signal};
use nix::sys::time::TimeSpec;

/// The signals: Ctrl-C, and what `kill` and `timeout` send.
const SIGNALS: [Signal; 2] = [Signal::SIGINT, Signal::SIGTERM];

/// The number of the signal that came, negative if the terminal sent it; 0 before one has come.
static CAUGHT: AtomicI32 = AtomicI32::new(0);

extern "C" fn note(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid structure to a handler with SA_SIGINFO.
    let code = unsafe { (*info).si_code };
    // sigaction(2): positive codes are the kernel's, which sends for the terminal.
    let sign = if code > 0 { -1 } else { 1 };
    CAUGHT.store(sign * signal, Ordering::Relaxed);
}

/// A signal that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caught {
    pub(crate) signal: Signal,
    /// Whether it came from the terminal, and so to every process of the command.
    pub(crate) by_terminal: bool,
}

/// The signal that came, if one has.
pub(crate) fn caught() -> Option<Caught> {
    let number = CAUGHT.load(Ordering::Relaxed);
    let signal = Signal::try_from(number.abs()).ok()?;
    Some(Caught {
        signal,
        by_terminal: number < 0,
    })
}

/// From now on the first of the signals is only noted; a second one ends the process as usual. A signal
/// that is ignored, as in the background of a shell, stays so.
pub(crate) fn catch() -> io::Result<()> {
    catch_each(&SIGNALS)
}

/// The same of what is sent when the terminal goes away.
pub(crate) fn catch_hangup() -> io::Result<()> {
    catch_each(&[Signal::SIGHUP])
}

fn catch_each(signals: &[Signal]) -> io::Result<()> {
    let noted = SigAction::new(
        SigHandler::SigAction(note),
        SaFlags::SA_RESETHAND | SaFlags::SA_SIGINFO,
        SigSet::empty(),
    );
    for signal in signals.iter().copied() {
        // SAFETY: the handler does nothing but store to an atomic.
        let before = unsafe { sigaction(signal, &noted) }?;
        if matches!(before.handler(), SigHandler::SigIgn) {
            // SAFETY: that was there before.
            unsafe { sigaction(signal, &before) }?;
        }
    }
    Ok(())
}

/// Who starts the command may ignore its children's ends, and with them their statuses (wait(2)): the
/// ends of its own are wanted.
pub(crate) fn heed_children() {
    // SAFETY: the default runs no code.
    let _ = unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) };
}

/// From now on Ctrl-C, which a terminal sends to every process of a command, is left to the others.
pub(crate) fn leave_to_others() -> io::Result<()> {
    let ignored = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
    // SAFETY: ignoring runs no code.
    unsafe { sigaction(Signal::SIGINT, &ignored) }?;
    Ok(())
}

/// Whether one of the signals came.
pub(crate) fn is_caught() -> bool {
    CAUGHT.load(Ordering::Relaxed) != 0
}

/// Waits so long, or until one of the signals comes or nobody reads standard output any more. Whether
/// to go on.
pub(crate) fn wait(time: Duration) -> io::Result<bool> {
    // A signal between the question and the wait would be missed: it is held back until the wait.
    let mut held = SigSet::empty();
    SIGNALS.iter().for_each(|signal| held.add(*signal));
    let mut before = SigSet::empty();
    pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&held), Some(&mut before))?;
    let stdout = io::stdout();
    // Nothing is asked for: a pipe without a reader is told all the same (poll(2), POLLERR).
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
