//! `headers.json`.

use otelctx_format::process_context::{HEADER_SIZE, Header, HeaderError};
use serde::Serialize;

use crate::Hex;

/// The first 32 bytes of a mapping, and what they are.
#[derive(Serialize)]
pub struct Vector {
    /// Short and unique in its file.
    pub name: &'static str,
    /// The bytes.
    pub hex: Hex,
    /// What a reader does with them.
    pub verdict: Verdict,
    /// The fields, where the signature and version are right.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub fields: Option<Fields>,
}

/// What a reader does with a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Goes on to the payload.
    Ok,
    /// Tries again a little later: the timestamp is 0.
    BeingUpdated,
    /// Not a process context.
    BadSignature,
    /// A version that this reader does not know.
    BadVersion,
}

/// The fields of a header. The 64-bit ones are strings, because they outgrow JavaScript's integers.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Fields {
    /// Bytes of the payload.
    pub payload_size: u32,
    /// `CLOCK_BOOTTIME` in nanoseconds.
    pub monotonic_published_at_ns: String,
    /// An address in the publishing process.
    pub payload_address: String,
}

fn bytes(signature: &[u8; 8], version: u32, size: u32, timestamp: u64, address: u64) -> Hex {
    [
        &signature[..],
        &version.to_le_bytes(),
        &size.to_le_bytes(),
        &timestamp.to_le_bytes(),
        &address.to_le_bytes(),
    ]
    .concat()
    .into()
}

fn fields(payload_size: u32, timestamp: u64, address: u64) -> Option<Fields> {
    Some(Fields {
        payload_size,
        monotonic_published_at_ns: timestamp.to_string(),
        payload_address: address.to_string(),
    })
}

/// All vectors of the file.
#[must_use]
pub fn vectors() -> Vec<Vector> {
    const TIMESTAMP: u64 = 4_711_000_000_123;
    const ADDRESS: u64 = 0x7f3a_5c00_1000;
    // The size of the payload `a_service`.
    let service = crate::payload::service().len() as u32;
    let right = |name, verdict, size, timestamp, address| Vector {
        name,
        hex: bytes(b"OTEL_CTX", 2, size, timestamp, address),
        verdict,
        fields: fields(size, timestamp, address),
    };
    let wrong = |name, verdict, signature, version| Vector {
        name,
        hex: bytes(signature, version, 40, TIMESTAMP, ADDRESS),
        verdict,
        fields: None,
    };
    vec![
        right("published", Verdict::Ok, service, TIMESTAMP, ADDRESS),
        right("timestamp_zero", Verdict::BeingUpdated, 40, 0, ADDRESS),
        // Bounding the size, and whether the address can be read, come after the header.
        right(
            "payload_of_4_gib",
            Verdict::Ok,
            u32::MAX,
            TIMESTAMP,
            ADDRESS,
        ),
        right("payload_of_nothing_at_null", Verdict::Ok, 0, TIMESTAMP, 0),
        right(
            "largest_timestamp_and_address",
            Verdict::Ok,
            40,
            u64::MAX,
            u64::MAX,
        ),
        wrong(
            "zeroes_in_place_of_the_signature",
            Verdict::BadSignature,
            &[0; 8],
            2,
        ),
        wrong(
            "signature_of_one_letter_less",
            Verdict::BadSignature,
            b"OTEL_CT\0",
            2,
        ),
        wrong(
            "signature_in_lower_case",
            Verdict::BadSignature,
            b"otel_ctx",
            2,
        ),
        wrong(
            "signature_is_judged_before_the_version",
            Verdict::BadSignature,
            b"XTEL_CTX",
            3,
        ),
        wrong("version_0", Verdict::BadVersion, b"OTEL_CTX", 0),
        wrong("version_1", Verdict::BadVersion, b"OTEL_CTX", 1),
        wrong("version_3", Verdict::BadVersion, b"OTEL_CTX", 3),
        wrong(
            "version_of_the_other_byte_order",
            Verdict::BadVersion,
            b"OTEL_CTX",
            0x0200_0000,
        ),
    ]
}

/// What `otelctx-format` makes of the bytes.
///
/// # Panics
/// When there are not 32 of them.
#[must_use]
pub fn judge(bytes: &[u8]) -> (Verdict, Option<Fields>) {
    let bytes: &[u8; HEADER_SIZE] = bytes.try_into().expect("a header has 32 bytes");
    match Header::decode(bytes) {
        Err(HeaderError::Signature { .. }) => (Verdict::BadSignature, None),
        Err(HeaderError::Version { .. }) => (Verdict::BadVersion, None),
        Err(other) => panic!("the files have no name for: {other}"),
        Ok(header) => {
            let Header {
                payload_size,
                monotonic_published_at_ns,
                payload_address,
            } = header;
            let verdict = if monotonic_published_at_ns == 0 {
                Verdict::BeingUpdated
            } else {
                Verdict::Ok
            };
            (
                verdict,
                fields(payload_size, monotonic_published_at_ns, payload_address),
            )
        }
    }
}
