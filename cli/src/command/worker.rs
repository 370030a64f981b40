//! Inspects processes in a worker process, which is abandoned when a target does not respond.
//!
//! A page of a target's memory may have to come from another program first: from a FUSE server, or
//! from a network file server. A reader of that page waits in the kernel, and once the request is
//! under way no signal ends the wait (fs/fuse/dev.c, request_wait_answer). A thread that waits there
//! would keep its process from ending; a worker process can be abandoned. Its open files stay open,
//! so it writes only to its parent, which passes the output on.
//!
//! `otelctx_worker` starts and follows workers; its own are decoders, which need limits: their
//! output is collected and they can be killed.

use std::io::{self, PipeReader, PipeWriter, Write};
use std::num::NonZero;
use std::ops::ControlFlow::{Break, Continue};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{Pid, dup2_stderr, dup2_stdout};
use otelctx_reader::remote::Process;
use otelctx_worker::{self as worker, Event, PERIOD, start};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Status;
use crate::error::Error;
use crate::output::terminal;
use crate::suspend;

/// Periods without progress, 2 s in all, after which a worker is abandoned. A worker that computes or waits for a CPU,
/// waits for a thread to stop or goes on to the next process makes progress.
const MAX_STALLED_PERIODS: u32 = 20;
/// Time for which a target may stall a worker.
const STALL_TIMEOUT: Duration = Duration::from_millis(PERIOD as u64 * MAX_STALLED_PERIODS as u64);
/// Time by which the inspection of one process may exceed its deadline, whatever progress it makes:
/// each page that arrives late is progress. On a busy machine, an inspection also ends late.
const GRACE: Duration = Duration::from_secs(10);

/// Attempts at a system call that fails, for example because of a signal.
const MAX_ATTEMPTS: u32 = 8;

/// The exit status of a worker that could not start.
const NOT_STARTED: u8 = 3;

/// In place of a process ID: the worker inspects no process.
const NONE: i32 = 0;

/// The worker's side.
pub(super) struct Worker {
    inspected: &'static AtomicI32,
    pipe: PipeWriter,
}

impl Worker {
    /// States that the worker inspects process `pid` from now on.
    pub(super) fn begin(&self, pid: i32) {
        self.inspected.store(pid, Ordering::Release);
    }

    /// States that it inspects none, and has no time limit: the reader of its output may be slow.
    pub(super) fn end(&self) {
        self.inspected.store(NONE, Ordering::Release);
    }

    pub(super) fn send(&self, message: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        (&self.pipe).write_all(&line)
    }
}

/// A message of a worker, or the process that it was abandoned on and why.
pub(super) type Received<T> = Result<T, (i32, Error)>;

/// Runs `work` on `pids`, in order, in a worker, and passes its messages on. Where a process does not
/// respond, another worker continues with the next one. `deadline` is the time for each process.
pub(super) fn each<T: DeserializeOwned>(
    pids: &[i32],
    deadline: Duration,
    mut work: impl FnMut(&Worker, &[i32]) -> io::Result<()>,
    mut receive: impl FnMut(Received<T>),
) -> Result<(), Error> {
    let mut rest = pids;
    loop {
        let all = |worker: &Worker| u8::from(work(worker, rest).is_err());
        let end = run(deadline, all, |line| {
            // Lines are this program's own.
            if let Ok(message) = serde_json::from_slice(line) {
                receive(Ok(message));
            }
        })?;
        match end {
            End::Status(0) => return Ok(()),
            End::Status(_) => return Err(Error::WorkerEnded),
            End::Abandoned(pid, waited) => {
                receive(Err((pid, Error::NotResponding { pid, waited })));
                let at = rest.iter().position(|it| *it == pid);
                rest = at.map_or(&[], |at| &rest[at + 1..]);
            }
        }
    }
}

/// Runs a command that inspects process `pid` in a worker. `deadline` is the time for it.
pub(super) fn one(
    pid: i32,
    deadline: Duration,
    work: impl FnOnce(&Worker) -> Result<Status, Error>,
) -> Result<Status, Error> {
    let all = |worker: &Worker| {
        worker.begin(pid);
        crate::end(work(worker))
    };
    match run(deadline, all, |_| {})? {
        End::Status(status) => Status::of_code(status).ok_or(Error::WorkerEnded),
        End::Abandoned(pid, waited) => Err(Error::NotResponding { pid, waited }),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It exited with this status; -1 if a signal killed it.
    Status(i32),
    /// It was abandoned while it inspected this process, after this time.
    Abandoned(i32, Duration),
}

/// Limits malloc to one arena: a second, for the thread that inspects, would grow by a page at a time,
/// each by a system call (glibc, malloc/arena.c, `grow_heap`).
fn use_one_arena() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt(3) must not be called while another thread allocates. The worker calls it before
    // it starts one.
    unsafe {
        nix::libc::mallopt(nix::libc::M_ARENA_MAX, 1);
    }
}

