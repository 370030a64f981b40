//! Reads all threads of a process, with a deadline and a memory bound.
//!
//! A single [`Thread::read`](crate::Thread::read) may be too early: the record is being rewritten,
//! another reader has the thread stopped, a library was unloaded meanwhile. A [`Sweep`] reads again
//! where that helps, ends at its deadline, and says which threads are missing, and why.

mod attempt;
mod partial;
mod reading;
mod retry;
mod runtimes;
mod settle;
mod snapshot;
mod visitor;

use std::sync::Arc;
use std::time::{Duration, Instant};

use self::attempt::{Limits, Results};
pub use self::partial::{Partial, PartialReason};
pub use self::reading::ThreadReading;
use self::runtimes::StoppedRuntimes;
pub use self::snapshot::{SnapshotSource, ThreadSnapshot};
pub use self::visitor::Visitor;
use crate::runtime::{Present, TaskReading};
use crate::{ContextState, Error, Process, ThreadSupport};

/// Fraction of the timeout for reading threads. The rest is for the caller.
const FOR_THREADS: f64 = 0.9;
/// Additional time for checking whether libraries were unloaded, as a fraction of the timeout.
const FOR_MODULES: f64 = 0.1;
/// Maximum number of times to read the threads if libraries are unloaded each time.
const MAX_ATTEMPTS: usize = 3;

/// Reads all threads of a process.
pub struct Sweep<'s> {
    start: Instant,
    timeout: Duration,
    max_bytes: usize,
    mode: Mode<'s>,
    is_native_only: bool,
    is_unverified: bool,
}

/// The way to read threads that are running.
pub enum Mode<'s> {
    /// Each is stopped for a few microseconds. A stop is tied to the OS thread that calls
    /// [`Sweep::run`]: call it in [`on_own_thread`](crate::remote::stop::on_own_thread).
    Stop,
    /// They are not read: each has [`Error::NotAsleep`].
    Asleep,
    /// Native contexts are read from this source while threads run; runtimes are read of sleeping threads.
    Snapshot(&'s mut dyn SnapshotSource),
}

/// The result of a sweep, except for the threads.
#[derive(Debug)]
#[non_exhaustive]
pub struct Swept {
    /// How the native contexts were read, or why there are none; an error if there was no time.
    pub support: Result<Arc<ThreadSupport>, Error>,
    /// The language runtimes that the process contains.
    pub runtimes: Arc<[Present]>,
    /// Their tasks, with [`Options::tasks`](crate::Options::tasks).
    pub tasks: Vec<TaskReading>,
    /// Number of threads that were read.
    pub read: usize,
    /// Number of skipped threads that are the kernel's io_uring workers: they have no context.
    pub kernel_workers: usize,
    /// Threads are missing, for this reason.
    pub partial: Option<Partial>,
}

impl Swept {
    /// Returns true if the process has native contexts, which were read.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        matches!(self.support.as_deref(), Ok(ThreadSupport::Readable(_)))
    }
}

impl<'s> Sweep<'s> {
    /// Default of [`Self::with_max_bytes`]: 60,000 threads with three attributes each.
    pub const DEFAULT_MAX_BYTES: usize = 24 << 20;

    /// Creates a sweep that ends in `timeout`, counted from now, and stops running threads. Nine
    /// tenths are for reading threads; checking for unloaded libraries may take a tenth more.
    #[must_use]
    pub fn within(timeout: Duration) -> Self {
        Self {
            start: Instant::now(),
            timeout,
            max_bytes: Self::DEFAULT_MAX_BYTES,
            mode: Mode::Stop,
            is_native_only: false,
            is_unverified: false,
        }
    }

    /// Sets the size of the results, in bytes, after which no thread is read. 24 MiB by default.
    #[must_use]
    pub fn with_max_bytes(self, max_bytes: usize) -> Self {
        Self { max_bytes, ..self }
    }

    /// Sets the way to read threads that are running. They are stopped by default.
    #[must_use]
    pub fn with_mode(self, mode: Mode<'s>) -> Self {
        Self { mode, ..self }
    }

    /// Reads native contexts alone, whatever [`Options::runtimes`](crate::Options::runtimes) are.
    #[must_use]
    pub fn native_only(self) -> Self {
        Self {
            is_native_only: true,
            ..self
        }
    }

    /// Does not check for unloaded libraries, for callers that only count contexts.
    #[must_use]
    pub fn unverified(self) -> Self {
        Self {
            is_unverified: true,
            ..self
        }
    }

