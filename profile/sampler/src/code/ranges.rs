//! Sets of addresses.

use std::collections::BTreeMap;

/// The ends of disjoint ranges by their starts. Ranges may be added in any order.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges(pub(super) BTreeMap<u64, u64>);

impl Ranges {
    pub(super) fn contain(&self, start: u64, end: u64) -> bool {
        let before = self.0.range(..=start).next_back();
        before.is_some_and(|(_, known)| end <= *known)
    }

    pub(super) fn intersect(&self, start: u64, end: u64) -> bool {
        let before = self.0.range(..end).next_back();
        before.is_some_and(|(_, known)| start < *known)
    }

    pub(super) fn add(&mut self, mut start: u64, mut end: u64) {
        // Ranges that it touches are merged with it, from the last one on.
        while let Some((&first, &last)) = self.0.range(..=end).next_back()
            && start <= last
        {
            start = start.min(first);
            end = end.max(last);
            self.0.remove(&first);
        }
        self.0.insert(start, end);
    }
}
