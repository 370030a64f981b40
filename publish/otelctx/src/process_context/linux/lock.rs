//! The process-wide lock, and whether this process (not one that it was forked from) has published.
//!
//! Both are in a page that the kernel zeroes in forked children (`MADV_WIPEONFORK`, Linux 4.14): in
//! a child the lock is free even if another thread of its parent held it, and nothing counts as
//! published even if the child has its parent's PID in a new PID namespace.

use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use super::errno;
use super::mapping::page_size;
use crate::process_context::PublishError;

// States of the lock.
const FREE: u32 = 0;
const LOCKED: u32 = 1;
/// Locked, and a thread may be waiting for it.
const AWAITED: u32 = 2;

/// Attempts to take the lock without waiting for it, 100 microseconds apart.
const MAX_TRIES: u32 = 100;

/// The page; all zeroes initially, and in a forked child.
#[repr(C)]
pub(super) struct Shared {
    locked: AtomicU32,
    /// The current publication of this process; 0 for none.
    pub(super) current: AtomicU64,
}

static PAGE: AtomicPtr<Shared> = AtomicPtr::new(ptr::null_mut());

/// Used if no such page can be mapped. It is used from then on, because two locks would not exclude
/// each other. Nothing is published under it.
static FALLBACK: Shared = Shared {
    locked: AtomicU32::new(0),
    current: AtomicU64::new(0),
};
/// The `errno` of the failed call.
static FALLBACK_ERRNO: AtomicI32 = AtomicI32::new(0);

/// Holds the lock until dropped.
pub(super) struct Locked {
    pub(super) shared: &'static Shared,
    /// The failed call that made the lock one that does not survive a fork.
    pub(super) problem: Option<PublishError>,
}

impl Locked {
    /// Waits for the lock. It is held for microseconds, and never while the process's mappings are
    /// read.
    pub(super) fn acquire() -> Self {
        let shared = shared();
        let problem = ptr::eq(shared, &FALLBACK).then(|| PublishError::System {
            call: "mmap or madvise(MADV_WIPEONFORK)",
            errno: FALLBACK_ERRNO.load(Ordering::Relaxed),
        });
        let locked = &shared.locked;
        if locked
            .compare_exchange(FREE, LOCKED, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            while locked.swap(AWAITED, Ordering::Acquire) != FREE {
                futex(locked, libc::FUTEX_WAIT, AWAITED);
            }
        }
        Self { shared, problem }
    }

    /// Takes the lock if it becomes free soon.
    pub(super) fn try_acquire() -> Option<Self> {
        let shared = shared();
        for _ in 0..MAX_TRIES {
            let locked =
                shared
                    .locked
                    .compare_exchange(FREE, LOCKED, Ordering::Acquire, Ordering::Relaxed);
            if locked.is_ok() {
                return Some(Self {
                    shared,
                    problem: None,
                });
            }
            // SAFETY: no pointers.
            unsafe { libc::usleep(100) };
        }
        None
    }
}

impl Drop for Locked {
    #[inline(never)]
    fn drop(&mut self) {
        if self.shared.locked.swap(FREE, Ordering::Release) == AWAITED {
            futex(&self.shared.locked, libc::FUTEX_WAKE, 1);
        }
    }
}

/// futex(2): waits while the word has this value, or wakes up to that number of waiters. It can
/// return early because of a signal, or if a sandbox forbids it: callers check the word again.
fn futex(word: &AtomicU32, operation: libc::c_int, value: u32) {
    // SAFETY: the word is valid during the call, and there is no timeout.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            operation | libc::FUTEX_PRIVATE_FLAG,
            value,
            ptr::null::<libc::timespec>(),
        );
    }
}

fn shared() -> &'static Shared {
    let mut page = PAGE.load(Ordering::Acquire);
    if page.is_null() {
        let own = map().unwrap_or_else(|errno| {
            FALLBACK_ERRNO.store(errno, Ordering::Relaxed);
            (&raw const FALLBACK).cast_mut()
        });
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let stored = PAGE.compare_exchange(ptr::null_mut(), own, success, failure);
        page = stored.err().unwrap_or(own);
        if page != own && !ptr::eq(own, &FALLBACK) {
            // SAFETY: no other code has the address of this page.
            unsafe { libc::munmap(own.cast(), page_size()) };
        }
    }
    // SAFETY: the page is never unmapped.
    unsafe { &*page }
}

/// Returns the page, or the `errno` of the call that failed.
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
