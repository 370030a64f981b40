//! An immutable record for several threads.

use std::alloc::{alloc, handle_alloc_error, Layout};
use std::cell::UnsafeCell;
use std::fmt;
use std::future::Future;
use std::ptr;
use std::sync::Arc;

use super::attached::Attached;
use super::pool::{invalidate, ALIGN, SIZES};
use super::record::{copy, debug};
use super::scope::InScope;
use crate::process_context::platform::{self, Owner};

/// A record that does not change any more: cheap to clone, attached on any thread and dropped on
/// any. [`Record::share`](crate::Record::share) makes it.
#[derive(Clone)]
pub struct SharedRecord(Arc<Shared>);

struct Shared {
    block: *mut u8,
    class: u8,
    truncated: bool,
}

// SAFETY: the record does not change after it was made, and its memory is freed through a lock.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl SharedRecord {
    pub(super) fn copy(block: *mut u8, class: u8, truncated: bool) -> Self {
        let own = allocate(usize::from(class));
        // SAFETY: the new block is as large as the other, and nobody else knows it.
        unsafe { copy(block, own) };
        Self(Arc::new(Shared {
            block: own,
            class,
            truncated,
        }))
    }

    /// Makes this what the calling thread works on, until the guard is dropped: then, what was
    /// attached before is attached again.
    #[inline]
    pub fn attach(&self) -> Attached<'_> {
        // SAFETY: the memory of shared records is never anything else.
        unsafe { Attached::new(self.0.block) }
    }

    /// The future that attaches this record whenever it is polled, on whatever thread.
    pub fn in_scope<F: Future>(&self, future: F) -> InScope<Self, F> {
        InScope::new(self.clone(), future)
    }

    /// Whether an attribute was cut or left out, because it did not fit or its key was not
    /// published.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        self.0.truncated
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        release(self.block, usize::from(self.class));
    }
}

impl fmt::Debug for SharedRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: a shared record does not change.
        unsafe { debug(self.0.block, "SharedRecord", f) }
    }
}

/// Free blocks by size class, for the whole process. A guard that was forgotten on any thread may
/// still point at them, so they never go back to the allocator.
struct Free(UnsafeCell<[*mut u8; SIZES.len()]>);

// SAFETY: only changed by who holds the owner's lock.
unsafe impl Sync for Free {}

static FREE: Free = Free(UnsafeCell::new([ptr::null_mut(); SIZES.len()]));

/// The free list of a size class. Each change of it is one store, so that a process forked in
/// between finds it whole.
fn free_list(_lock: &Owner, class: usize) -> *mut *mut u8 {
    // SAFETY: the class is an index; the lock is held.
    unsafe { FREE.0.get().cast::<*mut u8>().add(class) }
}

fn allocate(class: usize) -> *mut u8 {
    {
        let owner = platform::lock();
        let free = free_list(&owner, class);
        // SAFETY: the lock is held; a free block holds the address of the next.
        unsafe {
            let block = *free;
            if !block.is_null() {
                free.write_volatile(super::pool::next_free(block));
                return block;
            }
        }
    }
    let layout = Layout::from_size_align(SIZES[class], ALIGN).expect("a power of two");
    // SAFETY: the layout has a size.
    unsafe {
        let block = alloc(layout);
        if block.is_null() {
            handle_alloc_error(layout);
        }
        invalidate(block);
        block
    }
}

fn release(block: *mut u8, class: usize) {
    // SAFETY: no handle refers to the block any more.
    unsafe { invalidate(block) };
    let owner = platform::lock();
    let free = free_list(&owner, class);
    // SAFETY: the lock is held.
    unsafe {
        super::pool::set_next_free(block, *free);
        free.write_volatile(block);
    }
}
