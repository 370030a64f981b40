//! Worker processes: untrusted data is decoded in a child process, so that hostile data cannot take
//! down more than that.
//!
//! A decoder may be made to recurse too deeply, to allocate too much memory, to decompress without
//! end, or to read from a file system that never responds. A worker has limits for all of these,
//! and the kernel frees its resources.

use std::cell::Cell;
use std::io::{self, PipeReader, Read, Write};
use std::ops::ControlFlow::{self, Break, Continue};
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::prctl::{set_dumpable, set_pdeathsig};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{ForkResult, Pid, dup2_stderr, fork, getpid, getppid};

/// Limits of a worker.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Memory in bytes, including inherited memory. 4 GiB by default; `chrome` with all its DWARF
    /// takes a quarter of that.
    pub memory: u64,
    /// Size of the output, in bytes. 256 MiB by default.
    pub output: u64,
    /// CPU time in seconds. 60 by default.
    pub cpu: u64,
    /// Time in seconds after which the worker is killed; it includes waiting for a CPU. 180 by
    /// default.
    pub timeout: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory: 4 << 30,
            output: 256 << 20,
            cpu: 60,
            timeout: 180,
        }
    }
}

/// Interval between checks of a worker that writes nothing, in milliseconds.
pub const PERIOD: u8 = 100;
/// Number of bytes of a worker's output that are read at a time: the capacity of a pipe.
const CHUNK: usize = 64 << 10;
/// Attempts at a system call that fails, for example because of a signal.
const MAX_ATTEMPTS: u32 = 8;

/// Time that a killed worker has to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);

thread_local! {
    /// See [`cpu_time`].
    static CPU_TIME: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// The reason why a worker returned no output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// It exceeded its memory or CPU time, overflowed its stack, or the decoder panicked.
    Died,
    /// It took too long.
    TimedOut,
    /// Its output exceeded its limit.
    OutputTooLarge,
    /// It could not be started.
    NotStarted,
    /// The caller no longer wanted its output.
    Abandoned,
}

/// Starts a worker process and returns its ID. It exits with the status that `work` returns, without
/// running exit handlers, and is killed when this thread ends.
///
/// `work` must take no lock that another thread of this process may hold.
///
/// # Errors
///
/// The error of fork(2).
pub fn start(work: impl FnOnce() -> i32) -> io::Result<i32> {
    let parent = getpid();
    // SAFETY: the child, which has this thread alone, must not wait for a lock that another thread
    // held. libc ensures that for the allocator's (glibc, malloc/arena.c; musl, fork/fork.c), and
    // the caller for this program's, which `work` must not take.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok(child.as_raw()),
        ForkResult::Child => {
            let _ = set_pdeathsig(Signal::SIGKILL);
            // The parent may have ended before that.
            let status = if getppid() == parent { work() } else { 1 };
            // SAFETY: `_exit` has no condition. It does not run the parent's exit handlers.
            unsafe { libc::_exit(status) }
        }
    }
}

