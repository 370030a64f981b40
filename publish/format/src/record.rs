//! The context record of a thread (OTEP 4947, "Thread Local Context Record").
//!
//! | offset | type | field |
//! |---|---|---|
//! | 0 | `u8[16]` | trace id, zeroes = none |
//! | 16 | `u8[8]` | span id |
//! | 24 | `u8` | valid: 1 = valid, every other value = ignore the record |
//! | 25 | `u8` | W3C trace flags |
//! | 26 | `u16` | size of what follows, in bytes |
//! | 28 | … | attributes: `key: u8, length: u8, value: u8[length]` (UTF-8), packed |

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::{KeyMap, SpanId, TraceFlags, TraceId};

/// Size of a record without attributes, in bytes.
pub const HEADER_SIZE: usize = 28;
/// The record size, header included, that the OTEP recommends as a maximum: all readers support it.
pub const RECOMMENDED_SIZE: usize = 640;
/// The largest record that its `u16` size field allows.
pub const MAX_SIZE: usize = HEADER_SIZE + u16::MAX as usize;
/// Maximum size of an attribute's value, in bytes.
pub const MAX_VALUE_SIZE: usize = u8::MAX as usize;
/// Size of an attribute without its value: the index of its key, and the value's length.
pub const ENTRY_HEADER_SIZE: usize = 2;
/// The `valid` byte of a valid record.
pub const VALID: u8 = 1;

/// Offsets of the fields, in bytes from the record's address.
pub mod offset {
    /// The trace id, 16 bytes.
    pub const TRACE_ID: usize = 0;
    /// The span id, 8 bytes.
    pub const SPAN_ID: usize = 16;
    /// The `valid` byte.
    pub const VALID: usize = 24;
    /// The trace flags, one byte.
    pub const TRACE_FLAGS: usize = 25;
    /// The size of the attributes, two bytes.
    pub const ATTRIBUTES_SIZE: usize = 26;
    /// The attributes.
    pub const ATTRIBUTES: usize = super::HEADER_SIZE;
}

/// The fixed part of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The trace, or zero.
    pub trace_id: TraceId,
    /// The span, or zero.
    pub span_id: SpanId,
    /// [`VALID`]; with any other value, the record must be ignored.
    pub valid: u8,
    /// The W3C trace flags, zero when the ids are.
    pub trace_flags: TraceFlags,
    /// Size of the attributes after the header, in bytes.
    pub attributes_size: u16,
}

impl Header {
    /// Decodes a header; every bit pattern is valid.
    #[inline]
    #[must_use]
    pub fn decode(bytes: &[u8; HEADER_SIZE]) -> Self {
        let mut trace_id = [0; 16];
        let mut span_id = [0; 8];
        trace_id.copy_from_slice(&bytes[offset::TRACE_ID..offset::SPAN_ID]);
        span_id.copy_from_slice(&bytes[offset::SPAN_ID..offset::VALID]);
        Self {
            trace_id: TraceId::from_bytes(trace_id),
            span_id: SpanId::from_bytes(span_id),
            valid: bytes[offset::VALID],
            trace_flags: TraceFlags(bytes[offset::TRACE_FLAGS]),
            attributes_size: u16::from_ne_bytes([
                bytes[offset::ATTRIBUTES_SIZE],
                bytes[offset::ATTRIBUTES_SIZE + 1],
            ]),
        }
    }

    /// Encodes the header.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_SIZE] {
        let mut bytes = [0; HEADER_SIZE];
        bytes[offset::TRACE_ID..offset::SPAN_ID].copy_from_slice(&self.trace_id.to_bytes());
        bytes[offset::SPAN_ID..offset::VALID].copy_from_slice(&self.span_id.to_bytes());
        bytes[offset::VALID] = self.valid;
        bytes[offset::TRACE_FLAGS] = self.trace_flags.0;
        bytes[offset::ATTRIBUTES_SIZE..].copy_from_slice(&self.attributes_size.to_ne_bytes());
        bytes
    }
}

/// An attribute of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Index of the attribute's name in the key map.
    pub key: u8,
    /// The value. Should be UTF-8, but that is unchecked.
    pub value: &'a [u8],
}

/// A decoded record: its header and its attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    header: Header,
    attributes: &'a [u8],
}

