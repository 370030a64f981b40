//! One attempt to read all threads.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use otelctx_remote::Stopped;
use otelctx_sample::Found;

use super::partial::{Partial, PartialReason, Size};
use super::reading::{Outcome, ThreadReading, failed, memory_of};
use super::runtimes::StoppedRuntimes;
use super::settle::settle;
use super::snapshot::ThreadSnapshot;
use super::visitor::Visitor;
use crate::process::Threads;
use crate::runtime::{Present, RuntimeReading, TaskReading, ThreadState};
use crate::{Error, Process, Thread, ThreadSupport};

#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub(super) deadline: Instant,
    pub(super) timeout: Duration,
    pub(super) max_bytes: usize,
}

pub(super) struct Results {
    pub(super) support: Arc<ThreadSupport>,
    pub(super) runtimes: Arc<[Present]>,
    pub(super) threads: Vec<ThreadReading>,
    pub(super) tasks: Vec<TaskReading>,
    pub(super) kernel_workers: usize,
    pub(super) partial: Option<Partial>,
    is_list_complete: bool,
}

impl Results {
    /// The results before any thread was read.
    pub(super) fn new(listed: &Threads<'_>, runtimes: Arc<[Present]>) -> Self {
        Self {
            support: listed.support.clone(),
            runtimes,
            threads: Vec::new(),
            tasks: Vec::new(),
            kernel_workers: 0,
            partial: None,
            is_list_complete: listed.is_complete,
        }
    }

    pub(super) fn read(&self) -> usize {
        self.threads.iter().filter(|thread| !thread.is_late).count()
    }

    /// Counts the threads that were not listed, if the list is incomplete.
    pub(super) fn count_unlisted(&mut self, process: &Process) {
        if !self.is_list_complete
            && let Some(partial) = &mut self.partial
        {
            partial.of = partial.of.max(process.thread_count());
        }
    }

    /// Keeps only the number of threads, if they have contexts, which may be wrong.
    pub(super) fn forget(&mut self, why: PartialReason) {
        if matches!(*self.support, ThreadSupport::Readable(_)) {
            let of = self.partial.map_or(self.threads.len(), |it| it.of);
            self.threads.clear();
            self.partial = Some(Partial { read: 0, of, why });
        }
    }

    /// Adds the native contexts of a snapshot, or its error, to the readings of runtimes.
    pub(super) fn add_snapshot(
        &mut self,
        snapshot: Result<Vec<ThreadSnapshot>, Error>,
        limits: Limits,
    ) -> Result<(), Error> {
        let mut asleep: Vec<_> = self.threads.drain(..).collect();
        let contexts: Vec<_> = match snapshot {
            Ok(threads) => threads
                .into_iter()
                .map(|it| (it.tid, Some(it.name.into()), Ok(it.context)))
                .collect(),
            Err(Error::Snapshot { reason }) => {
                let failed = |thread: &mut ThreadReading| {
                    let reason = reason.clone();
                    let error = Error::Snapshot { reason };
                    (thread.tid, thread.name.take(), Err(error))
                };
                asleep.iter_mut().map(failed).collect()
            }
            Err(error) => return Err(error),
        };
        let asleep = asleep.into_iter().map(|it| (it.tid, it.runtimes));
        let mut asleep: HashMap<i32, Vec<RuntimeReading>> = asleep.collect();
        let of = contexts.len();
        let mut kept = 0;
        for (tid, name, native) in contexts {
            let state = ThreadState {
                native,
                runtimes: asleep.remove(&tid).unwrap_or_default(),
                stop: None,
            };
            let thread = ThreadReading::of_state(tid, name, state);
            kept += thread.memory();
            if kept > limits.max_bytes {
                self.partial = Some(Partial {
                    read: self.threads.len(),
                    of,
                    why: PartialReason::Memory(limits.max_bytes),
                });
                break;
            }
            self.threads.push(thread);
        }
        Ok(())
    }
}

