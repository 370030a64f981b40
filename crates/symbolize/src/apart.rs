//! Decoding a file in a child process, so that a hostile one takes down no more than that.
//!
//! A target chooses what is in its files: entries that are nested deeper than any stack, sizes beyond
//! all memory, sections that grow without end when unpacked, and a file system that never answers.
//! A child has limits for all of it, and what is left of it the kernel cleans up.

use std::io::{self, PipeReader, Read, Write};
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::{set_dumpable, set_pdeathsig};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, dup2_stderr, fork, getpid, getppid};

/// Memory of its own that a child may have, in bytes, with what it inherits: 4 GiB. `chrome` with all
/// its DWARF takes a quarter of that.
const MEMORY: u64 = 4 << 30;
/// Processor time that it may take, in seconds.
const SECONDS: u64 = 60;
/// How long it may take. It may have to wait for the processor.
const PATIENCE: Duration = Duration::from_secs(180);
/// How long the end of a child is waited for that was killed.
const GRACE: Duration = Duration::from_secs(1);
/// The most that is read of its answer, in bytes: 256 MiB.
const LARGEST_ANSWER: u64 = 256 << 20;

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// It took too much memory, was nested too deeply, or made the decoder stop otherwise.
    Died,
    /// It took too long.
    TooLong,
    /// The answer was too large.
    TooMuch,
    /// There could be no child.
    NoChild,
}

/// What `work` writes, in a child process.
pub(crate) fn run(
    work: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<Vec<u8>, NoAnswer> {
    let (answer, pipe) = io::pipe().map_err(|_| NoAnswer::NoChild)?;
    let parent = getpid();
    // SAFETY: in the child runs this thread alone. What another one may hold at this moment are the
    // allocator's locks, which libc itself takes around a fork (glibc, malloc/arena.c; musl,
    // fork/fork.c), and locks of this program. `work` decodes a file and takes none; if it waited
    // all the same, the parent would end it.
    match unsafe { fork() }.map_err(|_| NoAnswer::NoChild)? {
        ForkResult::Child => {
            drop(answer);
            confine();
            // Who ended before the child asked to be ended with it is not heard of any more.
            if getppid() != parent {
                // SAFETY: as below.
                unsafe { nix::libc::_exit(1) }
            }
            // Telling of a panic takes locks that another thread may have held at the fork.
            std::panic::set_hook(Box::new(|_| {}));
            let mut pipe = io::BufWriter::new(pipe);
            // A panic must not unwind into what is the parent's: values would be dropped, and with
            // them what they stand for.
            let work = AssertUnwindSafe(|| work(&mut pipe).and_then(|()| pipe.flush()));
            let is_done = matches!(catch_unwind(work), Ok(Ok(())));
            // SAFETY: it ends the process and touches nothing of it: what runs at an end otherwise
            // is the parent's.
            unsafe { nix::libc::_exit(i32::from(!is_done)) }
        }
        ForkResult::Parent { child } => {
            drop(pipe);
            let heard = listen(answer);
            if heard.is_err() {
                let _ = kill(child, Signal::SIGKILL);
            }
            let ended_well = end_of(child, heard.is_ok());
            heard.and_then(|answer| ended_well.then_some(answer).ok_or(NoAnswer::Died))
        }
    }
}

/// Limits of this process. Where one can't be set, there is a lower one already.
fn confine() {
    let limits = [
        (Resource::RLIMIT_DATA, MEMORY),
        (Resource::RLIMIT_CPU, SECONDS),
        (Resource::RLIMIT_CORE, 0),
    ];
    for (resource, limit) in limits {
        let _ = setrlimit(resource, limit, limit);
    }
    let _ = set_dumpable(false);
    let _ = set_pdeathsig(Signal::SIGKILL);
    // What a dying decoder says is of no use to whoever waits for a profile.
    if let Ok(null) = std::fs::File::options().write(true).open("/dev/null") {
        let _ = dup2_stderr(null);
    }
}

/// All that comes out of `pipe`, until it is closed.
fn listen(mut pipe: PipeReader) -> Result<Vec<u8>, NoAnswer> {
    let end = Instant::now() + PATIENCE;
    let mut answer = Vec::new();
    let mut chunk = vec![0; 1 << 16];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) => return Err(NoAnswer::TooLong),
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(_) => return Err(NoAnswer::NoChild),
        }
        match pipe.read(&mut chunk) {
            Ok(0) => return Ok(answer),
            Ok(read) => answer.extend_from_slice(&chunk[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Err(NoAnswer::NoChild),
        }
        if answer.len() as u64 > LARGEST_ANSWER {
            return Err(NoAnswer::TooMuch);
        }
    }
}

/// Whether the child ended with status 0, as far as that can be known. One that was killed may wait for
/// a file system for ever, and is then left to whoever inherits it.
fn end_of(child: Pid, is_wanted: bool) -> bool {
    let flags = (!is_wanted).then_some(WaitPidFlag::WNOHANG);
    let end = Instant::now() + GRACE;
    loop {
        match waitpid(child, flags) {
            Ok(WaitStatus::StillAlive) if Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(status) => return matches!(status, WaitStatus::Exited(_, 0)),
            Err(Errno::EINTR) => {}
            // Where this process ignores its children's ends, as it may have been started to, the
            // kernel keeps no status (wait(2)). Whether the answer is whole can be seen by itself.
            Err(Errno::ECHILD) => return true,
            Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that writes for ever is killed, and its status is taken.
    #[test]
    fn of_a_child_that_is_killed_nothing_is_left() {
        let endless = |pipe: &mut dyn Write| {
            let chunk = vec![0; 1 << 20];
            loop {
                pipe.write_all(&chunk)?;
            }
        };
        assert_eq!(run(endless), Err(NoAnswer::TooMuch));
        let any = waitpid(None, Some(WaitPidFlag::WNOHANG));
        assert_eq!(any, Err(Errno::ECHILD));
    }
}
