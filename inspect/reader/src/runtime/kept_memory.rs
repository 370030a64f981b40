//! The limit on memory of names that are kept, of each process and of all.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum memory of what is kept of one process, in bytes.
const MAX_OF_PROCESS: usize = 8 << 20;
/// The same of all processes together.
const MAX_OF_ALL: usize = 64 << 20;

/// Memory of all [`KeptMemory`].
static ALL: AtomicUsize = AtomicUsize::new(0);

/// Memory of what a runtime keeps of one process to name its functions again: at most 8 MiB, and 64 MiB of all processes.
#[derive(Debug)]
pub struct KeptMemory {
    own: usize,
    all: &'static AtomicUsize,
}

impl Default for KeptMemory {
    fn default() -> Self {
        Self { own: 0, all: &ALL }
    }
}

impl KeptMemory {
    /// Adds the size of an entry, in bytes. Returns false if there is no room for it: the caller drops what it has, with its
    /// `KeptMemory`, or does not keep the entry.
    pub fn add(&mut self, size: usize) -> bool {
        let has_room = |before: usize, limit: usize| {
            let after = before.checked_add(size)?;
            (after <= limit).then_some(after)
        };
        let Some(own) = has_room(self.own, MAX_OF_PROCESS) else {
            return false;
        };
        let add = |all| has_room(all, MAX_OF_ALL);
        let added = self
            .all
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        if added.is_ok() {
            self.own = own;
        }
        added.is_ok()
    }

    /// The size of all entries, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.own
    }

    /// Subtracts the size of an entry that was added.
    pub fn subtract(&mut self, size: usize) {
        let size = size.min(self.own);
        self.own -= size;
        self.all.fetch_sub(size, Ordering::Relaxed);
    }
}

impl Drop for KeptMemory {
    fn drop(&mut self) {
        self.all.fetch_sub(self.own, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_limited_by_process_and_in_all() {
        static TOTAL: AtomicUsize = AtomicUsize::new(0);
        let new = || KeptMemory {
            own: 0,
            all: &TOTAL,
        };
        let mut first = new();
        assert!(first.add(MAX_OF_PROCESS - 1) && first.add(1));
        assert!(!first.add(1) && !first.add(usize::MAX));
        first.subtract(2);
        assert_eq!(first.size(), MAX_OF_PROCESS - 2);
        assert!(first.add(2));
        let others = MAX_OF_ALL / MAX_OF_PROCESS - 1;
        let mut others: Vec<_> = (0..others).map(|_| new()).collect();
        assert!(others.iter_mut().all(|it| it.add(MAX_OF_PROCESS)));
        assert!(!new().add(1));
        drop(first);
        assert!(new().add(MAX_OF_PROCESS));
        drop(others);
        assert_eq!(TOTAL.load(Ordering::Relaxed), 0);
    }
}
