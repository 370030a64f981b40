//! Counts different things in bounded memory.

use std::collections::HashSet;
use std::hash::{BuildHasher, Hash};

use foldhash::fast::RandomState;

/// Maximum number of things that are distinguished. A machine that builds programs starts thousands of processes a second.
const MAX: usize = 256 * 1024;

/// How many different things were added, such as processes. Exact up to 262,144.
#[derive(Clone, Debug, Default)]
pub struct DistinctCount {
    /// Their hashes: of as many, it is 1 in 500 million that two are equal.
    known: HashSet<u64, RandomState>,
    hasher: RandomState,
    has_more: bool,
}

impl DistinctCount {
    /// Adds a thing, unless it is known.
    pub fn add(&mut self, thing: impl Hash) {
        let hash = self.hasher.hash_one(thing);
        if self.known.len() < MAX {
            self.known.insert(hash);
        } else if !self.known.contains(&hash) {
            self.has_more = true;
        }
    }

    /// How many there are, 262,144 at most.
    #[must_use]
    pub fn get(&self) -> usize {
        self.known.len()
    }

    /// Whether there are more.
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
