//! W3C Trace Context identifiers.

use alloc::string::String;
use core::fmt;
use core::str::FromStr;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $size:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(transparent)]
        pub struct $name([u8; $size]);

        impl $name {
            /// All zeroes, which means "no ID".
            pub const ZERO: Self = Self([0; $size]);

            /// Returns the id with these bytes, most significant first.
            #[inline]
            #[must_use]
            pub const fn from_bytes(bytes: [u8; $size]) -> Self {
                Self(bytes)
            }

            /// Returns the bytes of the id, most significant first.
            #[inline]
            #[must_use]
            pub const fn to_bytes(self) -> [u8; $size] {
                self.0
            }

            /// Returns whether this is [`Self::ZERO`]: invalid in W3C, and "none" in both OTEPs.
            #[inline]
            #[must_use]
            pub fn is_zero(self) -> bool {
                self == Self::ZERO
            }
        }

        impl From<[u8; $size]> for $name {
            #[inline]
            fn from(bytes: [u8; $size]) -> Self {
                Self(bytes)
            }
        }

        impl fmt::Display for $name {
            /// Lower-case hexadecimal, as in a `traceparent` header.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_hexadecimal(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            /// Parses exactly as many hexadecimal digits as the ID has, in either case.
            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                let mut bytes = [0; $size];
                parse_hex(text, &mut bytes)?;
                Ok(Self(bytes))
            }
        }
    };
}

id!(
    /// The ID of a trace: 16 bytes.
    TraceId,
    16
);
id!(
    /// The ID of a span: 8 bytes.
    SpanId,
    8
);

/// W3C trace flags of a [`TraceId`] and [`SpanId`]. All eight bits are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct TraceFlags(pub u8);

impl TraceFlags {
    /// No flags set.
    pub const NONE: Self = Self(0);
    /// The caller may have recorded trace data (bit 0).
    pub const SAMPLED: Self = Self(1);
    /// At least the right-most seven bytes of the trace ID are random (bit 1; W3C Trace Context, level 2).
    pub const RANDOM_TRACE_ID: Self = Self(2);

    /// Returns whether bit 0 is set.
    #[must_use]
    pub const fn is_sampled(self) -> bool {
        self.0 & Self::SAMPLED.0 != 0
    }
}

/// An ID of zero. W3C Trace Context has none, and a record has both IDs or neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroId {
    /// The trace ID is zero.
    TraceId,
    /// The span ID is zero.
    SpanId,
}

impl ZeroId {
    /// Checks that neither ID is zero.
    ///
    /// # Errors
    /// The first ID that is zero.
    #[inline]
    pub fn check(trace_id: TraceId, span_id: SpanId) -> Result<(), Self> {
        if trace_id.is_zero() {
            return Err(Self::TraceId);
        }
        if span_id.is_zero() {
            return Err(Self::SpanId);
        }
        Ok(())
    }
}

impl fmt::Display for ZeroId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::TraceId => "trace_id",
            Self::SpanId => "span_id",
        };
        write!(
            f,
            "{name}: zero is not an ID; for attributes alone, give neither ID"
        )
    }
}

impl core::error::Error for ZeroId {}

/// The error of parsing text that is not a hexadecimal ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseIdError {
    expected_digits: usize,
}

impl fmt::Display for ParseIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.expected_digits;
        write!(f, "an id of {digits} hexadecimal digits was expected")
    }
}

impl core::error::Error for ParseIdError {}

/// Formats bytes as lower-case hexadecimal digits, two per byte.
#[must_use]
pub fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    // Writing to a string does not fail.
    let _ = write_hexadecimal(bytes, &mut text);
    text
}

fn write_hexadecimal(bytes: &[u8], out: &mut impl fmt::Write) -> fmt::Result {
    for byte in bytes {
        for bits in [byte >> 4, byte & 0xf] {
            out.write_char(char::from_digit(bits.into(), 16).unwrap_or_default())?;
        }
    }
    Ok(())
}

fn parse_hex(text: &str, bytes: &mut [u8]) -> Result<(), ParseIdError> {
    let error = ParseIdError {
        expected_digits: bytes.len() * 2,
    };
    if text.len() != error.expected_digits {
        return Err(error);
    }
    let digit = |c: u8| (c as char).to_digit(16).ok_or(error);
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = (digit(pair[0])? * 16 + digit(pair[1])?) as u8;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_trace_is_sampled_by_its_bit_alone() {
        for flags in 0..=u8::MAX {
            let is_sampled = TraceFlags(flags).is_sampled();
            assert_eq!(is_sampled, flags % 2 == 1, "{flags}");
        }
        assert!(!TraceFlags::RANDOM_TRACE_ID.is_sampled());
    }

    #[test]
    fn ids_print_and_parse_as_w3c_hex() {
        let text = "4bf92f3577b34da6a3ce929d0e0e4736";
        let id: TraceId = text.parse().unwrap();
        assert_eq!(id.to_bytes()[0], 0x4b);
        assert_eq!(id.to_bytes()[15], 0x36);
        assert_eq!(id.to_string(), text);
        assert_eq!(
            "00F067AA0BA902B7".parse::<SpanId>().unwrap().to_string(),
            "00f067aa0ba902b7"
        );
    }

    #[test]
    fn texts_of_another_length_or_alphabet_are_refused() {
        for text in [
            "",
            "4bf9",
            "4bf92f3577b34da6a3ce929d0e0e473",
            "+bf92f3577b34da6a3ce929d0e0e4736",
            "ébf92f3577b34da6a3ce929d0e0e473",
        ] {
            assert!(text.parse::<TraceId>().is_err(), "{text}");
        }
    }
}
