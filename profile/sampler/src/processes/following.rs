//! Tracks the sampled processes, through forks and execs.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use otelctx_reader as reader;
use otelctx_track::{Budget, Change, ThreadStatus, Tracked};

use crate::process::SampledProcess;

/// Budget for polling tracked processes between two drains: the ring must not fill up.
const BUDGET: Budget = Budget {
    processes: 32,
    time: Duration::from_millis(20),
};
/// Time limit of the first scan of all processes: the ring holds the samples of one second. The
/// others are scanned when they are sampled.
const FIRST_SCAN: Duration = Duration::from_millis(500);
/// Maximum number of children whose parents are kept: the end of a child may go unreported.
const MAX_PARENTS: usize = 16_384;

pub(crate) type Tracker = otelctx_track::Tracker<SampledProcess>;

#[derive(Debug)]
pub(crate) struct Following {
    pub(crate) tracker: Tracker,
    /// Targets that have not executed the program to sample yet: see [`Options::before_exec`](crate::Options::before_exec).
    pub(super) before_exec: Vec<i32>,
    /// The processes that children were forked from, until they execute another program or end.
    pub(super) parents: HashMap<i32, i32, RandomState>,
    /// Remaining budget, until the next poll, for processes that are sampled for the first time.
    pub(super) first_scans: Budget,
    /// Changes that these scans have found.
    changes: Changes,
}

/// Processes that changed since the last poll.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Processes whose threads may have to be read in another way.
    pub(crate) changed: Vec<i32>,
    pub(crate) ended: Vec<i32>,
}

impl Changes {
    fn add(&mut self, event: &otelctx_track::Event) {
        let pids = match event.change {
            Change::Ended => &mut self.ended,
            _ => &mut self.changed,
        };
        if pids.last() != Some(&event.pid) {
            pids.push(event.pid);
        }
    }
}

impl Following {
    /// Creates an empty set. With a `scan_timeout`, all processes on the machine are tracked, and
    /// most of them must be cheap.
    pub(super) fn new(options: reader::Options, scan_timeout: Option<Duration>) -> Self {
        let mut tracking = otelctx_track::Options::default();
        tracking.reader = options;
        tracking.threads = true;
        tracking.trust_sizes = scan_timeout.is_some();
        tracking.scan_timeout = scan_timeout;
        Self {
            tracker: Tracker::new(tracking),
            before_exec: Vec::new(),
            parents: HashMap::default(),
            first_scans: BUDGET,
            changes: Changes::default(),
        }
    }

    pub(super) fn add_parent(&mut self, pid: i32, parent: i32) {
        if self.parents.len() >= MAX_PARENTS {
            self.parents.clear();
        }
        self.parents.insert(pid, parent);
    }

    /// Scans all processes on the machine, within the time limit, and returns the ones that publish
    /// or contain a runtime. The others are tracked when they are sampled, to save descriptors.
    pub(crate) fn find_publishers(&mut self) -> Result<Vec<i32>, reader::Error> {
        let end = Instant::now() + FIRST_SCAN;
        let mut publishers = Vec::new();
        for pid in reader::remote::process::processes()? {
            if Instant::now() >= end {
                break;
            }
            if self.tracker.add(pid).is_err() {
                continue;
            }
            self.tracker.poll(pid, &mut |_| {});
            let tracked = self.tracker.get(pid);
            let publishes = tracked.is_some_and(|Tracked { process, .. }| {
                let publishes = |status: &_| {
                    matches!(
                        status,
                        ThreadStatus::Readable(_) | ThreadStatus::Unreadable(_)
                    )
                };
                publishes(process.threads()) || !process.runtimes().is_empty()
            });
            if publishes {
                publishers.push(pid);
            } else {
                self.tracker.remove(pid);
            }
        }
        Ok(publishers)
    }

    /// Scans a process that is sampled for the first time, within the budget.
    pub(super) fn scan_first(&mut self, pid: i32) {
        let Budget { processes, time } = self.first_scans;
        let is_known = |it: &Tracked<SampledProcess>| {
            !matches!(it.process.threads(), ThreadStatus::Unknown) || !it.process.exists()
        };
        if processes == 0 || time.is_zero() || self.tracker.get(pid).is_none_or(is_known) {
            return;
        }
        let start = Instant::now();
        let changes = &mut self.changes;
        self.tracker.poll(pid, &mut |event| changes.add(&event));
        self.first_scans = Budget {
            processes: processes - 1,
            time: time.saturating_sub(start.elapsed()),
        };
    }

    /// Polls sampled processes that may publish now, or in another way.
    pub(super) fn poll(&mut self) -> Changes {
        self.first_scans = BUDGET;
        let mut changes = std::mem::take(&mut self.changes);
        self.tracker
            .poll_due(BUDGET, &mut |event| changes.add(&event));
        changes
    }
}
