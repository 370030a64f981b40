//! A mutable context of one thread. Its record returns to the thread's pool when it is dropped.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::ptr::NonNull;
use std::sync::atomic::{compiler_fence, Ordering};

use otelctx_format::record::{offset, ENTRY_HEADER_SIZE, MAX_VALUE_SIZE};
use otelctx_format::{SpanId, TraceFlags, TraceId, ZeroId};

use super::attached::Attached;
use super::attributes::Attributes;
use super::bytes::{copy, debug, remove, set_used, shrink, used, validate, write_ids};
use super::chain;
use super::keys::Key;
use super::pool::{self, SIZES};
use super::scope::InScope;
use super::shared::SharedContext;
use super::state::ThreadState;
use crate::arch;

/// The work of a thread: a trace, a span, flags and attributes, ready to be attached.
///
/// A context belongs to the thread that created it, and takes its memory from that thread's pool.
/// Use [`SharedContext`] for several threads. The bytes that readers find are its *record*.
#[doc(alias = "ddog_ThreadContextHandle")]
pub struct Context {
    /// The record. A pointer, so neither `Send` nor `Sync`.
    block: NonNull<u8>,
    /// The block's size class and [`TRUNCATED`]. Two scalars are passed in registers; with a third
    /// one, the context would be passed through memory at every step of building it.
    notes: Cell<u8>,
}

/// The bits of [`Context::notes`] with the size class.
const CLASS: u8 = SIZES.len() as u8 - 1;
/// The bit of [`Context::notes`] that is set if an attribute was cut or skipped.
const TRUNCATED: u8 = SIZES.len() as u8;
const _: () = assert!(SIZES.len().is_power_of_two());

impl Context {
    /// Creates a context with this trace and span, without flags and attributes.
    ///
    /// # Errors
    /// If an ID is zero.
    #[doc(alias = "ddog_otel_thread_ctx_new")]
    #[inline]
    pub fn new(trace_id: impl Into<TraceId>, span_id: impl Into<SpanId>) -> Result<Self, ZeroId> {
        let (trace_id, span_id) = (trace_id.into(), span_id.into());
        ZeroId::check(trace_id, span_id)?;
        Ok(Self::with_ids(trace_id, span_id))
    }

    /// Creates a context without a trace, for attributes alone.
    #[inline]
    #[must_use]
    pub fn without_ids() -> Self {
        Self::with_ids(TraceId::ZERO, SpanId::ZERO)
    }

    #[inline(always)]
    fn with_ids(trace_id: TraceId, span_id: SpanId) -> Self {
        let class = 0;
        // SAFETY: the state belongs to this thread; the block has room for a header.
        let block = unsafe {
            let block = pool::allocate(arch::state(), class);
            write_ids(block, trace_id, span_id);
            validate(block, TraceFlags::NONE, 0);
            block
        };
        Self::from_block(block, class)
    }

    /// Sets or clears the flag that the trace is sampled.
    #[inline]
    #[must_use]
    pub fn with_sampled(self, sampled: bool) -> Self {
        let others = self.flags_now().0 & !TraceFlags::SAMPLED.0;
        self.with_flags(TraceFlags(others | u8::from(sampled)))
    }

    /// Sets all W3C trace flags. A context without IDs has none.
    #[inline]
    #[must_use]
    pub fn with_flags(self, flags: TraceFlags) -> Self {
        // SAFETY: the block belongs to this context, and is at least as large as a header.
        unsafe {
            let has_ids = self.block().add(offset::SPAN_ID).cast::<u64>().read() != 0;
            let bits = if has_ids { flags.0 } else { 0 };
            self.block().add(offset::TRACE_FLAGS).write_volatile(bits);
        }
        self
    }

    /// Appends an attribute, and grows the record if necessary. A value is cut to 255 bytes, and a
    /// context can have up to 612 bytes of attributes; what does not fit [marks it as
    /// truncated](Self::is_truncated). The last value of a key counts.
    #[doc(alias = "custom_labels_set")]
    #[inline]
    #[must_use]
    pub fn with_attribute(mut self, key: &Key, value: &str) -> Self {
        let size = ENTRY_HEADER_SIZE + value.len().min(MAX_VALUE_SIZE);
        self.make_room(self.used() + size);
        self.append(key, value);
        self
    }

