//! The current context of the calling thread, without a scope.

use std::ffi::c_char;
use std::ptr;

use otelctx::{DecodedContext, raw};

use crate::call::{caught, code, pointer};
use crate::context::attribute;
use crate::error::{TRUNCATED, otelctx_result};
use crate::key::otelctx_key;
use crate::shared::{self, otelctx_shared};

/// Makes a shared context what the calling thread is working on, and returns the previous one set
/// by this function, or null: for frameworks that set what is current without a scope and in any
/// order. Null detaches. The call takes the passed reference over, the caller the returned one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_swap_current(shared: *mut otelctx_shared) -> *mut otelctx_shared {
    pointer(|| {
        // SAFETY: C passes null or a reference, and gives it away.
        let new = unsafe { shared::borrow(shared) }.map(std::mem::ManuallyDrop::into_inner);
        raw::swap_current(new).map(shared::handle)
    })
}

/// Returns a new reference to the context that otelctx_swap_current() made current, without what
/// otelctx_append_current() added; null if there is none. For frameworks that derive contexts.
#[unsafe(no_mangle)]
pub extern "C" fn otelctx_shared_current() -> *mut otelctx_shared {
    raw::current().map_or(ptr::null_mut(), shared::handle)
}

/// Appends an attribute to what the calling thread is working on, for facts that become known
/// later. A context of the thread is changed; for a shared one, the attribute is visible on this
/// thread until it is detached. A value is cut to 255 bytes. OTELCTX_TRUNCATED if readers cannot
/// see the attribute: no context of this library is attached, there is no room, or the key is not
/// published.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_append_current(
    key: *const otelctx_key,
    value: *const c_char,
    length: usize,
) -> otelctx_result {
    code(|| {
        // SAFETY: C passes null or valid pointers (otelctx.h).
        let (key, value) = unsafe { attribute(key, value, length) }?;
        otelctx::append_current(key, value)
            .then_some(())
            .ok_or(TRUNCATED)
    })
}

/// A copy of what readers see of a thread.
pub struct otelctx_decoded {
    decoded: DecodedContext,
    trace_id: [u8; 16],
    span_id: [u8; 8],
}

/// Copies what a reader sees of the calling thread, with the names of this library's keys, for
/// tests. Null if nothing is attached.
#[unsafe(no_mangle)]
pub extern "C" fn otelctx_visible_to_readers() -> *mut otelctx_decoded {
    pointer(|| {
        let decoded = otelctx::visible_to_readers()?;
        Some(Box::into_raw(Box::new(otelctx_decoded {
            trace_id: decoded.trace_id.to_bytes(),
            span_id: decoded.span_id.to_bytes(),
            decoded,
        })))
    })
}

/// Returns the 16 bytes of the trace ID, until the copy is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_decoded_trace_id(decoded: *const otelctx_decoded) -> *const u8 {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    unsafe { decoded.as_ref() }.map_or(ptr::null(), |decoded| decoded.trace_id.as_ptr())
}

/// Returns the 8 bytes of the span ID, until the copy is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_decoded_span_id(decoded: *const otelctx_decoded) -> *const u8 {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    unsafe { decoded.as_ref() }.map_or(ptr::null(), |decoded| decoded.span_id.as_ptr())
}

/// Returns the W3C trace flags.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_decoded_flags(decoded: *const otelctx_decoded) -> u8 {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    unsafe { decoded.as_ref() }.map_or(0, |decoded| decoded.decoded.trace_flags.0)
}

/// Returns the value of an attribute, not terminated, and its length in bytes, until the copy is
/// freed. Null if it has no such attribute.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_decoded_attribute(
    decoded: *const otelctx_decoded,
    name: *const c_char,
    length: *mut usize,
) -> *const c_char {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    pointer(|| unsafe {
        let (decoded, name) = (decoded.as_ref()?, crate::text::name(name).ok()?);
        let mut attributes = decoded.decoded.attributes.iter();
        let (_, value) = attributes.find(|(known, _)| known == name)?;
        if !length.is_null() {
            length.write(value.len());
        }
        Some(value.as_ptr().cast_mut().cast())
    })
}

/// Returns the value of an attribute by its position, from 0 on, and writes its name and lengths;
/// both are not terminated, and valid until the copy is freed. The pointers for the results may be
/// null. Null, and nothing is written, for a position past the last one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_decoded_attribute_at(
    decoded: *const otelctx_decoded,
    index: usize,
    name: *mut *const c_char,
    name_length: *mut usize,
    length: *mut usize,
) -> *const c_char {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    unsafe {
        let attributes = decoded.as_ref().map(|it| &it.decoded.attributes);
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

/// Returns the number of attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_decoded_attributes(decoded: *const otelctx_decoded) -> usize {
    // SAFETY: C passes null or valid pointers (otelctx.h).
    unsafe { decoded.as_ref() }.map_or(0, |decoded| decoded.decoded.attributes.len())
}

/// Frees a copy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_decoded_free(decoded: *mut otelctx_decoded) {
    caught((), || {
        if !decoded.is_null() {
            // SAFETY: C passes a handle that is not freed yet (otelctx.h).
            drop(unsafe { Box::from_raw(decoded) });
        }
    });
}
