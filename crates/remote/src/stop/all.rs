//! Stops all threads of a process.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::Stopped;
use crate::{Error, Process};

/// Maximum number of listings of the threads: threads created while others were being stopped are
/// in the next one. A stopped thread creates none.
const MAX_LISTINGS: usize = 16;

/// A process whose threads are stopped. Dropping this resumes them.
#[derive(Debug)]
pub struct StoppedProcess {
    threads: BTreeMap<i32, Stopped>,
    running: Vec<(i32, Error)>,
}

impl StoppedProcess {
    /// Stops every thread of a process, waiting at most `timeout` for each, and at most until
    /// `deadline` for all.
    ///
    /// # Errors
    /// If the threads cannot be listed.
    pub fn stop(process: &Process, timeout: Duration, deadline: Instant) -> Result<Self, Error> {
        let mut stopped = Self {
            threads: BTreeMap::new(),
            running: Vec::new(),
        };
        let mut known = BTreeSet::new();
        for _ in 0..MAX_LISTINGS {
            let mut is_new = false;
            for tid in process.thread_ids()? {
                if !known.insert(tid) {
                    continue;
                }
                is_new = true;
                let left = deadline.saturating_duration_since(Instant::now());
                match Stopped::stop(process, tid, timeout.min(left)) {
                    Ok(thread) => drop(stopped.threads.insert(tid, thread)),
                    // It has ended, or is a kernel worker, which executes none of the process's
                    // code.
                    Err(Error::NoSuchThread { .. } | Error::KernelWorker { .. }) => {}
                    Err(error) => stopped.running.push((tid, error)),
                }
            }
            if !is_new {
                break;
            }
        }
        Ok(stopped)
    }

    /// One of its threads; `None` if the thread could not be stopped.
    pub fn thread(&self, tid: i32) -> Option<&Stopped> {
        self.threads.get(&tid)
    }

    /// Threads that could not be stopped, with the reason.
    pub fn running(&self) -> &[(i32, Error)] {
        &self.running
    }
}
