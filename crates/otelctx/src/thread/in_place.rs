//! One record a thread, rewritten in place.

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

/// The calling thread's own record: 640 bytes that are rewritten in place, for programs that know
/// when a thread turns to another piece of work but have no scope to tie a guard to.
///
/// Writing it attaches it. A guard that is alive then, of a [`Record`](crate::Record), finds it in
/// its place and leaves it there.
#[doc(alias = "ddog_otel_thread_ctx_update")]
#[inline]
#[must_use]
pub fn thread_record() -> ThreadRecord {
    ThreadRecord {
        state: arch::state(),
        thread: PhantomData,
    }
}

/// The address of the calling thread's `otel_thread_ctx_v1`: where readers find the pointer to its
/// record, for language runtimes that write it themselves. It stays the same until the thread
/// ends.
///
/// What is written there is null, or the address of a record (see [`ThreadRecord::as_raw`]) that
/// stays one for as long as it is there. The functions of this crate take it for the record of
/// another publisher.
#[doc(alias("otel_thread_ctx_v1", "custom_labels_current_set_v2"))]
#[must_use]
pub fn thread_slot() -> *mut *mut u8 {
    // SAFETY: the state is this thread's.
    unsafe { state::slot(arch::state()) }
}

/// See [`thread_record`].
#[derive(Clone, Copy, Debug)]
pub struct ThreadRecord {
    state: *mut State,
    thread: PhantomData<*mut u8>,
}

impl ThreadRecord {
    /// Replaces the record: these ids and flags, no attributes.
    ///
    /// There are both ids or none: when one is zero, the other and the flags become zero.
    #[inline]
    pub fn set(self, trace_id: impl Into<TraceId>, span_id: impl Into<SpanId>, flags: TraceFlags) {
        self.set_with(trace_id, span_id, flags, |_| ());
    }

    /// Replaces the record: these ids and flags, and the attributes that `write` adds. Readers
    /// see all of it or nothing, unless `write` itself uses the thread's record.
    #[inline]
    pub fn set_with(
        self,
        trace_id: impl Into<TraceId>,
        span_id: impl Into<SpanId>,
        flags: TraceFlags,
        write: impl FnOnce(&mut Attributes<'_>),
    ) {
        // SAFETY: the state is this thread's, and only it changes the record.
        unsafe {
            let mut block = (*self.state).in_place_whole;
            if block.is_null() {
                block = make(self.state);
                if block.is_null() {
                    return;
                }
            }
            // Should `write` panic, the record stays one to ignore.
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

    /// Adds an attribute to the record as it stands. Readers see the attribute whole or not at
    /// all.
    #[inline]
    pub fn append(self, key: &Key, value: &str) {
        self.try_append(key, value);
    }

    /// [`append`](Self::append); returns whether the record has the attribute now.
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

    /// The record's bytes, for language runtimes that write them themselves: 640 bytes, in the
    /// layout of `otelctx_format::record`. The address stays the same until the thread ends.
    /// `None` once the thread's destructors have freed it.
    ///
    /// The protocol (OTEP 4947), so that a reader that stops the thread anywhere sees all of a
    /// context or nothing:
    ///
    /// 1. write 0 to the `valid` byte;
    /// 2. write ids, flags, attributes and their size, in any order;
    /// 3. write 1 to the `valid` byte;
    /// 4. write the record's address into the [slot](crate::thread_slot), unless it is there.
    ///
    /// Appending needs no step 1 and 3: write the attribute behind the last one, then the size.
    /// The compiler must keep the order of the stores ([`compiler_fence`]); the processor may do
    /// what it likes, because readers stop the thread. Attributes name their keys by
    /// [`Key::index`].
    ///
    /// # Safety of what is written
    ///
    /// Only the thread itself may write, within the 640 bytes. Whatever the bytes are, this
    /// process stays sound.
    #[must_use]
    pub fn as_raw(self) -> Option<NonNull<[u8; RECOMMENDED_SIZE]>> {
        // SAFETY: the state is this thread's.
        unsafe {
            if (*self.state).in_place.is_null() {
                make(self.state);
            }
            NonNull::new((*self.state).in_place.cast())
        }
    }

    /// How many bytes of attributes there are: a mark for [`shrink_to`](Self::shrink_to).
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

    /// Takes back the attributes added since there were `size` bytes of them. A size in the
    /// middle of an attribute takes that one back, too.
    pub fn shrink_to(self, size: usize) {
        // SAFETY: as for set_with().
        unsafe {
            let block = (*self.state).in_place;
            if !block.is_null() {
                shrink(block, size);
            }
        }
    }

    /// Detaches the record if it is attached, and has readers ignore it until it is written
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

    /// Whether an attribute was cut or skipped since the record was last replaced, because it
    /// did not fit or its key is not published.
    #[inline]
    #[must_use]
    pub fn is_truncated(self) -> bool {
        // SAFETY: the state is this thread's.
        unsafe { (*self.state).in_place != (*self.state).in_place_whole }
    }
}

/// Makes the record unless there is one, and marks it as whole. Null once the thread's destructors
/// have freed it.
///
/// # Safety
/// `state` is the calling thread's.
#[cold]
#[inline(never)]
unsafe fn make(state: *mut State) -> *mut u8 {
    // SAFETY: as the caller promises.
    unsafe {
        if (*state).in_place.is_null() && !exit_has_begun(state) {
            // The functions that write the record expect the slot to be found.
            state::slot(state);
            let block = pool::allocate(state, pool::LARGEST);
            // It is written without a guard: nothing is below it.
            pool::link(block).write(ptr::null_mut());
            // A record of no trace until it is set: append() may come first.
            write_ids(block, TraceId::ZERO, SpanId::ZERO, TraceFlags::NONE);
            (*state).in_place = block;
        }
        (*state).in_place_whole = (*state).in_place;
        (*state).in_place
    }
}
