//! Watches many processes for changes of their process contexts.
//!
//! A poll takes one system call for each process, and a listing of `/proc`:
//!
//! - For a process with a context, one read of its header at the known address. Updates, an exec
//!   and an exit all change its result.
//! - For a process without a readable context, one read of `/proc/PID/statm`. A process that starts
//!   to publish first maps memory for it, which changes its size. Then its mappings are scanned,
//!   and once more at the next poll, because memory may be named after it was mapped.
//!
//! The latter misses a mapping that replaced others of the same size, the former a second context:
//! each process is rescanned periodically ([`Watch::rescan_interval`]).
//!
//! ```no_run
//! use otelctx_track::{Change, Watch};
//!
//! # fn main() -> Result<(), otelctx_reader::Error> {
//! let mut watch = Watch::default();
//! loop {
//!     for event in watch.poll()? {
//!         match event.change {
//!             Change::Published(context) | Change::Updated(context) => {
//!                 println!("{}: {:?}", event.pid, context.payload.resource);
//!             }
//!             Change::Broken(why) => println!("{}: unreadable: {why}", event.pid),
//!             Change::Withdrawn => println!("{}: publishes no more", event.pid),
//!             Change::Ended => println!("{}: has ended", event.pid),
//!             Change::Failed(error) => eprintln!("{error}"),
//!             _ => {}
//!         }
//!     }
//!     std::thread::sleep(std::time::Duration::from_secs(1));
//! }
//! # }
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use otelctx_reader as reader;
use reader::{Error, remote};

use crate::{Change, Event, Options, Tracker};

/// Watches all processes on the machine, or some, for changes of their contexts. Each takes two or
/// three file descriptors: raise the soft limit (`RLIMIT_NOFILE`), which is 1,024 by default.
#[derive(Debug)]
pub struct Watch {
    tracker: Tracker<()>,
    /// Processes for which anything but their end was reported.
    reported: BTreeSet<i32>,
    /// Processes that could not be opened, with the reason that was reported.
    unopened: BTreeMap<i32, String>,
}

impl Default for Watch {
    fn default() -> Self {
        Self::new(reader::Options::default())
    }
}

impl Watch {
    /// Creates a watch without processes.
    #[must_use]
    pub fn new(options: reader::Options) -> Self {
        Self::with(Options {
            reader: options,
            ..Options::default()
        })
    }

    fn with(options: Options) -> Self {
        Self {
            tracker: Tracker::new(options),
            reported: BTreeSet::new(),
            unopened: BTreeMap::new(),
        }
    }

    /// Interval between scans of a process that seems unchanged. Default: 30 s.
    #[must_use]
    pub fn rescan_interval(self, rescan_interval: Duration) -> Self {
        Self::with(Options {
            rescan_interval,
            ..self.tracker.options().clone()
        })
    }

    /// Polls every existing process, and returns the changes since the last poll, by process ID.
    ///
    /// # Errors
    /// If the processes cannot be listed.
    pub fn poll(&mut self) -> Result<Vec<Event>, Error> {
        let mut pids = remote::process::processes()?;
        pids.sort_unstable();
        Ok(self.poll_these(&pids))
    }

    /// Polls only these processes, in the order of their IDs. Other watched ones count as ended.
    ///
    /// [`Change::Ended`] is only reported if something was reported before, and also for a process
    /// that has exited and that its parent has not waited for.
    pub fn poll_these(&mut self, pids: &[i32]) -> Vec<Event> {
        debug_assert!(pids.is_sorted());
        let mut events = Vec::new();
        let is_listed = |pid: &i32| pids.binary_search(pid).is_ok();
        let known = self.tracker.iter().map(|tracked| tracked.process.pid());
        let gone: Vec<i32> = known.filter(|pid| !is_listed(pid)).collect();
        for pid in gone {
            self.tracker.remove(pid);
        }
        self.unopened.retain(|pid, _| is_listed(pid));
        self.reported.retain(|pid| {
            let is_listed = is_listed(pid);
            if !is_listed {
                let (pid, change) = (*pid, Change::Ended);
                events.push(Event { pid, change });
            }
            is_listed
        });
        let now = Instant::now();
        for &pid in pids {
            self.poll_one(pid, now, &mut events);
        }
        events.sort_by_key(|event| event.pid);
        events
    }

    fn poll_one(&mut self, pid: i32, now: Instant, events: &mut Vec<Event>) {
        if self.tracker.get(pid).is_some() {
            self.poll_tracked(pid, now, events);
            if self.tracker.get(pid).is_some() {
                return;
            }
        }
        // The ID may already belong to another process.
        match self.tracker.add(pid) {
            Ok(_) => {
                self.unopened.remove(&pid);
                // If it has ended again, the next poll finds out.
                self.poll_tracked(pid, now, events);
            }
            Err(Error::Remote(remote::Error::NoSuchProcess { .. })) => {
                self.unopened.remove(&pid);
            }
            Err(error) => {
                let why = error.to_string();
                if self.unopened.insert(pid, why.clone()) != Some(why) {
                    self.reported.insert(pid);
                    let change = Change::Failed(error);
                    events.push(Event { pid, change });
                }
            }
        }
    }

    fn poll_tracked(&mut self, pid: i32, now: Instant, events: &mut Vec<Event>) {
        let reported = &mut self.reported;
        self.tracker.poll_at(pid, now, &mut |event| {
            let change = match event.change {
                Change::Ended | Change::Exited if !reported.remove(&pid) => return,
                Change::Ended | Change::Exited => Change::Ended,
                Change::Withdrawn => {
                    reported.remove(&pid);
                    Change::Withdrawn
                }
                change => {
                    reported.insert(pid);
                    change
                }
            };
            events.push(Event { pid, change });
        });
    }

    /// A watched process, for access to other facts: its threads, its name.
    pub fn process(&mut self, pid: i32) -> Option<&mut reader::Process> {
        self.tracker.get_mut(pid)?.process.reader_mut()
    }

    /// Number of watched processes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tracker.len() + self.unopened.len()
    }

    /// Returns whether no processes are watched.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
