//! Stops all threads of a process.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::Stopped;
use crate::threads::ThreadFiles;
use crate::{Error, Process};

/// Maximum number of listings of the threads, until one has no new threads.
const MAX_LISTINGS: usize = 16;

/// A process whose threads are stopped. Dropping this resumes them.
#[derive(Debug)]
pub struct StoppedProcess {
    threads: BTreeMap<i32, Stopped>,
    running: Vec<(i32, Error)>,
}

impl StoppedProcess {
    /// Stops every thread of a process, waiting at most `timeout` for each. [`Self::running`] has
    /// [`Error::Deadline`] for the first thread after `deadline`, and [`Error::WouldLengthen`] for
    /// threads that are not stopped because of a timeout.
    pub fn stop(process: &Process, timeout: Duration, deadline: Instant) -> Result<Self, Error> {
        let pid = process.pid();
        let mut stopped = Self {
            threads: BTreeMap::new(),
            running: Vec::new(),
        };
        let mut known = BTreeSet::new();
        for _ in 0..MAX_LISTINGS {
            let mut is_complete = true;
            let mut is_late = false;
            process.visit_thread_ids(&mut |tid| {
                if !known.insert(tid) {
                    return ControlFlow::Continue(());
                }
                is_complete = false;
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    is_late = true;
                    let name = format!("process {pid}");
                    let action = "all of its threads were stopped";
                    let error = Error::Deadline { name, action };
                    stopped.running.push((tid, error));
                    return ControlFlow::Break(());
                }
                let result = if would_lengthen(process, tid) {
                    Err(Error::WouldLengthen { pid, tid })
                } else {
                    Stopped::stop(process, tid, timeout.min(left))
                };
                match result {
                    Ok(thread) => drop(stopped.threads.insert(tid, thread)),
                    // It executes none of the process's code.
                    Err(Error::NoSuchThread { .. } | Error::KernelWorker { .. }) => {}
                    Err(error) => stopped.running.push((tid, error)),
                }
                ControlFlow::Continue(())
            })?;
            if is_complete || is_late {
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

/// Returns whether the thread sleeps in a system call whose timeout a stop would restart.
fn would_lengthen(process: &Process, tid: i32) -> bool {
    let call = ThreadFiles::open(process, tid).and_then(|files| files.call());
    // If the call cannot be read, the stop fails, too, and says why.
    call.is_ok_and(|call| call.is_some_and(|call| call.is_lengthened_by_a_stop(process.pid())))
}
