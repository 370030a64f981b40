//! An immutable record for several threads.

use std::alloc::{alloc, handle_alloc_error, Layout};
use std::cell::UnsafeCell;
use std::fmt;
use std::future::Future;
use std::ptr;
use std::sync::Arc;

use super::attached::detach_out_of_order;
use super::bytes::{copy, debug};
use super::out_of_order::{self, GapOwner};
use super::pool::{invalidate, next_free, set_next_free, ALIGN, SIZES};
use super::record::Record;
use super::scope::InScope;
use super::state::{self, State};
use crate::arch;
use crate::process_context::platform::{self, Owner};

/// A record that does not change any more: cheap to clone, attached on any thread and dropped on
/// any. [`Record::share`] makes it.
#[derive(Clone)]
pub struct SharedRecord(Arc<Shared>);

pub(super) struct Shared {
    block: *mut u8,
    class: usize,
    truncated: bool,
}

// SAFETY: the record does not change after it was made, and its memory is freed under a lock.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl SharedRecord {
    pub(super) fn copy(block: *mut u8, class: usize, truncated: bool) -> Self {
        Self(Arc::new(Shared {
            block: allocate_copy(block, class),
            class,
            truncated,
        }))
    }

    /// Makes this what the calling thread works on, until the guard is dropped: then, what was
    /// attached before is attached again.
    #[inline]
    pub fn attach(&self) -> AttachedShared<'_> {
        let block = self.0.block;
        let state = arch::state();
        // SAFETY: state and slot are this thread's. The memory of shared records is never
        // anything else.
        unsafe {
            if !AttachedBlocks::add(&raw mut (*state).shared, block) {
                return AttachedShared::twice(self);
            }
            let slot = state::slot(state);
            let previous = state::attach(slot, block);
            AttachedShared(Guard::Itself {
                state,
                previous,
                record: self,
            })
        }
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
        release(self.block, self.class);
    }
}

impl fmt::Debug for SharedRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: a shared record does not change.
        unsafe { debug(self.0.block, "SharedRecord", f) }
    }
}

/// Keeps a [`SharedRecord`] attached to the thread. Dropping it attaches what was attached
/// before; see [`Attached`](crate::Attached).
#[must_use = "the record is detached when the guard is dropped"]
#[derive(Debug)]
pub struct AttachedShared<'a>(Guard<'a>);

#[derive(Debug)]
enum Guard<'a> {
    Itself {
        state: *mut State,
        previous: *mut u8,
        record: &'a SharedRecord,
    },
    /// A guard knows its place by its record's address. So what is attached a second time is a
    /// copy.
    Copy { previous: *mut u8, record: Record },
}

impl AttachedShared<'_> {
    #[cold]
    #[inline(never)]
    fn twice(record: &SharedRecord) -> Self {
        let record = Record::copy_of(record.0.block);
        // SAFETY: the slot is this thread's, and so is the copy.
        let previous = unsafe { state::attach(arch::slot(), record.block()) };
        Self(Guard::Copy { previous, record })
    }
}

impl Drop for AttachedShared<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the guard is this thread's, and it is dropped once.
        unsafe {
            match &mut self.0 {
                Guard::Itself {
                    state,
                    previous,
                    record,
                } => {
                    let (state, block) = (*state, record.0.block);
                    if state::detach(state::slot(state), block, *previous)
                        || out_of_order::detach(state, block, *previous)
                    {
                        AttachedBlocks::remove(&raw mut (*state).shared, block);
                    } else {
                        let owner = GapOwner::Shared(Arc::clone(&record.0));
                        out_of_order::add_gap(state, block, owner, *previous);
                    }
                }
                Guard::Copy { previous, record } => {
                    if !state::detach(arch::slot(), record.block(), *previous) {
                        detach_out_of_order(record, *previous);
                    }
                }
            }
        }
    }
}

/// Shared records that are attached to a thread, or in a gap of it. Each is there once.
///
/// A signal handler may add and remove its own in the middle of any step: it changes what is
/// behind `count` only, and leaves null there.
#[repr(C)]
pub(super) struct AttachedBlocks {
    blocks: [*mut u8; 6],
    count: usize,
}

impl AttachedBlocks {
    pub(super) const NONE: Self = Self {
        blocks: [ptr::null_mut(); 6],
        count: 0,
    };

    /// Adds a block, unless it is there or there is no room.
    ///
    /// # Safety
    /// `this` is the calling thread's.
    #[inline]
    unsafe fn add(this: *mut Self, block: *mut u8) -> bool {
        // SAFETY: as the caller promises; the first `count` blocks are within the array.
        unsafe {
            let count = (*this).count;
            if count == (*this).blocks.len() || Self::contains(this, block) {
                return false;
            }
            // The place is taken before it is filled, so that a handler does not fill it.
            (&raw mut (*this).count).write_volatile(count + 1);
            Self::place(this, count).write_volatile(block);
            true
        }
    }

    /// # Safety
    /// That of [`add`](Self::add).
    #[inline]
    unsafe fn remove(this: *mut Self, block: *mut u8) {
        // SAFETY: as above.
        unsafe {
            let count = (*this).count;
            let Some(at) = (0..count).rfind(|at| Self::place(this, *at).read() == block) else {
                return;
            };
            let last = Self::place(this, count - 1);
            Self::place(this, at).write_volatile(last.read());
            last.write_volatile(ptr::null_mut());
            (&raw mut (*this).count).write_volatile(count - 1);
        }
    }

    /// Whether a block is there.
    ///
    /// # Safety
    /// That of [`add`](Self::add).
    #[inline]
    pub(super) unsafe fn contains(this: *mut Self, block: *mut u8) -> bool {
        // SAFETY: as above.
        unsafe { (0..(*this).count).any(|at| Self::place(this, at).read() == block) }
    }

    /// # Safety
    /// `at` is an index of `blocks`.
    #[inline]
    unsafe fn place(this: *mut Self, at: usize) -> *mut *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { (&raw mut (*this).blocks).cast::<*mut u8>().add(at) }
    }
}

/// The record of a gap may be attached directly again.
///
/// # Safety
/// `state` is the calling thread's.
pub(super) unsafe fn end_gap(state: *mut State, record: Arc<Shared>) {
    // SAFETY: as the caller promises.
    unsafe { AttachedBlocks::remove(&raw mut (*state).shared, record.block) };
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

/// A block with the bytes of another one of the same size class.
fn allocate_copy(from: *mut u8, class: usize) -> *mut u8 {
    let owner = platform::lock();
    let free = free_list(&owner, class);
    // SAFETY: the lock is held; a free block holds the address of the next. It is written under
    // the lock, too, because a thread with a forgotten guard may be about to copy it.
    unsafe {
        let block = free.read();
        if !block.is_null() {
            free.write_volatile(next_free(block));
            copy(from, block);
            return block;
        }
    }
    drop(owner);
    let layout = Layout::from_size_align(SIZES[class], ALIGN).expect("a power of two");
    // SAFETY: the layout has a size, and the block is as long.
    unsafe {
        let block = alloc(layout);
        if block.is_null() {
            handle_alloc_error(layout);
        }
        invalidate(block);
        copy(from, block);
        block
    }
}

fn release(block: *mut u8, class: usize) {
    let owner = platform::lock();
    let free = free_list(&owner, class);
    // SAFETY: no handle refers to the block any more, and the lock is held.
    unsafe {
        invalidate(block);
        set_next_free(block, free.read());
        free.write_volatile(block);
    }
}
