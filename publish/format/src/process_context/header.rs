//! The 32 bytes at the start of the mapping.
//!
//! | offset | type | field |
//! |---|---|---|
//! | 0 | `char[8]` | signature `OTEL_CTX`, no NUL |
//! | 8 | `u32` | version, 2 |
//! | 12 | `u32` | payload size in bytes |
//! | 16 | `u64` | monotonic_published_at_ns: `CLOCK_BOOTTIME`, 0 = being written |
//! | 24 | `u64` | payload: its address in the publishing process |

use core::fmt;

/// Size of a header, in bytes.
pub const HEADER_SIZE: usize = 32;
/// The first bytes of a header.
pub const SIGNATURE: [u8; 8] = *b"OTEL_CTX";
/// The format version that this crate implements.
pub const VERSION: u32 = 2;

/// A header with the right signature and version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Size of the payload, in bytes.
    pub payload_size: u32,
    /// The time of publishing, in nanoseconds of the publisher's `CLOCK_BOOTTIME`; 0 while it is
    /// being written. Compare it for equality only: each update sets a different value.
    pub monotonic_published_at_ns: u64,
    /// Address of the payload in the publishing process.
    pub payload_address: u64,
}

impl Header {
    /// Offset of the timestamp, in bytes from the header's start.
    pub const TIMESTAMP_OFFSET: usize = 16;
    /// Offset of the payload's address.
    pub const PAYLOAD_ADDRESS_OFFSET: usize = 24;

    /// Decodes a header.
    ///
    /// # Errors
    /// If the signature or the version does not match.
    pub fn decode(bytes: &[u8; HEADER_SIZE]) -> Result<Self, HeaderError> {
        let [signature, sizes, timestamp, address] = words(bytes);
        if signature != SIGNATURE {
            return Err(HeaderError::Signature { found: signature });
        }
        let [v0, v1, v2, v3, s0, s1, s2, s3] = sizes;
        let version = u32::from_ne_bytes([v0, v1, v2, v3]);
        if version != VERSION {
            return Err(HeaderError::Version { found: version });
        }
        Ok(Self {
            payload_size: u32::from_ne_bytes([s0, s1, s2, s3]),
            monotonic_published_at_ns: u64::from_ne_bytes(timestamp),
            payload_address: u64::from_ne_bytes(address),
        })
    }

    /// Encodes the header.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_SIZE] {
        let mut bytes = [0; HEADER_SIZE];
        bytes[..8].copy_from_slice(&SIGNATURE);
        bytes[8..12].copy_from_slice(&VERSION.to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.payload_size.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.monotonic_published_at_ns.to_ne_bytes());
        bytes[24..].copy_from_slice(&self.payload_address.to_ne_bytes());
        bytes
    }
}

fn words(bytes: &[u8; HEADER_SIZE]) -> [[u8; 8]; 4] {
    let mut words = [[0; 8]; 4];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        word.copy_from_slice(chunk);
    }
    words
}

/// The reason why bytes are not a header of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderError {
    /// The first bytes are not [`SIGNATURE`].
    Signature {
        /// The first eight bytes.
        found: [u8; 8],
    },
    /// The version is not [`VERSION`].
    Version {
        /// The version in the header.
        found: u32,
    },
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signature { found } => {
                let found = found.escape_ascii();
                write!(f, "the signature is \"{found}\", not \"OTEL_CTX\"")
            }
            Self::Version { found } => {
                write!(
                    f,
                    "the process context has version {found}; version {VERSION} is supported"
                )
            }
        }
    }
}

impl core::error::Error for HeaderError {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    const HEADER: Header = Header {
        payload_size: 0x0102_0304,
        monotonic_published_at_ns: 7,
        payload_address: 0x7f00_0000_1000,
    };

    #[test]
    fn the_fields_lie_where_the_proposal_says() {
        let bytes = HEADER.encode();
        assert_eq!(&bytes[..8], b"OTEL_CTX");
        assert_eq!(bytes[8..12], 2_u32.to_ne_bytes());
        assert_eq!(bytes[12..16], 0x0102_0304_u32.to_ne_bytes());
        assert_eq!(bytes[16..24], 7_u64.to_ne_bytes());
        assert_eq!(bytes[24..32], 0x7f00_0000_1000_u64.to_ne_bytes());
        assert_eq!(Header::decode(&bytes), Ok(HEADER));
    }

    #[test]
    fn another_signature_or_version_is_refused() {
        let mut bytes = HEADER.encode();
        bytes[8] = 3;
        assert_eq!(
            Header::decode(&bytes),
            Err(HeaderError::Version { found: 3 })
        );
        bytes[7] = b'\n';
        let error = Header::decode(&bytes).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the signature is \"OTEL_CT\\n\", not \"OTEL_CTX\""
        );
    }
}
