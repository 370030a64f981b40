//! `record_writes.json`.

use otelctx_format::record::{self, Appended, HEADER_SIZE};
use otelctx_format::{SpanId, TraceFlags, TraceId};
use serde::Serialize;

use crate::Hex;
use crate::bytes::digits;

/// What is to be written, and the record that comes of it.
#[derive(Serialize)]
pub struct Vector {
    /// Short and unique in its file.
    pub name: &'static str,
    /// Bytes that the record may have at most.
    pub capacity: usize,
    /// 32 hexadecimal digits.
    pub trace_id: String,
    /// 16 hexadecimal digits.
    pub span_id: String,
    /// The flags.
    pub trace_flags: u8,
    /// What is appended, in this order.
    pub appends: Vec<Append>,
    /// The record, to its announced end.
    pub hex: Hex,
}

/// One attribute to append.
#[derive(Serialize)]
pub struct Append {
    /// Its key's position in the key map.
    pub key: u8,
    /// The value.
    pub value: String,
    /// How much of it must have been written.
    pub verdict: Verdict,
}

/// How much of an attribute was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// All of it.
    Whole,
    /// Its first 255 bytes, or up to three less to end between characters.
    Cut,
    /// Nothing: it does not fit.
    NoRoom,
}

const TRACE: [u8; 16] = [0xab; 16];
const SPAN: [u8; 8] = [0xcd; 8];

/// `written` holds the expected bytes of each entry.
fn vector(
    name: &'static str,
    capacity: usize,
    appends: Vec<Append>,
    written: &[(u8, &str)],
) -> Vector {
    let mut entries = Vec::new();
    for (key, value) in written {
        entries.extend([*key, value.len() as u8]);
        entries.extend(value.bytes());
    }
    let size = (entries.len() as u16).to_le_bytes();
    Vector {
        name,
        capacity,
        trace_id: digits(&TRACE),
        span_id: digits(&SPAN),
        trace_flags: 1,
        appends,
        hex: [&TRACE[..], &SPAN, &[1, 1], &size, &entries]
            .concat()
            .into(),
    }
}

fn append(key: u8, value: &str, verdict: Verdict) -> Append {
    Append {
        key,
        value: value.into(),
        verdict,
    }
}

/// All vectors of the file.
#[must_use]
pub fn vectors() -> Vec<Vector> {
    use Verdict::{Cut, NoRoom, Whole};
    let x = |times| "x".repeat(times);
    let one = |name, value: &str, verdict, written: &str| {
        vector(name, 640, vec![append(0, value, verdict)], &[(0, written)])
    };
    let e = "é".repeat(128);
    vec![
        vector("no_attributes", 28, vec![], &[]),
        one("empty_value", "", Whole, ""),
        one("value_of_255_bytes", &x(255), Whole, &x(255)),
        one("value_of_256_bytes", &x(256), Cut, &x(255)),
        one("cut_before_a_two_byte_character", &e, Cut, &e[..254]),
        one(
            "cut_before_a_three_byte_character",
            &(x(253) + "€"),
            Cut,
            &x(253),
        ),
        one(
            "cut_before_a_four_byte_character",
            &(x(252) + "\u{1f600}"),
            Cut,
            &x(252),
        ),
        one(
            "cut_behind_a_four_byte_character",
            &(x(251) + "\u{1f600}x"),
            Cut,
            &(x(251) + "\u{1f600}"),
        ),
        vector(
            "an_entry_that_does_not_fit_is_left_out_whole_and_a_shorter_one_still_fits",
            28 + 8,
            vec![
                append(0, "abc", Whole),
                append(1, "xy", NoRoom),
                append(2, "z", Whole),
            ],
            &[(0, "abc"), (2, "z")],
        ),
        vector(
            "a_full_record_of_640_bytes",
            640,
            vec![
                append(0, &x(255), Whole),
                append(1, &x(300), Cut),
                append(2, &x(97), NoRoom),
                append(3, &x(96), Whole),
                append(4, "", NoRoom),
            ],
            &[(0, &x(255)), (1, &x(255)), (3, &x(96))],
        ),
    ]
}

/// What `otelctx-format` writes for a vector: the record, and how much of each attribute.
///
/// # Panics
/// When the vector's ids are not hexadecimal digits.
#[must_use]
pub fn judge(vector: &Vector) -> (Vec<u8>, Vec<Verdict>) {
    let mut bytes = vec![0; vector.capacity];
    let mut used = 0;
    let verdicts = vector
        .appends
        .iter()
        .map(|Append { key, value, .. }| {
            match record::append(&mut bytes[HEADER_SIZE..], &mut used, *key, value) {
                Appended::Whole => Verdict::Whole,
                Appended::Cut => Verdict::Cut,
                Appended::NoRoom => Verdict::NoRoom,
            }
        })
        .collect();
    let header = record::Header {
        trace_id: vector.trace_id.parse::<TraceId>().expect("32 digits"),
        span_id: vector.span_id.parse::<SpanId>().expect("16 digits"),
        valid: record::VALID,
        trace_flags: TraceFlags(vector.trace_flags),
        attributes_size: u16::try_from(used).expect("no record is larger"),
    };
    bytes[..HEADER_SIZE].copy_from_slice(&header.encode());
    bytes.truncate(HEADER_SIZE + used);
    (bytes, verdicts)
}
