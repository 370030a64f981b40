//! One record per thread, rewritten in place.

use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::atomic::{compiler_fence, Ordering};

use otelctx_format::record::{offset, RECOMMENDED_SIZE};
use otelctx_format::{SpanId, TraceFlags, TraceId};

use super::attributes::Attributes;
use super::bytes::{set_used, shrink, used, validate, write_ids};
use super::keys::Key;
use super::pool;
use super::state::{self, exit_has_begun, State};
use crate::arch;

/// Bytes of attributes that the record has room for. A size that a language runtime has written
/// may be larger.
pub(super) const MAX_ATTRIBUTES_SIZE: usize = RECOMMENDED_SIZE - offset::ATTRIBUTES;

/// The calling thread's own record: 640 bytes that are rewritten in place, for programs that know
/// when a thread switches to other work but have no scope for a guard.
///
/// Writing it attaches it. If a guard of a [`Record`](crate::Record) is alive then, it finds this
/// record in the slot and leaves it there.
#[doc(alias = "ddog_otel_thread_ctx_update")]
#[inline]
#[must_use]
pub fn thread_record() -> ThreadRecord {
    ThreadRecord {
        state: arch::state(),
        thread: PhantomData,
    }
}

/// The address of the calling thread's `otel_thread_ctx_v1`, in which readers find the pointer to
/// its record. For language runtimes that write it themselves. It does not change until the thread
/// ends.
///
/// Write null to it, or the address of a record (see [`ThreadRecord::as_raw`]) that stays valid
/// memory as long as it is there. The functions of this crate treat it as the record of another
/// publisher.
#[doc(alias("otel_thread_ctx_v1", "custom_labels_current_set_v2"))]
#[must_use]
pub fn thread_slot() -> *mut *mut u8 {
    // SAFETY: the state belongs to this thread.
    unsafe { state::slot(arch::state()) }
}

/// See [`thread_record`].
#[derive(Clone, Copy, Debug)]
pub struct ThreadRecord {
    state: *mut State,
    thread: PhantomData<*mut u8>,
}

impl ThreadRecord {
    /// Replaces the record with these IDs and flags, and no attributes.
    ///
    /// If one ID is zero, the other and the flags become zero as well.
    #[inline]
    pub fn set(self, trace_id: impl Into<TraceId>, span_id: impl Into<SpanId>, flags: TraceFlags) {
        self.set_with(trace_id, span_id, flags, |_| ());
    }

