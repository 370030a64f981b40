//! Arguments from C as Rust's types.

use std::ffi::{CStr, c_char};
use std::{slice, str};

use otelctx::{SpanId, TraceId, ZeroId};

use crate::error::{INVALID_ARGUMENT, INVALID_UTF8, ZERO_ID, otelctx_result};

/// `OTELCTX_NUL_TERMINATED`.
const NUL_TERMINATED: usize = usize::MAX;

/// Reads bytes from C.
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
    if length == NUL_TERMINATED && !address.is_null() {
        // SAFETY: the caller ensures that a zero byte ends it.
        return Ok(unsafe { CStr::from_ptr(address.cast()) }.to_bytes());
    }
    if address.is_null() || length > isize::MAX as usize {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: the caller ensures that `address` has `length` bytes, which stay unchanged.
    Ok(unsafe { slice::from_raw_parts(address, length) })
}

/// Reads text from C.
///
/// # Safety
/// Same as [`bytes`].
pub(crate) unsafe fn text<'a>(
    address: *const c_char,
    length: usize,
) -> Result<&'a str, otelctx_result> {
    // SAFETY: the caller ensures what bytes() needs.
    let bytes = unsafe { bytes(address.cast(), length)? };
    str::from_utf8(bytes).map_err(|_| INVALID_UTF8)
}

/// Reads a name: text that a zero byte ends.
///
/// # Safety
/// Same as [`bytes`].
pub(crate) unsafe fn name<'a>(address: *const c_char) -> Result<&'a str, otelctx_result> {
    // SAFETY: the caller ensures what bytes() needs.
    unsafe { text(address, NUL_TERMINATED) }
}

/// Reads the IDs of a context; `None` if both are null.
///
/// # Errors
/// INVALID_ARGUMENT if one is null, ZERO_ID if one is zero.
///
/// # Safety
/// The pointers are null or have 16 and 8 bytes.
#[inline]
pub(crate) unsafe fn ids(
    trace_id: *const u8,
    span_id: *const u8,
) -> Result<Option<(TraceId, SpanId)>, otelctx_result> {
    if trace_id.is_null() && span_id.is_null() {
        return Ok(None);
    }
    if trace_id.is_null() || span_id.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: the caller ensures the sizes, and arrays of bytes need no alignment.
    let trace_id = unsafe { *trace_id.cast::<[u8; 16]>() }.into();
    // SAFETY: as for the trace ID.
    let span_id = unsafe { *span_id.cast::<[u8; 8]>() }.into();
    ZeroId::check(trace_id, span_id).map_err(|_| ZERO_ID)?;
    Ok(Some((trace_id, span_id)))
}
