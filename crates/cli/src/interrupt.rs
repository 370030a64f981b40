//! Ctrl-C as an end that something is still said at.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::libc;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal};
use nix::sys::signal::{pthread_sigmask, sigaction};
use nix::sys::time::TimeSpec;

/// The signals: Ctrl-C, and what `kill` and `timeout` send.
const SIGNALS: [Signal; 2] = [Signal::SIGINT, Signal::SIGTERM];

static CAUGHT: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_: libc::c_int) {
    CAUGHT.store(true, Ordering::Relaxed);
}

/// From now on the first of the signals is only noted; a second one ends the process as usual. A signal
/// that is ignored, as in the background of a shell, stays so.
pub(crate) fn catch() -> io::Result<()> {
    let noted = SigAction::new(
        SigHandler::Handler(note),
        SaFlags::SA_RESETHAND,
        SigSet::empty(),
    );
    for signal in SIGNALS {
        // SAFETY: the handler does nothing but store to an atomic.
        let before = unsafe { sigaction(signal, &noted) }?;
        if matches!(before.handler(), SigHandler::SigIgn) {
            // SAFETY: that was there before.
            unsafe { sigaction(signal, &before) }?;
        }
    }
    Ok(())
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
    CAUGHT.load(Ordering::Relaxed)
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
