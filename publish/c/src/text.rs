//! Arguments from C as Rust's types.

use std::ffi::{CStr, c_char};
use std::{ptr, slice, str};

use otelctx::{SpanId, TraceId};

use crate::error::{INVALID_ARGUMENT, INVALID_UTF8, otelctx_result};

/// `OTELCTX_NUL_TERMINATED`.
const NUL_TERMINATED: usize = usize::MAX;

/// Bytes of C's.
///
/// # Safety
/// `address` is null or has `length` bytes, which stay unchanged as long as the result is used.
pub(crate) unsafe fn bytes<'a>(
    address: *const u8,
    length: usize,
) -> Result<&'a [u8], otelctx_result> {
    if length == 0 {
        return Ok(&[]);
    }
    if address.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    if length == NUL_TERMINATED {
        // SAFETY: C says that a zero byte ends it.
        return Ok(unsafe { CStr::from_ptr(address.cast()) }.to_bytes());
    }
    if length > isize::MAX as usize {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { slice::from_raw_parts(address, length) })
}

/// Text of C's with its length.
///
/// # Safety
/// Same as [`bytes`].
pub(crate) unsafe fn text<'a>(
    address: *const c_char,
    length: usize,
) -> Result<&'a str, otelctx_result> {
    // SAFETY: as the caller promises.
    let bytes = unsafe { bytes(address.cast(), length)? };
    str::from_utf8(bytes).map_err(|_| INVALID_UTF8)
}

/// A name: text that a zero byte ends.
///
/// # Safety
/// Same as [`bytes`].
pub(crate) unsafe fn name<'a>(address: *const c_char) -> Result<&'a str, otelctx_result> {
    // SAFETY: as the caller promises.
    unsafe { text(address, NUL_TERMINATED) }
}

/// The IDs of a record; zeroes for null.
///
/// # Safety
/// The pointers are null or have 16 and 8 bytes.
#[inline]
pub(crate) unsafe fn ids(trace_id: *const u8, span_id: *const u8) -> (TraceId, SpanId) {
    let (mut trace, mut span) = ([0; 16], [0; 8]);
    // SAFETY: as the caller promises.
    unsafe {
        if !trace_id.is_null() {
            ptr::copy_nonoverlapping(trace_id, trace.as_mut_ptr(), trace.len());
        }
        if !span_id.is_null() {
            ptr::copy_nonoverlapping(span_id, span.as_mut_ptr(), span.len());
        }
    }
    (TraceId::from_bytes(trace), SpanId::from_bytes(span))
}
