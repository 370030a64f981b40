//! HotSpot's compressed numbers (`unsigned5.hpp`).

/// Bits of a byte that go on.
const BITS: u32 = 6;
/// Bytes from this value on, without the excluded ones, are followed by another one.
const LOW: u32 = 256 - (1 << BITS);
/// Maximum length of a number, in bytes.
const MAX_LENGTH: u32 = 5;

/// Bytes that are decoded one after the other.
#[derive(Debug)]
pub(crate) struct Stream<'b> {
    bytes: &'b [u8],
    /// Number of values, from 0 on, that no byte of a number has.
    excluded: u32,
}

impl<'b> Stream<'b> {
    pub(crate) fn new(bytes: &'b [u8], excluded: u32) -> Self {
        Self { bytes, excluded }
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*first)
    }

    /// Decodes a number. `None` if it is damaged.
    pub(crate) fn number(&mut self) -> Option<u32> {
        let mut sum = 0_u32;
        for index in 0..MAX_LENGTH {
            let byte = u32::from(self.byte()?).checked_sub(self.excluded)?;
            sum = sum.wrapping_add(byte.wrapping_shl(BITS * index));
            if byte < LOW - self.excluded {
                break;
            }
        }
        Some(sum)
    }

    pub(crate) fn signed(&mut self) -> Option<i32> {
        let number = self.number()?;
        Some((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_each_length_are_decoded() {
        let number = |bytes: &[u8], excluded| Stream::new(bytes, excluded).number();
        // `UNSIGNED5::write_uint_stream` writes these.
        assert_eq!(number(&[0], 0), Some(0));
        assert_eq!(number(&[191], 0), Some(191));
        assert_eq!(number(&[192, 0], 0), Some(192));
        assert_eq!(number(&[255, 1], 0), Some(255 + 64));
        assert_eq!(number(&[1], 1), Some(0));
        assert_eq!(number(&[191], 1), Some(190));
        assert_eq!(number(&[192, 1], 1), Some(191));
        assert_eq!(number(&[0], 1), None);
        assert_eq!(number(&[192], 0), None);
        assert_eq!(number(&[], 0), None);
        // However many bytes go on.
        assert!(number(&[255; 8], 0).is_some());
        let signed = |byte: u8| Stream::new(&[byte], 0).signed();
        assert_eq!([0, 1, 2, 3].map(signed), [0, -1, 1, -2].map(Some));
    }
}