    /// Replaces the record with these IDs and flags, and the attributes that `write` adds. Readers
    /// see all of it or nothing, unless `write` itself uses the thread's record.
    #[inline]
    pub fn set_with(
        self,
        trace_id: impl Into<TraceId>,
        span_id: impl Into<SpanId>,
        flags: TraceFlags,
        write: impl FnOnce(&mut Attributes<'_>),
    ) {
        // SAFETY: the state belongs to this thread, and only it changes the record.
        unsafe {
            let mut block = (*self.state).in_place_whole;
            if block.is_null() {
                block = make(self.state);
                if block.is_null() {
                    return;
                }
            }
            // If `write` panics, the record stays invalid.
            block.add(offset::VALID).write_volatile(0);
            compiler_fence(Ordering::SeqCst);
            let flags = write_ids(block, trace_id.into(), span_id.into(), flags);
            let mut attributes = Attributes::new(block, RECOMMENDED_SIZE, 0);
            write(&mut attributes);
            let (used, truncated) = (attributes.used(), attributes.is_truncated());
            validate(block, flags, used);
            if truncated {
                (*self.state).in_place_whole = ptr::null_mut();
            }
            let slot = state::found_slot(self.state);
            if slot.read_volatile() != block {
                slot.write_volatile(block);
            }
        }
    }

    /// Adds an attribute to the current record. Readers see the whole attribute or nothing of it.
    #[inline]
    pub fn append(self, key: &Key, value: &str) {
        self.try_append(key, value);
    }

    /// [`append`](Self::append); returns whether the record now has the attribute.
    #[inline]
    pub(super) fn try_append(self, key: &Key, value: &str) -> bool {
        // SAFETY: as for set_with().
        unsafe {
            let mut block = (*self.state).in_place;
            if block.is_null() {
                block = make(self.state);
                if block.is_null() {
                    return false;
                }
            }
            let before = used(block);
            let mut attributes = Attributes::new(block, RECOMMENDED_SIZE, before);
            attributes.add(key, value);
            let (used, truncated) = (attributes.used(), attributes.is_truncated());
            set_used(block, used);
            if truncated {
                (*self.state).in_place_whole = ptr::null_mut();
            }
            used != before
        }
    }

    /// The record's bytes, for language runtimes that write them directly: 640 bytes, in the layout
    /// of `otelctx_format::record`. The address does not change until the thread ends. `None` once
    /// the thread's destructors have freed it.
    ///
    /// With this protocol (OTEP 4947), a reader that stops the thread at any instruction sees all
    /// of a context or nothing:
    ///
    /// 1. write 0 to the `valid` byte;
    /// 2. write ids, flags, attributes and their size, in any order;
    /// 3. write 1 to the `valid` byte;
    /// 4. write the record's address into the [slot](crate::thread_slot), unless it is there.
    ///
    /// Appending needs no steps 1 and 3: write the attribute after the last one, then the size. The
    /// compiler must keep the order of the stores ([`compiler_fence`]); the CPU may reorder them,
    /// because readers stop the thread. Attributes refer to their keys by [`Key::index`].
    ///
    /// # Safety of what is written
    ///
    /// Only the thread itself may write, within the 640 bytes. No content of the bytes makes this
    /// process unsound.
    #[must_use]
    pub fn as_raw(self) -> Option<NonNull<[u8; RECOMMENDED_SIZE]>> {
        // SAFETY: the state belongs to this thread.
        unsafe {
            if (*self.state).in_place.is_null() {
                make(self.state);
            }
            NonNull::new((*self.state).in_place.cast())
        }
    }

    /// Size of the attributes, in bytes: a mark for [`shrink_to`](Self::shrink_to).
    #[inline]
    #[must_use]
    pub fn attributes_size(self) -> usize {
        // SAFETY: as for set_with().
        unsafe {
            let block = (*self.state).in_place;
            if block.is_null() {
                return 0;
            }
            used(block)
        }
    }

    /// Drops the attributes added since their size was `size` bytes. If `size` is in the middle of
    /// an attribute, that attribute is dropped, too.
    pub fn shrink_to(self, size: usize) {
        // SAFETY: as for set_with().
        unsafe {
            let block = (*self.state).in_place;
            if !block.is_null() {
                shrink(block, size.min(MAX_ATTRIBUTES_SIZE));
            }
        }
    }

    /// Detaches the record if it is attached, and makes readers ignore it until it is written
    /// again.
    #[doc(alias = "ddog_otel_thread_ctx_detach")]
    pub fn detach(self) {
        // SAFETY: as for set_with().
        unsafe {
            let block = (*self.state).in_place;
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

    /// Whether an attribute was cut or skipped since the record was last replaced, because it did
    /// not fit or its key is not published.
    #[inline]
    #[must_use]
    pub fn is_truncated(self) -> bool {
        // SAFETY: the state belongs to this thread.
        unsafe { (*self.state).in_place != (*self.state).in_place_whole }
    }
}

/// Creates the record if necessary, and marks it as complete. Null once the thread's destructors
/// have freed it.
///
/// # Safety
/// `state` belongs to the calling thread.
#[cold]
#[inline(never)]
unsafe fn make(state: *mut State) -> *mut u8 {
    // SAFETY: as the caller promises.
    unsafe {
        if (*state).in_place.is_null() && !exit_has_begun(state) {
            // The functions that write the record expect the slot's address to be cached.
            state::slot(state);
            let block = pool::allocate(state, pool::LARGEST);
            // It is written without a guard, so nothing is below it.
            pool::link(block).write(ptr::null_mut());
            // A record without a trace until it is set: append() may come first.
            write_ids(block, TraceId::ZERO, SpanId::ZERO, TraceFlags::NONE);
            (*state).in_place = block;
        }
        (*state).in_place_whole = (*state).in_place;
        (*state).in_place
    }
}
