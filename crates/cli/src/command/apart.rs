//! Looking at processes from a child process, which is left behind when a look does not end.
//!
//! A page of a target's memory may have to come from another program first: from a FUSE server, or
//! from a file server in the network. Whoever reads it waits in the kernel for as long as that takes,
//! and where the request is under way no signal ends the wait (fs/fuse/dev.c, request_wait_answer). A
//! thread that waits so would keep its process from ending; a process can be left to itself. What
//! such a process has open stays open, so it writes to its parent only, which passes that on.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::num::NonZero;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{ForkResult, Pid, dup2_stderr, dup2_stdout, fork, getpid, getppid};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Status;
use crate::error::Error;
use crate::output::terminal;

/// How often a child is looked after, in milliseconds.
const PERIOD: u8 = 100;
/// So many periods without a sign of life, 2 s, end the wait for a child. One that computes, waits
/// for a thread to stop or goes from one process to the next gives signs all the time.
const PERIODS: u32 = 20;
/// How long a process may keep its reader waiting.
const SILENCE: Duration = Duration::from_millis(PERIOD as u64 * PERIODS as u64);
/// How long a look at one process may go on after its deadline, whatever signs there are: a page that
/// comes late is one, and the next may be as late. On a busy machine a look ends late, too.
const GRACE: Duration = Duration::from_secs(10);

/// Of a child's output, as much is passed on at a time, in bytes: what a pipe holds.
const CHUNK: usize = 64 << 10;

/// Calls that fail one after the other, as a signal makes them, before that counts.
const TRIES: u32 = 8;

/// The exit status of a child that could not begin.
const LOST: u8 = 3;

/// In place of a process: the child looks at none.
const NONE: i32 = 0;

/// The child's side.
pub(super) struct Worker {
    looking_at: &'static AtomicI32,
    pipe: PipeWriter,
}

impl Worker {
    /// From here on the child looks at process `pid`.
    pub(super) fn look_at(&self, pid: i32) {
        self.looking_at.store(pid, Ordering::Release);
    }

    /// From here on it does not, and may take its time: who reads what it writes can be slow.
    pub(super) fn rest(&self) {
        self.looking_at.store(NONE, Ordering::Release);
    }

    /// Tells the parent something.
    pub(super) fn tell(&self, message: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        (&self.pipe).write_all(&line)
    }
}

/// What is heard of a child: what it tells, or that it is left behind and why.
pub(super) type Heard<T> = Result<T, (i32, Error)>;

/// Has a child `work` through `pids`, in their order, and passes on what is heard of it. Where a
/// process does not answer, another child goes on with the next one. `deadline` is what the child has
/// for each of them.
pub(super) fn each<T: DeserializeOwned>(
    pids: &[i32],
    deadline: Duration,
    mut work: impl FnMut(&Worker, &[i32]) -> io::Result<()>,
    mut hear: impl FnMut(Heard<T>),
) -> Result<(), Error> {
    let mut rest = pids;
    loop {
        let all = |worker: &Worker| u8::from(work(worker, rest).is_err());
        let end = run(deadline, all, |line| {
            // Lines are this program's own.
            if let Ok(told) = serde_json::from_slice(line) {
                hear(Ok(told));
            }
        })?;
        match end {
            End::Status(0) => return Ok(()),
            End::Status(_) => return Err(Error::WorkerEnded),
            End::LeftBehind(pid, waited) => {
                hear(Err((pid, Error::NotResponding { pid, waited })));
                let at = rest.iter().position(|it| *it == pid);
                rest = at.map_or(&[], |at| &rest[at + 1..]);
            }
        }
    }
}

/// Has a child do all of a command that looks at process `pid` until a deadline so far away.
pub(super) fn one(
    pid: i32,
    deadline: Duration,
    work: impl FnOnce(&Worker) -> Result<Status, Error>,
) -> Result<Status, Error> {
    let all = |worker: &Worker| {
        worker.look_at(pid);
        crate::end(work(worker))
    };
    match run(deadline, all, |_| {})? {
        End::Status(status) => Status::of_code(status).ok_or(Error::WorkerEnded),
        End::LeftBehind(pid, waited) => Err(Error::NotResponding { pid, waited }),
    }
}

/// What became of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It has ended with this exit status; -1 if a signal ended it.
    Status(i32),
    /// It is left behind, looking at this process, for which was waited so long.
    LeftBehind(i32, Duration),
}

/// Runs `work` in a child, which ends with the status that it returns, and passes on what it writes,
/// and the lines that it tells, until it ends, gives no sign of life, or goes on for too long after a
/// deadline so far away.
fn run(
    deadline: Duration,
    work: impl FnOnce(&Worker) -> u8,
    hear: impl FnMut(&[u8]),
) -> Result<End, Error> {
    let looking_at = shared().map_err(Error::StartWorker)?;
    let (told, telling) = io::pipe().map_err(Error::StartWorker)?;
    let (output, stdout) = io::pipe().map_err(Error::StartWorker)?;
    let (errors, stderr) = io::pipe().map_err(Error::StartWorker)?;
    let parent = getpid();
    // SAFETY: this process has one thread, so that nothing is held by another which the child would
    // wait for.
    let child = match unsafe { fork() }.map_err(|errno| Error::StartWorker(errno.into()))? {
        ForkResult::Parent { child } => child,
        ForkResult::Child => {
            drop((told, output, errors));
            let written = dup2_stdout(&stdout).and_then(|()| dup2_stderr(&stderr));
            drop((stdout, stderr));
            // Nobody is to read on for a command that was ended.
            let _ = set_pdeathsig(Signal::SIGKILL);
            let status = match written.is_ok() && getppid() == parent {
                true => work(&Worker {
                    looking_at,
                    pipe: telling,
                }),
                false => LOST,
            };
            std::process::exit(status.into());
        }
    };
    drop((telling, stdout, stderr));
    let pipes = vec![
        (Source::Told, told),
        (Source::Output, output),
        (Source::Errors, errors),
    ];
    match listen(child, looking_at, deadline + GRACE, pipes, hear) {
        Ok(None) => Ok(End::Status(status_of(child))),
        left => {
            // Not waited for: it may never end.
            let _ = kill(child, Signal::SIGKILL);
            left.map(|left| left.unwrap_or(End::LeftBehind(NONE, SILENCE)))
        }
    }
}

