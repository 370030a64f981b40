//! The context of each thread that is rewritten in place.

use std::ffi::{c_char, c_void};
use std::slice;

use otelctx::{Attributes, TraceFlags, raw, thread_context};

use crate::call::{caught, code, pointer};
use crate::context::attribute;
use crate::error::{INVALID_ARGUMENT, THREAD_ENDING, TRUNCATED, ZERO_ID, otelctx_result};
use crate::key::otelctx_key;
use crate::text::ids;

/// A key and its value.
#[repr(C)]
pub struct otelctx_attribute {
    /// A key from otelctx_key_get().
    pub key: *const otelctx_key,
    /// The value, in UTF-8.
    pub value: *const c_char,
    /// The value's length in bytes, or OTELCTX_NUL_TERMINATED.
    pub length: usize,
}

/// Maximum number of attributes in one call. A context has room for 306 without values.
const MAX_ATTRIBUTES: usize = 612 / 2;

/// Rewrites the calling thread's own context with these IDs, flags and attributes, and attaches it:
/// for programs that know when a thread switches to other work but have no scope. Readers see all
/// of it or nothing. Without attributes, `attributes` may be null. If a context or a scope is
/// attached, detaching that restores nothing then. An ID of zero detaches the context.
///
/// OTELCTX_TRUNCATED if a value was cut or an attribute left out; the rest is attached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_thread_set(
    trace_id: *const u8,
    span_id: *const u8,
    flags: u8,
    attributes: *const otelctx_attribute,
    count: usize,
) -> otelctx_result {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    code(|| unsafe {
        let attributes = if attributes.is_null() && count == 0 {
            &[]
        } else if attributes.is_null() || count > MAX_ATTRIBUTES {
            return Err(INVALID_ARGUMENT);
        } else {
            slice::from_raw_parts(attributes, count)
        };
        let ids = ids(trace_id, span_id).inspect_err(|code| {
            if *code == ZERO_ID {
                thread_context().detach();
            }
        })?;
        for it in attributes {
            attribute(it.key, it.value, it.length)?;
        }
        let context = thread_context();
        let write = |writer: &mut Attributes<'_>| {
            for it in attributes {
                // Checked above.
                if let Ok((key, value)) = attribute(it.key, it.value, it.length) {
                    writer.append(key, value);
                }
            }
        };
        match ids {
            None => context.set_attributes(write),
            // They are not zero, so nothing fails.
            Some((trace, span)) => drop(context.set_with(trace, span, TraceFlags(flags), write)),
        }
        if raw::thread_record().is_none() {
            Err(THREAD_ENDING)
        } else if context.is_truncated() {
            Err(TRUNCATED)
        } else {
            Ok(())
        }
    })
}

/// Appends an attribute to the calling thread's own context. Readers see the whole attribute or
/// nothing of it. OTELCTX_TRUNCATED if the value was cut or the attribute left out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_thread_append(
    key: *const otelctx_key,
    value: *const c_char,
    length: usize,
) -> otelctx_result {
    code(|| {
        // SAFETY: C passes null or valid pointers (otelctx.h).
        let (key, value) = unsafe { attribute(key, value, length) }?;
        let context = thread_context();
        let before = context.attributes_size();
        context.append(key, value);
        if context.attributes_size() == before + 2 + value.len() {
            Ok(())
        } else if raw::thread_record().is_none() {
            Err(THREAD_ENDING)
        } else {
            Err(TRUNCATED)
        }
    })
}

/// Detaches the calling thread's own context if it is attached.
#[unsafe(no_mangle)]
pub extern "C" fn otelctx_thread_detach() {
    caught((), || thread_context().detach());
}

/// Returns the size of the own context's attributes in bytes: a mark for
/// otelctx_thread_shrink_to().
#[unsafe(no_mangle)]
pub extern "C" fn otelctx_thread_attributes_size() -> usize {
    caught(0, || thread_context().attributes_size())
}

/// Removes the attributes that were added since their size was this many bytes; one that extends
/// over it is removed, too.
#[unsafe(no_mangle)]
pub extern "C" fn otelctx_thread_shrink_to(size: usize) {
    caught((), || thread_context().shrink_to(size));
}

/// Returns whether a value was cut or an attribute left out since the thread's own context was set.
#[unsafe(no_mangle)]
pub extern "C" fn otelctx_thread_is_truncated() -> bool {
    caught(false, || thread_context().is_truncated())
}

/// Returns the record of the calling thread's own context: 640 bytes in the layout of OTEP 4947,
/// for language runtimes that write it themselves: write 0 to the `valid` byte, then IDs, flags,
/// size and attributes, then 1 to the `valid` byte, then the address to the slot, with compiler
/// fences in between. Only the thread itself may write, within the 640 bytes, until it ends. Null
/// once the thread has freed its thread-local data.
#[unsafe(no_mangle)]
pub extern "C" fn otelctx_thread_record() -> *mut u8 {
    pointer(|| Some(raw::thread_record()?.as_ptr().cast()))
}

/// Returns the address of the calling thread's `otel_thread_ctx_v1`, in which readers find the
/// pointer to its record, for language runtimes that write it themselves: null, or the address of a
/// record that stays valid memory as long as it is there. It does not change until the thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn otelctx_thread_slot() -> *mut *mut c_void {
    raw::thread_slot().cast()
}
