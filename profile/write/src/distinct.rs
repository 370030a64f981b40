//! Counts distinct values in bounded memory.

use std::collections::HashSet;
use std::hash::{BuildHasher, Hash};

use foldhash::fast::RandomState;

/// Maximum number of values that are distinguished: builds start thousands of processes a second.
const MAX: usize = 256 * 1024;

/// Counts distinct values, such as processes. Exact up to 262,144.
#[derive(Clone, Debug, Default)]
pub struct DistinctCount {
    /// The values' hashes, of which two are equal with a probability of 1 in 500 million.
    known: HashSet<u64, RandomState>,
    hasher: RandomState,
    has_more: bool,
}

impl DistinctCount {
    /// Adds a value, unless it is known.
    pub fn add(&mut self, value: impl Hash) {
        let hash = self.hasher.hash_one(value);
        if self.known.len() < MAX {
            self.known.insert(hash);
        } else if !self.known.contains(&hash) {
            self.has_more = true;
        }
    }

    /// Returns the number of distinct values, 262,144 at most.
    #[must_use]
    pub fn get(&self) -> usize {
        self.known.len()
    }

    /// Returns true if there are more than [`get`](Self::get) returns.
    #[must_use]
    pub fn has_more(&self) -> bool {
        self.has_more
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_are_counted_once_and_up_to_a_limit() {
        let mut count = DistinctCount::default();
        for _ in 0..2 {
            count.add((1, "one"));
            count.add((1, "other"));
            count.add((2, "one"));
        }
        assert_eq!((count.get(), count.has_more()), (3, false));
        for number in 3..MAX as i32 {
            count.add((number, "one"));
        }
        assert_eq!((count.get(), count.has_more()), (MAX, false));
        count.add((1, "other"));
        assert!(!count.has_more());
        count.add((0, "one"));
        assert_eq!((count.get(), count.has_more()), (MAX, true));
    }
}