/// Decodes a record. Bytes after its announced size are ignored, so a buffer of
/// [`RECOMMENDED_SIZE`] bytes works for any record up to that size.
///
/// # Errors
/// If the record is marked as invalid, or the bytes end within its header.
pub fn decode(bytes: &[u8]) -> Result<Record<'_>, RecordError> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER_SIZE>() else {
        return Err(RecordError::TooShort { size: bytes.len() });
    };
    let header = Header::decode(header);
    if header.valid != VALID {
        return Err(RecordError::NotValid {
            valid: header.valid,
        });
    }
    let size = usize::from(header.attributes_size).min(rest.len());
    Ok(Record {
        header,
        attributes: &rest[..size],
    })
}

impl<'a> Record<'a> {
    /// Returns the header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the attributes in their order in the record, including repeated keys. Stops before
    /// an incomplete attribute, as the format requires of readers.
    #[must_use]
    pub fn entries(&self) -> Entries<'a> {
        Entries {
            rest: self.attributes,
        }
    }

    /// Returns whether the key map must be read again before the names of this record are certain:
    /// see [`KeyMap::is_provisional`].
    #[must_use]
    pub fn is_provisional(&self, keys: &KeyMap) -> bool {
        self.entries().any(|entry| keys.is_provisional(entry.key))
    }

    /// Resolves the record to a context: names instead of indexes, only the last occurrence of each
    /// key, and counts of what was skipped.
    #[must_use]
    pub fn resolve(&self, keys: &KeyMap) -> DecodedContext {
        let mut context = DecodedContext {
            trace_id: self.header.trace_id,
            span_id: self.header.span_id,
            trace_flags: self.header.trace_flags,
            attributes: Vec::new(),
            skipped: Skipped::default(),
        };
        // The position in `attributes` of each key, plus one. A record can have 32,767 entries, so
        // the search for repeated keys must not be quadratic.
        let mut position = [0_u16; crate::MAX_KEYS];
        let mut entries = self.entries();
        for Entry { key, value } in entries.by_ref() {
            let Some(name) = keys.get(key) else {
                context.skipped.unknown_key += 1;
                continue;
            };
            let Ok(value) = core::str::from_utf8(value) else {
                context.skipped.not_utf8 += 1;
                // The last occurrence counts: an earlier value is out of date.
                let stale = core::mem::take(&mut position[usize::from(key)]);
                if let Some(stale) = usize::from(stale).checked_sub(1) {
                    context.attributes.remove(stale);
                    for behind in &mut position {
                        *behind -= u16::from(usize::from(*behind) > stale);
                    }
                }
                continue;
            };
            match usize::from(position[usize::from(key)]).checked_sub(1) {
                Some(earlier) => context.attributes[earlier].1 = value.into(),
                None => {
                    context.attributes.push((name.into(), value.into()));
                    position[usize::from(key)] = context.attributes.len() as u16;
                }
            }
        }
        let contested = keys.contested().iter();
        let contested = contested.filter(|key| position[usize::from(**key)] > 0);
        context.skipped.contested_key = contested.count() as u32;
        let announced = usize::from(self.header.attributes_size);
        context.skipped.incomplete_bytes = entries.rest.len() + announced - self.attributes.len();
        context
    }
}

/// The attributes of a [`Record`].
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Entries<'a> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Entry<'a>> {
        let (&[key, length], rest) = self.rest.split_first_chunk::<ENTRY_HEADER_SIZE>()?;
        let (value, rest) = rest.split_at_checked(usize::from(length))?;
        self.rest = rest;
        Some(Entry { key, value })
    }
}

/// A thread's context as read from its record: names instead of indexes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DecodedContext {
    /// The trace, or zero.
    pub trace_id: TraceId,
    /// The span, or zero.
    pub span_id: SpanId,
    /// The W3C trace flags.
    pub trace_flags: TraceFlags,
    /// Names and values, once for each key of the record. If the key map repeats a name, which
    /// writers must not do, so can this.
    pub attributes: Vec<(String, String)>,
    /// Counts of what the record contains that is not part of this context.
    pub skipped: Skipped,
}

