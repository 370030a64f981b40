//! Writing attributes into a record.

use std::marker::PhantomData;
use std::ptr;

use otelctx_format::record::{cut, offset, ENTRY_HEADER_SIZE, MAX_VALUE_SIZE};
use otelctx_format::SpanId;

use super::keys::Key;
use crate::arch::hex;

/// Writes the attributes of a record, one after the other.
///
/// A value is cut at 255 bytes on a character boundary. An attribute that does not fit, or whose
/// key is not published, is left out whole. Both mark the record as truncated.
#[derive(Debug)]
pub struct Attributes<'a> {
    start: *mut u8,
    next: *mut u8,
    end: *mut u8,
    truncated: bool,
    record: PhantomData<&'a mut [u8]>,
}

impl Attributes<'_> {
    /// A writer that goes on behind the first `used` bytes of attributes.
    ///
    /// # Safety
    /// `block` points at a record of `size` bytes that only this thread changes, as long as the
    /// writer lives; `used` of them are attributes already.
    #[inline(always)]
    pub(super) unsafe fn new(block: *mut u8, size: usize, used: usize) -> Self {
        // SAFETY: as the caller promises.
        unsafe {
            let start = block.add(offset::ATTRIBUTES);
            Self {
                start,
                next: start.add(used),
                end: block.add(size),
                truncated: false,
                record: PhantomData,
            }
        }
    }

    /// Adds an attribute.
    #[inline(always)]
    pub fn add(&mut self, key: &Key, value: &str) {
        let Some(index) = key.index() else {
            self.truncated = true;
            return;
        };
        if value.len() > MAX_VALUE_SIZE {
            self.add_cut(index, value);
            return;
        }
        let Some(to) = self.entry(index, value.len()) else {
            return;
        };
        // SAFETY: the entry has that many bytes.
        unsafe { copy(value.as_ptr(), to, value.len()) };
    }

    /// Adds a span id as 16 hexadecimal digits: what the local root span of a trace is commonly
    /// published as.
    #[inline(always)]
    pub fn add_span_id(&mut self, key: &Key, span_id: impl Into<SpanId>) {
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

    /// Writes the header of the next entry; returns where its value goes. `None` when there is no
    /// room for it.
    #[inline(always)]
    fn entry(&mut self, index: u8, length: usize) -> Option<*mut u8> {
        let size = ENTRY_HEADER_SIZE + length;
        if (self.end as usize) - (self.next as usize) < size {
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
    fn add_cut(&mut self, index: u8, value: &str) {
        self.truncated = true;
        let value = cut(value);
        if let Some(to) = self.entry(index, value.len()) {
            // SAFETY: the entry has that many bytes.
            unsafe { copy(value.as_ptr(), to, value.len()) };
        }
    }

    /// Bytes of attributes so far.
    #[inline(always)]
    pub(super) fn used(&self) -> usize {
        self.next as usize - self.start as usize
    }

    /// Whether something did not go in whole.
    #[inline(always)]
    pub(super) fn is_truncated(&self) -> bool {
        self.truncated
    }
}

/// Copies a value. Most are short, and for those a call of `memcpy` costs more than the copying.
///
/// # Safety
/// Both are `length` bytes long and do not overlap.
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: as the caller promises; the first and the last bytes may be the same ones.
    unsafe {
        match length {
            8..=16 => ends::<u64>(from, to, length),
            4..=7 => ends::<u32>(from, to, length),
            2..=3 => ends::<u16>(from, to, length),
            _ => ptr::copy_nonoverlapping(from, to, length),
        }
    }
}

/// Copies the first and the last bytes that make a `T`.
///
/// # Safety
/// Both are `length` bytes long, which is at least that of a `T`.
#[inline(always)]
unsafe fn ends<T: Copy>(from: *const u8, to: *mut u8, length: usize) {
    let last = length - size_of::<T>();
    // SAFETY: as the caller promises.
    unsafe {
        let first = from.cast::<T>().read_unaligned();
        let second = from.add(last).cast::<T>().read_unaligned();
        to.cast::<T>().write_unaligned(first);
        to.add(last).cast::<T>().write_unaligned(second);
    }
}
