//! The process-wide lock, and the knowledge whether this process (not one that it was forked
//! from) has published.
//!
//! Both lie in a page that the kernel wipes in forked children (`MADV_WIPEONFORK`, Linux 4.14): a
//! child finds the lock free, also when another thread of its parent held it, and knows that it
//! has published nothing, also when it has its parent's pid in a new PID namespace.

use std::hint;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::thread;

use super::mapping::page_size;
use super::system_error;
use crate::process_context::PublishError;

/// The page; all zeroes at first, and in a forked child.
#[repr(C)]
pub(super) struct Shared {
    locked: AtomicU32,
    /// Which publication of this process is current; 0 for none.
    pub(super) current: AtomicU64,
}

static PAGE: AtomicPtr<Shared> = AtomicPtr::new(ptr::null_mut());

/// Stands in where there can be no page that a fork wipes. Nothing is published under it.
static FALLBACK: Shared = Shared {
    locked: AtomicU32::new(0),
    current: AtomicU64::new(0),
};

/// Holds the lock.
pub(super) struct Locked {
    pub(super) shared: &'static Shared,
    /// Why the lock would not survive a fork, when it would not.
    pub(super) problem: Option<PublishError>,
}

impl Locked {
    /// Waits for the lock. It is held for microseconds, or for as long as it takes to read one's
    /// own mappings.
    pub(super) fn acquire() -> Self {
        let (shared, problem) = match shared() {
            Ok(shared) => (shared, None),
            Err(error) => (&FALLBACK, Some(error)),
        };
        let mut tries = 0_u32;
        while shared
            .locked
            .compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            tries += 1;
            if tries < 64 {
                hint::spin_loop();
            } else {
                thread::yield_now();
            }
        }
        Self { shared, problem }
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        self.shared.locked.store(0, Ordering::Release);
    }
}

fn shared() -> Result<&'static Shared, PublishError> {
    let page = PAGE.load(Ordering::Acquire);
    if !page.is_null() {
        // SAFETY: the page is never unmapped.
        return Ok(unsafe { &*page });
    }
    let page = map()?;
    match PAGE.compare_exchange(ptr::null_mut(), page, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: as above.
        Ok(_) => Ok(unsafe { &*page }),
        Err(first) => {
            // SAFETY: nobody else knows this page.
            unsafe { libc::munmap(page.cast(), page_size()) };
            // SAFETY: as above.
            Ok(unsafe { &*first })
        }
    }
}

fn map() -> Result<*mut Shared, PublishError> {
    // SAFETY: a new mapping; zeroes are a `Shared`.
    unsafe {
        let page = libc::mmap(
            ptr::null_mut(),
            page_size(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if page == libc::MAP_FAILED {
            return Err(system_error("mmap"));
        }
        if libc::madvise(page, page_size(), libc::MADV_WIPEONFORK) != 0 {
            let error = system_error("madvise(MADV_WIPEONFORK)");
            libc::munmap(page, page_size());
            return Err(error);
        }
        Ok(page.cast())
    }
}
