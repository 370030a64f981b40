//! One context per thread, rewritten in place.

use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{compiler_fence, Ordering};

use otelctx_format::record::{offset, RECOMMENDED_SIZE};
use otelctx_format::{SpanId, TraceFlags, TraceId, ZeroId};

use super::attributes::Attributes;
use super::bytes::{set_used, shrink, used, validate, write_ids};
use super::keys::Key;
use super::pool;
use super::state::{self, exit_has_begun, ThreadState};
use crate::arch;

/// Maximum size of the record's attributes, in bytes. A language runtime may write a larger one.
pub(super) const MAX_ATTRIBUTES_SIZE: usize = RECOMMENDED_SIZE - offset::ATTRIBUTES;

/// Returns the calling thread's own context: a record of 640 bytes that is rewritten in place, for
/// programs that know when a thread switches to other work but have no scope for a guard.
///
/// Writing it attaches it. If a guard of a [`Context`](crate::Context) is alive then, it finds this
/// record in the slot and leaves it there.
#[doc(alias = "ddog_otel_thread_ctx_update")]
#[inline]
#[must_use]
pub fn thread_context() -> ThreadContext {
    ThreadContext {
        state: arch::state(),
        thread: PhantomData,
    }
}

/// The context that [`thread_context`] returns.
#[derive(Clone, Copy, Debug)]
pub struct ThreadContext {
    state: ThreadState,
    thread: PhantomData<*mut u8>,
}

impl ThreadContext {
    /// Replaces the context by one with these IDs and flags, and no attributes.
    ///
    /// # Errors
    /// If an ID is zero; the context is detached then, so that nobody sees the work before.
    #[inline]
    pub fn set(
        self,
        trace_id: impl Into<TraceId>,
        span_id: impl Into<SpanId>,
        flags: TraceFlags,
    ) -> Result<(), ZeroId> {
        self.set_with(trace_id, span_id, flags, |_| ())
    }

