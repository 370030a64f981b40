//! All tracked processes, polled in turn.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use otelctx_reader as reader;
use reader::{Error, FileCache};

use crate::process::{Change, Options, Presence, ThreadStatus, TrackedProcess};
use crate::schedule::{Backoff, Queue};

/// Interval of removing processes that were reported as exiting and have ended.
const SWEEP_INTERVAL: Duration = Duration::from_millis(200);
/// One sweep in this many covers all processes: exits are not reported with ptrace, or can be lost.
const FULL_SWEEP: u32 = 50;

/// A change of a tracked process.
#[derive(Debug)]
#[non_exhaustive]
pub struct Event {
    /// The process.
    pub pid: i32,
    /// The change.
    pub change: Change,
}

/// Limits of one call of [`Tracker::poll_due`].
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Number of processes.
    pub processes: usize,
    /// Time after which no further process is polled.
    pub time: Duration,
}

impl Budget {
    /// No limit.
    pub const UNLIMITED: Self = Self {
        processes: usize::MAX,
        time: Duration::MAX,
    };
}

/// Tracked processes by their IDs, each with data of the caller.
///
/// A process is polled if it was requested ([`Tracker::request`]) and its back-off, of up to 2 s,
/// has passed. [`Tracker::poll_due`] removes processes that have ended.
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

/// A process with the caller's data.
#[derive(Debug)]
pub struct Tracked<T> {
    /// The process.
    pub process: TrackedProcess,
    /// The caller's data.
    pub data: T,
}

impl<T: Default> Tracker<T> {
    /// Creates a tracker without processes.
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

    /// The options.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Number of tracked processes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.processes.len()
    }

    /// Returns whether no process is tracked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    /// Total number of polls.
    #[must_use]
    pub fn polls(&self) -> u64 {
        self.polls
    }

    /// The tracked processes.
    pub fn iter(&self) -> impl Iterator<Item = &Tracked<T>> {
        self.processes.values()
    }

    /// The tracked processes, with mutable access.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Tracked<T>> {
        self.processes.values_mut()
    }

    /// A tracked process.
    #[must_use]
    pub fn get(&self, pid: i32) -> Option<&Tracked<T>> {
        self.processes.get(&pid)
    }

    /// A tracked process, with mutable access.
    pub fn get_mut(&mut self, pid: i32) -> Option<&mut Tracked<T>> {
        self.processes.get_mut(&pid)
    }

    /// Tracks a process, replacing any other process with its ID. It is polled when requested.
    ///
    /// # Errors
    /// If there is no such process, or it cannot be opened.
    pub fn add(&mut self, pid: i32) -> Result<&mut Tracked<T>, Error> {
        let process = TrackedProcess::open(pid, &self.options, &self.modules)?;
        Ok(self.insert(process))
    }

    /// The process with this ID, tracked if necessary. If it cannot be opened, it has only an ID.
    pub fn get_or_add(&mut self, pid: i32) -> &mut Tracked<T> {
        if !self.processes.contains_key(&pid) {
            let process = TrackedProcess::open(pid, &self.options, &self.modules);
            let unopened = |error| TrackedProcess::unopened(pid, ThreadStatus::of_unopened(&error));
            self.insert(process.unwrap_or_else(unopened));
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

    /// Notes that the last thread of a process exits. It stays tracked until it has ended.
    pub fn exiting(&mut self, pid: i32) {
        if let Some(tracked) = self.processes.get_mut(&pid) {
            tracked.process.is_exiting = true;
        }
    }

    /// Stops tracking a process that was reported as exiting and has ended: its ID may be reused.
    pub fn remove_if_gone(&mut self, pid: i32) -> Option<Tracked<T>> {
        let process = &self.processes.get(&pid)?.process;
        (process.is_exiting && !process.exists()).then(|| self.remove(pid))?
    }

    /// Notes that a process has executed another program, and clears its state.
    pub fn exec(&mut self, pid: i32) -> Option<&mut Tracked<T>> {
        let tracked = self.processes.get_mut(&pid)?;
        tracked.process.exec();
        Some(tracked)
    }

    /// Requests a poll of a process when its back-off has passed, because it has run.
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

    /// Requests a poll of a process in the next [`Tracker::poll_due`], ignoring its back-off.
    pub fn request_now(&mut self, pid: i32) {
        let now = Instant::now();
        let Some(tracked) = self.processes.get_mut(&pid) else {
            return;
        };
        let process = &mut tracked.process;
        // A process that is already due keeps its place in the queue.
        if process.ticket.is_none() || !process.backoff.is_due(now) {
            process.backoff = Backoff::new(now);
            process.ticket = None;
            self.request(pid);
        }
    }

    /// Requests polls of all processes, and the removal of ended ones: an event was lost.
    pub fn request_all_now(&mut self) {
        let pids: Vec<i32> = self.processes.keys().copied().collect();
        for pid in pids {
            self.request_now(pid);
        }
        self.sweep_now();
    }

    /// Requests the removal of all processes that have ended in the next [`Tracker::poll_due`].
    pub fn sweep_now(&mut self) {
        (self.next_sweep, self.sweeps) = (Instant::now(), 0);
    }

    /// Polls one process now, and reports changes.
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

    /// Polls due processes within the budget, longest due first, and removes ended ones.
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

    /// Removes processes that have ended, if a sweep is due.
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
