//! A command that `record` or `top` starts and watches from its first instruction.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command};
use std::thread::JoinHandle;

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, pipe2};

use crate::error::Error;
use crate::interrupt;
use crate::output::terminal;

/// A child process that waits before it executes its program.
pub(super) struct Waiting {
    pub(super) pid: i32,
    gate: std::fs::File,
    /// Runs `Command::spawn`, which returns only once the program is executed.
    starting: JoinHandle<io::Result<Child>>,
}

impl Waiting {
    /// Forks; the child waits for [`Self::go`].
    pub(super) fn start(mut program: Command) -> io::Result<Self> {
        let pipe = || pipe2(nix::fcntl::OFlag::O_CLOEXEC);
        let ((pid_reader, pid_writer), (gate_reader, gate_writer)) = (pipe()?, pipe()?);
        let (pid_pipe, gate_pipe) = (pid_writer.as_raw_fd(), gate_reader.as_raw_fd());
        let opens = gate_writer.as_raw_fd();
        // SAFETY: a closure between fork and exec may only call async-signal-safe functions. This
        // one makes system calls, on descriptors that this function keeps open until the spawn, and
        // creates an error from a number, which allocates nothing.
        unsafe {
            program.pre_exec(move || {
                let pid = libc::getpid().to_ne_bytes();
                libc::write(pid_pipe, pid.as_ptr().cast(), pid.len());
                // Otherwise the child would itself keep open the pipe whose end it waits for.
                libc::close(opens);
                let mut word = 0_u8;
                // The end of the pipe: the recorder ended, or could not start.
                match libc::read(gate_pipe, (&raw mut word).cast(), 1) {
                    1 => Ok(()),
                    _ => Err(Errno::ECANCELED.into()),
                }
            });
        }
        let starting = std::thread::spawn(move || {
            let open_until_here: [OwnedFd; 2] = [pid_writer, gate_reader];
            let child = program.spawn();
            drop(open_until_here);
            child
        });
        let mut pid = [0; 4];
        match std::fs::File::from(pid_reader).read_exact(&mut pid) {
            Ok(()) => Ok(Self {
                pid: i32::from_ne_bytes(pid),
                gate: gate_writer.into(),
                starting,
            }),
            // The fork failed.
            Err(_) => {
                let error = joined(starting).err();
                Err(error.unwrap_or(io::ErrorKind::Other.into()))
            }
        }
    }

    /// Lets it execute the program.
    pub(super) fn go(mut self) -> io::Result<Child> {
        self.gate.write_all(&[0])?;
        joined(self.starting)
    }
}

/// Returns the program and its arguments, if one is given.
pub(super) fn program(command: &[OsString]) -> Option<Command> {
    let (name, arguments) = command.split_first()?;
    let mut program = Command::new(name);
    program.args(arguments);
    Some(program)
}

/// Returns the error for a program that cannot be started.
pub(super) fn cannot_start(command: &[OsString]) -> impl Fn(io::Error) -> Error {
    let program = command.first().cloned().unwrap_or_default();
    move |why| Error::Command {
        program: program.clone(),
        why,
    }
}

/// Returns whether the child has ended. Does not reap it, and ignores its stops: while the ptrace
/// sampler stops it, its parent is notified of them.
pub(super) fn has_ended(child: &Child) -> bool {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    let status = waitid(Id::Pid(Pid::from_raw(child.id() as i32)), flags);
    matches!(
        status,
        Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) | Err(Errno::ECHILD)
    )
}

/// Terminates the command when its recording has ended. A signal that ended the recording is passed
/// on, unless the terminal already sent it to the command; otherwise it gets SIGTERM, as with
/// perf-record(1), and a line says so.
pub(super) fn end(child: &Child) {
    let signal = match interrupt::caught() {
        Some(caught) if caught.by_terminal => return,
        Some(caught) => caught.signal,
        None => Signal::SIGTERM,
    };
    if !has_ended(child) {
        if interrupt::caught().is_none() {
            let message = "the recording has ended, and SIGTERM ends the command";
            terminal::complain(message, None);
        }
        // Fails only if it has ended; it was not reaped, so the ID is still its own.
        let _ = kill(Pid::from_raw(child.id() as i32), signal);
    }
}

/// Waits for the command, and returns its exit status as a shell does: 128 plus the number of the
/// signal that killed it.
pub(super) fn status(mut child: Child) -> u8 {
    let status = child.wait().unwrap_or_default();
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.unwrap_or_default() as u8
}

fn joined(starting: JoinHandle<io::Result<Child>>) -> io::Result<Child> {
    let child = starting.join();
    child.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
