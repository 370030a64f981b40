//! A lock that all copies of this crate in the process share, so that of two that publish at the
//! same time, one finds the other's context.
//!
//! Copies share no variable, so the lock is a mapping at an address that is the same for all: the
//! kernel lets one thread create it (`MAP_FIXED_NOREPLACE`, Linux 4.17). Where other code has a
//! mapping there, or on an older kernel, copies publish without the lock.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use super::errno;
use super::foreign;
use super::mapping::page_size;

/// The lock's address, for page sizes up to 64 KiB and address spaces from 39 bits.
#[cfg(target_pointer_width = "64")]
const ADDRESS: usize = 0x6f_7465_0000;
#[cfg(not(target_pointer_width = "64"))]
const ADDRESS: usize = 0x6f74_0000;

/// The upper half of the mapping's first word. The lower half is the process ID: a child that was
/// forked before `MADV_DONTFORK` has the mapping, but no thread that releases it.
const MAGIC: u64 = 0x6f74_656c << 32;

/// Number of attempts, 100 microseconds apart, while another copy holds the lock. It searches the
/// process's mappings, which may be many.
const MAX_TRIES: u32 = 10_000;
/// Number of attempts while the mapping is not known to be the lock: another copy has just created
/// or released it, or it is other code's.
const MAX_TRIES_UNKNOWN: u32 = 200;

/// Holds the lock, if there is one, until dropped.
pub(super) struct CopiesLock(Option<*mut c_void>);

impl CopiesLock {
    /// Waits for the lock. Must not be called while this copy's own lock is held: the copy that has
    /// this lock may need that one.
    pub(super) fn acquire() -> Self {
        let (mut tries, mut tries_unknown) = (0, 0);
        loop {
            match create() {
                Ok(page) => return Self(Some(page)),
                Err(libc::EEXIST) => {}
                Err(_) => return Self(None),
            }
            let mut word = [0; 8];
            let is_held = foreign::read_into(&mut word, ADDRESS).is_ok()
                && u64::from_ne_bytes(word) == held_by_this_process();
            let (tries, max) = if is_held {
                (&mut tries, MAX_TRIES)
            } else {
                (&mut tries_unknown, MAX_TRIES_UNKNOWN)
            };
            *tries += 1;
            if *tries > max {
                return Self(None);
            }
            // SAFETY: no pointers.
            unsafe { libc::usleep(100) };
        }
    }
}

impl Drop for CopiesLock {
    fn drop(&mut self) {
        if let Some(page) = self.0 {
            // SAFETY: this created it, and nobody else unmaps it.
            unsafe { libc::munmap(page, page_size()) };
        }
    }
}

/// Creates the mapping, or returns the `errno`: `EEXIST` if there is one.
fn create() -> Result<*mut c_void, i32> {
    // SAFETY: a new mapping, which replaces no other one. Zeroes are an `AtomicU64`.
    unsafe {
        let page = libc::mmap(
            ADDRESS as *mut c_void,
            page_size(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
            -1,
            0,
        );
        if page == libc::MAP_FAILED {
            return Err(errno());
        }
        if page as usize != ADDRESS {
            // An older kernel takes the address for a hint.
            libc::munmap(page, page_size());
            return Err(libc::EOPNOTSUPP);
        }
        libc::madvise(page, page_size(), libc::MADV_DONTFORK);
        (*page.cast::<AtomicU64>()).store(held_by_this_process(), Ordering::Relaxed);
        Ok(page)
    }
}

fn held_by_this_process() -> u64 {
    // SAFETY: no pointers.
    MAGIC | u64::from(unsafe { libc::getpid() } as u32)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn one_thread_has_the_lock_and_none_waits_long_for_a_page_of_other_code() {
        static HOLDERS: AtomicU64 = AtomicU64::new(0);
        if CopiesLock::acquire().0.is_none() {
            println!("skipped: the kernel is older than 4.17, or the address is in use");
            return;
        }
        let take = || {
            for _ in 0..50 {
                let lock = CopiesLock::acquire();
                assert!(lock.0.is_some());
                assert_eq!(HOLDERS.fetch_add(1, Ordering::SeqCst), 0);
                std::thread::yield_now();
                HOLDERS.fetch_sub(1, Ordering::SeqCst);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(take);
            scope.spawn(take);
        });

        let lock = CopiesLock::acquire();
        let page = lock.0.unwrap().cast::<AtomicU64>();
        // Empty, of another process, of other code.
        for word in [0, held_by_this_process() ^ 1, !0] {
            // SAFETY: the page is mapped until the lock is dropped.
            unsafe { (*page).store(word, Ordering::Relaxed) };
            assert!(CopiesLock::acquire().0.is_none(), "{word:#x}");
        }
        drop(lock);
        assert!(CopiesLock::acquire().0.is_some());
    }
}
