//! All tracked processes, and which of them are polled when.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use otelctx_reader as reader;
use reader::{Broken, Error, FileCache, ProcessContext};

use crate::process::{Presence, TrackedProcess};
use crate::schedule::{Backoff, Queue};

/// How often processes are removed that said that they end and are gone.
const SWEEP_INTERVAL: Duration = Duration::from_millis(200);
/// One sweep in this many covers all processes: with ptrace none says that it ends, and what the
/// kernel says can get lost.
const FULL_SWEEP: u32 = 50;
/// By default, how often a process is scanned although nothing seems to have changed. A scan takes
/// as long as reading its `/proc/PID/maps`, some 40 µs for a small process.
const RESCAN_INTERVAL: Duration = Duration::from_secs(30);

/// How processes are tracked.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// How each of them is read.
    pub reader: reader::Options,
    /// Whether to find out whether the contexts of their threads can be read. Default: false.
    pub threads: bool,
    /// Skip the scan of a process without a context while it maps as much memory as before. A process
    /// that starts to publish maps memory for it, so that this misses only memory that was mapped
    /// before, or that replaces memory of the same size; [`Options::rescan_interval`] finds it.
    /// Default: true.
    pub trust_sizes: bool,
    /// How often to scan a process although nothing seems to have changed. Default: 30 s.
    pub rescan_interval: Duration,
    /// How long the scan of one process may take. One that takes longer is given up; the next one of that
    /// process may take four times as long, up to 1 s. Default: no limit.
    pub scan_timeout: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            reader: reader::Options::default(),
            threads: false,
            trust_sizes: true,
            rescan_interval: RESCAN_INTERVAL,
            scan_timeout: None,
        }
    }
}

/// A change of a tracked process.
#[derive(Debug)]
#[non_exhaustive]
pub struct Event {
    /// The process.
    pub pid: i32,
    /// What changed.
    pub change: Change,
}

/// What changed since a process was last polled.
#[derive(Debug)]
#[non_exhaustive]
pub enum Change {
    /// It publishes. If it published before, it has executed another program or published anew.
    Published(Arc<ProcessContext>),
    /// It has updated its context.
    Updated(Arc<ProcessContext>),
    /// Its context can't be read. Reported again when the reason changes.
    Broken(Broken),
    /// It has withdrawn its context.
    Withdrawn,
    /// Its threads are read in another way, or can be read no more:
    /// [`TrackedProcess::threads`].
    Threads,
    /// All its threads have ended. The process stays tracked until its parent has waited for it.
    /// Reported only if it published before.
    Exited,
    /// It is gone, and tracked no more.
    Ended,
    /// It can't be read. Reported again when the reason changes.
    Failed(Error),
}

/// How much to do in one call of [`Tracker::poll_due`].
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// The number of processes.
    pub processes: usize,
    /// The time: no further process is polled after it.
    pub time: Duration,
}

impl Budget {
    /// No limit.
    pub const UNLIMITED: Self = Self {
        processes: usize::MAX,
        time: Duration::MAX,
    };
}

/// Tracked processes by their ids, each with something of the caller's.
///
/// A process is polled when it was requested ([`Tracker::request`]) and its back-off has passed: one
/// that runs and changes nothing is polled every 2 s, one that does not run is not polled at all.
/// When many are due, the one that has been due longest comes first.
///
/// Memory is bounded by the number of processes that exist: processes that have ended are removed by
/// [`Tracker::poll_due`].
#[derive(Debug)]
pub struct Tracker<T> {
    options: Options,
    modules: FileCache,
    processes: HashMap<i32, Tracked<T>, RandomState>,
    queue: Queue,
    next_sweep: Instant,
    sweeps: u32,
    polls: u64,
}

/// A process, and what the caller keeps with it.
#[derive(Debug)]
pub struct Tracked<T> {
    /// The process.
    pub process: TrackedProcess,
    /// What the caller keeps with it.
    pub data: T,
}

