//! The encodings of columns: variable-length integers, lists of texts, deflate and base64.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::DeflateEncoder;

/// Bytes of a section, to which values are added.
#[derive(Debug, Default)]
pub(crate) struct Bytes(Vec<u8>);

impl Bytes {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self(Vec::with_capacity(capacity))
    }

    /// Adds a number: 7 bits a byte, the lowest first, all but the last byte with bit 7 set.
    pub(crate) fn number(&mut self, number: impl Into<u64>) {
        let mut rest: u64 = number.into();
        while rest >= 0x80 {
            self.0.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.0.push(rest as u8);
    }

    /// Adds a signed number as 2 n, or −2 n − 1 if it is negative.
    pub(crate) fn signed(&mut self, number: i32) {
        self.number(zigzag(number));
    }

    pub(crate) fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Adds texts: their number, each one's length in UTF-16 code units as scripts count them, the
    /// length of all in bytes, and all as UTF-8.
    pub(crate) fn texts<'t>(&mut self, texts: impl ExactSizeIterator<Item = &'t str> + Clone) {
        self.number(texts.len() as u64);
        let mut bytes = 0;
        for text in texts.clone() {
            self.number(text.encode_utf16().count() as u64);
            bytes += text.len();
        }
        self.number(bytes as u64);
        for text in texts {
            self.raw(text.as_bytes());
        }
    }

    /// Returns them compressed, as raw deflate in base64.
    pub(crate) fn packed(&self) -> io::Result<Vec<u8>> {
        let mut encoder = DeflateEncoder::new(Vec::with_capacity(self.0.len() / 2), LEVEL);
        encoder.write_all(&self.0)?;
        Ok(base64(&encoder.finish()?))
    }
}

/// The level of compression: 9 is 1 % smaller and takes twice the time.
const LEVEL: Compression = Compression::new(6);

const fn zigzag(number: i32) -> u32 {
    ((number << 1) ^ (number >> 31)).cast_unsigned()
}

const ALPHABET: [u8; 64] = *b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Encodes bytes as base64 with padding (RFC 4648, section 4).
pub(crate) fn base64(bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let at = |index: usize| u32::from(three.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for digit in 0..4 {
            let is_used = digit <= three.len();
            let value = (bits >> (18 - 6 * digit)) as usize & 63;
            text.push(if is_used { ALPHABET[value] } else { b'=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_has_the_values_of_rfc_4648() {
        let values = ["", "f", "fo", "foo", "foob", "fooba", "foobar"];
        let expected = [
            "", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy",
        ];
        for (value, expected) in values.into_iter().zip(expected) {
            assert_eq!(
                String::from_utf8(base64(value.as_bytes())).unwrap(),
                expected
            );
        }
    }

    #[test]
    fn numbers_have_7_bits_a_byte() {
        let mut bytes = Bytes::default();
        bytes.number(127_u32);
        bytes.number(128_u32);
        bytes.number(u64::MAX);
        bytes.signed(-1);
        bytes.signed(i32::MIN);
        let expected = [
            &[127, 0x80, 1][..],
            &[255, 255, 255, 255, 255, 255, 255, 255, 255, 1],
            &[1, 255, 255, 255, 255, 15],
        ];
        assert_eq!(bytes.0, expected.concat());
    }

    #[test]
    fn lengths_of_texts_are_in_utf_16() {
        let mut bytes = Bytes::default();
        bytes.texts(["a", "é", "😀", ""].into_iter());
        assert_eq!(
            bytes.0,
            [&[4, 1, 1, 2, 0, 7][..], "aé😀".as_bytes()].concat()
        );
    }
}
