//! An immutable context for several threads.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::ptr::NonNull;

use otelctx_format::record::Header;
use otelctx_format::{SpanId, TraceFlags, TraceId, ZeroId};

use super::attached_blocks::AttachedBlocks;
use super::bytes::{copy, debug};
use super::context::Context;
use super::current;
use super::keys::Key;
use super::scope::InScope;
use super::shared_block::{self, is_truncated, release_handle, retain};
use super::state::{self, exit_has_begun, ThreadState};
use crate::arch;

/// An immutable context that is cheap to clone, and can be attached and dropped on any thread.
/// Created by [`Context::share`].
///
/// Cloning, attaching and dropping take no lock.
pub struct SharedContext(NonNull<u8>);

// SAFETY: a shared record does not change, and its references are counted atomically.
unsafe impl Send for SharedContext {}
// SAFETY: as for Send.
unsafe impl Sync for SharedContext {}

impl SharedContext {
    /// Creates a shared context with the bytes of a record of this size class.
    pub(super) fn copy(from: *mut u8, class: usize, truncated: bool) -> Self {
        // SAFETY: the state belongs to this thread; the block is new and as large.
        unsafe {
            let block = shared_block::allocate(arch::state(), class, truncated);
            copy(from, block);
            Self::from_block(block)
        }
    }

    /// Copies a shared context.
    ///
    /// # Safety
    /// `block` is a shared block with a reference.
    pub(super) unsafe fn copy_of(block: *mut u8) -> Self {
        // SAFETY: the caller ensures that `block` is a shared block with a reference.
        let (class, truncated) = unsafe { (shared_block::class(block), is_truncated(block)) };
        Self::copy(block, class, truncated)
    }

    /// Takes over a reference to a block.
    ///
    /// # Safety
    /// `block` is a shared block, and the reference belongs to the caller.
    #[inline(always)]
    pub(super) unsafe fn from_block(block: *mut u8) -> Self {
        // SAFETY: blocks are not null.
        Self(unsafe { NonNull::new_unchecked(block) })
    }

    /// Returns the block, with the reference of this handle.
    #[inline(always)]
    pub(super) fn into_block(self) -> *mut u8 {
        std::mem::ManuallyDrop::new(self).block()
    }

    #[inline(always)]
    pub(super) fn block(&self) -> *mut u8 {
        self.0.as_ptr()
    }

    /// Makes this context what the calling thread is working on, until the guard is dropped, which
    /// restores what was attached before.
    #[inline]
    pub fn attach(&self) -> AttachedShared<'_> {
        AttachedShared::new(self.block())
    }

    /// [`attach`](Self::attach) with a guard that borrows nothing, for frameworks that store it in
    /// their own structures. The guard stays on this thread.
    #[inline]
    pub fn attach_owned(&self) -> AttachedOwned {
        AttachedOwned(AttachedShared::new(self.block()))
    }

    /// Wraps a future so that this context is attached whenever it is polled, on any thread.
    pub fn in_scope<F: Future>(&self, future: F) -> InScope<Self, F> {
        InScope::new(self.clone(), future)
    }

    /// Creates a copy that belongs to the calling thread, and can be changed.
    #[must_use]
    pub fn to_context(&self) -> Context {
        Context::copy_of(self.block(), self.is_truncated())
    }

    /// Creates a context of the calling thread with these IDs and flags and the attributes of this
    /// one, for example for a child span.
    ///
    /// # Errors
    /// If an ID is zero.
    pub fn copy_with_ids(
        &self,
        trace_id: impl Into<TraceId>,
        span_id: impl Into<SpanId>,
        flags: TraceFlags,
    ) -> Result<Context, ZeroId> {
        let mut context = self.to_context();
        context.set_ids(trace_id, span_id, flags)?;
        Ok(context)
    }

    /// Returns the trace ID; zero for none.
    #[inline]
    #[must_use]
    pub fn trace_id(&self) -> TraceId {
        self.header().trace_id
    }

    /// Returns the span ID; zero for none.
    #[inline]
    #[must_use]
    pub fn span_id(&self) -> SpanId {
        self.header().span_id
    }

    /// Returns the W3C trace flags.
    #[inline]
    #[must_use]
    pub fn flags(&self) -> TraceFlags {
        self.header().trace_flags
    }

    #[inline]
    fn header(&self) -> Header {
        // SAFETY: a shared record does not change, and a header is 28 bytes.
        Header::decode(unsafe { &*self.block().cast() })
    }

    /// Returns whether an attribute was cut or skipped: it did not fit, or its key was not
    /// published.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        // SAFETY: the block is a shared one.
        unsafe { is_truncated(self.block()) }
    }
}

