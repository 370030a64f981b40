//! The limit on memory of names that are kept, of each process and of all.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum memory of what is kept of one process, in bytes.
const MAX_OF_PROCESS: usize = 8 << 20;
/// What a process can keep however much others do, in bytes: the names of some hundred functions. And the same of all of them.
const GUARANTEED: usize = 256 << 10;
const MAX_GUARANTEED: usize = 16 << 20;
/// What all processes together can keep beyond that. Each has an equal share of it.
const MAX_SHARED: usize = 48 << 20;

/// Memory of all [`KeptMemory`].
static ALL: Total = Total::new();

#[derive(Debug)]
struct Total {
    guaranteed: AtomicUsize,
    shared: AtomicUsize,
    /// Number of processes of which something is kept.
    users: AtomicUsize,
}

impl Total {
    const fn new() -> Self {
        Self {
            guaranteed: AtomicUsize::new(0),
            shared: AtomicUsize::new(0),
            users: AtomicUsize::new(0),
        }
    }
}

/// Memory of what a runtime keeps of one process to name its functions again: at most 8 MiB, and 64 MiB of all processes. Where
/// that is not enough for all, each has an equal share: one that was there first has to drop what it has beyond its share when it
/// adds something.
#[derive(Debug)]
pub struct KeptMemory {
    guaranteed: usize,
    shared: usize,
    all: &'static Total,
}

impl Default for KeptMemory {
    fn default() -> Self {
        Self::new(&ALL)
    }
}

impl KeptMemory {
    const fn new(all: &'static Total) -> Self {
        Self {
            guaranteed: 0,
            shared: 0,
            all,
        }
    }

    /// Adds the size of an entry, in bytes. Returns false if there is no room for it: the caller drops what it has, with its
    /// `KeptMemory`, or does not keep the entry.
    pub fn add(&mut self, size: usize) -> bool {
        let before = self.size();
        if sum(before, size, MAX_OF_PROCESS).is_none() {
            return false;
        }
        let users = self.all.users.load(Ordering::Relaxed) + usize::from(before == 0);
        let share = MAX_SHARED / users.max(1);
        let is_added = add(
            (&mut self.guaranteed, GUARANTEED),
            (&self.all.guaranteed, MAX_GUARANTEED),
            size,
        ) || add(
            (&mut self.shared, share),
            (&self.all.shared, MAX_SHARED),
            size,
        );
        if before == 0 && self.size() > 0 {
            self.all.users.fetch_add(1, Ordering::Relaxed);
        }
        is_added
    }

    /// The size of all entries, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.guaranteed + self.shared
    }

    /// Subtracts the size of an entry that was added.
    pub fn subtract(&mut self, size: usize) {
        let before = self.size();
        let of_shared = size.min(self.shared);
        let of_guaranteed = (size - of_shared).min(self.guaranteed);
        self.shared -= of_shared;
        self.guaranteed -= of_guaranteed;
        self.all.shared.fetch_sub(of_shared, Ordering::Relaxed);
        self.all
            .guaranteed
            .fetch_sub(of_guaranteed, Ordering::Relaxed);
        if before > 0 && self.size() == 0 {
            self.all.users.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for KeptMemory {
    fn drop(&mut self) {
        self.subtract(self.size());
    }
}

fn sum(before: usize, size: usize, limit: usize) -> Option<usize> {
    before.checked_add(size).filter(|sum| *sum <= limit)
}

/// Adds a size to that of a process and to that of all, if both stay within their limits.
fn add(own: (&mut usize, usize), all: (&AtomicUsize, usize), size: usize) -> bool {
    let Some(after) = sum(*own.0, size, own.1) else {
        return false;
    };
    let add = |before| sum(before, size, all.1);
    let added = all
        .0
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    if added.is_ok() {
        *own.0 = after;
    }
    added.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn users(total: &Total) -> usize {
        total.users.load(Ordering::Relaxed)
    }

    #[test]
    fn what_is_kept_is_limited_by_process_and_in_all() {
        static TOTAL: Total = Total::new();
        let new = || KeptMemory::new(&TOTAL);
        let mut first = new();
        assert!(first.add(MAX_OF_PROCESS - 1) && first.add(1));
        assert!(!first.add(1) && !first.add(usize::MAX));
        first.subtract(2);
        assert_eq!(first.size(), MAX_OF_PROCESS - 2);
        assert!(first.add(2));
        let mut others: Vec<_> = (0..5).map(|_| new()).collect();
        assert!(others.iter_mut().all(|it| it.add(MAX_OF_PROCESS)));
        // The rest is guaranteed to others, in small pieces.
        let mut late: Vec<_> = (0..65).map(|_| new()).collect();
        assert!(!late[0].add(GUARANTEED + 1));
        let has_room = late
            .iter_mut()
            .filter_map(|it| it.add(GUARANTEED).then_some(it));
        // The first one has two bytes of it.
        assert_eq!(has_room.count(), MAX_GUARANTEED / GUARANTEED - 1);
        assert_eq!(users(&TOTAL), 6 + 63);
        drop((first, others, late));
        let totals = [&TOTAL.guaranteed, &TOTAL.shared, &TOTAL.users];
        assert_eq!(totals.map(|it| it.load(Ordering::Relaxed)), [0; 3]);
    }

    /// They drop all that they have where they can add no more.
    #[test]
    fn processes_that_come_late_have_the_same_share() {
        const ENTRY: usize = MIB / 8;
        static TOTAL: Total = Total::new();
        let mut all: Vec<_> = (0..24).map(|_| KeptMemory::new(&TOTAL)).collect();
        let mut add_rounds = |count: usize, rounds: usize| {
            let mut most = vec![0; count];
            for _ in 0..rounds {
                for (kept, most) in all[..count].iter_mut().zip(&mut most) {
                    if !kept.add(ENTRY) {
                        *kept = KeptMemory::new(&TOTAL);
                    }
                    *most = kept.size().max(*most);
                }
            }
            most
        };
        assert_eq!(add_rounds(6, 64), [MAX_OF_PROCESS; 6]);
        // Six have all of it when others come.
        let share = GUARANTEED + MAX_SHARED / 24;
        assert_eq!(add_rounds(24, 1)[6..], [ENTRY; 18]);
        add_rounds(24, 100);
        // A little more while another one has dropped what it had.
        let is_share = |most: usize| most == share || most == share + ENTRY;
        assert!(add_rounds(24, 100).into_iter().all(is_share));
        drop(all);
        assert_eq!(users(&TOTAL), 0);
    }
}