impl<T: Default> Tracker<T> {
    /// Tracks nothing yet.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            options,
            modules: FileCache::default(),
            processes: HashMap::default(),
            queue: Queue::default(),
            next_sweep: Instant::now() + SWEEP_INTERVAL,
            sweeps: 0,
            polls: 0,
        }
    }

    /// How processes are tracked.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// How many processes are tracked.
    #[must_use]
    pub fn len(&self) -> usize {
        self.processes.len()
    }

    /// Whether none is tracked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    /// How often processes have been polled in all.
    #[must_use]
    pub fn polls(&self) -> u64 {
        self.polls
    }

    /// The tracked processes.
    pub fn iter(&self) -> impl Iterator<Item = &Tracked<T>> {
        self.processes.values()
    }

    /// The tracked processes, to change what the caller keeps with them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Tracked<T>> {
        self.processes.values_mut()
    }

    /// A tracked process.
    #[must_use]
    pub fn get(&self, pid: i32) -> Option<&Tracked<T>> {
        self.processes.get(&pid)
    }

    /// The same, to change what the caller keeps with it.
    pub fn get_mut(&mut self, pid: i32) -> Option<&mut Tracked<T>> {
        self.processes.get_mut(&pid)
    }

    /// Tracks a process, in the place of another one that had its id. It is polled when requested.
    ///
    /// # Errors
    /// When there is no such process, or it cannot be opened.
    pub fn add(&mut self, pid: i32) -> Result<&mut Tracked<T>, Error> {
        let process = TrackedProcess::open(pid, &self.options, &self.modules)?;
        Ok(self.insert(process))
    }

    /// The tracked process of that id, which is tracked from now on if it was not. One that has ended
    /// already has nothing but its id.
    pub fn get_or_add(&mut self, pid: i32) -> &mut Tracked<T> {
        if !self.processes.contains_key(&pid) {
            let process = TrackedProcess::open(pid, &self.options, &self.modules);
            self.insert(process.unwrap_or_else(|_| TrackedProcess::ended(pid)));
        }
        self.processes.get_mut(&pid).expect("it was just inserted")
    }

    fn insert(&mut self, process: TrackedProcess) -> &mut Tracked<T> {
        let data = T::default();
        let tracked = Tracked { process, data };
        let entry = self.processes.entry(tracked.process.pid());
        entry.insert_entry(tracked).into_mut()
    }

    /// Stops tracking a process.
    pub fn remove(&mut self, pid: i32) -> Option<Tracked<T>> {
        self.processes.remove(&pid)
    }

    /// Notes that the last thread of a process ends. It stays tracked until it is gone.
    pub fn exiting(&mut self, pid: i32) {
        if let Some(tracked) = self.processes.get_mut(&pid) {
            tracked.process.is_exiting = true;
        }
    }

    /// Stops tracking a process that said that it ends and is gone: its id may be another's by now.
    pub fn remove_if_gone(&mut self, pid: i32) -> Option<Tracked<T>> {
        let process = &self.processes.get(&pid)?.process;
        (process.is_exiting && !process.exists()).then(|| self.remove(pid))?
    }

    /// Notes that a process has executed another program: what was known of it is forgotten.
    pub fn exec(&mut self, pid: i32) -> Option<&mut Tracked<T>> {
        let tracked = self.processes.get_mut(&pid)?;
        tracked.process.exec();
        Some(tracked)
    }

    /// Has a process polled when its back-off has passed, because it has run.
    pub fn request(&mut self, pid: i32) {
        let Some(tracked) = self.processes.get_mut(&pid) else {
            return;
        };
        let process = &mut tracked.process;
        if process.ticket.is_none() && !process.is_exiting {
            process.ticket = Some(self.queue.push(process.backoff.due(), pid));
            let processes = &self.processes;
            self.queue.shrink(processes.len(), |pid, ticket| {
                let tracked = processes.get(&pid);
                tracked.is_some_and(|tracked| tracked.process.ticket == Some(ticket))
            });
        }
    }

    /// Has a process polled by the next [`Tracker::poll_due`], whatever its back-off says.
    pub fn request_now(&mut self, pid: i32) {
        let now = Instant::now();
        let Some(tracked) = self.processes.get_mut(&pid) else {
            return;
        };
        let process = &mut tracked.process;
        // One that is due already keeps its place in the queue.
        if process.ticket.is_none() || !process.backoff.is_due(now) {
            process.backoff = Backoff::new(now);
            process.ticket = None;
            self.request(pid);
        }
    }

    /// Has all processes polled soon, and all that are gone removed: an event was lost.
    pub fn request_all_now(&mut self) {
        let pids: Vec<i32> = self.processes.keys().copied().collect();
        for pid in pids {
            self.request_now(pid);
        }
        self.sweep_now();
    }

    /// Has all processes that are gone removed by the next [`Tracker::poll_due`].
    pub fn sweep_now(&mut self) {
        (self.next_sweep, self.sweeps) = (Instant::now(), 0);
    }

    /// Polls one process now, and reports what has changed.
    pub fn poll(&mut self, pid: i32, report: &mut dyn FnMut(Event)) {
        self.poll_at(pid, Instant::now(), report);
    }

    pub(crate) fn poll_at(&mut self, pid: i32, now: Instant, report: &mut dyn FnMut(Event)) {
        let Some(tracked) = self.processes.get_mut(&pid) else {
            return;
        };
        self.polls += 1;
        let process = &mut tracked.process;
        process.ticket = None;
        let mut changed = false;
        let presence = process.poll(now, &self.options, &mut |change| {
            changed = true;
            report(Event { pid, change });
        });
        if presence == Presence::Gone {
            self.remove(pid);
            let change = Change::Ended;
            report(Event { pid, change });
            return;
        }
        let took = now.elapsed();
        process.backoff.done(now + took, took, changed);
    }

    /// Polls the processes that are due, the one that has been due longest first, and removes those
    /// that are gone. What the budget does not cover stays due.
    pub fn poll_due(&mut self, budget: Budget, report: &mut dyn FnMut(Event)) {
        let start = Instant::now();
        self.sweep(start, report);
        let mut polled = 0;
        while polled < budget.processes {
            let now = Instant::now();
            if now - start > budget.time {
                break;
            }
            let Some((pid, ticket)) = self.queue.pop(start) else {
                break;
            };
            let tracked = self.processes.get(&pid);
            if tracked.is_some_and(|tracked| tracked.process.ticket == Some(ticket)) {
                polled += 1;
                self.poll_at(pid, now, report);
            }
        }
    }

    /// Removes processes that are gone, if it is time for that.
    fn sweep(&mut self, now: Instant, report: &mut dyn FnMut(Event)) {
        if now < self.next_sweep {
            return;
        }
        let all = self.sweeps.is_multiple_of(FULL_SWEEP);
        (self.next_sweep, self.sweeps) = (now + SWEEP_INTERVAL, self.sweeps.wrapping_add(1));
        self.processes.retain(|pid, tracked| {
            let process = &tracked.process;
            let is_gone = (all || process.is_exiting) && !process.exists();
            if is_gone {
                let (pid, change) = (*pid, Change::Ended);
                report(Event { pid, change });
            }
            !is_gone
        });
    }
}

#[cfg(test)]
mod tests;