    /// Removes an attribute, for a context that was copied from another one and gets another value.
    ///
    /// ```
    /// use otelctx::{Context, Key};
    ///
    /// static ROUTE: Key = Key::new("http.route");
    ///
    /// # let _process = otelctx::ProcessContext::new().with_service_name("shop").publish()?;
    /// let request = Context::new([1; 16], [1; 8])?.with_attribute(&ROUTE, "/");
    /// let handler = request
    ///     .copy_with_ids([1; 16], [2; 8], otelctx::TraceFlags::NONE)?
    ///     .without_attribute(&ROUTE)
    ///     .with_attribute(&ROUTE, "/cart");
    /// assert_eq!(handler.attributes_size(), 2 + "/cart".len());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn without_attribute(self, key: &Key) -> Self {
        if let Some(index) = key.index() {
            // SAFETY: the block belongs to this context. It is marked as invalid during the change,
            // because a forgotten guard may have left it attached.
            unsafe {
                self.block().add(offset::VALID).write_volatile(0);
                compiler_fence(Ordering::SeqCst);
                let size = remove(self.block(), index);
                validate(self.block(), self.flags_now(), size);
            }
        }
        self
    }

    /// Makes room for `bytes` of attributes in total (up to 612), for [`append`](Self::append).
    /// Each attribute takes the length of its value plus two bytes.
    #[must_use]
    pub fn with_capacity(mut self, bytes: usize) -> Self {
        self.make_room(bytes);
        self
    }

    /// Appends an attribute if there is room, see [`with_capacity`](Self::with_capacity). The
    /// context may be attached: readers see the whole attribute or nothing of it.
    #[inline]
    pub fn append(&self, key: &Key, value: &str) {
        // SAFETY: the block belongs to this context, and only its thread changes it.
        unsafe {
            let mut attributes = Attributes::new(self.block(), SIZES[self.class()], self.used());
            attributes.append(key, value);
            if attributes.is_truncated() {
                self.mark_truncated();
            }
            set_used(self.block(), attributes.used());
        }
    }

    /// Returns the size of the attributes, in bytes: a mark for [`shrink_to`](Self::shrink_to).
    #[inline]
    #[must_use]
    pub fn attributes_size(&self) -> usize {
        self.used()
    }

    /// Drops the attributes added since their size was `size` bytes. If `size` is in the middle of
    /// an attribute, that attribute is dropped, too. The context may be attached.
    pub fn shrink_to(&self, size: usize) {
        // SAFETY: the block belongs to this context, and only its thread changes it.
        unsafe { shrink(self.block(), size) };
    }

    /// Replaces the IDs and flags of a context that is not attached.
    ///
    /// # Errors
    /// If an ID is zero; nothing changes then.
    #[inline]
    pub fn set_ids(
        &mut self,
        trace_id: impl Into<TraceId>,
        span_id: impl Into<SpanId>,
        flags: TraceFlags,
    ) -> Result<(), ZeroId> {
        let (trace_id, span_id) = (trace_id.into(), span_id.into());
        ZeroId::check(trace_id, span_id)?;
        self.replace_ids(trace_id, span_id, flags);
        Ok(())
    }

    /// Removes the IDs and flags of a context that is not attached; its attributes stay.
    pub fn clear_ids(&mut self) {
        self.replace_ids(TraceId::ZERO, SpanId::ZERO, TraceFlags::NONE);
    }

    #[inline(always)]
    fn replace_ids(&mut self, trace_id: TraceId, span_id: SpanId, flags: TraceFlags) {
        // SAFETY: the block belongs to this context. It is marked as invalid during the change,
        // because a forgotten guard may have left it attached.
        unsafe {
            self.block().add(offset::VALID).write_volatile(0);
            compiler_fence(Ordering::SeqCst);
            write_ids(self.block(), trace_id, span_id);
            validate(self.block(), flags, self.used());
        }
    }

    /// Returns whether an attribute was cut or skipped: it did not fit, or its key is not
    /// published.
    #[inline]
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        self.notes.get() & TRUNCATED != 0
    }

    /// Makes this context what the thread is working on, until the guard is dropped, which restores
    /// what was attached before.
    #[doc(alias = "ddog_otel_thread_ctx_attach")]
    #[inline]
    pub fn attach(&mut self) -> Attached<'_> {
        Attached::new(self)
    }

    /// Returns whether the context is attached to the calling thread; `None` if it may be below the
    /// record of another publisher, which alone knows what is there.
    #[must_use]
    pub fn is_attached(&self) -> Option<bool> {
        chain::contains(arch::state(), self.block())
    }

    /// Wraps a future so that this context is attached whenever it is polled. The result stays on
    /// this thread; use [`SharedContext::in_scope`] for futures that move between threads.
    #[doc(alias = "custom_labels_run_with")]
    pub fn in_scope<F: Future>(&mut self, future: F) -> InScope<&mut Self, F> {
        InScope::new(self, future)
    }

    /// Converts the context to an immutable one that any thread may attach.
    #[must_use]
    pub fn share(self) -> SharedContext {
        self.to_shared()
    }

    /// Creates a [shared](Self::share) copy. The context may be attached.
    #[must_use]
    pub fn to_shared(&self) -> SharedContext {
        SharedContext::copy(self.block(), self.class(), self.is_truncated())
    }

    /// Creates a context with these IDs and flags and this one's attributes, as for a child span.
    ///
    /// # Errors
    /// If an ID is zero.
    pub fn copy_with_ids(
        &self,
        trace_id: impl Into<TraceId>,
        span_id: impl Into<SpanId>,
        flags: TraceFlags,
    ) -> Result<Self, ZeroId> {
        let mut context = Self::copy_of(self.block(), self.is_truncated());
        context.set_ids(trace_id, span_id, flags)?;
        Ok(context)
    }

    /// Creates a context of this thread with the bytes of a record.
    pub(super) fn copy_of(block: *mut u8, truncated: bool) -> Self {
        // SAFETY: the other record does not change during the copy.
        let record = unsafe {
            let class = pool::class_for(used(block));
            let own = pool::allocate(arch::state(), class);
            copy(block, own);
            Self::from_block(own, class)
        };
        if truncated {
            record.mark_truncated();
        }
        record
    }

    #[inline(always)]
    fn from_block(block: *mut u8, class: usize) -> Self {
        Self {
            // SAFETY: blocks are not null.
            block: unsafe { NonNull::new_unchecked(block) },
            notes: Cell::new(class as u8),
        }
    }

    #[inline(always)]
    pub(super) fn block(&self) -> *mut u8 {
        self.block.as_ptr()
    }

    #[inline(always)]
    fn class(&self) -> usize {
        usize::from(self.notes.get() & CLASS)
    }

    /// Moves to a block that has not been attached.
    fn move_to(&mut self, block: *mut u8, class: usize) {
        // SAFETY: blocks are not null.
        self.block = unsafe { NonNull::new_unchecked(block) };
        self.notes.set(class as u8 | self.notes.get() & TRUNCATED);
    }

    #[inline]
    fn mark_truncated(&self) {
        self.notes.set(self.notes.get() | TRUNCATED);
    }

    /// Moves to another block, because the old one may be below another publisher's record.
    pub(super) fn leave_block(&mut self, state: ThreadState) {
        let (left, class) = (self.block(), self.class());
        // SAFETY: both blocks have the same size.
        unsafe {
            let block = pool::allocate(state, class);
            copy(left, block);
            self.move_to(block, class);
            pool::forget(state, left);
        }
    }

    #[inline]
    fn used(&self) -> usize {
        // SAFETY: the block belongs to this context.
        unsafe { used(self.block()) }
    }

    #[inline]
    fn flags_now(&self) -> TraceFlags {
        // SAFETY: the block belongs to this context.
        TraceFlags(unsafe { self.block().add(offset::TRACE_FLAGS).read() })
    }

    #[inline]
    fn make_room(&mut self, attributes: usize) {
        if attributes > SIZES[self.class()] - offset::ATTRIBUTES {
            self.grow(attributes);
        }
    }

    /// Moves to a larger block. `&mut self` guarantees that no guard is alive.
    #[cold]
    #[inline(never)]
    fn grow(&mut self, attributes: usize) {
        let class = pool::class_for(attributes);
        if class == self.class() {
            return;
        }
        let state = arch::state();
        // SAFETY: both blocks belong to this thread's pool, and the new one is larger.
        unsafe {
            let block = pool::allocate(state, class);
            copy(self.block(), block);
            pool::release(state, self.block(), self.class());
            self.move_to(block, class);
        }
    }
}

impl Drop for Context {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: a context stays on its thread, whose pool gave the block with this class.
        unsafe { pool::release(arch::state(), self.block(), self.class()) };
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: the block belongs to this context.
        unsafe { debug(self.block(), "Context", f) }
    }
}
