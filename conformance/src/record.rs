//! `records.json`.

use otelctx_format::KeyMap;
use otelctx_format::record::{self, RecordError};
use serde::Serialize;

use crate::Hex;
use crate::bytes::digits;

/// A record, the key map to read it with, and what it says.
#[derive(Serialize)]
pub struct Vector {
    /// Short and unique in its file.
    pub name: &'static str,
    /// The bytes that could be read.
    pub hex: Hex,
    /// The key map.
    pub keys: Vec<&'static str>,
    /// What a reader does with them.
    pub verdict: Verdict,
    /// What the record says, where it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<Context>,
}

/// What a reader does with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Takes a context from it.
    Ok,
    /// Ignores it: the valid byte is not 1.
    NotValid,
    /// Ignores it: fewer bytes than a header has.
    TooShort,
}

/// What a thread works on.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Context {
    /// 32 hexadecimal digits, or null.
    pub trace_id: Option<String>,
    /// 16 hexadecimal digits, or null.
    pub span_id: Option<String>,
    /// All eight bits.
    pub trace_flags: u8,
    /// Key and value, in the order in which each key stands first.
    pub attributes: Vec<(String, String)>,
    /// What a reader leaves out and counts.
    pub skipped: Skipped,
}

/// What a reader leaves out and counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// Entries whose key is outside the key map.
    pub unknown_key: u32,
    /// Entries whose value is not UTF-8.
    pub not_utf8: u32,
    /// Bytes from the first incomplete entry to the announced end.
    pub incomplete_bytes: usize,
}

const TRACE: [u8; 16] = *b"\x4b\xf9\x2f\x35\x77\xb3\x4d\xa6\xa3\xce\x92\x9d\x0e\x0e\x47\x36";
const SPAN: [u8; 8] = *b"\x00\xf0\x67\xaa\x0b\xa9\x02\xb7";

fn header(trace: [u8; 16], span: [u8; 8], valid: u8, flags: u8, size: u16) -> Vec<u8> {
    [&trace[..], &span, &[valid, flags], &size.to_le_bytes()].concat()
}

fn valid(entries: &[u8]) -> Hex {
    [
        header(TRACE, SPAN, 1, 1, entries.len() as u16),
        entries.to_vec(),
    ]
    .concat()
    .into()
}

fn read(attributes: &[(&str, &str)]) -> Context {
    let owned = |&(key, value): &(&str, &str)| (key.to_owned(), value.to_owned());
    Context {
        trace_id: Some(digits(&TRACE)),
        span_id: Some(digits(&SPAN)),
        trace_flags: 1,
        attributes: attributes.iter().map(owned).collect(),
        skipped: Skipped::default(),
    }
}

fn skipping(attributes: &[(&str, &str)], skipped: Skipped) -> Context {
    Context {
        skipped,
        ..read(attributes)
    }
}

fn entry(key: u8, value: &[u8]) -> Vec<u8> {
    assert!(value.len() < 256);
    [&[key, value.len() as u8], value].concat()
}

/// The record that the README shows byte by byte.
pub(crate) fn two_attributes() -> Vector {
    let entries = [entry(0, b"/cart"), entry(2, "Zürich".as_bytes())].concat();
    Vector {
        name: "two_attributes",
        hex: valid(&entries),
        keys: vec!["http.route", "http.request.method", "city"],
        verdict: Verdict::Ok,
        context: Some(read(&[("http.route", "/cart"), ("city", "Zürich")])),
    }
}

/// All vectors of the file.
#[must_use]
pub fn vectors() -> Vec<Vector> {
    let mut vectors = vec![two_attributes()];
    vectors.extend(ids_and_flags());
    vectors.extend(entries());
    vectors.extend(ends());
    vectors.extend(sizes());
    vectors.extend(refused());
    vectors
}

fn with_keys(name: &'static str, keys: &[&'static str], hex: Hex, context: Context) -> Vector {
    Vector {
        name,
        hex,
        keys: keys.to_vec(),
        verdict: Verdict::Ok,
        context: Some(context),
    }
}