    /// The time after which no thread is read. Use it as
    /// [`Options::deadline`](crate::Options::deadline) if opening the process counts as well.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.start + self.timeout.mul_f64(FOR_THREADS)
    }

    /// Reads the threads of a process, and calls `visitor` once for each, in the order of
    /// `/proc/PID/task` or of the core file. Threads that end meanwhile are omitted.
    ///
    /// # Errors
    /// If the process cannot be inspected.
    pub fn run(self, process: &mut Process, visitor: &mut dyn Visitor) -> Result<Swept, Error> {
        let before = process.options().deadline;
        process.set_deadline(Some(self.deadline()));
        let context = process.context();
        process.set_deadline(before);
        match context {
            Err(error @ Error::Deadline { .. }) => Ok(self.none_read(process, error)),
            context => self.run_of(process, &mut context?, visitor),
        }
    }

    /// [`Self::run`] for a process context that was just read, and is read again with the threads.
    ///
    /// # Errors
    /// If the process cannot be inspected.
    pub fn run_of(
        mut self,
        process: &mut Process,
        context: &mut ContextState,
        visitor: &mut dyn Visitor,
    ) -> Result<Swept, Error> {
        let (deadline, never_stop) = (process.options().deadline, process.options().never_stop);
        process.set_never_stop(never_stop || !matches!(self.mode, Mode::Stop));
        let results = self.read_settled(process, context, visitor);
        process.set_deadline(deadline);
        process.set_never_stop(never_stop);
        let results = match results {
            Err(error @ Error::Deadline { .. }) => return Ok(self.none_read(process, error)),
            results => results?,
        };
        let read = results.read();
        for thread in results.threads {
            visitor.visit(thread);
        }
        Ok(Swept {
            support: Ok(results.support),
            runtimes: results.runtimes,
            tasks: results.tasks,
            read,
            kernel_workers: results.kernel_workers,
            partial: results.partial,
        })
    }

    /// The deadline passed before it was known how to read the threads.
    fn none_read(&self, process: &Process, error: Error) -> Swept {
        let why = PartialReason::Deadline(self.timeout);
        Swept {
            support: Err(error),
            runtimes: Arc::default(),
            tasks: Vec::new(),
            read: 0,
            kernel_workers: 0,
            partial: Some(Partial::none_read(process, why)),
        }
    }

    /// Reads the threads; again if a library, and with it the variable, was unloaded meanwhile, or another publisher came.
    fn read_settled(
        &mut self,
        process: &mut Process,
        context: &mut ContextState,
        visitor: &mut dyn Visitor,
    ) -> Result<Results, Error> {
        process.set_deadline(Some(self.deadline()));
        let mut results = self.read_threads(process, context, visitor)?;
        let mut attempts = 1;
        while !self.is_unverified && !self.are_modules_unchanged(process)? {
            if attempts == MAX_ATTEMPTS || self.is_late() {
                results.forget(PartialReason::Modules(self.timeout));
                break;
            }
            process.set_deadline(Some(self.deadline()));
            *context = process.context()?;
            results = self.read_threads(process, context, visitor)?;
            attempts += 1;
        }
        while !self.is_unverified && attempts < MAX_ATTEMPTS && !self.is_late() {
            process.set_deadline(Some(self.deadline()));
            // Without another scan, the names are those of before.
            let Ok(Some(other)) = process.other_context(context) else {
                break;
            };
            *context = other;
            results = self.read_threads(process, context, visitor)?;
            attempts += 1;
        }
        Ok(results)
    }

    /// Returns true if the modules stayed the same while the threads were read; false without time.
    fn are_modules_unchanged(&self, process: &mut Process) -> Result<bool, Error> {
        let end = self.start + self.timeout.mul_f64(1.0 + FOR_MODULES);
        process.set_deadline(Some(end));
        let unchanged = match process.modules_unchanged() {
            Ok(false) => process.variables_unchanged(),
            unchanged => unchanged,
        };
        match unchanged {
            Err(Error::Deadline { .. }) => Ok(false),
            // Also if the process has ended: data that was read from it is valid.
            unchanged => Ok(unchanged.unwrap_or(true)),
        }
    }

    fn is_late(&self) -> bool {
        Instant::now() >= self.deadline()
    }

    fn read_threads(
        &mut self,
        process: &mut Process,
        context: &ContextState,
        visitor: &mut dyn Visitor,
    ) -> Result<Results, Error> {
        let limits = Limits {
            deadline: self.deadline(),
            timeout: self.timeout,
            max_bytes: self.max_bytes,
        };
        let present = if self.is_native_only {
            Arc::default()
        } else {
            process.runtimes()?
        };
        // The list has no end if a process creates threads as fast as they are listed.
        let now = Instant::now();
        let half = now + limits.deadline.saturating_duration_since(now) / 2;
        let listed = process.threads_of(context, || Instant::now() < half)?;
        let support = listed.support.clone();
        let Some(first) = listed.threads.first() else {
            let runtimes = StoppedRuntimes::default();
            let mut results = attempt::read_each(&listed, &runtimes, limits, visitor);
            drop(listed);
            results.count_unlisted(process);
            return Ok(results);
        };
        let runtimes = StoppedRuntimes::start(first.process(), present, limits.deadline)?;
        visitor.begin(first.process(), limits.deadline);
        let source = match (&*support, &mut self.mode) {
            (ThreadSupport::Readable(variables), Mode::Snapshot(source)) => {
                Some((source, variables))
            }
            _ => None,
        };
        let mut results = if source.is_some() {
            attempt::read_asleep(&listed, &runtimes, limits, visitor)
        } else {
            attempt::read_each(&listed, &runtimes, limits, visitor)
        };
        visitor.end(first.process());
        results.tasks = runtimes.tasks(first.process(), &support);
        // The process may have been stopped as a whole until here.
        drop((runtimes, listed));
        results.count_unlisted(process);
        if let Some((source, variables)) = source {
            results.add_snapshot(source.threads(process, variables), limits)?;
        }
        Ok(results)
    }
}
