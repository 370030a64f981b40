//! Allocates ranges of numbers.

use std::ops::Range;

/// Free ranges in ascending order, which do not touch each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FreeRanges(Vec<Range<u32>>);

impl FreeRanges {
    /// Creates one free range.
    pub fn new(all: Range<u32>) -> Self {
        Self(vec![all])
    }

    /// Allocates `count` consecutive numbers, first fit. Returns the first one.
    pub fn take(&mut self, count: u32) -> Option<u32> {
        let at = self.0.iter().position(|free| free.len() as u32 >= count)?;
        let start = self.0[at].start;
        self.0[at].start += count;
        if self.0[at].is_empty() {
            self.0.remove(at);
        }
        Some(start)
    }

    /// Takes the last free range, if it ends with `end`.
    pub(crate) fn take_last(&mut self, end: u32) -> Option<Range<u32>> {
        self.0.pop_if(|last| last.end == end)
    }

    /// The last free range, if it ends with `end`.
    pub(crate) fn last(&self, end: u32) -> Option<Range<u32>> {
        self.0.last().filter(|last| last.end == end).cloned()
    }

    /// Returns whether exactly this range is free.
    pub(crate) fn is(&self, all: &Range<u32>) -> bool {
        self.0[..] == [all.clone()]
    }

    /// Frees a range that was taken.
    pub fn give_back(&mut self, range: Range<u32>) {
        if range.is_empty() {
            return;
        }
        let at = self.0.partition_point(|free| free.start < range.start);
        self.0.insert(at, range);
        if at + 1 < self.0.len() && self.0[at].end == self.0[at + 1].start {
            self.0[at].end = self.0.remove(at + 1).end;
        }
        if at > 0 && self.0[at - 1].end == self.0[at].start {
            self.0[at - 1].end = self.0.remove(at).end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_become_one_range_again() {
        let mut free = FreeRanges::new(0..100);
        assert_eq!(free.take(60), Some(0));
        assert_eq!(free.take(30), Some(60));
        assert_eq!(free.take(30), None);
        assert_eq!(free.last(100), Some(90..100));
        free.give_back(0..60);
        // The first range that is long enough.
        assert_eq!(free.take(10), Some(0));
        free.give_back(60..90);
        free.give_back(0..10);
        assert!(free.is(&(0..100)));
        assert_eq!(free.take_last(99), None);
        assert_eq!(free.take_last(100), Some(0..100));
        assert_eq!(free.take(1), None);
    }
}