    /// Replaces the context by one with these IDs and flags, and the attributes that `write`
    /// appends. Readers see all of it or nothing, unless `write` itself uses the thread's context.
    ///
    /// # Errors
    /// Same as [`set`](Self::set); `write` is not called then.
    #[inline]
    pub fn set_with(
        self,
        trace_id: impl Into<TraceId>,
        span_id: impl Into<SpanId>,
        flags: TraceFlags,
        write: impl FnOnce(&mut Attributes<'_>),
    ) -> Result<(), ZeroId> {
        self.rewrite::<true>(trace_id.into(), span_id.into(), flags, write)
    }

    /// Replaces the context by one without IDs, with the attributes that `write` appends.
    pub fn set_attributes(self, write: impl FnOnce(&mut Attributes<'_>)) {
        // Without IDs to check, it does not fail.
        let _ = self.rewrite::<false>(TraceId::ZERO, SpanId::ZERO, TraceFlags::NONE, write);
    }

    #[inline(always)]
    fn rewrite<const HAS_IDS: bool>(
        self,
        trace_id: TraceId,
        span_id: SpanId,
        flags: TraceFlags,
        write: impl FnOnce(&mut Attributes<'_>),
    ) -> Result<(), ZeroId> {
        // SAFETY: the state belongs to this thread, and only it changes the record.
        unsafe {
            let mut block = (*self.state.get()).in_place_whole;
            if block.is_null() {
                block = make(self.state);
                if block.is_null() {
                    return Ok(());
                }
            }
            // If `write` panics, the record stays invalid.
            block.add(offset::VALID).write_volatile(0);
            compiler_fence(Ordering::SeqCst);
            write_ids(block, trace_id, span_id);
            if HAS_IDS && (trace_id.is_zero() || span_id.is_zero()) {
                self.detach();
                return ZeroId::check(trace_id, span_id);
            }
            let mut attributes = Attributes::new(block, RECOMMENDED_SIZE, 0);
            write(&mut attributes);
            let (used, truncated) = (attributes.used(), attributes.is_truncated());
            validate(block, flags, used);
            if truncated {
                (*self.state.get()).in_place_whole = ptr::null_mut();
            }
            let slot = state::found_slot(self.state);
            if slot.read_volatile() != block {
                slot.write_volatile(block);
            }
        }
        Ok(())
    }

    /// Appends an attribute. Readers see the whole attribute or nothing of it.
    #[inline]
    pub fn append(self, key: &Key, value: &str) {
        self.try_append(key, value);
    }

    /// [`append`](Self::append); returns whether the record now has the attribute.
    #[inline]
    pub(super) fn try_append(self, key: &Key, value: &str) -> bool {
        // SAFETY: as for set_with().
        unsafe {
            let mut block = (*self.state.get()).in_place;
            if block.is_null() {
                block = make(self.state);
                if block.is_null() {
                    return false;
                }
            }
            let before = used(block);
            let mut attributes = Attributes::new(block, RECOMMENDED_SIZE, before);
            attributes.append(key, value);
            let (used, truncated) = (attributes.used(), attributes.is_truncated());
            set_used(block, used);
            if truncated {
                (*self.state.get()).in_place_whole = ptr::null_mut();
            }
            used != before
        }
    }

    /// Returns the size of the attributes, in bytes: a mark for [`shrink_to`](Self::shrink_to).
    #[inline]
    #[must_use]
    pub fn attributes_size(self) -> usize {
        // SAFETY: as for set_with().
        unsafe {
            let block = (*self.state.get()).in_place;
            if block.is_null() {
                0
            } else {
                used(block)
            }
        }
    }

    /// Drops the attributes added since their size was `size` bytes. If `size` is in the middle of
    /// an attribute, that attribute is dropped, too.
    pub fn shrink_to(self, size: usize) {
        // SAFETY: as for set_with().
        unsafe {
            let block = (*self.state.get()).in_place;
            if !block.is_null() {
                shrink(block, size.min(MAX_ATTRIBUTES_SIZE));
            }
        }
    }

    /// Detaches the context if it is attached; readers ignore it until it is written again.
    #[doc(alias = "ddog_otel_thread_ctx_detach")]
    pub fn detach(self) {
        // SAFETY: as for set_with().
        unsafe {
            let block = (*self.state.get()).in_place;
            if block.is_null() {
                return;
            }
            let slot = state::slot(self.state);
            if slot.read_volatile() == block {
                slot.write_volatile(ptr::null_mut());
            }
            pool::invalidate(block);
        }
    }

    /// Returns whether an attribute was cut or skipped since the context was last replaced, because
    /// it did not fit or its key is not published.
    #[inline]
    #[must_use]
    pub fn is_truncated(self) -> bool {
        // SAFETY: the state belongs to this thread.
        unsafe { (*self.state.get()).in_place != (*self.state.get()).in_place_whole }
    }
}

/// Returns the record, created if necessary; null once the thread's destructors have freed it.
pub(super) fn record(state: ThreadState) -> *mut u8 {
    // SAFETY: the caller ensures that `state` belongs to this thread.
    unsafe {
        if (*state.get()).in_place.is_null() {
            make(state);
        }
        (*state.get()).in_place
    }
}

/// Creates the record if necessary, and marks it as complete. Null if it was freed at the end.
#[cold]
#[inline(never)]
fn make(state: ThreadState) -> *mut u8 {
    // SAFETY: `state` is this thread's.
    unsafe {
        if (*state.get()).in_place.is_null() && !exit_has_begun(state) {
            // The functions that write the record expect the slot's address to be cached.
            state::slot(state);
            let block = pool::allocate(state, pool::LARGEST);
            // It is written without a guard, so nothing is below it.
            pool::link(block).write(ptr::null_mut());
            // A record without a trace until it is set: append() may come first.
            write_ids(block, TraceId::ZERO, SpanId::ZERO);
            (*state.get()).in_place = block;
        }
        (*state.get()).in_place_whole = (*state.get()).in_place;
        (*state.get()).in_place
    }
}
