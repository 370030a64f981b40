//! The names of threads that only their runtimes have.

use std::collections::HashMap;

/// Maximum number of threads whose names are kept, of one process.
const MAX_THREADS: usize = 8192;
/// Number of samples of a thread after which its name is read again: programs can change it.
const REREAD: u64 = 64;

/// The names of a process's threads.
#[derive(Debug, Default)]
pub(crate) struct ThreadNames(HashMap<i32, Known>);

#[derive(Debug, Default)]
struct Known {
    samples: u64,
    name: Option<String>,
}

impl ThreadNames {
    /// The name of a thread that is sampled now. `read` reads it; a thread has none before it is known to its runtime.
    pub(crate) fn get(&mut self, tid: i32, read: impl FnOnce() -> Option<String>) -> Option<&str> {
        if self.0.len() == MAX_THREADS && !self.0.contains_key(&tid) {
            self.0.clear();
        }
        let known = self.0.entry(tid).or_default();
        known.samples += 1;
        let samples = known.samples;
        if samples.is_multiple_of(REREAD) || samples < REREAD && samples.is_power_of_two() {
            // A thread that has ended since has no name.
            known.name = read().or_else(|| known.name.take());
        }
        known.name.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_again_and_kept() {
        let mut names = ThreadNames::default();
        assert_eq!(names.get(1, || None), None);
        assert_eq!(names.get(1, || Some("worker".into())), Some("worker"));
        assert_eq!(names.get(1, || panic!("it was read")), Some("worker"));
        assert_eq!(names.get(1, || None), Some("worker"));
        for _ in 5..64 {
            names.get(1, || None);
        }
        assert_eq!(names.get(1, || Some("renamed".into())), Some("renamed"));
        for tid in 2..20_000 {
            names.get(tid, || None);
            assert!(names.0.len() <= MAX_THREADS);
        }
    }
}
