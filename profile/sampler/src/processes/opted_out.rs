//! Remembers which processes have opted out of recordings. If the environment of a process can no longer be read, because it has
//! ended, that of its nearest ancestor decides.

use std::collections::HashMap;

use foldhash::fast::RandomState;

/// Maximum number of processes that are remembered. The end of a process may go unreported.
const MAX_PROCESSES: usize = 16_384;
/// Maximum number of processes between one that has ended and one whose environment was read.
const MAX_GENERATIONS: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct OptedOut {
    /// What the environments of processes say.
    known: Newest<bool>,
    parents: Newest<i32>,
}

impl OptedOut {
    /// Notes that a process was forked: what is known of an earlier one with its ID no longer holds.
    pub(super) fn fork(&mut self, pid: i32, parent: i32) {
        self.known.remove(pid);
        self.parents.insert(pid, parent);
    }

    /// Returns whether a process has opted out: by its own environment if that was read, else by that of the nearest process that
    /// it descends from.
    pub(crate) fn of(&mut self, pid: i32, own: Option<bool>) -> bool {
        match own {
            Some(own) => {
                self.known.insert(pid, own);
                own
            }
            None => self.inherited(pid),
        }
    }

    fn inherited(&self, pid: i32) -> bool {
        let parents = std::iter::successors(Some(pid), |pid| self.parents.get(*pid));
        let mut known = parents
            .take(1 + MAX_GENERATIONS)
            .filter_map(|it| self.known.get(it));
        known.next().unwrap_or(false)
    }
}

/// Values of processes. Where there are too many, the older half is removed.
#[derive(Debug, Default)]
struct Newest<T> {
    newer: HashMap<i32, T, RandomState>,
    older: HashMap<i32, T, RandomState>,
}

impl<T: Copy> Newest<T> {
    fn insert(&mut self, pid: i32, value: T) {
        if self.newer.len() >= MAX_PROCESSES / 2 && !self.newer.contains_key(&pid) {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(pid, value);
    }

    fn get(&self, pid: i32) -> Option<T> {
        self.newer
            .get(&pid)
            .or_else(|| self.older.get(&pid))
            .copied()
    }

    fn remove(&mut self, pid: i32) {
        self.newer.remove(&pid);
        self.older.remove(&pid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_environment_that_was_read_decides() {
        let mut opted_out = OptedOut::default();
        assert!(opted_out.of(1, Some(true)));
        opted_out.fork(2, 1);
        opted_out.fork(3, 2);
        assert!(opted_out.of(2, None) && opted_out.of(3, None));
        assert!(!opted_out.of(2, Some(false)));
        assert!(!opted_out.of(3, None));
        // Other processes with these IDs.
        opted_out.fork(2, 1);
        assert!(opted_out.of(3, None));
        opted_out.fork(1, 9);
        assert!(!opted_out.of(3, None) && !opted_out.of(7, None));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut opted_out = OptedOut::default();
        opted_out.of(1, Some(true));
        // Parents in a circle end.
        opted_out.fork(2, 3);
        opted_out.fork(3, 2);
        assert!(!opted_out.of(3, None));
        for pid in 2..2 + MAX_GENERATIONS as i32 + 1 {
            opted_out.fork(pid, pid - 1);
        }
        let last = 1 + MAX_GENERATIONS as i32;
        assert!(opted_out.of(last, None) && !opted_out.of(last + 1, None));
        for pid in 0..3 * MAX_PROCESSES as i32 {
            opted_out.fork(pid, 1);
            opted_out.of(pid, Some(false));
            let known = opted_out.known.newer.len() + opted_out.known.older.len();
            let parents = opted_out.parents.newer.len() + opted_out.parents.older.len();
            assert!(known.max(parents) <= MAX_PROCESSES);
        }
    }

    #[test]
    fn the_oldest_are_forgotten_first() {
        let mut opted_out = OptedOut::default();
        let number = MAX_PROCESSES as i32;
        for pid in 1..=number {
            opted_out.fork(pid, 0);
            opted_out.of(pid, Some(true));
        }
        assert!((1..=number).all(|pid| opted_out.of(pid, None)));
        opted_out.of(number + 1, Some(true));
        let forgotten: Vec<i32> = (1..=number)
            .filter(|pid| !opted_out.of(*pid, None))
            .collect();
        assert!(forgotten.into_iter().eq(1..=number / 2));
        // One that is asked again is new again.
        opted_out.of(number, Some(true));
        for pid in number + 2..=3 * number / 2 {
            opted_out.of(pid, Some(true));
        }
        assert!(opted_out.of(number, None) && !opted_out.of(number - 1, None));
        // Of another process with this ID, nothing is known.
        opted_out.fork(number, 0);
        assert!(!opted_out.of(number, None));
    }
}
