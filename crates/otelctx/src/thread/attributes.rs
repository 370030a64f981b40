//! Writing attributes into a record.

use std::slice;

use otelctx_format::record::{append, offset, Appended, ENTRY_HEADER_SIZE};
use otelctx_format::SpanId;

use super::keys::Key;

/// Writes the attributes of a record, one after the other.
///
/// A value is cut at 255 bytes on a character boundary. An attribute that does not fit, or whose
/// key is not published, is left out whole. Both mark the record as truncated.
#[derive(Debug)]
pub struct Attributes<'a> {
    room: &'a mut [u8],
    used: usize,
    truncated: bool,
}

/// Bytes of an attribute that holds a span id as hexadecimal digits.
const SPAN_ENTRY: usize = ENTRY_HEADER_SIZE + 16;

impl<'a> Attributes<'a> {
    /// A writer that goes on behind the first `used` bytes of attributes.
    ///
    /// # Safety
    /// `block` points at a record of `size` bytes that only this thread changes.
    #[inline]
    pub(super) unsafe fn new(block: *mut u8, size: usize, used: usize) -> Self {
        // SAFETY: as the caller promises.
        let room = unsafe {
            slice::from_raw_parts_mut(block.add(offset::ATTRIBUTES), size - offset::ATTRIBUTES)
        };
        Self {
            room,
            used,
            truncated: false,
        }
    }

    /// Adds an attribute.
    #[inline]
    pub fn add(&mut self, key: &Key, value: &str) {
        let Some(index) = key.index() else {
            self.truncated = true;
            return;
        };
        if append(self.room, &mut self.used, index, value) != Appended::Whole {
            self.truncated = true;
        }
    }

    /// Adds a span id as 16 hexadecimal digits: what the local root span of a trace is commonly
    /// published as.
    #[inline]
    pub fn add_span_id(&mut self, key: &Key, span_id: SpanId) {
        let Some(index) = key.index() else {
            self.truncated = true;
            return;
        };
        let Some(entry) = self
            .room
            .get_mut(self.used..)
            .and_then(|r| r.first_chunk_mut())
        else {
            self.truncated = true;
            return;
        };
        let entry: &mut [u8; SPAN_ENTRY] = entry;
        entry[0] = index;
        entry[1] = 16;
        let [high, low] = hex(span_id);
        entry[2..10].copy_from_slice(&high);
        entry[10..18].copy_from_slice(&low);
        self.used += SPAN_ENTRY;
    }

    /// Bytes of attributes so far.
    #[inline]
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Whether something did not go in whole.
    #[inline]
    pub(super) fn is_truncated(&self) -> bool {
        self.truncated
    }
}

/// The lower-case hexadecimal digits of an id, eight at a time.
#[inline]
fn hex(id: SpanId) -> [[u8; 8]; 2] {
    let bytes = u64::from_be_bytes(id.to_bytes());
    [digits((bytes >> 32) as u32), digits(bytes as u32)]
}

/// Eight digits without a branch or a table: spread the nibbles over the bytes of a word, then add
/// what takes each to its character, '0' for all and 39 more ('a' - '0' - 10) above 9.
#[inline]
fn digits(value: u32) -> [u8; 8] {
    let mut word = u64::from(value);
    word = (word << 16 | word) & 0x0000_ffff_0000_ffff;
    word = (word << 8 | word) & 0x00ff_00ff_00ff_00ff;
    word = (word << 4 | word) & 0x0f0f_0f0f_0f0f_0f0f;
    let above_nine = (word + 0x0606_0606_0606_0606) >> 4 & 0x0101_0101_0101_0101;
    (word + 0x3030_3030_3030_3030 + above_nine * 39).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn span_ids_are_written_as_their_display() {
        for bytes in [
            [0; 8],
            [0xff; 8],
            [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef],
        ] {
            let id = SpanId::from_bytes(bytes);
            assert_eq!(hex(id).concat(), id.to_string().as_bytes());
        }
    }
}
