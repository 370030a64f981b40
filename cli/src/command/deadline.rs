//! The time allowed for one process (`--deadline`).

use std::time::{Duration, Instant};

use otelctx_reader::{Error, Process, Thread, Threads};

use super::partial::{Partial, PartialReason, ThreadOutcome};
use super::retry::{Again, settle};

/// The time allowed for one process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    timeout: Duration,
    end: Instant,
}

impl Deadline {
    /// A deadline this far away.
    pub(super) fn after(timeout: Duration) -> Self {
        Self {
            timeout,
            end: Instant::now() + timeout,
        }
    }

    /// The time of the deadline.
    pub(super) fn end(&self) -> Instant {
        self.end
    }

    /// Half of the time that is left: the limit for work that may never end, or that is optional.
    pub(super) fn half(&self) -> Instant {
        let now = Instant::now();
        now + self.end.saturating_duration_since(now) / 2
    }

    /// Whether it has passed.
    pub(super) fn has_passed(&self) -> bool {
        Instant::now() >= self.end
    }

    /// Calls `read_thread` for each thread of `process`, one after another until the deadline, and once
    /// more for each thread whose record was invalid: if it still is, the thread has no record
    /// attached. Returns the number of threads that were read, and why not all were, if so.
    pub(super) fn threads(
        &self,
        process: &mut Process,
        mut read_thread: impl FnMut(&Thread<'_>) -> ThreadOutcome,
    ) -> Result<(usize, Option<Partial>), Error> {
        // The list has no end if a process creates threads as fast as they are listed.
        let half = self.half();
        let Threads {
            threads,
            is_complete,
            ..
        } = process.threads_while(|| Instant::now() < half)?;
        let (mut read, mut ended) = (0, 0);
        let mut is_late = !is_complete;
        let mut invalid = Vec::new();
        for (index, thread) in threads.iter().enumerate() {
            let seen = match self.has_passed() {
                true => ThreadOutcome::Late,
                false => read_thread(thread),
            };
            match seen {
                ThreadOutcome::Read => read += 1,
                ThreadOutcome::Invalid { .. } => {
                    read += 1;
                    invalid.push(index);
                }
                ThreadOutcome::Ended => ended += 1,
                ThreadOutcome::Late => {
                    is_late = true;
                    break;
                }
            }
        }
        settle(&mut invalid, self.end, |index| {
            match read_thread(&threads[index]) {
                ThreadOutcome::Invalid { asleep } => Again::Invalid { asleep },
                _ => Again::Settled,
            }
        });
        let mut of = threads.len() - ended;
        if !is_complete {
            of = of.max(thread_count(process));
        }
        let why = PartialReason::Deadline(self.timeout);
        Ok((read, is_late.then_some(Partial { read, of, why })))
    }

    /// The partial answer when the deadline passed before the first thread.
    pub(super) fn none_read(&self, process: &Process) -> Partial {
        Partial {
            read: 0,
            of: thread_count(process),
            why: PartialReason::Deadline(self.timeout),
        }
    }
}

/// The number of threads by the kernel's count, 0 if the process has ended.
pub(super) fn thread_count(process: &Process) -> usize {
    let status = process.running().ok().and_then(|it| it.status().ok());
    status.map_or(0, |status| status.threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The list of a process that creates threads as fast as they are listed need not end by itself.
    #[test]
    fn a_list_of_threads_ends_when_its_time_has_passed() {
        let mut own = Process::open(nix::unistd::getpid().as_raw()).unwrap();
        let mut partial = |timeout| {
            let deadline = Deadline::after(timeout);
            let read = deadline.threads(&mut own, |_| ThreadOutcome::Read);
            read.unwrap().1
        };
        let late = partial(Duration::ZERO).unwrap();
        assert_eq!((late.read, late.of > 0), (0, true));
        assert_eq!(partial(Duration::from_secs(3600)), None);
    }

    #[test]
    fn half_of_the_time_is_half_of_what_is_left() {
        let end = Instant::now() + Duration::from_secs(3600);
        let timeout = Duration::from_secs(7200);
        let half = Deadline { timeout, end }.half();
        assert!(half <= Instant::now() + timeout / 4, "{half:?}");
        assert!(half < end);
    }
}
