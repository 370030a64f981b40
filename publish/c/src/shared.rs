//! Immutable contexts that any thread may attach.

use std::ffi::c_char;
use std::mem::{self, ManuallyDrop};
use std::ptr;

use otelctx::{AttachedOwned, SharedContext, TraceId, raw};

use crate::call::{caught, code, pointer};
use crate::context::{attribute, otelctx_context, with_ids};
use crate::error::{INVALID_ARGUMENT, NOT_ATTACHED, TRUNCATED, WRONG_THREAD, otelctx_result};
use crate::key::otelctx_key;
use crate::owner::serial;
use crate::text::ids;

/// A reference to an immutable context that any thread may attach, also several at once.
pub struct otelctx_shared {
    _private: [u8; 0],
}

/// Converts a context to a reference for C: the address of its record.
pub(crate) fn handle(shared: SharedContext) -> *mut otelctx_shared {
    raw::into_raw(shared).cast_mut().cast()
}

/// Borrows the context of C's reference, which stays C's.
///
/// # Safety
/// `shared` is null or was not released.
#[inline]
pub(crate) unsafe fn borrow(shared: *const otelctx_shared) -> Option<ManuallyDrop<SharedContext>> {
    // SAFETY: the caller ensures that `shared` is null or was not released; it is not dropped here.
    (!shared.is_null()).then(|| ManuallyDrop::new(unsafe { raw::from_raw(shared.cast()) }))
}

/// Keeps a shared context attached to a thread, from otelctx_shared_attach() to
/// otelctx_scope_detach(). It is the caller's memory, for example on the stack; its content is
/// private, and it may be moved.
#[repr(C)]
pub struct otelctx_scope {
    /// Private.
    pub opaque: [u64; 4],
}

/// The content of a scope.
#[repr(C)]
struct Scope {
    /// The [`serial`] of the thread; 0 if nothing is attached.
    thread: usize,
    guard: mem::MaybeUninit<AttachedOwned>,
}
const _: () = assert!(size_of::<Scope>() <= size_of::<otelctx_scope>());
const _: () = assert!(align_of::<Scope>() <= align_of::<otelctx_scope>());

/// Adds a reference to a shared context, to be released as well.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_shared_retain(
    shared: *const otelctx_shared,
) -> *mut otelctx_shared {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    unsafe { borrow(shared) }.map_or(ptr::null_mut(), |own| handle((*own).clone()))
}

/// Releases a reference. The context lives until no reference and no thread has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_shared_release(shared: *mut otelctx_shared) {
    caught((), || {
        // SAFETY: C passes null or valid pointers (otelctx.h).
        if let Some(own) = unsafe { borrow(shared) } {
            drop(ManuallyDrop::into_inner(own));
        }
    });
}

/// Makes a shared context what the calling thread is working on, until the scope is detached, which
/// restores what was attached before. Scopes may be detached in any order. The scope's content
/// before the call does not matter. It needs no reference: the thread keeps the context alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_shared_attach(
    shared: *const otelctx_shared,
    scope: *mut otelctx_scope,
) -> otelctx_result {
    if scope.is_null() {
        return INVALID_ARGUMENT;
    }
    let scope = scope.cast::<Scope>();
    // SAFETY: C passes null or valid pointers (otelctx.h).
    unsafe { (&raw mut (*scope).thread).write(0) };
    // SAFETY: C passes null or valid pointers (otelctx.h).
    code(|| unsafe {
        let own = borrow(shared).ok_or(INVALID_ARGUMENT)?;
        scope.write(Scope {
            thread: serial(),
            guard: mem::MaybeUninit::new(own.attach_owned()),
        });
        Ok(())
    })
}

/// Ends a scope: detaches its context and restores what was attached before, or removes it from
/// below others. OTELCTX_NOT_ATTACHED if it has ended already.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_scope_detach(scope: *mut otelctx_scope) -> otelctx_result {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    code(|| unsafe {
        check(scope)?;
        let scope = scope.cast::<Scope>();
        (*scope).thread = 0;
        drop((*scope).guard.assume_init_read());
        Ok(())
    })
}

/// Appends an attribute that was not known when the shared context was made. It is visible on this
/// thread until the scope is detached; the shared context does not change. A value is cut to 255
/// bytes. OTELCTX_TRUNCATED if readers cannot see the attribute: another context is attached over
/// this one, there is no room, or the key is not published.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_scope_append(
    scope: *mut otelctx_scope,
    key: *const otelctx_key,
    value: *const c_char,
    length: usize,
) -> otelctx_result {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    code(|| unsafe {
        check(scope)?;
        let (key, value) = attribute(key, value, length)?;
        let guard = (*scope.cast::<Scope>()).guard.assume_init_ref();
        guard.append(key, value).then_some(()).ok_or(TRUNCATED)
    })
}

/// Returns whether a scope is attached to the calling thread.
///
/// # Safety
/// `scope` is null or was passed to [`otelctx_shared_attach`].
unsafe fn check(scope: *const otelctx_scope) -> Result<(), otelctx_result> {
    if scope.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: the caller ensures that `scope` is null or was passed to `otelctx_shared_attach`.
    match unsafe { (*scope.cast::<Scope>()).thread } {
        0 => Err(NOT_ATTACHED),
        thread if thread != serial() => Err(WRONG_THREAD),
        _ => Ok(()),
    }
}

/// Creates a context of the calling thread with these IDs and flags and the attributes of a shared
/// one, for example for a child span. Null while the thread frees its thread-local data.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_shared_copy(
    shared: *const otelctx_shared,
    trace_id: *const u8,
    span_id: *const u8,
    flags: u8,
) -> *mut otelctx_context {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    pointer(|| unsafe {
        let (shared, ids) = (borrow(shared)?, ids(trace_id, span_id).ok()?);
        otelctx_context::handle(with_ids(shared.to_context(), ids, flags))
    })
}

/// Returns the 16 bytes of the trace ID, as long as a reference is held; zeroes for none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_shared_trace_id(shared: *const otelctx_shared) -> *const u8 {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    unsafe { borrow(shared) }.map_or(ptr::null(), |own| raw::record_of(&own))
}

/// Returns the 8 bytes of the span ID, as long as a reference is held; zeroes for none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_shared_span_id(shared: *const otelctx_shared) -> *const u8 {
    // SAFETY: C passes null or valid pointers (otelctx.h); the span ID follows the trace ID.
    unsafe {
        borrow(shared).map_or(ptr::null(), |own| {
            raw::record_of(&own).add(size_of::<TraceId>())
        })
    }
}

/// Returns the W3C trace flags.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_shared_flags(shared: *const otelctx_shared) -> u8 {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    unsafe { borrow(shared) }.map_or(0, |own| own.flags().0)
}

/// Returns whether a value was cut or an attribute left out when the context was made.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_shared_is_truncated(shared: *const otelctx_shared) -> bool {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    unsafe { borrow(shared) }.is_some_and(|own| own.is_truncated())
}

/// Returns the record of a shared context: its bytes in the layout of OTEP 4947, as long as a
/// reference is held, for language runtimes that store the address. They must not be changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_shared_record(shared: *const otelctx_shared) -> *const u8 {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    unsafe { borrow(shared) }.map_or(ptr::null(), |own| raw::record_of(&own))
}
