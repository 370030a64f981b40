//! Reads and writes a record's bytes, in the order that readers rely on.

use std::fmt;
use std::ptr;
use std::sync::atomic::{compiler_fence, Ordering};

use otelctx_format::record::{offset, Header, ENTRY_HEADER_SIZE, VALID};
use otelctx_format::{SpanId, TraceFlags, TraceId};

/// Writes both IDs.
///
/// # Safety
/// `block` is a record that only this thread changes, and is currently invalid.
#[inline(always)]
pub(super) unsafe fn write_ids(block: *mut u8, trace_id: TraceId, span_id: SpanId) {
    // SAFETY: the IDs lie within the smallest block.
    unsafe {
        *block.add(offset::TRACE_ID).cast::<TraceId>() = trace_id;
        *block.add(offset::SPAN_ID).cast::<SpanId>() = span_id;
    }
}

/// Marks a record as valid after all else was written. The header's last four bytes are one store.
///
/// # Safety
/// `block` is a record that only this thread changes.
#[inline(always)]
pub(super) unsafe fn validate(block: *mut u8, flags: TraceFlags, attributes_size: usize) {
    const _: () = assert!(offset::VALID % 4 == 0 && offset::ATTRIBUTES == offset::VALID + 4);
    let [low, high] = (attributes_size as u16).to_ne_bytes();
    compiler_fence(Ordering::SeqCst);
    // SAFETY: the four bytes lie within the smallest block, and blocks are aligned.
    unsafe {
        let end_of_header = block.add(offset::VALID).cast::<u32>();
        end_of_header.write_volatile(u32::from_ne_bytes([VALID, flags.0, low, high]));
    }
}

/// Returns whether a record is marked as valid.
///
/// # Safety
/// `block` is a record that only this thread changes.
#[inline]
pub(super) unsafe fn is_valid(block: *mut u8) -> bool {
    // SAFETY: the field lies within the smallest block.
    unsafe { block.add(offset::VALID).read() == VALID }
}

/// Returns the size of the attributes in a record, in bytes.
///
/// # Safety
/// `block` is a record that only this thread changes.
#[inline]
pub(super) unsafe fn used(block: *mut u8) -> usize {
    // SAFETY: the field is aligned to 2 bytes.
    usize::from(unsafe { block.add(offset::ATTRIBUTES_SIZE).cast::<u16>().read() })
}

/// Announces `size` bytes of attributes, after they have been written.
///
/// # Safety
/// `block` is a record that only this thread changes.
#[inline]
pub(super) unsafe fn set_used(block: *mut u8, size: usize) {
    compiler_fence(Ordering::SeqCst);
    // SAFETY: the field is aligned to 2 bytes.
    unsafe {
        let field = block.add(offset::ATTRIBUTES_SIZE).cast::<u16>();
        field.write_volatile(size as u16);
    }
    // Later writes may be to bytes after the new end, which were part of the record before.
    compiler_fence(Ordering::SeqCst);
}

/// Drops all attributes after the last one that ends within `size` bytes.
///
/// # Safety
/// `block` is a record that only this thread changes.
pub(super) unsafe fn shrink(block: *mut u8, size: usize) {
    // SAFETY: entries lie within the announced size.
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

/// Removes the attributes with this key. Returns the size of the others, which is not announced.
///
/// # Safety
/// `block` is a record that only this thread changes, and is currently invalid.
pub(super) unsafe fn remove(block: *mut u8, key: u8) -> usize {
    // SAFETY: entries lie within the announced size, and only move towards the front.
    unsafe {
        let attributes = block.add(offset::ATTRIBUTES);
        let (mut next, mut kept, size) = (0, 0, used(block));
        while next + ENTRY_HEADER_SIZE <= size {
            let entry = attributes.add(next);
            let length = ENTRY_HEADER_SIZE + usize::from(entry.add(1).read());
            if next + length > size {
                break;
            }
            if entry.read() != key {
                ptr::copy(entry, attributes.add(kept), length);
                kept += length;
            }
            next += length;
        }
        kept
    }
}

/// Copies a whole record into a block that is at least as large, and is currently invalid.
///
/// # Safety
/// Both are records, and only this thread changes the second.
pub(super) unsafe fn copy(from: *mut u8, to: *mut u8) {
    // SAFETY: the caller ensures that both are records, and only this thread changes the second.
    unsafe {
        ptr::copy_nonoverlapping(from, to, offset::VALID);
        copy_attributes(from, to);
        let flags = TraceFlags(from.add(offset::TRACE_FLAGS).read());
        validate(to, flags, used(from));
    }
}

/// Copies the attributes of a record into a block that is at least as large, and is currently
/// invalid. Their size is not announced yet.
///
/// # Safety
/// Both are records, and only this thread changes the second.
#[inline]
pub(super) unsafe fn copy_attributes(from: *mut u8, to: *mut u8) {
    // SAFETY: the caller ensures that both are records, and only this thread changes the second.
    unsafe {
        let start = offset::ATTRIBUTES;
        ptr::copy_nonoverlapping(from.add(start), to.add(start), used(from));
    }
}

/// Formats the IDs and flags.
///
/// # Safety
/// `block` is a record that does not change during the call.
pub(super) unsafe fn debug(block: *mut u8, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    // SAFETY: the caller passes a record, which has a header of 28 bytes.
    let header = Header::decode(unsafe { &*block.cast() });
    f.debug_struct(name)
        .field("trace_id", &header.trace_id)
        .field("span_id", &header.span_id)
        .field("flags", &header.trace_flags)
        .field("attributes_size", &header.attributes_size)
        .finish()
}
