//! One tracked process: its context, and the changes since the last poll.

use std::sync::Arc;
use std::time::{Duration, Instant};

use otelctx_reader as reader;
use reader::remote;
use reader::runtime::Present;
use reader::{
    Broken, ContextState, Error, FileCache, Poll, ProcessContext, ReadStep, ThreadSupport,
    ThreadVariables, Unreadable,
};
use remote::process::{Sizes, SizesFile};

use crate::schedule::{Backoff, wait_after};

/// After a poll that exceeds [`Options::scan_timeout`], the next one is allowed this many times as
/// much: no process may stay unread because the machine is busy.
const TIMEOUT_FACTOR: u32 = 4;
/// Interval of searching for a second context in a process whose memory has the same size.
const MAX_SEARCH_INTERVAL: Duration = Duration::from_secs(2);
/// The maximum timeout. Polls of this length delay other processes, for at most 1/50 of the time.
const MAX_SCAN_TIMEOUT: Duration = Duration::from_secs(1);

/// Options of tracking processes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Options of reading each of them.
    pub reader: reader::Options,
    /// True to determine whether the contexts of their threads can be read. Default: false.
    pub threads: bool,
    /// Skip the scan of a process without a context while the amount of its mapped memory is
    /// unchanged. Contexts in memory that was mapped before, or that replaces memory of the same
    /// size, are found only after [`Options::rescan_interval`]. Default: true.
    pub trust_sizes: bool,
    /// Interval between scans, of about 40 µs, of a process that seems unchanged. Default: 30 s.
    pub rescan_interval: Duration,
    /// Timeout of a scan; the next may take four times as long, up to 1 s. Default: no limit.
    pub scan_timeout: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            reader: reader::Options::default(),
            threads: false,
            trust_sizes: true,
            rescan_interval: Duration::from_secs(30),
            scan_timeout: None,
        }
    }
}

/// A change of a process since it was last polled.
#[derive(Debug)]
#[non_exhaustive]
pub enum Change {
    /// It publishes a context, perhaps again.
    Published(Arc<ProcessContext>),
    /// It has updated its context.
    Updated(Arc<ProcessContext>),
    /// Its context cannot be read. Reported again if the reason changes.
    Broken(Broken),
    /// It has withdrawn its context.
    Withdrawn,
    /// Its threads are read in another way, or can no longer be read: [`TrackedProcess::threads`].
    Threads,
    /// All threads of a process that published have ended, and its parent has not waited for it.
    Exited,
    /// It has ended, and is no longer tracked.
    Ended,
    /// It cannot be read. Reported again if the reason changes.
    Failed(Error),
}

/// A process that is polled for changes until it has ended.
#[derive(Debug)]
pub struct TrackedProcess {
    pid: i32,
    /// `None` for a process that could not be opened: it only has samples.
    reader: Option<reader::Process>,
    sizes_file: Option<SizesFile>,
    sizes: Sizes,
    /// True if the mappings may have changed since the last scan.
    needs_scan: bool,
    /// Start and duration of the last scan of its mappings.
    pub(crate) last_scan: Option<(Instant, Duration)>,
    /// Minimum timeout of a poll, after polls that timed out.
    min_timeout: Duration,
    context: ContextStatus,
    threads: ThreadStatus,
    runtimes: Arc<[Present]>,
    /// A change that [`TrackedProcess::refresh_context`] found.
    unreported: Option<Change>,
    /// The back-off, for processes that are polled on request.
    pub(crate) backoff: Backoff,
    pub(crate) ticket: Option<u64>,
    /// True if the kernel has reported that its last thread exits. It stays tracked until the
    /// kernel has removed it: there may be more samples of it.
    pub(crate) is_exiting: bool,
}

/// Its process context, as last reported.
#[derive(Debug, PartialEq)]
enum ContextStatus {
    /// It publishes none, or was not scanned yet.
    Absent,
    Published(Arc<ProcessContext>),
    Broken(Broken),
    /// The process could not be scanned, with the error's text.
    Failed(String),
}

/// The readability of the contexts of a process's threads.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ThreadStatus {
    /// The threads were not scanned yet.
    Unknown,
    /// They can be read.
    Readable(ThreadVariables),
    /// The process publishes none in thread-local variables: one of its runtimes may read others.
    NotPublished,
    /// They cannot be read: this step failed.
    Unreadable(ReadStep),
}

fn is_no_such_process(error: &Error) -> bool {
    matches!(error, Error::Remote(remote::Error::NoSuchProcess { .. }))
}

/// The existence of a process, according to a poll.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Presence {
    Present,
    Gone,
}

