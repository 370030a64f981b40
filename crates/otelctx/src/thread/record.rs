//! A record of its own thread: mutable there, and back in the thread's pool when dropped.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{compiler_fence, Ordering};

use otelctx_format::record::{offset, ENTRY_HEADER_SIZE, MAX_VALUE_SIZE, VALID};
use otelctx_format::{SpanId, TraceFlags, TraceId};

use super::attached::Attached;
use super::attributes::Attributes;
use super::keys::Key;
use super::pool::{self, SIZES};
use super::scope::InScope;
use super::shared::SharedRecord;
use crate::arch;

/// What a thread works on: a trace, a span, flags and attributes, ready to be attached.
///
/// A record belongs to the thread that made it, and takes its memory from that thread's pool.
/// [`SharedRecord`] is the one for several threads.
pub struct Record {
    block: *mut u8,
    class: u8,
    truncated: Cell<bool>,
    /// Of one thread: neither `Send` nor `Sync`.
    thread: PhantomData<*mut u8>,
}

impl Record {
    /// A record of this trace and span, without flags or attributes.
    ///
    /// There are both ids or none: when one is zero, the other becomes zero as well.
    #[inline]
    #[must_use]
    pub fn new(trace_id: impl Into<TraceId>, span_id: impl Into<SpanId>) -> Self {
        let class = 0;
        let state = arch::state();
        // SAFETY: the state is this thread's; the block has room for a header.
        let block = unsafe {
            let block = pool::allocate(state, class);
            write_ids(block, trace_id.into(), span_id.into(), TraceFlags::NONE);
            validate(block);
            block
        };
        Self {
            block,
            class: class as u8,
            truncated: Cell::new(false),
            thread: PhantomData,
        }
    }

    /// Sets or clears the flag that the trace is sampled.
    #[inline]
    #[must_use]
    pub fn sampled(self, sampled: bool) -> Self {
        let flags = self.flags_now();
        let sampled_bit = TraceFlags::SAMPLED.0;
        let bits = if sampled {
            flags.0 | sampled_bit
        } else {
            flags.0 & !sampled_bit
        };
        self.flags(TraceFlags(bits))
    }

    /// Sets all W3C trace flags. They stay zero when the ids are.
    #[inline]
    #[must_use]
    pub fn flags(self, flags: TraceFlags) -> Self {
        // SAFETY: the block is this record's, and a header long.
        unsafe {
            let has_ids = self.block.add(offset::SPAN_ID).cast::<u64>().read() != 0;
            let bits = if has_ids { flags.0 } else { 0 };
            self.block.add(offset::TRACE_FLAGS).write_volatile(bits);
        }
        self
    }

    /// Adds an attribute, and makes room for it where there is too little: a value is cut at 255
    /// bytes, a record has up to 612 bytes of attributes, and what does not fit
    /// [marks it as truncated](Self::is_truncated).
    #[inline]
    #[must_use]
    pub fn with(mut self, key: &Key, value: &str) -> Self {
        let size = ENTRY_HEADER_SIZE + value.len().min(MAX_VALUE_SIZE);
        self.make_room(self.used() + size);
        self.append(key, value);
        self
    }

    /// Makes room for `bytes` of attributes in all (up to 612), for [`append`](Self::append). Each
    /// attribute takes the length of its value and two bytes.
    #[must_use]
    pub fn reserve(mut self, bytes: usize) -> Self {
        self.make_room(bytes);
        self
    }

    /// Adds an attribute where there is room; [`reserve`](Self::reserve) makes it. The record may
    /// be attached: readers see the attribute whole or not at all.
    #[inline]
    pub fn append(&self, key: &Key, value: &str) {
        // SAFETY: the block is this record's, and only its thread changes it.
        unsafe {
            let mut attributes =
                Attributes::new(self.block, SIZES[usize::from(self.class)], self.used());
            attributes.add(key, value);
            self.truncated
                .set(self.truncated.get() | attributes.is_truncated());
            set_used(self.block, attributes.used());
        }
    }

    /// How many bytes of attributes there are: a mark for [`shrink_to`](Self::shrink_to).
    #[inline]
    #[must_use]
    pub fn attributes_size(&self) -> usize {
        self.used()
    }

    /// Takes back the attributes added since there were `size` bytes of them. A size in the
    /// middle of an attribute takes that one back, too. The record may be attached.
    pub fn shrink_to(&self, size: usize) {
        // SAFETY: as for append().
        unsafe { shrink(self.block, size) };
    }

    /// Replaces the ids and flags of a record that is not attached.
    ///
    /// There are both ids or none: when one is zero, the other and the flags become zero.
    #[inline]
    pub fn set_ids(
        &mut self,
        trace_id: impl Into<TraceId>,
        span_id: impl Into<SpanId>,
        flags: TraceFlags,
    ) {
        // SAFETY: the block is this record's. It is invalid meanwhile because a forgotten guard
        // may have left it attached.
        unsafe {
            self.block.add(offset::VALID).write_volatile(0);
            compiler_fence(Ordering::SeqCst);
            write_ids(self.block, trace_id.into(), span_id.into(), flags);
            validate(self.block);
        }
    }

