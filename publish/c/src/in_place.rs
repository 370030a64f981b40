//! The record of each thread that is rewritten in place.

use std::ffi::{c_char, c_void};
use std::{ptr, slice};

use otelctx::{Attributes, TraceFlags, raw, thread_context};

use crate::call::caught;
use crate::error::{INTERNAL, INVALID_ARGUMENT, OK, THREAD_ENDING, TRUNCATED, otelctx_result};
use crate::key::otelctx_key;
use crate::record::attribute;
use crate::text::ids;

/// A key and its value.
#[repr(C)]
pub struct otelctx_attribute {
    /// From otelctx_key_get().
    pub key: *const otelctx_key,
    /// UTF-8.
    pub value: *const c_char,
    /// Its length in bytes, or OTELCTX_NUL_TERMINATED.
    pub length: usize,
}

/// Maximum number of attributes in one call. A record has room for 306 without values.
const MAX_ATTRIBUTES: usize = 612 / 2;

/// Rewrites the calling thread's own record with these IDs, flags and attributes, and attaches it: for
/// programs that know when a thread switches to other work but have no scope. Readers see all of it
/// or nothing. Without attributes, `attributes` may be null.
///
/// If a record or a scope is attached, detaching that restores nothing then.
///
/// OTELCTX_TRUNCATED if a value was cut or an attribute left out; the rest is attached. Invalid
/// arguments change nothing.
///
/// Threads: any; affects the calling one. Signal handlers: no. Fork: as for all functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_thread_set(
    trace_id: *const u8,
    span_id: *const u8,
    flags: u8,
    attributes: *const otelctx_attribute,
    count: usize,
) -> otelctx_result {
    // SAFETY: C's promise.
    caught(INTERNAL, || unsafe {
        let attributes = if attributes.is_null() && count == 0 {
            &[]
        } else if attributes.is_null() || count > MAX_ATTRIBUTES {
            return INVALID_ARGUMENT;
        } else {
            slice::from_raw_parts(attributes, count)
        };
        let ids = match ids(trace_id, span_id) {
            Ok(ids) => ids,
            Err(code) => return code,
        };
        for it in attributes {
            if let Err(code) = attribute(it.key, it.value, it.length) {
                return code;
            }
        }
        let record = thread_context();
        let write = |writer: &mut Attributes<'_>| {
            for it in attributes {
                // Checked above.
                if let Ok((key, value)) = attribute(it.key, it.value, it.length) {
                    writer.append(key, value);
                }
            }
        };
        match ids {
            None => record.set_attributes(write),
            // They are not zero, so nothing fails.
            Some((trace, span)) => drop(record.set_with(trace, span, TraceFlags(flags), write)),
        }
        if raw::thread_record().is_none() {
            THREAD_ENDING
        } else if record.is_truncated() {
            TRUNCATED
        } else {
            OK
        }
    })
}

/// Adds an attribute to the calling thread's own record. Readers see the whole attribute or nothing
/// of it.
///
/// OTELCTX_TRUNCATED if the value was cut or the attribute left out.
///
/// Threads: any; affects the calling one. Signal handlers: no. Fork: as for all functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn otelctx_thread_add(
    key: *const otelctx_key,
    value: *const c_char,
    length: usize,
) -> otelctx_result {
    // SAFETY: C's promise.
    caught(INTERNAL, || unsafe {
        let (key, value) = match attribute(key, value, length) {
            Ok(attribute) => attribute,
            Err(code) => return code,
        };
        let record = thread_context();
        let before = record.attributes_size();
        record.append(key, value);
        if record.attributes_size() == before + 2 + value.len() {
            OK
        } else if raw::thread_record().is_none() {
            THREAD_ENDING
        } else {
            TRUNCATED
        }
    })
}

/// Detaches the calling thread's own record if it is attached.
///
/// Threads: any; affects the calling one. Signal handlers: no. Fork: as for all functions.
#[unsafe(no_mangle)]
pub extern "C" fn otelctx_thread_detach() {
    caught((), || thread_context().detach());
}

/// The size of the attributes of the calling thread's own record in bytes: a mark for
/// otelctx_thread_shrink_to().
///
/// Threads: any; affects the calling one. Signal handlers: no. Fork: as for all functions.
#[unsafe(no_mangle)]
pub extern "C" fn otelctx_thread_attributes_size() -> usize {
    caught(0, || thread_context().attributes_size())
}

/// Removes the attributes that were added since their size was this many bytes; one that extends
/// over it is removed, too.
///
/// Threads: any; affects the calling one. Signal handlers: no. Fork: as for all functions.
#[unsafe(no_mangle)]
pub extern "C" fn otelctx_thread_shrink_to(size: usize) {
    caught((), || thread_context().shrink_to(size));
}

/// Whether a value was cut or an attribute left out since the calling thread's own record was last
/// set.
///
/// Threads: any; affects the calling one. Signal handlers: no. Fork: as for all functions.
#[unsafe(no_mangle)]
pub extern "C" fn otelctx_thread_is_truncated() -> bool {
    caught(false, || thread_context().is_truncated())
}

/// The 640 bytes of the calling thread's own record, in the layout of OTEP 4947, for language runtimes
/// that write it themselves: write 0 to the `valid` byte, then IDs, flags, size and attributes, then 1
/// to the `valid` byte, then the address to the slot, with compiler fences in between. Only the thread
/// itself may write, within the 640 bytes, until it ends.
///
/// Null once the thread has freed its thread-local data.
///
/// Threads: any; the bytes belong to the calling one. Signal handlers: no. Fork: as for all
/// functions.
#[unsafe(no_mangle)]
pub extern "C" fn otelctx_thread_bytes() -> *mut u8 {
    caught(ptr::null_mut(), || {
        let bytes = raw::thread_record();
        bytes.map_or(ptr::null_mut(), |bytes| bytes.as_ptr().cast())
    })
}

/// The address of the calling thread's `otel_thread_ctx_v1`, in which readers find the pointer to its
/// record, for language runtimes that write it themselves: null, or the address of a record that
/// stays valid memory as long as it is there. It does not change until the thread ends.
///
/// Threads: any; the slot belongs to the calling one. Signal handlers: yes, if the thread has called
/// it before. Fork: as for all functions.
#[unsafe(no_mangle)]
pub extern "C" fn otelctx_thread_slot() -> *mut *mut c_void {
    raw::thread_slot().cast()
}
