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
    /// The kernel's name of it: a later thread with its ID mostly has another one.
    of_kernel: String,
    samples: u64,
    name: Option<String>,
}

impl ThreadNames {
    /// The name of a thread that is sampled now. `read` reads it; a thread has none before it is known to its runtime. `of_kernel` is
    /// the kernel's name of it, which is empty if it is unknown.
    pub(crate) fn get(
        &mut self,
        tid: i32,
        of_kernel: &str,
        read: impl FnOnce() -> Option<String>,
    ) -> Option<&str> {
        if self.0.len() == MAX_THREADS && !self.0.contains_key(&tid) {
            self.0.clear();
        }
        let known = self.0.entry(tid).or_default();
        if !of_kernel.is_empty() && known.of_kernel != of_kernel {
            // It is another thread, or has another name.
            *known = Known {
                of_kernel: of_kernel.to_owned(),
                ..Known::default()
            };
        }
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
        let mut get = |read: fn() -> Option<String>| names.get(1, "java", read).map(str::to_owned);
        assert_eq!(get(|| None), None);
        assert_eq!(get(|| Some("worker".into())).unwrap(), "worker");
        assert_eq!(get(|| panic!("it was read")).unwrap(), "worker");
        assert_eq!(get(|| None).unwrap(), "worker");
        for _ in 5..64 {
            get(|| None);
        }
        assert_eq!(get(|| Some("renamed".into())).unwrap(), "renamed");
        for tid in 2..20_000 {
            names.get(tid, "java", || None);
            assert!(names.0.len() <= MAX_THREADS);
        }
    }

    #[test]
    fn a_thread_has_no_name_of_an_earlier_one_with_its_id() {
        let mut names = ThreadNames::default();
        let name = |name: &str| Some(name.to_owned());
        for _ in 0..5 {
            names.get(1, "first", || name("first thread"));
        }
        // The kernel's name may be unknown.
        assert_eq!(
            names.get(1, "", || panic!("it was read")),
            Some("first thread")
        );
        assert_eq!(names.get(1, "second", || None), None);
        assert_eq!(names.get(1, "second", || name("second")), Some("second"));
        // It is read at once, as that of each thread that is new.
        assert_eq!(names.get(1, "third", || name("third")), Some("third"));
    }
}
