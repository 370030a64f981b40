//! The errors of decoding a payload, and the limits whose excess is one.

use core::fmt;

/// Maximum nesting depth of arrays and maps.
pub const MAX_DEPTH: u32 = 32;
/// Maximum number of attributes and values in a payload, including nested ones. Bounds the memory
/// for decoding: a value can take two bytes in the payload, and takes 56 in memory.
pub const MAX_VALUES: u32 = 65_536;

/// The error of decoding bytes that are not a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadError {
    /// The position of the error, in bytes from the payload's start.
    pub position: usize,
    /// The defect at this position.
    pub kind: PayloadErrorKind,
}

/// The defect of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PayloadErrorKind {
    /// A length exceeds the remaining bytes.
    CutShort,
    /// A number has more than 64 bits.
    Varint,
    /// A field number is zero or too large.
    FieldNumber,
    /// A field has the wrong wire type.
    WireType,
    /// A string is not UTF-8.
    NotUtf8,
    /// Nested deeper than [`MAX_DEPTH`].
    TooDeep,
    /// More than [`MAX_VALUES`] values.
    TooManyValues,
}

impl fmt::Display for PayloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the payload is malformed at byte {}: ", self.position)?;
        match self.kind {
            PayloadErrorKind::CutShort => write!(f, "it ends in the middle of a value"),
            PayloadErrorKind::Varint => write!(f, "a number has more than 64 bits"),
            PayloadErrorKind::FieldNumber => write!(f, "a field number is out of range"),
            PayloadErrorKind::WireType => write!(f, "a field has the wrong wire type"),
            PayloadErrorKind::NotUtf8 => write!(f, "a text is not UTF-8"),
            PayloadErrorKind::TooDeep => write!(f, "values are nested deeper than {MAX_DEPTH}"),
            PayloadErrorKind::TooManyValues => write!(f, "it has more than {MAX_VALUES} values"),
        }
    }
}

impl core::error::Error for PayloadError {}
