//! Schedules polls: a back-off for each process, and a queue of due processes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

/// First interval of a back-off. A process that starts usually publishes soon or never.
const FIRST_WAIT: Duration = Duration::from_millis(20);
/// Longest interval of a back-off, unless scans are slow.
const MAX_WAIT: Duration = Duration::from_secs(2);
/// Duration above which a scan is slow, as for processes with tens of thousands of mappings.
const SLOW_SCAN_THRESHOLD: Duration = Duration::from_millis(5);
/// After a slow scan, wait for this many times its duration: repeated scans take 2 % of one CPU.
const SLOW_SCAN_FACTOR: u32 = 50;

/// The time to wait after work of this duration; zero if it was not slow.
#[must_use]
pub fn wait_after(took: Duration) -> Duration {
    wait_after_slower_than(SLOW_SCAN_THRESHOLD, took)
}

/// [`wait_after`] with another threshold.
#[must_use]
pub fn wait_after_slower_than(threshold: Duration, took: Duration) -> Duration {
    if took > threshold {
        took.saturating_mul(SLOW_SCAN_FACTOR)
    } else {
        Duration::ZERO
    }
}

/// Schedules work; the interval doubles each time it finds nothing new, from 20 ms to 2 s.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    next: Instant,
    /// The earliest next time: the last one may have been slow.
    earliest: Instant,
    wait: Duration,
}

impl Backoff {
    /// Creates a back-off that is due at `now`.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            next: now,
            earliest: now,
            wait: FIRST_WAIT,
        }
    }

    /// Makes the work due as soon as it may be, and starts over with short intervals.
    pub fn restart(&mut self) {
        self.wait = FIRST_WAIT;
        self.next = self.earliest;
    }

    /// The time at which the work is due next.
    #[must_use]
    pub fn due(&self) -> Instant {
        self.next
    }

    /// Returns whether the work is due at `now`.
    #[must_use]
    pub fn is_due(&self, now: Instant) -> bool {
        now >= self.next
    }

    /// Schedules the next time: the work ended at `now`, `took` this long, and found `new` things.
    pub fn done(&mut self, now: Instant, took: Duration, new: bool) {
        self.wait = if new {
            FIRST_WAIT
        } else {
            (self.wait * 2).min(MAX_WAIT)
        };
        let least = took.max(wait_after(took));
        self.next = now + self.wait.max(least);
        self.earliest = now + least;
    }
}

/// Processes waiting to be polled, in the order of their due times. When a process is queued again
/// or removed, its old entry stays until it comes up: its ticket is no longer valid.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) heap: BinaryHeap<Reverse<(Instant, u64, i32)>>,
    last_ticket: u64,
}

/// Number of stale entries that are tolerated, in addition to the number of valid entries.
const STALE_ENTRIES: usize = 64;

impl Queue {
    /// Queues a process. The ticket is valid until the process gets a new one.
    pub(crate) fn push(&mut self, due: Instant, pid: i32) -> u64 {
        self.last_ticket += 1;
        self.heap.push(Reverse((due, self.last_ticket, pid)));
        self.last_ticket
    }

    /// Removes the process that has been due longest at `now`, and returns it with its ticket.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<(i32, u64)> {
        let Reverse((due, ..)) = self.heap.peek()?;
        if *due > now {
            return None;
        }
        let Reverse((_, ticket, pid)) = self.heap.pop()?;
        Some((pid, ticket))
    }

    /// Drops stale entries if there are too many, to bound the queue.
    pub(crate) fn shrink(&mut self, processes: usize, is_valid: impl Fn(i32, u64) -> bool) {
        if self.heap.len() > 2 * processes + STALE_ENTRIES {
            let heap = &mut self.heap;
            heap.retain(|Reverse((_, ticket, pid))| is_valid(*pid, *ticket));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_until_something_is_new() {
        let now = Instant::now();
        let mut backoff = Backoff::new(now);
        let mut waits = Vec::new();
        for new in [false, false, true, false] {
            backoff.done(now, Duration::ZERO, new);
            waits.push((backoff.due() - now).as_millis());
        }
        assert_eq!(waits, [40, 80, 20, 40]);
        for _ in 0..10 {
            backoff.done(now, Duration::ZERO, false);
        }
        assert_eq!(backoff.due() - now, MAX_WAIT);
    }

    #[test]
    fn a_restart_waits_for_slow_work_alone() {
        let now = Instant::now();
        let mut backoff = Backoff::new(now);
        for _ in 0..10 {
            backoff.done(now, Duration::from_millis(1), false);
        }
        backoff.restart();
        assert_eq!(backoff.due() - now, Duration::from_millis(1));
        backoff.done(now, Duration::ZERO, false);
        assert_eq!(backoff.due() - now, 2 * FIRST_WAIT);
        backoff.done(now, Duration::from_millis(100), false);
        backoff.restart();
        assert_eq!(backoff.due() - now, Duration::from_secs(5));
    }

    #[test]
    fn slow_work_waits_in_proportion() {
        let now = Instant::now();
        let mut backoff = Backoff::new(now);
        backoff.done(now, Duration::from_millis(100), true);
        assert_eq!(backoff.due() - now, Duration::from_secs(5));
        assert!(!backoff.is_due(now + Duration::from_millis(4999)));
        assert!(backoff.is_due(now + Duration::from_secs(5)));
    }

    #[test]
    fn the_process_that_has_been_due_longest_comes_first() {
        let now = Instant::now();
        let mut queue = Queue::default();
        let ms = Duration::from_millis;
        for (pid, due) in [(1, 30), (2, 10), (3, 20), (4, 50)] {
            queue.push(now + ms(due), pid);
        }
        let at = |queue: &mut Queue, time| queue.pop(now + ms(time)).map(|(pid, _)| pid);
        assert_eq!(at(&mut queue, 5), None);
        let order = [(); 4].map(|()| at(&mut queue, 40));
        assert_eq!(order, [Some(2), Some(3), Some(1), None]);
    }

    #[test]
    fn stale_entries_are_bounded() {
        let now = Instant::now();
        let mut queue = Queue::default();
        let mut ticket = 0;
        for _ in 0..10_000 {
            ticket = queue.push(now, 7);
            queue.shrink(1, |pid, found| (pid, found) == (7, ticket));
        }
        assert!(
            queue.heap.len() <= 2 + STALE_ENTRIES,
            "{}",
            queue.heap.len()
        );
        let mut popped = std::iter::from_fn(|| queue.pop(now));
        assert!(popped.any(|entry| entry == (7, ticket)));
    }
}
