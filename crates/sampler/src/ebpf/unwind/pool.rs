//! Ranges of the array that has the mappings of all processes.

use std::time::{Duration, Instant};

/// How long a range is not used again: a program that has found it before may still read it.
const REUSE_DELAY: Duration = Duration::from_millis(100);

/// Allocates ranges of `0..size`.
#[derive(Debug)]
pub(super) struct Pool {
    /// Free ranges in ascending order, which do not touch each other: first index and length.
    free: Vec<(u32, u32)>,
    /// Ranges that were freed, and when.
    freed: Vec<(Instant, u32, u32)>,
}

impl Pool {
    pub(super) fn new(size: u32) -> Self {
        Self {
            free: vec![(0, size)],
            freed: Vec::new(),
        }
    }

    /// The first index of a range of this length; `None` if there is none left.
    pub(super) fn take(&mut self, count: u32, now: Instant) -> Option<u32> {
        self.recover(now);
        let at = self.free.iter().position(|(_, free)| *free >= count)?;
        let (first, free) = self.free[at];
        if free == count {
            self.free.remove(at);
        } else {
            self.free[at] = (first + count, free - count);
        }
        Some(first)
    }

    /// Frees a range.
    pub(super) fn give_back(&mut self, first: u32, count: u32, now: Instant) {
        if count > 0 {
            self.freed.push((now, first, count));
        }
    }

    fn recover(&mut self, now: Instant) {
        while let Some(&(when, first, count)) = self.freed.first() {
            if now.saturating_duration_since(when) < REUSE_DELAY {
                break;
            }
            self.freed.remove(0);
            let at = self.free.partition_point(|(other, _)| *other < first);
            self.free.insert(at, (first, count));
            let touches = |before: (u32, u32), after: (u32, u32)| before.0 + before.1 == after.0;
            if at + 1 < self.free.len() && touches(self.free[at], self.free[at + 1]) {
                self.free[at].1 += self.free.remove(at + 1).1;
            }
            if at > 0 && touches(self.free[at - 1], self.free[at]) {
                self.free[at - 1].1 += self.free.remove(at).1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_used_again_later() {
        let start = Instant::now();
        let mut pool = Pool::new(100);
        assert_eq!(pool.take(60, start), Some(0));
        assert_eq!(pool.take(30, start), Some(60));
        assert_eq!(pool.take(30, start), None);
        pool.give_back(0, 60, start);
        assert_eq!(pool.take(30, start), None);
        let later = start + REUSE_DELAY;
        assert_eq!(pool.take(30, later), Some(0));
        pool.give_back(60, 30, later);
        pool.give_back(0, 30, later);
        // In one piece again.
        assert_eq!(pool.take(100, later + REUSE_DELAY), Some(0));
        assert_eq!(pool.take(1, later + 2 * REUSE_DELAY), None);
    }
}
