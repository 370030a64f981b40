//! An immutable record for several threads.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::ptr::NonNull;

use otelctx_format::{SpanId, TraceFlags, TraceId};

use super::attached_blocks::AttachedBlocks;
use super::bytes::{copy, debug};
use super::current;
use super::keys::Key;
use super::record::Record;
use super::scope::InScope;
use super::shared_block::{self, is_truncated, release_handle, retain};
use super::state::{self, exit_has_begun, State};
use crate::arch;

/// A record that does not change any more: cheap to clone, attached on any thread and dropped on
/// any. [`Record::share`] makes it.
///
/// Cloning, attaching and dropping take no lock.
pub struct SharedRecord(NonNull<u8>);

// SAFETY: the bytes do not change after the record was made, and references are counted
// atomically.
unsafe impl Send for SharedRecord {}
// SAFETY: as above.
unsafe impl Sync for SharedRecord {}

impl SharedRecord {
    /// A shared record with the bytes of another record of this size class.
    pub(super) fn copy(from: *mut u8, class: usize, truncated: bool) -> Self {
        // SAFETY: the state is this thread's; the block is new, and as large as the other one.
        unsafe {
            let block = shared_block::allocate(arch::state(), class, truncated);
            copy(from, block);
            Self::from_block(block)
        }
    }

    /// A copy of a shared record.
    ///
    /// # Safety
    /// The block is a shared one with a reference.
    pub(super) unsafe fn copy_of(block: *mut u8) -> Self {
        // SAFETY: as the caller promises.
        let (class, truncated) = unsafe { (shared_block::class(block), is_truncated(block)) };
        Self::copy(block, class, truncated)
    }

    /// Takes over a reference to a block.
    ///
    /// # Safety
    /// The block is a shared one, and the reference is the caller's.
    #[inline(always)]
    pub(super) unsafe fn from_block(block: *mut u8) -> Self {
        // SAFETY: blocks are not null.
        Self(unsafe { NonNull::new_unchecked(block) })
    }

    /// The block, with the reference of this handle.
    #[inline(always)]
    pub(super) fn into_block(self) -> *mut u8 {
        std::mem::ManuallyDrop::new(self).block()
    }

    #[inline(always)]
    fn block(&self) -> *mut u8 {
        self.0.as_ptr()
    }

    /// Makes this what the calling thread is working on, until the guard is dropped: then, what
    /// was attached before is attached again.
    #[inline]
    pub fn attach(&self) -> AttachedShared<'_> {
        AttachedShared::new(self.block())
    }

    /// [`attach`](Self::attach) with a guard that borrows nothing: for frameworks that keep it in
    /// a structure of their own. It stays on this thread.
    #[inline]
    pub fn attach_owned(&self) -> AttachedOwned {
        AttachedOwned(AttachedShared::new(self.block()))
    }

    /// The future that attaches this record whenever it is polled, on whatever thread.
    pub fn in_scope<F: Future>(&self, future: F) -> InScope<Self, F> {
        InScope::new(self.clone(), future)
    }

    /// A record of the calling thread with these ids and flags and the attributes of this one,
    /// for example for a child span.
    ///
    /// There are both ids or none: when one is zero, the other and the flags become zero.
    #[must_use]
    pub fn copy_with_ids(
        &self,
        trace_id: impl Into<TraceId>,
        span_id: impl Into<SpanId>,
        flags: TraceFlags,
    ) -> Record {
        let mut record = Record::copy_of(self.block(), self.is_truncated());
        record.set_ids(trace_id, span_id, flags);
        record
    }

    /// Whether an attribute was cut or skipped, because it did not fit or its key was not
    /// published.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        // SAFETY: the block is a shared one.
        unsafe { is_truncated(self.block()) }
    }
}

impl Clone for SharedRecord {
    #[inline]
    fn clone(&self) -> Self {
        // SAFETY: this handle has a reference.
        unsafe { retain(self.block()) };
        Self(self.0)
    }
}

impl Drop for SharedRecord {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the reference is this handle's.
        unsafe { release_handle(self.block()) };
    }
}

impl fmt::Debug for SharedRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: a shared record does not change.
        unsafe { debug(self.block(), "SharedRecord", f) }
    }
}

/// Keeps a [`SharedRecord`] attached to the thread, and alive. Dropping it attaches what was
/// attached before; see [`Attached`](crate::Attached).
#[must_use = "the record is detached when the guard is dropped"]
#[derive(Debug)]
pub struct AttachedShared<'a> {
    state: *mut State,
    /// The record, or a copy of it: a guard knows its place by its record's address, so what is
    /// attached a second time is a copy.
    block: *mut u8,
    /// That of the thread's list of attached blocks. The list has another one once it was cleared.
    generation: u32,
    record: PhantomData<&'a SharedRecord>,
}

impl AttachedShared<'_> {
    #[inline]
    fn new(block: *mut u8) -> Self {
        let state = arch::state();
        // SAFETY: state and slot are this thread's. The list keeps the block alive, and blocks of
        // shared records are never anything else.
        unsafe {
            let (block, generation) = AttachedBlocks::attach(state, block);
            Self {
                state,
                block,
                generation,
                record: PhantomData,
            }
        }
    }

    /// Adds an attribute that was not known when the record was made. It shows on this thread
    /// until the record is detached; the shared record does not change.
    ///
    /// Returns whether readers see the attribute (cut at 255 bytes if necessary): not while
    /// another record is attached over this one, not when the record has no room for it, and not
    /// when its key is not published.
    pub fn append(&self, key: &Key, value: &str) -> bool {
        // SAFETY: the guard is this thread's.
        unsafe {
            (*self.state).shared.generation() == self.generation
                && current::append_to_shared(self.state, self.block, key, value)
        }
    }
}

impl Drop for AttachedShared<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the guard is this thread's, and it is dropped once.
        unsafe {
            let state = self.state;
            if (*state).shared.generation() != self.generation
                || !AttachedBlocks::detach(state, self.block)
            {
                detach_slowly(state, self.block, self.generation);
            }
        }
    }
}

/// # Safety
/// The block is that of a guard of the calling thread, which is being dropped.
#[cold]
#[inline(never)]
unsafe fn detach_slowly(state: *mut State, block: *mut u8, generation: u32) {
    // SAFETY: as the caller promises.
    unsafe {
        if (*state).shared.generation() == generation {
            return AttachedBlocks::detach_out_of_order(state, block);
        }
        // The slot was empty when the list was cleared, so no later guard restores this record,
        // and another publisher does only while the thread ends.
        let slot = state::slot(state);
        if exit_has_begun(state) && slot.read_volatile() == block {
            // What the guard has replaced may have been freed.
            slot.write_volatile(std::ptr::null_mut());
        }
    }
}

/// [`AttachedShared`] without a borrow: [`SharedRecord::attach_owned`] makes it.
#[must_use = "the record is detached when the guard is dropped"]
#[derive(Debug)]
pub struct AttachedOwned(AttachedShared<'static>);

impl AttachedOwned {
    /// Adds an attribute that was not known when the record was made; see
    /// [`AttachedShared::append`].
    pub fn append(&self, key: &Key, value: &str) -> bool {
        self.0.append(key, value)
    }
}