/// Counts of what [`Record::resolve`] skipped, by reason. All zero for a well-formed record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Skipped {
    /// Attributes whose key is not in the key map.
    pub unknown_key: u32,
    /// Attributes that are named by their index, such as `#3`, because the process has several
    /// publishers that disagree on its name: see [`KeyMap::agreed`]. Their values are kept.
    pub contested_key: u32,
    /// Attributes whose value is not UTF-8.
    pub not_utf8: u32,
    /// Bytes from the first incomplete attribute to the announced end of the record.
    pub incomplete_bytes: usize,
}

impl Skipped {
    /// Returns whether nothing was skipped.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The reason why bytes are not a readable record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordError {
    /// There are fewer bytes than a header has.
    TooShort {
        /// The number of bytes.
        size: usize,
    },
    /// The record is marked as invalid: it is being rewritten, or is not a record.
    NotValid {
        /// The record's `valid` byte.
        valid: u8,
    },
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort { size } => write!(
                f,
                "a context record has at least {HEADER_SIZE} bytes, found {size}"
            ),
            Self::NotValid { valid } => write!(
                f,
                "the context record is marked not valid (its valid byte is {valid}, not 1)"
            ),
        }
    }
}

impl core::error::Error for RecordError {}

/// The part of an attribute that [`append`] wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Appended {
    /// The whole attribute.
    Whole,
    /// The first [`MAX_VALUE_SIZE`] bytes of its value, or a few less, so that no character is cut.
    Cut,
    /// Nothing: it does not fit. Attributes are never split.
    NoRoom,
}

/// Writes an attribute after the first `used` bytes of `attributes`, and adds its size to `used`.
#[inline]
pub fn append(attributes: &mut [u8], used: &mut usize, key: u8, value: &str) -> Appended {
    let cut = cut(value);
    let room = attributes.get_mut(*used..).unwrap_or_default();
    let Some(entry) = room.get_mut(..ENTRY_HEADER_SIZE + cut.len()) else {
        return Appended::NoRoom;
    };
    entry[0] = key;
    entry[1] = cut.len() as u8;
    entry[ENTRY_HEADER_SIZE..].copy_from_slice(cut.as_bytes());
    *used += entry.len();
    if cut.len() == value.len() {
        Appended::Whole
    } else {
        Appended::Cut
    }
}

