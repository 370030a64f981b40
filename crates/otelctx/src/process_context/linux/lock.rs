//! The process-wide lock, and the knowledge whether this process (not one that it was forked
//! from) has published.
//!
//! Both lie in a page that the kernel wipes in forked children (`MADV_WIPEONFORK`, Linux 4.14): a
//! child finds the lock free, also when another thread of its parent held it, and knows that it
//! has published nothing, also when it has its parent's pid in a new PID namespace.

use std::hint;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::thread;

use super::errno;
use super::mapping::page_size;
use crate::process_context::PublishError;

/// The page; all zeroes at first, and in a forked child.
#[repr(C)]
pub(super) struct Shared {
    locked: AtomicU32,
    /// Which publication of this process is current; 0 for none.
    pub(super) current: AtomicU64,
}

static PAGE: AtomicPtr<Shared> = AtomicPtr::new(ptr::null_mut());

/// Stands in where there can be no page that a fork wipes: for good, because two locks are none.
/// Nothing is published under it.
static FALLBACK: Shared = Shared {
    locked: AtomicU32::new(0),
    current: AtomicU64::new(0),
};
/// `errno` of the call for the page that failed.
static FALLBACK_ERRNO: AtomicI32 = AtomicI32::new(0);

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
        let shared = shared();
        let problem = ptr::eq(shared, &FALLBACK).then(|| PublishError::System {
            call: "mmap or madvise(MADV_WIPEONFORK)",
            errno: FALLBACK_ERRNO.load(Ordering::Relaxed),
        });
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

fn shared() -> &'static Shared {
    let mut page = PAGE.load(Ordering::Acquire);
    if page.is_null() {
        let own = map().unwrap_or_else(|errno| {
            FALLBACK_ERRNO.store(errno, Ordering::Relaxed);
            (&raw const FALLBACK).cast_mut()
        });
        page = match PAGE.compare_exchange(
            ptr::null_mut(),
            own,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => own,
            Err(first) => {
                if !ptr::eq(own, &FALLBACK) {
                    // SAFETY: nobody else knows this page.
                    unsafe { libc::munmap(own.cast(), page_size()) };
                }
                first
            }
        };
    }
    // SAFETY: the page is never unmapped.
    unsafe { &*page }
}

/// The page, or the `errno` of what failed.
fn map() -> Result<*mut Shared, i32> {
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
            return Err(errno());
        }
        if libc::madvise(page, page_size(), libc::MADV_WIPEONFORK) != 0 {
            let error = errno();
            libc::munmap(page, page_size());
            return Err(error);
        }
        Ok(page.cast())
    }
}