fn ok(name: &'static str, hex: Hex, context: Context) -> Vector {
    with_keys(name, &["a", "b"], hex, context)
}

fn ids_and_flags() -> Vec<Vector> {
    let record = |trace, span, flags| Hex::from(header(trace, span, 1, flags, 0));
    let none = |trace_flags| Context {
        trace_id: None,
        span_id: None,
        trace_flags,
        ..read(&[])
    };
    let entries = entry(0, b"x");
    let ids_of_zero = [header([0; 16], [0; 8], 1, 0, entries.len() as u16), entries].concat();
    vec![
        ok("no_attributes", valid(&[]), read(&[])),
        ok("nothing_at_all", record([0; 16], [0; 8], 0), none(0)),
        ok(
            "ids_of_zero_with_an_attribute",
            ids_of_zero.into(),
            Context {
                attributes: read(&[("a", "x")]).attributes,
                ..none(0)
            },
        ),
        ok(
            "all_flags",
            record(TRACE, SPAN, 0xff),
            Context {
                trace_flags: 0xff,
                ..read(&[])
            },
        ),
        ok(
            "no_flag",
            record(TRACE, SPAN, 0),
            Context {
                trace_flags: 0,
                ..read(&[])
            },
        ),
    ]
}

fn entries() -> Vec<Vector> {
    let x_y_z = [entry(0, b"x"), entry(1, b"y"), entry(0, b"zz")].concat();
    let last_is_broken = [entry(0, b"x"), entry(0, b"\xff")].concat();
    let surrogate = [entry(0, b"\xed\xa0\x80"), entry(1, b"y")].concat();
    let cut_inside = [entry(0, b"caf\xc3"), entry(1, b"y")].concat();
    let unknown = [entry(2, b"x"), entry(255, b"y"), entry(1, b"z")].concat();
    let smile = "\u{1f600}";
    let not_utf8 = Skipped {
        not_utf8: 1,
        ..Skipped::default()
    };
    let unknown_key = |unknown_key| Skipped {
        unknown_key,
        ..Skipped::default()
    };
    vec![
        ok(
            "the_last_of_a_repeated_key_wins",
            valid(&x_y_z),
            read(&[("a", "zz"), ("b", "y")]),
        ),
        ok("empty_value", valid(&entry(0, b"")), read(&[("a", "")])),
        ok(
            "value_with_nul_and_newline",
            valid(&entry(1, b"\0\n")),
            read(&[("b", "\0\n")]),
        ),
        ok(
            "value_of_a_four_byte_character",
            valid(&entry(0, smile.as_bytes())),
            read(&[("a", smile)]),
        ),
        ok(
            "key_outside_the_key_map",
            valid(&unknown),
            skipping(&[("b", "z")], unknown_key(2)),
        ),
        with_keys(
            "no_key_map",
            &[],
            valid(&entry(0, b"x")),
            skipping(&[], unknown_key(1)),
        ),
        ok(
            "value_that_is_not_utf8",
            valid(&surrogate),
            skipping(&[("b", "y")], not_utf8),
        ),
        ok(
            "value_cut_inside_a_character",
            valid(&cut_inside),
            skipping(&[("b", "y")], not_utf8),
        ),
        with_keys(
            "a_name_that_stands_twice_in_the_key_map",
            &["a", "a"],
            valid(&[entry(0, b"x"), entry(1, b"y")].concat()),
            read(&[("a", "x"), ("a", "y")]),
        ),
        ok(
            "a_repeat_that_is_not_utf8_does_not_count",
            valid(&last_is_broken),
            skipping(&[("a", "x")], not_utf8),
        ),
    ]
}