impl ThreadStatus {
    fn of(support: Result<ThreadSupport, Error>, runtimes: &[Present]) -> Self {
        match support {
            Ok(ThreadSupport::Unreadable(Unreadable::UnsupportedSchema(schema)))
                if runtimes.iter().any(|it| it.reads_schema(&schema)) =>
            {
                Self::NotPublished
            }
            Ok(ThreadSupport::Readable(variables)) => Self::Readable(variables),
            Ok(ThreadSupport::Unreadable(Unreadable::NoProcessContext | Unreadable::NoSchema)) => {
                Self::NotPublished
            }
            Ok(ThreadSupport::Unreadable(_)) => Self::Unreadable(ReadStep::Access),
            Err(error) if is_no_such_process(&error) => Self::NotPublished,
            Err(_) => Self::Unreadable(ReadStep::Resolve),
        }
    }

    /// The status of a process that could not be opened.
    pub(crate) fn of_unopened(error: &Error) -> Self {
        Self::Unreadable(if is_no_such_process(error) {
            ReadStep::Process
        } else {
            ReadStep::Resolve
        })
    }

    /// Returns whether threads are read in the same way.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Readable(one), Self::Readable(other)) => {
                one.keys == other.keys && one.resolution.variables == other.resolution.variables
            }
            (one, other) => std::mem::discriminant(one) == std::mem::discriminant(other),
        }
    }
}

impl TrackedProcess {
    /// Opens a process. Scans nothing yet.
    pub(crate) fn open(pid: i32, options: &Options, modules: &FileCache) -> Result<Self, Error> {
        let reader = reader::Process::with_files(pid, options.reader.clone(), modules.clone())?;
        let (sizes_file, sizes) = reader.running()?.sizes()?;
        let mut process = Self {
            reader: Some(reader),
            sizes_file: Some(sizes_file),
            sizes,
            ..Self::unopened(pid, ThreadStatus::Unknown)
        };
        if process.sizes.total == 0 {
            // A kernel thread or a zombie: it has no memory in which to publish anything.
            process.threads = ThreadStatus::NotPublished;
        }
        Ok(process)
    }

    /// A process that could not be opened, most likely because it has ended.
    pub(crate) fn unopened(pid: i32, threads: ThreadStatus) -> Self {
        Self {
            pid,
            reader: None,
            sizes_file: None,
            sizes: Sizes::default(),
            needs_scan: true,
            last_scan: None,
            min_timeout: Duration::ZERO,
            context: ContextStatus::Absent,
            threads,
            runtimes: Arc::default(),
            unreported: None,
            backoff: Backoff::new(Instant::now()),
            ticket: None,
            is_exiting: false,
        }
    }

    /// Its process ID.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Access to other facts: its threads, its name. `None` if it could not be opened.
    #[must_use]
    pub fn reader(&self) -> Option<&reader::Process> {
        self.reader.as_ref()
    }

    /// [`Self::reader`], for calls that change its caches.
    pub fn reader_mut(&mut self) -> Option<&mut reader::Process> {
        self.reader.as_mut()
    }

    /// Its process context, if it publishes a readable one.
    #[must_use]
    pub fn context(&self) -> Option<&Arc<ProcessContext>> {
        match &self.context {
            ContextStatus::Published(context) => Some(context),
            _ => None,
        }
    }

    /// The readability of the contexts of its threads; unknown without [`Options::threads`].
    #[must_use]
    pub fn threads(&self) -> &ThreadStatus {
        &self.threads
    }

    /// Its language runtimes, of those in [`Options::reader`]; none without [`Options::threads`].
    #[must_use]
    pub fn runtimes(&self) -> &Arc<[Present]> {
        &self.runtimes
    }

    /// Returns whether the process still exists, including as a zombie.
    #[must_use]
    pub fn exists(&self) -> bool {
        let process = self.reader.as_ref().and_then(|it| it.running().ok());
        process.is_some_and(remote::Process::exists)
    }

