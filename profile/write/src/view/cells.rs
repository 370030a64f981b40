//! Costs by stack and group, of many samples.

use super::tables::Id;
use crate::report::Cost;

/// Maximum number of samples that are not yet sorted in.
const MAX_PENDING: usize = 1 << 20;

/// Costs by stack and group. Samples are collected, and sorted in from time to time: that is faster
/// than to look up a sum for each.
#[derive(Debug, Default)]
pub(super) struct Cells {
    /// Stacks and groups of samples of the same cost.
    same: Vec<u64>,
    /// That cost.
    each: Cost,
    /// Those of other costs.
    others: Vec<(u64, Cost)>,
    /// Sorted sums.
    sums: Vec<(u64, Cost)>,
}

impl Cells {
    /// Returns true if no sample was added.
    pub(super) fn is_empty(&self) -> bool {
        self.same.is_empty() && self.others.is_empty() && self.sums.is_empty()
    }

    pub(super) fn add(&mut self, stack: Id, group: u32, cost: Cost) {
        let key = u64::from(stack) << 32 | u64::from(group);
        if self.same.is_empty() {
            self.each = cost;
        }
        if cost == self.each {
            self.same.push(key);
        } else {
            self.others.push((key, cost));
        }
        if self.same.len() + self.others.len() >= MAX_PENDING {
            self.sort_in();
        }
    }

    /// Sums up what was collected.
    fn sort_in(&mut self) {
        sort(&mut self.same);
        let each = self.each;
        let sums = runs(&self.same).map(|(key, times)| (key, multiplied(each, times)));
        self.sums.extend(sums);
        self.same.clear();
        self.sort_others();
    }

    fn sort_others(&mut self) {
        self.others.sort_unstable_by_key(|(key, _)| *key);
        self.sums.append(&mut self.others);
        // A stable sort merges what is sorted already.
        self.sums.sort_by_key(|(key, _)| *key);
        self.sums.dedup_by(|(more, cost), (key, sum)| {
            let is_same = more == key;
            if is_same {
                sum.add(*cost);
            }
            is_same
        });
    }

    /// Sorts all cells by stack.
    pub(super) fn finish(mut self) -> ByStack {
        sort(&mut self.same);
        self.sort_others();
        ByStack {
            same: self.same,
            each: self.each,
            sums: self.sums,
        }
    }
}

/// Costs by stack and group, sorted.
pub(super) struct ByStack {
    /// What was collected last: it takes less memory than sums of it.
    same: Vec<u64>,
    each: Cost,
    sums: Vec<(u64, Cost)>,
}

impl ByStack {
    /// Calls `visit` with each stack, and the costs of the groups that it occurs in. A group may be
    /// there twice.
    pub(super) fn each(&self, mut visit: impl FnMut(Id, &[(u32, Cost)])) {
        let stack_of = |key: u64| (key >> 32) as Id;
        let mut same = runs(&self.same).peekable();
        let mut sums = self.sums.iter().peekable();
        let mut groups = Vec::new();
        loop {
            let next_same = same.peek().map(|(key, _)| stack_of(*key));
            let next_sum = sums.peek().map(|(key, _)| stack_of(*key));
            let Some(stack) = next_same.into_iter().chain(next_sum).min() else {
                return;
            };
            groups.clear();
            while let Some((key, times)) = same.next_if(|(key, _)| stack_of(*key) == stack) {
                groups.push((key as u32, multiplied(self.each, times)));
            }
            while let Some((key, cost)) = sums.next_if(|(key, _)| stack_of(*key) == stack) {
                groups.push((*key as u32, *cost));
            }
            visit(stack, &groups);
        }
    }
}

/// Returns equal keys that follow each other, with their number.
fn runs(keys: &[u64]) -> impl Iterator<Item = (u64, u64)> {
    let runs = keys.chunk_by(|one, other| one == other);
    runs.map(|run| (run[0], run.len() as u64))
}

fn multiplied(cost: Cost, times: u64) -> Cost {
    Cost {
        samples: cost.samples.saturating_mul(times),
        nanoseconds: cost.nanoseconds.saturating_mul(times),
    }
}

/// Sorts keys by a digit after the other, the lowest first: a third of the time of a comparison
/// sort.
fn sort(keys: &mut Vec<u64>) {
    /// Three of the group, and three of the stack, by their lowest bit.
    const DIGITS: [u32; 6] = [0, 11, 21, 32, 43, 53];
    const MASK: u64 = (1 << 11) - 1;
    let Some(&first) = keys.first() else { return };
    let varying = keys.iter().fold(0, |bits, key| bits | (key ^ first));
    let mut sorted = vec![0; keys.len()];
    for digit in DIGITS {
        if varying >> digit & MASK == 0 {
            continue;
        }
        let place = |key: u64| (key >> digit & MASK) as usize;
        let mut starts = [0; MASK as usize + 1];
        keys.iter().for_each(|key| starts[place(*key)] += 1);
        let mut start = 0;
        for next in &mut starts {
            start += std::mem::replace(next, start);
        }
        for key in &*keys {
            let next = &mut starts[place(*key)];
            sorted[*next] = *key;
            *next += 1;
        }
        std::mem::swap(keys, &mut sorted);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn keys_are_sorted() {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let keys = (0..10_000).map(|number| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random >> (number % 64)
        });
        let mut keys: Vec<_> = keys.collect();
        let mut expected = keys.clone();
        expected.sort_unstable();
        sort(&mut keys);
        assert_eq!(keys, expected);
        sort(&mut Vec::new());
    }

    #[test]
    fn costs_of_all_samples_are_summed_up() {
        let (mut cells, mut expected) = (Cells::default(), BTreeMap::<_, Cost>::new());
        // More than twice as many as are collected, with 35 pairs.
        for number in 0..2 * MAX_PENDING as u64 + 10 {
            let (stack, group) = ((number % 7) as Id, (number % 5) as u32);
            let cost = Cost {
                samples: 1 + u64::from(number % 3 == 0),
                nanoseconds: 10,
            };
            cells.add(stack, group, cost);
            expected.entry((stack, group)).or_default().add(cost);
        }
        let mut sums = BTreeMap::<_, Cost>::new();
        let mut last = None;
        cells.finish().each(|stack, groups| {
            assert!(last.replace(stack) < Some(stack), "stacks come once each");
            for (group, cost) in groups {
                sums.entry((stack, *group)).or_default().add(*cost);
            }
        });
        assert_eq!(sums, expected);
        Cells::default()
            .finish()
            .each(|_, _| panic!("there is none"));
    }
}
