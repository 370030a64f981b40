//! What the calling thread is working on, without a scope.

use std::ffi::c_char;
use std::ptr;

use otelctx::{DecodedContext, raw};

use crate::call::caught;
use crate::error::{INTERNAL, OK, TRUNCATED, otelctx_result};
use crate::key::otelctx_key;
use crate::record::attribute;
use crate::shared::{self, otelctx_shared};

/// Makes a shared record the context that the calling thread is working on, and returns the previous
/// one set by this function, or null: for frameworks that set what is current without a scope and in
/// any order. Null detaches.
///
/// The call takes over the reference that is passed, and the caller gets the one that is returned.
///
/// Threads: any; affects the calling one. Signal handlers: no. Fork: as for all functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_swap_current(shared: *mut otelctx_shared) -> *mut otelctx_shared {
    caught(ptr::null_mut(), || {
        // SAFETY: C gives its reference away.
        let new = unsafe { shared::borrow(shared) }.map(std::mem::ManuallyDrop::into_inner);
        raw::swap_current(new).map_or(ptr::null_mut(), shared::handle)
    })
}

/// A new reference to the record that otelctx_swap_current() made current on the calling thread, without
/// the attributes that otelctx_add_current() added; null if there is none. For frameworks that derive
/// a context from the current one.
///
/// Threads: any. Signal handlers: no. Fork: as for all functions.
#[unsafe(no_mangle)]
pub extern "C" fn otelctx_current_shared() -> *mut otelctx_shared {
    raw::current().map_or(ptr::null_mut(), shared::handle)
}

/// Adds an attribute to what the calling thread is working on, for facts that become known later. A
/// record of the thread is changed; for a shared record, the attribute is visible on this thread
/// until the record is detached.
///
/// OTELCTX_TRUNCATED if readers cannot see it: no record of this library is attached, there is no room
/// for it, or its key is not published. A value is cut to 255 bytes.
///
/// Threads: any; affects the calling one. Signal handlers: no. Fork: as for all functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_add_current(
    key: *const otelctx_key,
    value: *const c_char,
    length: usize,
) -> otelctx_result {
    caught(INTERNAL, || {
        // SAFETY: C's promise.
        match unsafe { attribute(key, value, length) } {
            Ok((key, value)) if otelctx::append_current(key, value) => OK,
            Ok(_) => TRUNCATED,
            Err(code) => code,
        }
    })
}

/// A copy of what readers see of a thread.
pub struct otelctx_context {
    context: DecodedContext,
    trace_id: [u8; 16],
    span_id: [u8; 8],
}

/// Copies what a reader sees of the calling thread, with the names of this library's keys. Intended
/// for tests. Null if nothing is attached.
///
/// Threads: any. Signal handlers: no. Fork: as for all functions.
#[unsafe(no_mangle)]
pub extern "C" fn otelctx_current() -> *mut otelctx_context {
    caught(ptr::null_mut(), || {
        otelctx::visible_to_readers().map_or(ptr::null_mut(), |context| {
            Box::into_raw(Box::new(otelctx_context {
                trace_id: context.trace_id.to_bytes(),
                span_id: context.span_id.to_bytes(),
                context,
            }))
        })
    })
}

/// The 16 bytes of the trace ID, until the copy is freed. Null for null.
///
/// Threads: any. Signal handlers: no. Fork: as for all functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_context_trace_id(context: *const otelctx_context) -> *const u8 {
    // SAFETY: C's promise.
    unsafe { context.as_ref() }.map_or(ptr::null(), |context| context.trace_id.as_ptr())
}

/// The 8 bytes of the span ID, until the copy is freed. Null for null.
///
/// Threads: any. Signal handlers: no. Fork: as for all functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_context_span_id(context: *const otelctx_context) -> *const u8 {
    // SAFETY: C's promise.
    unsafe { context.as_ref() }.map_or(ptr::null(), |context| context.span_id.as_ptr())
}

/// The W3C trace flags. 0 for null.
///
/// Threads: any. Signal handlers: no. Fork: as for all functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_context_flags(context: *const otelctx_context) -> u8 {
    // SAFETY: C's promise.
    unsafe { context.as_ref() }.map_or(0, |context| context.context.trace_flags.0)
}

/// The value of an attribute, not terminated, and its length in bytes, until the copy is freed. Null
/// if it has no such attribute.
///
/// Threads: any. Signal handlers: no. Fork: as for all functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_context_attribute(
    context: *const otelctx_context,
    name: *const c_char,
    length: *mut usize,
) -> *const c_char {
    // SAFETY: C's promise.
    caught(ptr::null(), || unsafe {
        let (Some(context), Ok(name)) = (context.as_ref(), crate::text::name(name)) else {
            return ptr::null();
        };
        let mut attributes = context.context.attributes.iter();
        let Some((_, value)) = attributes.find(|(known, _)| known == name) else {
            return ptr::null();
        };
        if !length.is_null() {
            length.write(value.len());
        }
        value.as_ptr().cast()
    })
}

/// Name and value of an attribute by its position in the record, from 0 on. Returns the value; both
/// are not terminated, and valid until the copy is freed. The pointers for the results may be null.
/// Null, and nothing is written, for a position past the last one.
///
/// Threads: any. Signal handlers: no. Fork: as for all functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_context_attribute_at(
    context: *const otelctx_context,
    index: usize,
    name: *mut *const c_char,
    name_length: *mut usize,
    length: *mut usize,
) -> *const c_char {
    // SAFETY: C's promise.
    unsafe {
        let attributes = context.as_ref().map(|it| &it.context.attributes);
        let Some((key, value)) = attributes.and_then(|it| it.get(index)) else {
            return ptr::null();
        };
        if !name.is_null() {
            name.write(key.as_ptr().cast());
        }
        for (place, size) in [(name_length, key.len()), (length, value.len())] {
            if !place.is_null() {
                place.write(size);
            }
        }
        value.as_ptr().cast()
    }
}

/// The number of attributes. 0 for null.
///
/// Threads: any. Signal handlers: no. Fork: as for all functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_context_attributes(context: *const otelctx_context) -> usize {
    // SAFETY: C's promise.
    unsafe { context.as_ref() }.map_or(0, |context| context.context.attributes.len())
}

/// Frees a copy.
///
/// Threads: any. Signal handlers: no. Fork: as for all functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_context_free(context: *mut otelctx_context) {
    caught((), || {
        if !context.is_null() {
            // SAFETY: C's promise: it is not freed yet.
            drop(unsafe { Box::from_raw(context) });
        }
    });
}
