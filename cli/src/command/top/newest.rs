//! What was seen last of each thread: whether it waits at present.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::time::{Present, Wait};

/// Maximum number of threads that are remembered.
const MAX_THREADS: usize = 32_768;

/// A process, its start time, and a thread of it.
pub(super) type Id = (i32, u64, i32);

/// The newest sample of each thread.
#[derive(Debug, Default)]
pub(super) struct Newest(HashMap<Id, Seen>);

#[derive(Debug)]
struct Seen {
    /// In nanoseconds of `CLOCK_MONOTONIC`.
    time: u64,
    /// The wait, and since when the thread is off the CPU (0 if that is unknown); `None` if it ran.
    wait: Option<(Wait, u64)>,
}

impl Newest {
    /// Notes that a thread ran, or since when it waits. Samples need not be in order.
    pub(super) fn note(&mut self, thread: Id, time: u64, wait: Option<(&Wait, u64)>) {
        let is_full = self.0.len() >= MAX_THREADS;
        let seen = || Seen {
            time,
            wait: wait.map(|(wait, since)| (wait.clone(), since)),
        };
        match self.0.entry(thread) {
            Entry::Vacant(_) if is_full => {}
            Entry::Vacant(new) => drop(new.insert(seen())),
            Entry::Occupied(mut known) => {
                // A wait that has ended in the queue has samples of both at one time.
                let is_queued = wait.is_some_and(|(wait, _)| !wait.is_waiting());
                let before = known.get().time;
                if time > before || time == before && (wait.is_none() || is_queued) {
                    known.insert(seen());
                }
            }
        }
    }

    /// Returns the wait of a thread that goes on at `now`, if it was seen since `oldest`.
    pub(super) fn waiting(&self, thread: Id, oldest: u64, now: u64) -> Option<Present> {
        let seen = self.0.get(&thread).filter(|it| it.time >= oldest)?;
        let (wait, since) = seen.wait.as_ref().filter(|(wait, _)| wait.is_waiting())?;
        Some(Present {
            wait: wait.clone(),
            lasts: (*since > 0).then(|| now.saturating_sub(*since)),
        })
    }

    /// Forgets threads that were seen before `oldest` alone.
    pub(super) fn prune(&mut self, oldest: u64) {
        self.0.retain(|_, seen| seen.time >= oldest);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use otelctx_profile::sample::OffCpuState;

    use super::*;

    #[test]
    fn a_thread_waits_as_long_as_its_newest_sample_says_so() {
        let (mut newest, thread) = (Newest::default(), (1, 1, 2));
        let wait = |state| Wait {
            state,
            reason: None,
        };
        let asleep = wait(OffCpuState::Asleep);
        let lasts = |newest: &Newest| newest.waiting(thread, 100, 500).map(|it| it.lasts);
        assert_eq!(lasts(&newest), None, "unknown");
        newest.note(thread, 100, Some((&asleep, 40)));
        assert_eq!(lasts(&newest), Some(Some(460)));
        newest.note(thread, 200, Some((&asleep, 0)));
        assert_eq!(lasts(&newest), Some(None), "the start is unknown");
        // It ran at the time of an older sample, which is noted later.
        newest.note(thread, 150, None);
        assert_eq!(lasts(&newest), Some(None));
        newest.note(thread, 250, None);
        assert_eq!(lasts(&newest), None, "it runs");
        newest.note(thread, 240, Some((&asleep, 40)));
        assert_eq!(lasts(&newest), None, "it has run since");
        // It was woken, and has no CPU yet.
        newest.note(thread, 300, Some((&wait(OffCpuState::Queued), 260)));
        newest.note(thread, 300, Some((&asleep, 260)));
        assert_eq!(lasts(&newest), None, "it is queued");
        newest.note(thread, 310, Some((&asleep, 305)));
        assert_eq!(lasts(&newest), Some(Some(195)));
        assert_eq!(newest.waiting(thread, 311, 500), None, "long ago");
        newest.prune(311);
        assert!(newest.0.is_empty());
    }

    #[test]
    fn the_number_of_threads_is_bounded() {
        let mut newest = Newest::default();
        for tid in 0..MAX_THREADS as i32 + 10 {
            newest.note((1, 1, tid + 1), 1, None);
        }
        assert_eq!(newest.0.len(), MAX_THREADS);
    }
}