    /// Returns whether all of its threads have ended: it does not exist, or is a zombie.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let process = self.reader.as_ref().and_then(|it| it.running().ok());
        process.is_none_or(remote::Process::has_ended)
    }

    /// Returns whether the modules are those for which the variables of its threads were resolved.
    #[must_use]
    pub fn has_same_modules(&self) -> bool {
        let mut reader = self.reader.iter();
        reader.any(|it| it.modules_unchanged().unwrap_or(false))
    }

    /// Reads its current process context, with one system call; `None` if there is none, or it is
    /// not readable. A change is reported by the next poll.
    pub fn refresh_context(&mut self) -> Option<&Arc<ProcessContext>> {
        let (status, change) = match self.reader.as_mut()?.poll_context() {
            Poll::Same => return self.context(),
            Poll::Updated(context) => {
                let change = Change::Updated(context.clone());
                (ContextStatus::Published(context), change)
            }
            Poll::Broken(why) => (ContextStatus::Broken(why.clone()), Change::Broken(why)),
            Poll::Unknown => return None,
        };
        self.context = status;
        self.unreported = Some(change);
        self.context()
    }

    /// Searches for another process context if the process has mapped memory since the last scan:
    /// afterwards, no record that was read before this call gets a name on which two publishers
    /// disagree. Returns the context if it has changed; the next poll reports that, too.
    ///
    /// If its memory has not changed, this takes one system call, and else a scan of its mappings. Memory that replaces
    /// other memory of the same size is found after up to 2 s.
    pub fn search_other_context(&mut self) -> Option<&Arc<ProcessContext>> {
        let known = self.context().cloned()?;
        let (scanned, _) = self.last_scan?;
        let is_old = scanned.elapsed() >= MAX_SEARCH_INTERVAL;
        if !is_old && !self.may_have_another_context() {
            return None;
        }
        let mut change = None;
        self.scan(Some(known), &mut |found| change = Some(found));
        self.unreported = Some(change?);
        self.context()
    }

    /// The process has executed another program: clears everything about the previous one.
    pub(crate) fn exec(&mut self) {
        self.needs_scan = true;
        self.last_scan = None;
        self.unreported = None;
        self.context = ContextStatus::Absent;
        self.threads = ThreadStatus::Unknown;
        self.runtimes = Arc::default();
        self.backoff = Backoff::new(Instant::now());
        // Its entry in the queue is due when the previous program would have been.
        self.ticket = None;
    }

    /// Polls the process and reports changes since the last poll. Without changes this takes one
    /// system call, plus those for [`Options::threads`].
    pub(crate) fn poll(
        &mut self,
        now: Instant,
        options: &Options,
        report: &mut dyn FnMut(Change),
    ) -> Presence {
        let Some(reader) = &mut self.reader else {
            return Presence::Present;
        };
        if let Some(change) = self.unreported.take() {
            report(change);
        }
        let timeout = options.scan_timeout.map(|it| it.max(self.min_timeout));
        reader.set_deadline(timeout.map(|timeout| now + timeout));
        let presence = self.poll_context(now, options, report);
        if presence == Presence::Present && options.threads {
            self.poll_runtimes(report);
            self.poll_threads(report);
        }
        if let Some(reader) = &mut self.reader {
            reader.set_deadline(None);
        }
        if let Some(timeout) = timeout.filter(|timeout| now.elapsed() >= *timeout) {
            self.min_timeout = (timeout * TIMEOUT_FACTOR).min(MAX_SCAN_TIMEOUT);
            self.needs_scan = true;
        }
        presence
    }

    fn poll_context(
        &mut self,
        now: Instant,
        options: &Options,
        report: &mut dyn FnMut(Change),
    ) -> Presence {
        let (Some(reader), Some((scanned, took))) = (&mut self.reader, self.last_scan) else {
            return self.scan(None, report);
        };
        let age = now.saturating_duration_since(scanned);
        let is_old = age >= options.rescan_interval;
        let mut known = None;
        if let ContextStatus::Published(_) | ContextStatus::Broken(_) = self.context {
            match reader.poll_context() {
                Poll::Same => {}
                Poll::Updated(context) => {
                    self.context = ContextStatus::Published(context.clone());
                    report(Change::Updated(context));
                }
                Poll::Broken(why) => self.set_broken(why, report),
                Poll::Unknown => return self.scan(None, report),
            }
            let is_due = is_old || options.threads && self.may_have_another_context();
            if !is_due {
                return Presence::Present;
            }
            known = self.context().cloned();
        } else if options.trust_sizes && !self.needs_scan && !is_old {
            let sizes = self.sizes_file.as_ref().map(SizesFile::read);
            // After an error, the process or the thread of the file has exited: scan.
            if matches!(sizes, Some(Ok(sizes)) if sizes == self.sizes) {
                return Presence::Present;
            }
        }
        if age < wait_after(took) {
            self.needs_scan = true;
            return Presence::Present;
        }
        self.scan(known, report)
    }

    /// Returns whether a second publisher may have published since the last scan: it maps memory.
    /// With two, the names of attributes are uncertain, which must be known before threads are read.
    fn may_have_another_context(&self) -> bool {
        let sizes = self.sizes_file.as_ref().map(SizesFile::read);
        self.needs_scan || !matches!(sizes, Some(Ok(sizes)) if sizes == self.sizes)
    }

    /// Scans the mappings. `known` is its context, if it had one in the last poll.
    fn scan(
        &mut self,
        known: Option<Arc<ProcessContext>>,
        report: &mut dyn FnMut(Change),
    ) -> Presence {
        let start = Instant::now();
        let before = self.last_scan.map(|_| self.sizes);
        if let Err(error) = self.refresh_sizes() {
            if is_no_such_process(&error) {
                return Presence::Gone;
            }
            self.last_scan = Some((start, start.elapsed()));
            self.set_failed(error, report);
            return Presence::Present;
        }
        // Memory that was mapped just before the scan may be named only after it.
        self.needs_scan = before != Some(self.sizes);
        let mut state = None;
        if self.sizes.total > 0
            && let Some(reader) = &mut self.reader
        {
            let scanned = reader.scan_context();
            if scanned.as_ref().is_err_and(is_no_such_process) {
                self.needs_scan = true;
                if self
                    .refresh_sizes()
                    .is_err_and(|it| is_no_such_process(&it))
                {
                    return Presence::Gone;
                }
            } else {
                state = Some(scanned);
            }
        }
        self.last_scan = Some((start, start.elapsed()));
        match state {
            Some(Ok(ContextState::Published(context))) => {
                let change = match known {
                    Some(known) if known == context => None,
                    Some(_) => Some(Change::Updated(context.clone())),
                    None => Some(Change::Published(context.clone())),
                };
                self.context = ContextStatus::Published(context);
                change.into_iter().for_each(report);
            }
            Some(Ok(ContextState::Broken(why))) => self.set_broken(why, report),
            Some(Ok(ContextState::Absent)) => {
                self.set(ContextStatus::Absent, Change::Withdrawn, report);
            }
            Some(Err(error)) => self.set_failed(error, report),
            // A zombie, or about to become one.
            None if self.sizes.total == 0 => {
                self.set(ContextStatus::Absent, Change::Exited, report);
            }
            None => {}
        }
        Presence::Present
    }

    /// Determines whether its threads can be read, given its context and runtimes.
    fn poll_threads(&mut self, report: &mut dyn FnMut(Change)) {
        let Some(reader) = &mut self.reader else {
            return;
        };
        let any_schema = reader.options().any_schema;
        let status = match &self.context {
            _ if self.sizes.total == 0 => ThreadStatus::NotPublished,
            ContextStatus::Published(context) => {
                let state = ContextState::Published(context.clone());
                ThreadStatus::of(reader.thread_support_of(&state), &self.runtimes)
            }
            _ if any_schema => {
                let support = reader.thread_support_of(&ContextState::Absent);
                ThreadStatus::of(support, &self.runtimes)
            }
            ContextStatus::Absent => ThreadStatus::NotPublished,
            ContextStatus::Broken(_) | ContextStatus::Failed(_) => {
                ThreadStatus::Unreadable(ReadStep::Resolve)
            }
        };
        let is_same = status.is_same(&self.threads);
        self.threads = status;
        if !is_same {
            report(Change::Threads);
        }
    }

    /// Determines which runtimes it contains. If that fails, keeps the previous ones.
    fn poll_runtimes(&mut self, report: &mut dyn FnMut(Change)) {
        let runtimes = match &mut self.reader {
            Some(reader) if self.sizes.total > 0 => reader.runtimes(),
            _ => Ok(Arc::default()),
        };
        let Ok(runtimes) = runtimes else {
            return;
        };
        let are_same = Arc::ptr_eq(&runtimes, &self.runtimes)
            || runtimes.is_empty() && self.runtimes.is_empty();
        self.runtimes = runtimes;
        if !are_same {
            report(Change::Threads);
        }
    }

    fn set_broken(&mut self, why: Broken, report: &mut dyn FnMut(Change)) {
        let status = ContextStatus::Broken(why.clone());
        self.set(status, Change::Broken(why), report);
    }

    fn set_failed(&mut self, error: Error, report: &mut dyn FnMut(Change)) {
        let status = ContextStatus::Failed(error.to_string());
        self.set(status, Change::Failed(error), report);
    }

    /// Reports `change` if the status of the context is another one.
    fn set(&mut self, status: ContextStatus, change: Change, report: &mut dyn FnMut(Change)) {
        if self.context != status {
            self.context = status;
            report(change);
        }
    }

    /// Reads how much memory is mapped now, from a thread that has memory if there is one.
    fn refresh_sizes(&mut self) -> Result<(), Error> {
        let sizes = self.sizes_file.as_ref().map(SizesFile::read);
        match (sizes, &self.reader) {
            (Some(Ok(sizes)), _) if sizes.total > 0 => self.sizes = sizes,
            (_, Some(reader)) => {
                let (file, sizes) = reader.running()?.sizes()?;
                (self.sizes_file, self.sizes) = (Some(file), sizes);
            }
            (_, None) => {}
        }
        Ok(())
    }
}
