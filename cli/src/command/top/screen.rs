//! The terminal while the view uses it, and how it is restored.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Once};
use std::thread;
use std::time::Duration;

use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
    enable_raw_mode, size,
};
use ratatui::crossterm::{execute, queue};
use ratatui::layout::Rect;
use ratatui::prelude::CrosstermBackend;
use ratatui::{TerminalOptions, Viewport};

use crate::suspend;

type Terminal = ratatui::Terminal<CrosstermBackend<io::Stdout>>;

/// The terminal, used by the view until this is dropped.
pub(super) struct Screen {
    /// `None` once it was dropped.
    terminal: Option<Terminal>,
    area: Rect,
    /// The terminal, as the source of keys.
    keyboard: OwnedFd,
    events: Receiver<io::Result<Event>>,
    /// True if this was dropped.
    has_ended: Arc<AtomicBool>,
}

/// Outcome of waiting for a key.
#[derive(Debug)]
pub(super) enum Input {
    Nothing,
    Came(Event),
    /// The terminal is gone.
    Gone,
}

fn area() -> io::Result<Rect> {
    let (width, height) = size()?;
    Ok(Rect::new(0, 0, width, height))
}

/// Creates a backend with a given size. If ratatui determined the size itself, it would query the
/// terminal for its cursor at each change, and fail if the terminal does not respond.
fn empty(area: Rect) -> io::Result<Terminal> {
    let options = TerminalOptions {
        viewport: Viewport::Fixed(area),
    };
    Terminal::with_options(CrosstermBackend::new(io::stdout()), options)
}

/// A signal asked to suspend this job.
static STOP: AtomicBool = AtomicBool::new(false);
/// The job continued, perhaps after SIGSTOP, which cannot be caught.
static CONTINUED: AtomicBool = AtomicBool::new(false);

extern "C" fn note(signal: libc::c_int) {
    match signal {
        libc::SIGTSTP => STOP.store(true, Ordering::Relaxed),
        _ => CONTINUED.store(true, Ordering::Relaxed),
    }
}

/// Maximum number of keys that wait to be handled.
const MAX_EVENTS: usize = 64;
/// The interval at which the thread that reads keys checks whether the view has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Reads keys and changes of size in a thread of its own, until the view has ended: where the terminal
/// disappears at the wrong moment, crossterm reads forever.
fn read_events(
    keyboard: OwnedFd,
    has_ended: Arc<AtomicBool>,
) -> io::Result<Receiver<io::Result<Event>>> {
    let (sender, receiver) = mpsc::sync_channel(MAX_EVENTS);
    let read = move || {
        while is_there(&keyboard, CHECK_INTERVAL) && !has_ended.load(Ordering::Relaxed) {
            // One read can contain several keys.
            while let Some(event) = next_event().transpose() {
                let is_last = event.is_err();
                if sender.send(event).is_err() || is_last {
                    return;
                }
            }
        }
    };
    thread::Builder::new().name("keys".into()).spawn(read)?;
    Ok(receiver)
}

/// Returns an event that has already arrived, if there is one.
fn next_event() -> io::Result<Option<Event>> {
    if event::poll(Duration::ZERO)? {
        event::read().map(Some)
    } else {
        Ok(None)
    }
}