/// The exit status of a child that is about to end.
fn status_of(child: Pid) -> i32 {
    for _ in 0..TRIES {
        match waitpid(child, None) {
            Ok(WaitStatus::Exited(_, status)) => return status,
            Ok(_) => return -1,
            Err(_) => {}
        }
    }
    -1
}

/// What a pipe from a child has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Told,
    Output,
    Errors,
}

/// Listens to a child until it has closed all of its pipes, or until it is to be left behind, because it
/// gives no sign of life while it looks at a process, or looks at one for longer than `longest`.
fn listen(
    child: Pid,
    looking_at: &AtomicI32,
    longest: Duration,
    mut pipes: Vec<(Source, PipeReader)>,
    mut hear: impl FnMut(&[u8]),
) -> Result<Option<End>, Error> {
    let most = longest.as_millis().div_ceil(PERIOD.into());
    let mut signs = (NONE, None);
    let (mut silent, mut looking) = (0, 0);
    let mut ended = false;
    let mut failures = 0;
    let mut told = Vec::new();
    let mut chunk = vec![0; CHUNK];
    while !pipes.is_empty() {
        let ready = match ready(&pipes) {
            Err(_) if failures < TRIES => {
                failures += 1;
                continue;
            }
            ready => ready.map_err(|errno| Error::ReadWorker(errno.into()))?,
        };
        if !ready.is_empty() {
            silent = 0;
        } else {
            let now = (looking_at.load(Ordering::Acquire), cpu_time(child));
            // A period counts when it ends and not by the clock: who is stopped meanwhile, as by
            // Ctrl-Z, has not waited.
            let goes_on = |periods, same: bool| match same && now.0 != NONE {
                true => periods + 1,
                false => 0,
            };
            silent = goes_on(silent, now == signs);
            looking = goes_on(looking, now.0 == signs.0);
            signs = now;
            if silent >= u128::from(PERIODS) {
                return Ok(Some(End::LeftBehind(now.0, SILENCE)));
            }
            if looking >= most {
                return Ok(Some(End::LeftBehind(now.0, longest)));
            }
            // Somebody else may have its pipes open. What it wrote just before its end is still to be
            // read: only silence after that is the end.
            if ended {
                return Ok(None);
            }
            ended = has_ended(child);
        }
        // From the last: those before it keep their places when one is closed.
        for index in ready.into_iter().rev() {
            let (source, pipe) = &mut pipes[index];
            let size = match pipe.read(&mut chunk) {
                Err(_) if failures < TRIES => {
                    failures += 1;
                    continue;
                }
                size => size.map_err(Error::ReadWorker)?,
            };
            failures = 0;
            if size == 0 {
                pipes.remove(index);
                continue;
            }
            let new = &chunk[..size];
            let is_wanted = match source {
                Source::Told => {
                    told.extend_from_slice(new);
                    while let Some(end) = told.iter().position(|byte| *byte == b'\n') {
                        hear(&told[..end]);
                        told.drain(..=end);
                    }
                    true
                }
                Source::Output => terminal::pass_on(new).map_err(Error::Output)?,
                Source::Errors => {
                    // Once more, as with the calls above; then nobody is left to tell.
                    let _ = io::stderr()
                        .write_all(new)
                        .or_else(|_| io::stderr().write_all(new));
                    true
                }
            };
            if !is_wanted {
                pipes.remove(index);
            }
        }
    }
    Ok(None)
}

fn has_ended(child: Pid) -> bool {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    let status = waitid(Id::Pid(child), flags);
    status.is_ok_and(|status| status != WaitStatus::StillAlive)
}

/// Which of the pipes have something to read, or their end; none after a period.
fn ready(pipes: &[(Source, PipeReader)]) -> nix::Result<Vec<usize>> {
    let mut polled: Vec<PollFd> = Vec::new();
    for (_, pipe) in pipes {
        polled.push(PollFd::new(pipe.as_fd(), PollFlags::POLLIN));
    }
    poll(&mut polled, PERIOD)?;
    let any = |(index, polled): (usize, &PollFd)| polled.any().unwrap_or(true).then_some(index);
    Ok(polled.iter().enumerate().filter_map(any).collect())
}

/// What all threads of a process have computed.
fn cpu_time(process: Pid) -> Option<Duration> {
    let clock = ClockId::pid_cpu_clock_id(process).ok()?;
    clock_gettime(clock).ok().map(Duration::from)
}

/// A number that a child shares with its parent. Its page is never given back.
fn shared() -> io::Result<&'static AtomicI32> {
    let size = NonZero::new(size_of::<AtomicI32>()).ok_or(Errno::EINVAL)?;
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping where the kernel chooses disturbs nothing.
    let page = unsafe { mmap_anonymous(None, size, protection, MapFlags::MAP_SHARED) }?;
    // SAFETY: it is aligned to a page, stays mapped for ever, and starts as zeroes: NONE.
    Ok(unsafe { page.cast::<AtomicI32>().as_ref() })
}
