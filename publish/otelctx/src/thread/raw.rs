//! Calls for frameworks and other languages, which set what is current without a scope, keep
//! addresses themselves, or write records.
//!
//! Functions that are not `unsafe` cannot make the program unsound; all of them replace a guard
//! that [`Context::attach`] or [`SharedContext::attach`] would give.

use std::ptr::NonNull;
use std::sync::atomic::{compiler_fence, Ordering};

use otelctx_format::record::RECOMMENDED_SIZE;
use otelctx_format::{SpanId, TraceFlags, TraceId, ZeroId};

use super::attached::Attached;
use super::bytes::{copy_attributes, used, validate, write_ids};
use super::context::Context;
pub use super::current::{current, set_current, swap_current};
use super::in_place;
use super::pool::{invalidate, link};
use super::shared::SharedContext;
use super::shared_block::{self, is_truncated};
use super::state;
use crate::arch;

/// Returns the address of the calling thread's `otel_thread_ctx_v1`, in which readers find the
/// pointer to its record. It does not change until the thread ends.
///
/// Write null to it, or the address of a record (see [`thread_record`]) that stays valid memory as
/// long as it is there. The functions of this crate treat it as the record of another publisher.
#[doc(alias("otel_thread_ctx_v1", "custom_labels_current_set_v2"))]
#[must_use]
pub fn thread_slot() -> *mut *mut u8 {
    state::slot(arch::state())
}

/// Returns the record of [`thread_context`](crate::thread_context), for language runtimes that
/// write it directly: 640 bytes, in the layout of `otelctx_format::record`. The address does not
/// change until the thread ends. `None` once the thread's destructors have freed it.
///
/// With this protocol (OTEP 4947), a reader that stops the thread at any instruction sees all of a
/// context or nothing:
///
/// 1. write 0 to the `valid` byte;
/// 2. write IDs, flags, attributes and their size, in any order;
/// 3. write 1 to the `valid` byte;
/// 4. write the record's address into the [slot](thread_slot), unless it is there.
///
/// Appending needs no steps 1 and 3: write the attribute after the last one, then the size. The
/// compiler must keep the order of the stores ([`compiler_fence`]); the CPU may reorder them,
/// because readers stop the thread. Attributes refer to their keys by
/// [`Key::index`](crate::Key::index).
///
/// Only the thread itself may write, within the 640 bytes. No content makes this process unsound.
#[must_use]
pub fn thread_record() -> Option<NonNull<[u8; RECOMMENDED_SIZE]>> {
    NonNull::new(in_place::record(arch::state()).cast())
}

/// Attaches a context without a guard, for languages without scopes; dropping the context detaches
/// it. The slot's address is passed because such a language can keep it.
///
/// # Safety
/// `slot` is the [`thread_slot`] of the context's thread, which calls this. Until the context is
/// [detached](detach), only its methods that take `&self` are called.
#[inline]
pub unsafe fn attach(context: &mut Context, slot: *mut *mut u8) {
    // SAFETY: the caller ensures that the slot belongs to this thread.
    std::mem::forget(unsafe { Attached::at(slot, context) });
}

/// Detaches a context after [`attach`], as dropping the guard would.
///
/// # Safety
/// `slot` is as for attaching, and the context was attached so.
#[inline]
pub unsafe fn detach(context: &mut Context, slot: *mut *mut u8) {
    drop(Attached::again(slot, context));
}

/// Attaches a context if that takes one store: it was last attached over what is attached now, and
/// is not attached. Otherwise returns false.
///
/// # Safety
/// `slot` is as for [`attach`].
#[inline(always)]
pub unsafe fn try_attach(context: &mut Context, slot: *mut *mut u8) -> bool {
    // SAFETY: the caller ensures that slot and context belong to this thread.
    unsafe {
        let again = link(context.block()).read() == slot.read();
        if again {
            compiler_fence(Ordering::Release);
            slot.write_volatile(context.block());
        }
        again
    }
}

/// Detaches a context if that takes one store: it was attached last. Otherwise returns false.
///
/// # Safety
/// `slot` is as for [`attach`].
#[inline(always)]
pub unsafe fn try_detach(context: &mut Context, slot: *mut *mut u8) -> bool {
    // SAFETY: the caller ensures that slot and context belong to this thread.
    unsafe {
        let is_last = slot.read() == context.block();
        if is_last {
            slot.write_volatile(link(context.block()).read());
        }
        is_last
    }
}

/// Returns the address of a shared context's record, which is valid as long as the context: for a
/// language runtime that stores it where readers find it.
#[inline]
#[must_use]
pub fn record_of(context: &SharedContext) -> *const u8 {
    context.block()
}

/// Converts a shared context to the address of its record, for a reference that another language
/// holds. It is leaked unless [`from_raw`] takes it back.
#[inline]
#[must_use]
pub fn into_raw(context: SharedContext) -> *const u8 {
    context.into_block()
}

/// Takes back a shared context from [`into_raw`].
///
/// # Safety
/// `address` came from `into_raw`, and is taken back once.
#[inline]
#[must_use]
pub unsafe fn from_raw(address: *const u8) -> SharedContext {
    // SAFETY: the caller passes the reference that `into_raw` left to it.
    unsafe { SharedContext::from_block(address.cast_mut()) }
}

/// Makes `context` a copy of `other` with these IDs and flags. If there is no other handle to it,
/// its memory is used again: for a framework that keeps the handles of the latest spans.
///
/// # Errors
/// If an ID is zero; nothing changes then.
pub fn replace_by_copy(
    context: &mut SharedContext,
    other: &SharedContext,
    trace_id: impl Into<TraceId>,
    span_id: impl Into<SpanId>,
    flags: TraceFlags,
) -> Result<(), ZeroId> {
    let (trace_id, span_id) = (trace_id.into(), span_id.into());
    ZeroId::check(trace_id, span_id)?;
    // SAFETY: both handles have a reference. No other thread uses a record that has only one, nor
    // is it attached.
    unsafe {
        let (block, from) = (context.block(), other.block());
        if shared_block::is_unshared(block, from) {
            invalidate(block);
            compiler_fence(Ordering::SeqCst);
            shared_block::set_truncated(block, is_truncated(from));
            copy_attributes(from, block);
        } else {
            *context = SharedContext::copy_of(from);
        }
        let block = context.block();
        write_ids(block, trace_id, span_id);
        validate(block, flags, used(from));
    }
    Ok(())
}