/// Runs `work` in a worker process with these limits, and returns its output.
///
/// `work` must take no lock that another thread of this process may hold; if it waits for one, the
/// worker times out.
///
/// # Errors
///
/// If the output is missing or incomplete.
pub fn run(
    limits: Limits,
    work: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<Vec<u8>, Failure> {
    run_unless(&AtomicBool::new(false), limits, work)
}

/// Runs `work` like [`run`], but kills it within a [`PERIOD`] once another thread has set `is_abandoned`.
///
/// # Errors
///
/// If the output is missing or incomplete.
pub fn run_unless(
    is_abandoned: &AtomicBool,
    limits: Limits,
    work: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<Vec<u8>, Failure> {
    if is_abandoned.load(Ordering::Relaxed) {
        return Err(Failure::Abandoned);
    }
    let (output, pipe) = io::pipe().map_err(|_| Failure::NotStarted)?;
    let child = start(|| {
        confine(limits);
        // Printing a panic takes locks that another thread may have held at the fork.
        std::panic::set_hook(Box::new(|_| {}));
        let mut pipe = io::BufWriter::new(pipe);
        // A panic must not unwind into the parent's stack frames: it would drop their values,
        // including resources outside this process.
        let work = AssertUnwindSafe(|| work(&mut pipe).and_then(|()| pipe.flush()));
        i32::from(!matches!(catch_unwind(work), Ok(Ok(()))))
    });
    let child = child.map(Pid::from_raw).map_err(|_| Failure::NotStarted)?;
    let output = read_output(child, output, limits, is_abandoned);
    if output.is_err() {
        let _ = kill(child, Signal::SIGKILL);
    }
    let succeeded = wait(child, output.is_ok());
    output.and_then(|output| succeeded.then_some(output).ok_or(Failure::Died))
}

/// Returns the CPU time of the workers of [`run`] that this thread has started, and that have ended: `getrusage` has that of all
/// child processes of this process, whichever thread has started them.
#[must_use]
pub fn cpu_time() -> Duration {
    CPU_TIME.get()
}

/// Sets the limits of this process. If a limit cannot be set, a lower one is already in place.
fn confine(limits: Limits) {
    let resources = [
        (Resource::RLIMIT_DATA, limits.memory),
        (Resource::RLIMIT_CPU, limits.cpu),
        (Resource::RLIMIT_CORE, 0),
    ];
    for (resource, limit) in resources {
        let _ = setrlimit(resource, limit, limit);
    }
    let _ = set_dumpable(false);
    // The message of a decoder that aborts does not help the user.
    if let Ok(null) = std::fs::File::options().write(true).open("/dev/null") {
        let _ = dup2_stderr(null);
    }
}

/// Collects the output of a worker, within the limits on time and output.
fn read_output(
    child: Pid,
    pipe: PipeReader,
    limits: Limits,
    is_abandoned: &AtomicBool,
) -> Result<Vec<u8>, Failure> {
    let end = Instant::now() + Duration::from_secs(limits.timeout);
    let mut output = Vec::new();
    let failure = follow(child.as_raw(), vec![pipe], |event| {
        if let Event::Output(_, bytes) = event {
            output.extend_from_slice(bytes);
        }
        if output.len() as u64 > limits.output {
            Break(Failure::OutputTooLarge)
        } else if is_abandoned.load(Ordering::Relaxed) {
            Break(Failure::Abandoned)
        } else if Instant::now() >= end {
            Break(Failure::TimedOut)
        } else {
            Continue(true)
        }
    });
    failure
        .unwrap_or(Some(Failure::NotStarted))
        .map_or(Ok(output), Err)
}

/// An event of a worker, reported by [`follow`].
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// It wrote these bytes to the pipe with this index.
    Output(usize, &'a [u8]),
    /// It wrote nothing in a [`PERIOD`].
    Nothing,
}

/// Follows the output of worker process `child` until it has closed all pipes, or has ended while
/// another process holds them open. `handle` returns whether to keep reading this pipe, or breaks.
///
/// # Errors
///
/// If a pipe cannot be read.
pub fn follow<B>(
    child: i32,
    pipes: Vec<PipeReader>,
    mut handle: impl FnMut(Event<'_>) -> ControlFlow<B, bool>,
) -> io::Result<Option<B>> {
    let mut pipes: Vec<_> = pipes.into_iter().enumerate().collect();
    let mut chunk = vec![0; CHUNK];
    let (mut has_ended, mut failures) = (false, 0);
    while !pipes.is_empty() {
        let ready = match ready(&pipes) {
            Err(_) if failures < MAX_ATTEMPTS => {
                failures += 1;
                continue;
            }
            ready => ready?,
        };
        if ready.is_empty() {
            if let Break(reason) = handle(Event::Nothing) {
                return Ok(Some(reason));
            }
            // Another period without output after it ended: everything it wrote was read.
            if has_ended {
                return Ok(None);
            }
            has_ended = is_zombie(child);
        }
        // In reverse, so that removing a pipe keeps the positions of the others.
        for position in ready.into_iter().rev() {
            let (index, pipe) = &mut pipes[position];
            let size = match pipe.read(&mut chunk) {
                Err(_) if failures < MAX_ATTEMPTS => {
                    failures += 1;
                    continue;
                }
                size => size?,
            };
            failures = 0;
            let is_wanted = match size {
                0 => false,
                size => match handle(Event::Output(*index, &chunk[..size])) {
                    Continue(is_wanted) => is_wanted,
                    Break(reason) => return Ok(Some(reason)),
                },
            };
            if !is_wanted {
                pipes.remove(position);
            }
        }
    }
    Ok(None)
}

/// The positions of pipes that have data or have ended; none if a period has passed.
fn ready(pipes: &[(usize, PipeReader)]) -> nix::Result<Vec<usize>> {
    let polled = pipes
        .iter()
        .map(|(_, pipe)| PollFd::new(pipe.as_fd(), PollFlags::POLLIN));
    let mut polled: Vec<PollFd> = polled.collect();
    poll(&mut polled, PERIOD)?;
    let any = |(index, polled): (usize, &PollFd)| polled.any().unwrap_or(true).then_some(index);
    Ok(polled.iter().enumerate().filter_map(any).collect())
}

/// Returns true if a child has ended and was not waited for.
fn is_zombie(child: i32) -> bool {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    let status = waitid(Id::Pid(Pid::from_raw(child)), flags);
    status.is_ok_and(|status| status != WaitStatus::StillAlive)
}

/// Waits for a worker, and returns whether it ended with status 0, or with an unknown one. A killed worker
/// may wait for a file system forever; it is then left to init.
fn wait(child: Pid, has_closed_its_pipe: bool) -> bool {
    let flags = (!has_closed_its_pipe).then_some(WaitPidFlag::WNOHANG);
    let end = Instant::now() + KILL_TIMEOUT;
    loop {
        match wait_once(child, flags) {
            Ok(WaitStatus::StillAlive) if Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(status) => return matches!(status, WaitStatus::Exited(_, 0)),
            Err(Errno::EINTR) => {}
            // If this process ignores SIGCHLD, which it may have inherited, the kernel keeps no
            // status (wait(2)). Callers can tell from the output whether it is complete.
            Err(Errno::ECHILD) => return true,
            Err(_) => return false,
        }
    }
}

/// Waits for a worker like waitpid(2), and adds its CPU time to [`cpu_time`].
fn wait_once(child: Pid, flags: Option<WaitPidFlag>) -> nix::Result<WaitStatus> {
    let flags = flags.unwrap_or(WaitPidFlag::empty()).bits();
    let mut status = 0;
    // SAFETY: numbers alone, of which all are zero if nothing has ended.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes a number and a structure, which this function owns.
    let ended = unsafe { libc::wait4(child.as_raw(), &raw mut status, flags, &raw mut usage) };
    match Errno::result(ended)? {
        0 => Ok(WaitStatus::StillAlive),
        pid => {
            let used = time(usage.ru_utime) + time(usage.ru_stime);
            CPU_TIME.set(CPU_TIME.get() + used);
            WaitStatus::from_raw(Pid::from_raw(pid), status)
        }
    }
}

fn time(time: libc::timeval) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use nix::sys::resource::{UsageWho, getrusage};
    use nix::sys::wait::waitpid;

    use super::*;

    #[test]
    fn the_cpu_time_of_workers_is_that_of_the_thread_that_started_them() {
        // Some 10 ms, whatever else runs: CPU time counts.
        let busy = |_: &mut dyn Write| {
            let used = || {
                let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
                time(*usage.user_time().as_ref()) + time(*usage.system_time().as_ref())
            };
            while used() < Duration::from_millis(10) {}
            Ok(())
        };
        let other = std::thread::spawn(move || {
            run(Limits::default(), busy).unwrap();
            cpu_time()
        });
        let of_other = other.join().unwrap();
        assert!(of_other >= Duration::from_millis(10), "{of_other:?}");
        assert_eq!(cpu_time(), Duration::ZERO);
    }

    #[test]
    fn a_killed_worker_is_waited_for() {
        let endless = |pipe: &mut dyn Write| {
            let chunk = vec![0; 1 << 20];
            loop {
                pipe.write_all(&chunk)?;
            }
        };
        let limits = Limits::default();
        assert_eq!(run(limits, endless), Err(Failure::OutputTooLarge));
        // No worker of this test is left; other tests may have some.
        let one = run(limits, |pipe| {
            pipe.write_all(&getpid().as_raw().to_ne_bytes())
        });
        let pid = i32::from_ne_bytes(one.unwrap().try_into().unwrap());
        assert_eq!(waitpid(Pid::from_raw(pid), None), Err(Errno::ECHILD));
    }

    /// It would run for an hour.
    #[test]
    fn an_abandoned_worker_is_killed() {
        let is_abandoned = AtomicBool::new(false);
        let limits = Limits {
            cpu: 3600,
            timeout: 3600,
            ..Limits::default()
        };
        let (started, pipe) = io::pipe().unwrap();
        let result = std::thread::scope(|scope| {
            let is_abandoned = &is_abandoned;
            scope.spawn(move || {
                let _ = { started }.read(&mut [0]);
                is_abandoned.store(true, Ordering::Relaxed);
            });
            run_unless(is_abandoned, limits, |_| {
                (&pipe).write_all(&[1])?;
                loop {
                    std::thread::sleep(Duration::from_secs(3600));
                }
            })
        });
        assert_eq!(result, Err(Failure::Abandoned));
        let never = run_unless(&is_abandoned, limits, |_| panic!("it was started"));
        assert_eq!(never, Err(Failure::Abandoned));
    }

    #[test]
    fn a_worker_that_allocates_too_much_or_panics_dies_alone() {
        let limits = Limits::default();
        let allocating = |pipe: &mut dyn Write| pipe.write_all(&vec![1; 512 << 20]);
        assert_eq!(
            run(
                Limits {
                    memory: 256 << 20,
                    ..limits
                },
                allocating,
            ),
            Err(Failure::Died)
        );
        assert_eq!(run(limits, |_| panic!("decoder")), Err(Failure::Died));
    }
}
