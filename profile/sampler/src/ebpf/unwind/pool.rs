//! Ranges of the program's array of mappings.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use otelctx_unwind::FreeRanges;

/// Time before a range is used again: a program that has found it before may still read it.
const REUSE_DELAY: Duration = Duration::from_millis(100);

/// Allocates ranges of `0..size`.
#[derive(Debug)]
pub(super) struct Pool {
    free: FreeRanges,
    freed: VecDeque<(Instant, Range<u32>)>,
}

impl Pool {
    pub(super) fn new(size: u32) -> Self {
        Self {
            free: FreeRanges::new(0..size),
            freed: VecDeque::new(),
        }
    }

    /// Allocates a range of this length, and returns its first index; `None` if there is no room.
    pub(super) fn take(&mut self, count: u32, now: Instant) -> Option<u32> {
        while let Some((when, range)) = self.freed.front()
            && now.saturating_duration_since(*when) >= REUSE_DELAY
        {
            self.free.give_back(range.clone());
            self.freed.pop_front();
        }
        self.free.take(count)
    }

    pub(super) fn give_back(&mut self, first: u32, count: u32, now: Instant) {
        self.freed.push_back((now, first..first + count));
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