    /// Whether an attribute was cut or left out, because it did not fit or its key is not
    /// published.
    #[inline]
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        self.truncated.get()
    }

    /// Makes this what the thread works on, until the guard is dropped: then, what was attached
    /// before is attached again.
    #[inline]
    pub fn attach(&self) -> Attached<'_> {
        // SAFETY: the block stays a record as long as its thread lives.
        unsafe { Attached::new(self.block) }
    }

    /// The future that attaches this record whenever it is polled. It stays on this thread;
    /// [`SharedRecord::in_scope`] is for futures that move.
    pub fn in_scope<F: Future>(&self, future: F) -> InScope<&Self, F> {
        InScope::new(self, future)
    }

    /// An immutable copy that any thread may attach.
    #[must_use]
    pub fn share(self) -> SharedRecord {
        SharedRecord::copy(self.block, self.class, self.truncated.get())
    }

    #[inline]
    fn used(&self) -> usize {
        // SAFETY: the block is this record's.
        unsafe { used(self.block) }
    }

    #[inline]
    fn flags_now(&self) -> TraceFlags {
        // SAFETY: the block is this record's.
        TraceFlags(unsafe { self.block.add(offset::TRACE_FLAGS).read() })
    }

    #[inline]
    fn make_room(&mut self, attributes: usize) {
        if attributes > SIZES[usize::from(self.class)] - offset::ATTRIBUTES {
            self.grow(attributes);
        }
    }

    /// Moves to a larger block. Nobody is looking at this one: `&mut self` rules out a guard.
    #[cold]
    #[inline(never)]
    fn grow(&mut self, attributes: usize) {
        let class = pool::class_for(attributes);
        if class == usize::from(self.class) {
            return;
        }
        let state = arch::state();
        // SAFETY: the blocks are two, and the new one is larger.
        unsafe {
            let block = pool::allocate(state, class);
            copy(self.block, block);
            pool::release(state, self.block, usize::from(self.class));
            self.block = block;
        }
        self.class = class as u8;
    }
}

impl Drop for Record {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the block came from this thread's pool with this class: a record stays there.
        unsafe { pool::release(arch::state(), self.block, usize::from(self.class)) };
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: the block is this record's.
        unsafe { debug(self.block, "Record", f) }
    }
}

/// Writes ids and flags; none of them when one of the ids is zero.
///
/// # Safety
/// `block` is a record that only this thread changes, and not valid now.
#[inline]
pub(super) unsafe fn write_ids(
    block: *mut u8,
    trace_id: TraceId,
    span_id: SpanId,
    flags: TraceFlags,
) {
    let trace = u128::from_ne_bytes(trace_id.to_bytes());
    let span = u64::from_ne_bytes(span_id.to_bytes());
    let some = trace != 0 && span != 0;
    // SAFETY: blocks are aligned to 64 bytes.
    unsafe {
        let trace = if some { trace } else { 0 };
        block
            .add(offset::TRACE_ID)
            .cast::<u64>()
            .write(trace as u64);
        block
            .add(offset::TRACE_ID + 8)
            .cast::<u64>()
            .write((trace >> 64) as u64);
        block
            .add(offset::SPAN_ID)
            .cast::<u64>()
            .write(if some { span } else { 0 });
        block
            .add(offset::TRACE_FLAGS)
            .write(if some { flags.0 } else { 0 });
    }
}

/// Makes a record valid once everything else has been written.
///
/// # Safety
/// `block` is a record that only this thread changes.
#[inline]
pub(super) unsafe fn validate(block: *mut u8) {
    compiler_fence(Ordering::SeqCst);
    // SAFETY: as the caller promises.
    unsafe { block.add(offset::VALID).write_volatile(VALID) };
}

/// Bytes of attributes in a record.
///
/// # Safety
/// `block` is a record that only this thread changes.
#[inline]
pub(super) unsafe fn used(block: *mut u8) -> usize {
    // SAFETY: the field lies at a multiple of 2.
    usize::from(unsafe { block.add(offset::ATTRIBUTES_SIZE).cast::<u16>().read() })
}

/// Announces `size` bytes of attributes, after they have been written.
///
/// # Safety
/// `block` is a record that only this thread changes.
#[inline]
pub(super) unsafe fn set_used(block: *mut u8, size: usize) {
    compiler_fence(Ordering::SeqCst);
    // SAFETY: the field lies at a multiple of 2.
    unsafe {
        block
            .add(offset::ATTRIBUTES_SIZE)
            .cast::<u16>()
            .write_volatile(size as u16)
    };
}

/// Drops the attributes behind the last one that ends within `size` bytes.
///
/// # Safety
/// `block` is a record that only this thread changes.
pub(super) unsafe fn shrink(block: *mut u8, size: usize) {
    // SAFETY: entries lie within the size announced.
    unsafe {
        let limit = size.min(used(block));
        let mut end = 0;
        while end + ENTRY_HEADER_SIZE <= limit {
            let length = block.add(offset::ATTRIBUTES + end + 1).read();
            let next = end + ENTRY_HEADER_SIZE + usize::from(length);
            if next > limit {
                break;
            }
            end = next;
        }
        set_used(block, end);
    }
}

/// Copies a whole record into a larger or equal block that is not valid yet.
///
/// # Safety
/// Both are records, and only this thread changes the second.
pub(super) unsafe fn copy(from: *mut u8, to: *mut u8) {
    // SAFETY: as the caller promises.
    unsafe {
        let attributes = used(from);
        ptr::copy_nonoverlapping(from, to, offset::VALID);
        to.add(offset::TRACE_FLAGS)
            .write(from.add(offset::TRACE_FLAGS).read());
        ptr::copy_nonoverlapping(
            from.add(offset::ATTRIBUTES),
            to.add(offset::ATTRIBUTES),
            attributes,
        );
        set_used(to, attributes);
        validate(to);
    }
}

/// Shows ids and flags.
///
/// # Safety
/// `block` is a record that nobody changes now.
pub(super) unsafe fn debug(block: *mut u8, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    // SAFETY: as the caller promises; a header is 28 bytes.
    let header = otelctx_format::record::Header::decode(unsafe { &*block.cast() });
    f.debug_struct(name)
        .field("trace_id", &header.trace_id)
        .field("span_id", &header.span_id)
        .field("flags", &header.trace_flags)
        .field("attributes_size", &header.attributes_size)
        .finish()
}