/// Runs `work` in a worker, which exits with the status that it returns. Passes on its output and its
/// messages until it ends, makes no progress, or exceeds the deadline by more than [`GRACE`].
fn run(
    deadline: Duration,
    work: impl FnOnce(&Worker) -> u8,
    receive: impl FnMut(&[u8]),
) -> Result<End, Error> {
    let inspected = shared().map_err(Error::StartWorker)?;
    let (messages, pipe) = io::pipe().map_err(Error::StartWorker)?;
    let (output, stdout) = io::pipe().map_err(Error::StartWorker)?;
    let (errors, stderr) = io::pipe().map_err(Error::StartWorker)?;
    // Each process has its own copy, and closes the ends that it does not use.
    let mut readers = Some(vec![messages, output, errors]);
    let mut blocked = Some(suspend::block());
    let started = start(|| {
        readers = None;
        use_one_arena();
        suspend::be_worker();
        blocked = None;
        let redirected = dup2_stdout(&stdout).and_then(|()| dup2_stderr(&stderr));
        drop((stdout, stderr));
        let status = if redirected.is_ok() {
            work(&Worker { inspected, pipe })
        } else {
            NOT_STARTED
        };
        let _ = io::stdout().flush();
        status.into()
    });
    let child = started.map(Pid::from_raw).map_err(Error::StartWorker)?;
    let _suspended_together = suspend::with_worker(child);
    drop(blocked);
    let readers = readers.unwrap_or_default();
    match follow(child, inspected, deadline + GRACE, readers, receive) {
        Ok(None) => Ok(End::Status(status_of(child))),
        left => {
            // Not waited for: it may never end.
            let _ = kill(child, Signal::SIGKILL);
            left.map(|left| left.unwrap_or(End::Abandoned(NONE, STALL_TIMEOUT)))
        }
    }
}

/// Returns the exit status of a worker that is about to end.
fn status_of(child: Pid) -> i32 {
    for _ in 0..MAX_ATTEMPTS {
        match waitpid(child, None) {
            Ok(WaitStatus::Exited(_, status)) => return status,
            Ok(_) => return -1,
            Err(_) => {}
        }
    }
    -1
}

/// The positions of a worker's pipes for messages and for standard output; then come errors.
const MESSAGES: usize = 0;
const OUTPUT: usize = 1;

/// Passes on a worker's output until it has closed all of its pipes, or until it has to be abandoned
/// because it makes no progress with a process, or inspects one for longer than `timeout`.
fn follow(
    child: Pid,
    inspected: &AtomicI32,
    timeout: Duration,
    pipes: Vec<PipeReader>,
    mut receive: impl FnMut(&[u8]),
) -> Result<Option<End>, Error> {
    let max_periods = timeout.as_millis().div_ceil(PERIOD.into());
    // The process and the worker's CPU time.
    let mut progress = (NONE, None);
    let (mut stalled, mut inspecting) = (0, 0);
    let mut messages = Vec::new();
    let ended = worker::follow(child.as_raw(), pipes, |event| {
        let (pipe, new) = match event {
            Event::Output(pipe, new) => (pipe, new),
            Event::Nothing => {
                let now = (inspected.load(Ordering::Acquire), cpu_time(child));
                // Periods are counted instead of reading a clock: time in which this process is
                // stopped, for example by Ctrl-Z, does not count.
                let count = |periods, same: bool| {
                    if same && now.0 != NONE {
                        periods + 1
                    } else {
                        0
                    }
                };
                stalled = count(stalled, now == progress && !waits_for_cpu(child));
                inspecting = count(inspecting, now.0 == progress.0);
                progress = now;
                let waited = if stalled >= MAX_STALLED_PERIODS.into() {
                    STALL_TIMEOUT
                } else if inspecting >= max_periods {
                    timeout
                } else {
                    return Continue(true);
                };
                return Break(Ok(End::Abandoned(now.0, waited)));
            }
        };
        stalled = 0;
        match pipe {
            MESSAGES => {
                messages.extend_from_slice(new);
                while let Some(end) = messages.iter().position(|byte| *byte == b'\n') {
                    receive(&messages[..end]);
                    messages.drain(..=end);
                }
            }
            OUTPUT => match terminal::pass_on(new) {
                Ok(is_wanted) => return Continue(is_wanted),
                Err(error) => return Break(Err(Error::Output(error))),
            },
            _ => {
                // One retry; a failure could not be reported anywhere.
                let mut errors = io::stderr();
                let _ = errors.write_all(new).or_else(|_| errors.write_all(new));
            }
        }
        Continue(true)
    });
    ended.map_err(Error::ReadWorker)?.transpose()
}

/// Returns the CPU time of all threads of a process.
fn cpu_time(process: Pid) -> Option<Duration> {
    let clock = ClockId::pid_cpu_clock_id(process).ok()?;
    clock_gettime(clock).ok().map(Duration::from)
}

/// Returns true if a thread of a process is ready to run: no target keeps it from that, but a busy machine.
fn waits_for_cpu(process: Pid) -> bool {
    let is_ready = |process: Process| {
        let threads = process.thread_ids().unwrap_or_default();
        let state = |tid: i32| process.thread_stat(tid).map(|it| it.state());
        threads.into_iter().any(|tid| matches!(state(tid), Ok('R')))
    };
    Process::open(process.as_raw()).is_ok_and(is_ready)
}

/// Maps a number that a worker shares with its parent. Its page is never unmapped.
fn shared() -> io::Result<&'static AtomicI32> {
    let size = NonZero::new(size_of::<AtomicI32>()).ok_or(Errno::EINVAL)?;
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a mapping must not replace another one. The kernel chooses a free address for it.
    let page = unsafe { mmap_anonymous(None, size, protection, MapFlags::MAP_SHARED) }?;
    // SAFETY: the memory must be aligned, initialized and mapped for as long as the reference lives.
    // The kernel aligned it to a page and filled it with zeroes (NONE), and nothing unmaps it.
    Ok(unsafe { page.cast::<AtomicI32>().as_ref() })
}