/// Reads the context and the runtimes of each thread, until a limit is reached; then invalid
/// records again: one that still is invalid was detached that way.
pub(super) fn read_each(
    listed: &Threads<'_>,
    runtimes: &StoppedRuntimes,
    limits: Limits,
    visitor: &mut dyn Visitor,
) -> Results {
    let mut results = Results::new(listed, runtimes.present.clone());
    let read = |thread: &Thread<'_>, visitor: &mut dyn Visitor| {
        let stopped = runtimes.thread(thread.tid());
        let mut read =
            |it: Option<&Stopped>| ThreadReading::read(thread, &runtimes.present, it.or(stopped));
        let mut reading = visitor.read(thread, stopped, &mut read);
        let outcome = Outcome::of(&reading, thread.process().options().stop_timeout);
        reading.is_late = outcome == Outcome::Late;
        (reading, outcome)
    };
    let late = PartialReason::Deadline(limits.timeout);
    let mut why = (!listed.is_complete).then_some(late);
    // The thread of each result, and the results with an invalid record.
    let (mut threads, mut invalid) = (Vec::new(), Vec::new());
    let (mut kept, mut ended) = (0, 0);
    for thread in &listed.threads {
        if Instant::now() >= limits.deadline {
            why = Some(late);
            break;
        }
        if kept + visitor.memory() > limits.max_bytes {
            why = Some(PartialReason::Memory(limits.max_bytes));
            break;
        }
        let (reading, outcome) = read(thread, visitor);
        match outcome {
            Outcome::Ended => {
                ended += 1;
                continue;
            }
            Outcome::KernelWorker => {
                results.kernel_workers += 1;
                continue;
            }
            Outcome::Late => why = Some(late),
            // A core file does not change.
            Outcome::Invalid { .. } if thread.process().running().is_ok() => {
                invalid.push(threads.len());
            }
            Outcome::Invalid { .. } | Outcome::Read => {}
        }
        kept += reading.memory();
        results.threads.push(reading);
        threads.push(thread);
        if outcome == Outcome::Late {
            break;
        }
    }
    let detached = settle(invalid, limits.deadline, |index| {
        let (reading, outcome) = read(threads[index], visitor);
        if !matches!(outcome, Outcome::Ended | Outcome::KernelWorker) {
            let stop = results.threads[index].stop.or(reading.stop);
            results.threads[index] = ThreadReading { stop, ..reading };
        }
        outcome
    });
    for index in detached.unwrap_or_default() {
        results.threads[index].context = Ok(Found::Detached);
    }
    let of = listed.threads.len() - ended - results.kernel_workers;
    let read = results.read();
    results.partial = why.map(|why| Partial { read, of, why });
    results
}

/// Reads the runtimes of the threads that sleep, or names the limit that was exceeded.
pub(super) fn read_asleep(
    listed: &Threads<'_>,
    runtimes: &StoppedRuntimes,
    limits: Limits,
    visitor: &mut dyn Visitor,
) -> Results {
    let present = &runtimes.present;
    let mut results = Results::new(listed, present.clone());
    let mut kept = 0;
    for thread in &listed.threads {
        let why = exceeded(thread.process().id(), kept, limits);
        let reading = visitor.read(thread, None, &mut |_| {
            if why.is_none() && present.iter().any(Present::reads_threads) {
                return ThreadReading::read(thread, present, None);
            }
            let name = thread.name().ok().flatten();
            let failed = why.as_ref().map(|why| failed(present, why));
            ThreadReading {
                runtimes: failed.unwrap_or_default(),
                ..ThreadReading::new(thread.tid(), name, Ok(Found::NotPublished))
            }
        });
        let outcome = Outcome::of(&reading, thread.process().options().stop_timeout);
        if !matches!(outcome, Outcome::Ended | Outcome::KernelWorker) {
            kept += memory_of(&reading.runtimes);
            results.threads.push(reading);
        }
    }
    results
}

/// Returns the limit that was exceeded, if any: readings of `kept` bytes are kept.
fn exceeded(pid: i32, kept: usize, limits: Limits) -> Option<String> {
    if kept > limits.max_bytes {
        let limit = Size(limits.max_bytes);
        return Some(format!(
            "not read: what runtimes know of other threads takes more than {limit}"
        ));
    }
    let action = "read what runtimes know of all threads";
    (Instant::now() >= limits.deadline).then(|| Error::Deadline { pid, action }.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: both were called the deadline.
    #[test]
    fn a_thread_that_is_not_read_says_which_limit_was_exceeded() {
        let timeout = Duration::from_secs(3600);
        let mut limits = Limits {
            deadline: Instant::now() + timeout,
            timeout,
            max_bytes: 24 << 20,
        };
        assert_eq!(exceeded(7, limits.max_bytes, limits), None);
        let memory = exceeded(7, limits.max_bytes + 1, limits).unwrap();
        assert!(memory.ends_with(" takes more than 24 MiB"), "{memory}");
        limits.deadline = Instant::now();
        let time = exceeded(7, 0, limits).unwrap();
        assert!(time.contains("deadline"), "{time}");
    }
}
