//! A table of bounded size that keeps the newest entries.

use std::collections::HashMap;
use std::hash::Hash;

use foldhash::fast::RandomState;

/// Keeps at least the `limit` entries that were used last, and at most twice as many: entries that were not used while
/// `limit` others were are removed at once, which takes no order of all entries.
#[derive(Clone, Debug)]
pub(super) struct Recent<K, V> {
    limit: usize,
    young: HashMap<K, V, RandomState>,
    old: HashMap<K, V, RandomState>,
}

impl<K: Copy + Eq + Hash, V: Copy> Recent<K, V> {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            young: HashMap::default(),
            old: HashMap::default(),
        }
    }

    /// Returns the entry of a key, which becomes the newest one; `first` if there is none.
    pub(super) fn entry(&mut self, key: K, first: V) -> &mut V {
        if !self.young.contains_key(&key) && self.young.len() >= self.limit {
            // Takes the place and the memory of the old ones.
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        let old = &self.old;
        let value = || old.get(&key).copied().unwrap_or(first);
        self.young.entry(key).or_insert_with(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept_and_others_make_room() {
        let mut recent = Recent::new(100);
        for number in 0..10_000_u64 {
            *recent.entry(number, 0) = number;
            // One that is used again and again is kept as long as that.
            *recent.entry(u64::MAX, 0) += 1;
            assert!(recent.young.len() <= 100 && recent.old.len() <= 100);
        }
        assert_eq!(*recent.entry(u64::MAX, 0), 10_000);
        for number in 9_910..10_000 {
            assert_eq!(*recent.entry(number, 0), number);
        }
        assert_eq!(*recent.entry(9_700, 7), 7);
    }
}
