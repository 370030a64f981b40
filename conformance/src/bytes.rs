//! Bytes as the files write them, and the small writers that vectors are put together with.

use serde::{Serialize, Serializer};

/// Bytes that a file shows as hexadecimal digits; runs of equal bytes or groups are kept short.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hex {
    /// Pieces, each so many times in a row.
    pieces: Vec<(Vec<u8>, usize)>,
}

impl Hex {
    /// Adds `times` times these bytes.
    #[must_use]
    pub fn repeated(mut self, bytes: &[u8], times: usize) -> Self {
        self.pieces.push((bytes.to_vec(), times));
        self
    }

    /// All bytes in a row.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        self.pieces
            .iter()
            .flat_map(|(piece, times)| piece.repeat(*times))
            .collect()
    }
}

impl From<Vec<u8>> for Hex {
    fn from(bytes: Vec<u8>) -> Self {
        Self::default().repeated(&bytes, 1)
    }
}

impl Serialize for Hex {
    /// A string of digits, or where something repeats an array of `[digits, times]`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.pieces.iter().all(|(_, times)| *times == 1) {
            return serializer.serialize_str(&digits(&self.to_vec()));
        }
        serializer.collect_seq(
            self.pieces
                .iter()
                .map(|(piece, times)| (digits(piece), times)),
        )
    }
}

/// Lower-case hexadecimal digits, two a byte.
pub(crate) fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A Protocol Buffers field of wire type 2 whose number is below 16 and content below 16 KiB.
pub(crate) fn field(number: u8, content: &[u8]) -> Vec<u8> {
    assert!(number < 16);
    let key = [number << 3 | 2];
    match content.len() {
        short @ ..0x80 => [&key, &[short as u8][..], content].concat(),
        long @ ..0x4000 => [&key, &[long as u8 | 0x80, (long >> 7) as u8][..], content].concat(),
        longer => panic!("no vector needs a field of {longer} bytes"),
    }
}

/// The `KeyValue` message of a key and an encoded `AnyValue`.
pub(crate) fn key_value(key: &str, any: &[u8]) -> Vec<u8> {
    [field(1, key.as_bytes()), field(2, any)].concat()
}

/// The `AnyValue` message of a string.
pub(crate) fn string(text: &str) -> Vec<u8> {
    field(1, text.as_bytes())
}