/// Returns the longest prefix of `value` that fits into one attribute: at most [`MAX_VALUE_SIZE`]
/// bytes, ending at a character boundary.
#[inline]
#[must_use]
pub fn cut(value: &str) -> &str {
    if value.len() <= MAX_VALUE_SIZE {
        return value;
    }
    let mut end = MAX_VALUE_SIZE;
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    &value[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn record(entries: &[u8]) -> Vec<u8> {
        let header = Header {
            trace_id: TraceId::from_bytes([1; 16]),
            span_id: SpanId::from_bytes([2; 8]),
            valid: VALID,
            trace_flags: TraceFlags(0xff),
            attributes_size: entries.len() as u16,
        };
        [&header.encode()[..], entries].concat()
    }

    fn keys() -> KeyMap {
        KeyMap::new(["a", "b"]).unwrap()
    }

    #[test]
    fn the_header_lies_where_the_proposal_says() {
        let bytes = record(&[]);
        assert_eq!(bytes[..16], [1; 16]);
        assert_eq!(bytes[16..24], [2; 8]);
        assert_eq!(bytes[24..28], [1, 0xff, 0, 0]);
        let decoded = *decode(&bytes).unwrap().header();
        assert_eq!(decoded.encode()[..], bytes[..]);
    }

    #[test]
    fn only_one_means_valid() {
        let mut bytes = record(&[]);
        for valid in [0, 2, 255] {
            bytes[offset::VALID] = valid;
            assert_eq!(decode(&bytes), Err(RecordError::NotValid { valid }));
        }
        assert_eq!(
            decode(&bytes[..27]),
            Err(RecordError::TooShort { size: 27 })
        );
    }

    #[test]
    fn a_last_value_that_is_not_utf8_leaves_no_earlier_one() {
        let keys = KeyMap::new(["a", "b", "c"]).unwrap();
        let resolved = |entries: &[u8]| {
            let context = decode(&record(entries)).unwrap().resolve(&keys);
            assert_eq!(context.skipped.not_utf8, 1);
            context.attributes
        };
        let own = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            let pair = |(name, value): &(&str, &str)| ((*name).into(), (*value).into());
            pairs.iter().map(pair).collect()
        };
        let stale = [0, 1, b'x', 1, 1, b'y', 0, 1, 0xff, 1, 1, b'z', 2, 1, b'w'];
        assert_eq!(resolved(&stale), own(&[("b", "z"), ("c", "w")]));
        let restored = [0, 1, b'x', 1, 1, b'y', 0, 1, 0xff, 0, 1, b'z'];
        assert_eq!(resolved(&restored), own(&[("b", "y"), ("a", "z")]));
        assert_eq!(resolved(&[0, 1, 0xff, 0, 1, b'z']), own(&[("a", "z")]));
    }

    #[test]
    fn the_last_of_repeated_keys_wins_in_the_first_ones_place() {
        let bytes = record(&[0, 1, b'x', 1, 1, b'y', 0, 2, b'z', b'z']);
        let context = decode(&bytes).unwrap().resolve(&keys());
        assert_eq!(
            context.attributes,
            [("a".into(), "zz".into()), ("b".into(), "y".into())]
        );
        assert!(context.skipped.is_empty());
    }

    #[test]
    fn an_incomplete_end_keeps_what_came_before() {
        for (end, incomplete_bytes) in [(&[1][..], 1), (&[1, 3, b'y', b'y'], 4)] {
            let bytes = record(&[&[0, 1, b'x'], end].concat());
            let context = decode(&bytes).unwrap().resolve(&keys());
            assert_eq!(context.attributes, [("a".into(), "x".into())]);
            assert_eq!(context.skipped.incomplete_bytes, incomplete_bytes);
        }
        // The announced size may exceed the available bytes.
        let mut bytes = record(&[0, 1, b'x']);
        bytes[offset::ATTRIBUTES_SIZE..28].copy_from_slice(&100_u16.to_ne_bytes());
        let context = decode(&bytes).unwrap().resolve(&keys());
        assert_eq!(context.attributes, [("a".into(), "x".into())]);
        assert_eq!(context.skipped.incomplete_bytes, 97);
    }

    #[test]
    fn what_cannot_be_named_or_read_is_counted() {
        let bytes = record(&[7, 1, b'x', 0, 1, 0xff, 1, 1, b'y']);
        let context = decode(&bytes).unwrap().resolve(&keys());
        assert_eq!(context.attributes, [("b".into(), "y".into())]);
        assert_eq!(
            (context.skipped.unknown_key, context.skipped.not_utf8),
            (1, 1)
        );
    }

    #[test]
    fn attributes_with_contested_names_go_by_their_index() {
        let other = KeyMap::new(["a", "x"]).unwrap();
        let keys = KeyMap::agreed([Some(&keys()), Some(&other)]);
        let resolved = |entries: &[u8]| decode(&record(entries)).unwrap().resolve(&keys);
        let context = resolved(&[0, 1, b'v', 1, 1, b'w', 1, 1, b'z', 2, 1, b'u']);
        let named = [("a".into(), "v".into()), ("#1".into(), "z".into())];
        assert_eq!(context.attributes, named);
        let skipped = (context.skipped.contested_key, context.skipped.unknown_key);
        assert_eq!(skipped, (1, 1));
        // Only attributes that are kept count.
        let context = resolved(&[1, 1, b'w', 1, 1, 0xff]);
        assert_eq!(
            (context.attributes.len(), context.skipped.contested_key),
            (0, 0)
        );
    }

    #[test]
    fn values_are_cut_between_characters() {
        let long = "é".repeat(128);
        let mut data = [0; 612];
        let mut used = 0;
        assert_eq!(append(&mut data, &mut used, 3, &long), Appended::Cut);
        assert_eq!((used, data[1]), (256, 254));
        assert_eq!(data[2..256], long.as_bytes()[..254]);
        assert_eq!(
            append(&mut data, &mut used, 4, &"x".repeat(255)),
            Appended::Whole
        );
        assert_eq!(used, 513);
    }

    #[test]
    fn an_entry_that_does_not_fit_is_skipped_entirely() {
        let mut data = vec![0; 10];
        let mut used = 0;
        assert_eq!(append(&mut data, &mut used, 1, "12345678"), Appended::Whole);
        assert_eq!(append(&mut data, &mut used, 2, ""), Appended::NoRoom);
        assert_eq!(used, 10);
        used = 11;
        assert_eq!(append(&mut data, &mut used, 2, ""), Appended::NoRoom);
    }
}