impl Clone for SharedContext {
    #[inline]
    fn clone(&self) -> Self {
        // SAFETY: this handle has a reference.
        unsafe { retain(self.block()) };
        Self(self.0)
    }
}

impl Drop for SharedContext {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the reference belongs to this handle.
        unsafe { release_handle(self.block()) };
    }
}

impl fmt::Debug for SharedContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: a shared record does not change.
        unsafe { debug(self.block(), "SharedContext", f) }
    }
}

/// Keeps a [`SharedContext`] attached to the thread, and alive. Dropping it restores what was
/// attached before; see [`Attached`](crate::Attached).
#[must_use = "the record is detached when the guard is dropped"]
#[derive(Debug)]
pub struct AttachedShared<'a> {
    state: ThreadState,
    /// The record, or a copy of it: a guard identifies its place by its record's address, so a
    /// context that is attached a second time is copied.
    block: *mut u8,
    /// The generation of the thread's list of attached blocks, which clearing it changes.
    generation: u32,
    record: PhantomData<&'a SharedContext>,
}

impl AttachedShared<'_> {
    #[inline]
    fn new(block: *mut u8) -> Self {
        let state = arch::state();
        // SAFETY: state and slot belong to this thread. The list keeps the block alive, and blocks
        // of shared records are never used for anything else.
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

    /// Appends an attribute that was not known when the context was created. It is visible on this
    /// thread until the context is detached; the shared context does not change.
    ///
    /// Returns whether readers can see the attribute (cut to 255 bytes if necessary). They cannot
    /// if another record is over this one, there is no room, or its key is not published.
    pub fn append(&self, key: &Key, value: &str) -> bool {
        // SAFETY: the guard belongs to this thread.
        unsafe {
            (*self.state.get()).shared.generation() == self.generation
                && current::append_to_shared(self.state, self.block, key, value)
        }
    }
}

impl Drop for AttachedShared<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the guard belongs to this thread, and is dropped once.
        unsafe {
            let state = self.state;
            if (*state.get()).shared.generation() != self.generation
                || !AttachedBlocks::detach(state, self.block)
            {
                detach_slowly(state, self.block, self.generation);
            }
        }
    }
}

/// # Safety
/// The block belongs to a guard of the calling thread that is being dropped.
#[cold]
#[inline(never)]
unsafe fn detach_slowly(state: ThreadState, block: *mut u8, generation: u32) {
    // SAFETY: the caller passes a block of a guard that is being dropped; `state` is this thread's.
    unsafe {
        if (*state.get()).shared.generation() == generation {
            return AttachedBlocks::detach_out_of_order(state, block);
        }
        // The slot was empty when the list was cleared, so no later guard restores this record, and
        // another publisher does only while the thread ends.
        let slot = state::slot(state);
        if exit_has_begun(state) && slot.read_volatile() == block {
            // The record that the guard replaced may have been freed.
            slot.write_volatile(std::ptr::null_mut());
        }
    }
}

/// [`AttachedShared`] without a borrow, created by [`SharedContext::attach_owned`].
#[must_use = "the record is detached when the guard is dropped"]
#[derive(Debug)]
pub struct AttachedOwned(AttachedShared<'static>);

impl AttachedOwned {
    /// Appends an attribute that was not known when the context was created; see
    /// [`AttachedShared::append`].
    pub fn append(&self, key: &Key, value: &str) -> bool {
        self.0.append(key, value)
    }
}