/// Waits at most this long for something to read. Returns whether the terminal is still there.
fn is_there(keyboard: &OwnedFd, timeout: Duration) -> bool {
    let mut polled = [PollFd::new(keyboard.as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
    // The only error that can occur is EINTR: the next call will tell.
    let _ = poll(&mut polled, timeout);
    let gone = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
    !polled[0].revents().is_some_and(|it| it.intersects(gone))
}

impl Screen {
    /// Switches the terminal to the view.
    pub(super) fn enter() -> io::Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                give_back();
                before(panic);
            }));
        });
        let handler = SigHandler::Handler(note);
        let action = SigAction::new(handler, SaFlags::SA_RESTART, SigSet::empty());
        for signal in [Signal::SIGTSTP, Signal::SIGCONT] {
            // SAFETY: a handler must be async-signal-safe; `note` only stores to atomics.
            unsafe { sigaction(signal, &action) }?;
        }
        let area = area()?;
        // As crossterm does.
        let keyboard = if io::stdin().is_terminal() {
            io::stdin().as_fd().try_clone_to_owned()?
        } else {
            File::open("/dev/tty")?.into()
        };
        let has_ended = Arc::new(AtomicBool::new(false));
        let mut screen = Self {
            terminal: Some(empty(area)?),
            area,
            events: read_events(keyboard.try_clone()?, Arc::clone(&has_ended))?,
            keyboard,
            has_ended,
        };
        screen.take()?;
        Ok(screen)
    }

    fn take(&mut self) -> io::Result<()> {
        enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen)?;
        self.clear()
    }

    /// Clears the screen, whose size may have changed.
    fn clear(&mut self) -> io::Result<()> {
        self.area = area()?;
        self.terminal = Some(empty(self.area)?);
        execute!(io::stdout(), Clear(ClearType::All))
    }

    pub(super) fn area(&mut self) -> io::Result<Rect> {
        if area()? != self.area {
            self.clear()?;
        }
        Ok(self.area)
    }

    /// Draws, and writes only the cells that changed.
    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut ratatui::Frame<'_>)) -> io::Result<()> {
        let drawn = self.terminal.as_mut().map(|terminal| terminal.draw(draw));
        drawn.transpose().map(drop)
    }

    /// Waits at most this long for a key or a change of size.
    pub(super) fn input(&self, timeout: Duration) -> io::Result<Input> {
        if self.is_gone() {
            return Ok(Input::Gone);
        }
        match self.events.recv_timeout(timeout) {
            Ok(event) => event.map(Input::Came),
            Err(RecvTimeoutError::Timeout) => Ok(Input::Nothing),
            Err(RecvTimeoutError::Disconnected) => Ok(Input::Gone),
        }
    }

    /// Returns whether the terminal has disappeared: writing to it fails from then on.
    pub(super) fn is_gone(&self) -> bool {
        !is_there(&self.keyboard, Duration::ZERO)
    }

    /// Returns whether [`Screen::job_control`] has something to do.
    pub(super) fn wants_attention(&self) -> bool {
        STOP.load(Ordering::Relaxed) || CONTINUED.load(Ordering::Relaxed)
    }

    /// Suspends this job if a signal asked for it. Returns whether it continued after a stop.
    pub(super) fn job_control(&mut self) -> io::Result<bool> {
        if STOP.swap(false, Ordering::Relaxed) {
            self.suspend()?;
            return Ok(true);
        }
        let continued = CONTINUED.swap(false, Ordering::Relaxed);
        if continued {
            // The shell may have changed the terminal meanwhile.
            disable_raw_mode()?;
            self.take()?;
        }
        Ok(continued)
    }

    /// Restores the terminal, suspends this job, and switches back to the view when it continues.
    pub(super) fn suspend(&mut self) -> io::Result<()> {
        give_back();
        suspend::suspend(Signal::SIGTSTP);
        CONTINUED.store(false, Ordering::Relaxed);
        self.take()
    }
}

/// Restores the terminal. Errors are ignored, because the terminal may be gone.
fn give_back() {
    let mut stdout = io::stdout();
    let _ = queue!(stdout, LeaveAlternateScreen, Show);
    let _ = stdout.flush();
    let _ = disable_raw_mode();
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Keys from now on are for other programs.
        self.has_ended.store(true, Ordering::Relaxed);
        give_back();
        // Its `Drop` shows the cursor once more, and panics if it can write neither that nor an error
        // message.
        std::mem::forget(self.terminal.take());
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use nix::libc;
    use nix::pty::openpty;
    use nix::sys::termios::tcgetattr;

    use super::Screen;

    /// Tells the child, which runs this test program again, to panic.
    const PANIC: &str = "OTELCTX_TEST_PANIC_ON_A_SCREEN";

    #[test]
    #[ignore = "the process that another test inspects"]
    fn panics() {
        if std::env::var_os(PANIC).is_some() {
            let _screen = Screen::enter().unwrap();
            std::io::stdout().write_all(b"mine").unwrap();
            panic!("for a test");
        }
    }

    #[test]
    fn a_panic_restores_the_terminal_before_its_message() {
        let pty = openpty(None, None).unwrap();
        let before = tcgetattr(&pty.slave).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        let test = "command::top::screen::tests::panics";
        command
            .args(["--exact", test, "--ignored", "--nocapture"])
            .env(PANIC, "1")
            .stdin(pty.slave.try_clone().unwrap())
            .stdout(pty.slave.try_clone().unwrap())
            .stderr(Stdio::piped());
        // SAFETY: between fork and exec only setsid(2) and ioctl(2) are called.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        drop(command);
        let output = child.wait_with_output().unwrap();
        assert!(!output.status.success());
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains("for a test"), "{message}");
        assert_eq!(tcgetattr(&pty.slave).unwrap(), before);
        drop(pty.slave);
        let mut shown = Vec::new();
        // The end shows as EIO.
        let _ = File::from(pty.master).read_to_end(&mut shown);
        let shown = String::from_utf8_lossy(&shown);
        let at = |text: &str| {
            shown
                .find(text)
                .unwrap_or_else(|| panic!("{text:?}: {shown:?}"))
        };
        // Onto the alternate screen and back (xterm's control sequences, DECSET 1049).
        assert!(at("\x1b[?1049h") < at("mine") && at("mine") < at("\x1b[?1049l"));
        assert!(at("\x1b[?1049l") < at("\x1b[?25h"));
    }
}