/// Records whose entries and announced size do not end together.
fn ends() -> Vec<Vector> {
    let incomplete = |incomplete_bytes| {
        skipping(
            &[("a", "x")],
            Skipped {
                incomplete_bytes,
                ..Skipped::default()
            },
        )
    };
    let announcing = |size, rest: &[u8]| -> Hex {
        [header(TRACE, SPAN, 1, 1, size), rest.to_vec()]
            .concat()
            .into()
    };
    let a_x = entry(0, b"x");
    let then = |rest: &[u8]| [&a_x, rest].concat();
    vec![
        ok(
            "last_entry_without_its_length",
            valid(&then(&[1])),
            incomplete(1),
        ),
        ok(
            "last_entry_without_its_value",
            valid(&then(&[1, 3])),
            incomplete(2),
        ),
        ok(
            "last_entry_with_half_its_value",
            valid(&then(b"\x01\x03yy")),
            incomplete(4),
        ),
        ok(
            "size_ends_inside_an_entry",
            announcing(6, &then(b"\x01\x02yy")),
            incomplete(3),
        ),
        ok(
            "size_ends_before_the_last_entry",
            announcing(3, &then(b"\x01\x01y")),
            read(&[("a", "x")]),
        ),
        ok(
            "size_beyond_what_could_be_read",
            announcing(100, &a_x),
            incomplete(97),
        ),
        ok("size_of_0_before_entries", announcing(0, &a_x), read(&[])),
    ]
}

fn sizes() -> Vec<Vector> {
    let long = "x".repeat(255);
    let rest = "y".repeat(96);
    let full_entry = entry(0, long.as_bytes());
    let recommended = [&full_entry[..], &full_entry, &entry(1, rest.as_bytes())].concat();
    let maximum = Hex::from(header(TRACE, SPAN, 1, 1, u16::MAX));
    let longest = maximum
        .clone()
        .repeated(&full_entry, 254)
        .repeated(&entry(1, long.as_bytes()), 1);
    let shortest = maximum.repeated(&[0, 0], 32_767).repeated(&[1], 1);
    let one_byte = Skipped {
        incomplete_bytes: 1,
        ..Skipped::default()
    };
    vec![
        ok(
            "recommended_maximum_of_640_bytes",
            valid(&recommended),
            read(&[("a", &long), ("b", &rest)]),
        ),
        ok(
            "maximum_of_65563_bytes",
            longest,
            read(&[("a", &long), ("b", &long)]),
        ),
        ok(
            "maximum_of_entries",
            shortest,
            skipping(&[("a", "")], one_byte),
        ),
    ]
}

fn refused() -> Vec<Vector> {
    let refused = |name, verdict, bytes: Vec<u8>| Vector {
        name,
        hex: bytes.into(),
        keys: vec!["a", "b"],
        verdict,
        context: None,
    };
    let marked = |valid| [header(TRACE, SPAN, valid, 1, 3), entry(0, b"x")].concat();
    let mut one_less = header(TRACE, SPAN, 1, 1, 0);
    one_less.pop();
    vec![
        refused("valid_0", Verdict::NotValid, marked(0)),
        refused("valid_2", Verdict::NotValid, marked(2)),
        refused("valid_255", Verdict::NotValid, marked(255)),
        refused("no_bytes", Verdict::TooShort, vec![]),
        refused("one_byte_less_than_a_header", Verdict::TooShort, one_less),
    ]
}

/// What `otelctx-format` makes of the bytes.
///
/// # Panics
/// When there are more than 256 keys.
#[must_use]
pub fn judge(bytes: &[u8], keys: &[&str]) -> (Verdict, Option<Context>) {
    let keys = KeyMap::new(keys.iter().copied()).expect("256 keys at most");
    let record = match record::decode(bytes) {
        Err(RecordError::NotValid { .. }) => return (Verdict::NotValid, None),
        Err(RecordError::TooShort { .. }) => return (Verdict::TooShort, None),
        Err(other) => panic!("the files have no name for: {other}"),
        Ok(record) => record,
    };
    let context = record.resolve(&keys);
    let skipped = Skipped {
        unknown_key: context.skipped.unknown_key,
        not_utf8: context.skipped.not_utf8,
        incomplete_bytes: context.skipped.incomplete_bytes,
    };
    let context = Context {
        trace_id: (!context.trace_id.is_zero()).then(|| context.trace_id.to_string()),
        span_id: (!context.span_id.is_zero()).then(|| context.span_id.to_string()),
        trace_flags: context.trace_flags.0,
        attributes: context.attributes,
        skipped,
    };
    (Verdict::Ok, Some(context))
}
