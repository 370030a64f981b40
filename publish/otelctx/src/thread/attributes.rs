//! Writes attributes into a record.

use std::marker::PhantomData;
use std::ptr;

use otelctx_format::record::{cut, offset, ENTRY_HEADER_SIZE, MAX_VALUE_SIZE};
use otelctx_format::SpanId;

use super::keys::Key;
use crate::arch::hex;

/// Writes the attributes of a record, one after another.
///
/// A value is cut to 255 bytes, at a character boundary. An attribute that does not fit, or whose
/// key is not published, is skipped. Both mark the record as truncated.
#[derive(Debug)]
pub struct Attributes<'a> {
    start: *mut u8,
    next: *mut u8,
    end: *mut u8,
    truncated: bool,
    record: PhantomData<&'a mut [u8]>,
}

impl Attributes<'_> {
    /// Creates a writer that continues after the first `used` bytes of attributes. If the record is
    /// not that long, because a language runtime has written a wrong size, no attribute fits.
    ///
    /// # Safety
    /// `block` points to a record of `size` bytes that only this thread changes during the writer's
    /// lifetime.
    #[inline(always)]
    pub(super) unsafe fn new(block: *mut u8, size: usize, used: usize) -> Self {
        // SAFETY: the caller ensures that the record has `size` bytes.
        unsafe {
            let start = block.add(offset::ATTRIBUTES);
            Self {
                start,
                next: start.wrapping_add(used),
                end: block.add(size),
                truncated: false,
                record: PhantomData,
            }
        }
    }

    /// Appends an attribute.
    #[inline(always)]
    pub fn append(&mut self, key: &Key, value: &str) {
        let Some(index) = key.index() else {
            self.truncated = true;
            return;
        };
        if value.len() > MAX_VALUE_SIZE {
            self.append_cut(index, value);
            return;
        }
        let Some(to) = self.entry(index, value.len()) else {
            return;
        };
        // SAFETY: the entry has that many bytes.
        unsafe { copy(value.as_ptr(), to, value.len()) };
    }

    /// Appends a span ID as 16 hexadecimal digits, as a trace's local root span is published.
    #[inline(always)]
    pub fn append_span_id(&mut self, key: &Key, span_id: impl Into<SpanId>) {
        let Some(index) = key.index() else {
            self.truncated = true;
            return;
        };
        let digits = hex(span_id.into().to_bytes());
        let Some(to) = self.entry(index, digits.len()) else {
            return;
        };
        // SAFETY: the entry has that many bytes.
        unsafe { to.cast::<[u8; 16]>().write_unaligned(digits) };
    }

    /// Writes the header of the next entry; returns the place of its value if it fits.
    #[inline(always)]
    fn entry(&mut self, index: u8, length: usize) -> Option<*mut u8> {
        let size = ENTRY_HEADER_SIZE + length;
        if self.next as usize + size > self.end as usize {
            self.truncated = true;
            return None;
        }
        // SAFETY: there is room for that many bytes.
        unsafe {
            let header = u16::from_ne_bytes([index, length as u8]);
            self.next.cast::<u16>().write_unaligned(header);
            let value = self.next.add(ENTRY_HEADER_SIZE);
            self.next = self.next.add(size);
            Some(value)
        }
    }

    #[cold]
    #[inline(never)]
    fn append_cut(&mut self, index: u8, value: &str) {
        self.truncated = true;
        let value = cut(value);
        if let Some(to) = self.entry(index, value.len()) {
            // SAFETY: the entry has that many bytes.
            unsafe { copy(value.as_ptr(), to, value.len()) };
        }
    }

    /// Returns the size of the attributes so far, in bytes.
    #[inline(always)]
    pub(super) fn used(&self) -> usize {
        self.next as usize - self.start as usize
    }

    /// Returns whether an attribute was cut or skipped.
    #[inline(always)]
    pub(super) fn is_truncated(&self) -> bool {
        self.truncated
    }
}

/// Copies a value. Most values are short, and calling `memcpy` would cost more than the copy.
///
/// # Safety
/// Both buffers have `length` bytes and do not overlap.
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: the caller ensures that both buffers have `length` bytes.
    unsafe {
        match length {
            8..=16 => ends::<u64>(from, to, length),
            4..=7 => ends::<u32>(from, to, length),
            2..=3 => ends::<u16>(from, to, length),
            _ => ptr::copy_nonoverlapping(from, to, length),
        }
    }
}

/// Copies the first and the last `size_of::<T>()` bytes.
///
/// # Safety
/// Both buffers have `length` bytes, which is at least the size of a `T`.
#[inline(always)]
unsafe fn ends<T: Copy>(from: *const u8, to: *mut u8, length: usize) {
    let last = length - size_of::<T>();
    // SAFETY: the caller ensures that both buffers have at least the size of a `T`.
    unsafe {
        let first = from.cast::<T>().read_unaligned();
        let second = from.add(last).cast::<T>().read_unaligned();
        to.cast::<T>().write_unaligned(first);
        to.add(last).cast::<T>().write_unaligned(second);
    }
}
