//! `otelctx-format` agrees with every vector of `vectors/`.

use std::collections::BTreeSet;

use otelctx_format::process_context::{
    Attributes, HEADER_SIZE, Header, HeaderError, Payload, PayloadErrorKind, Problem, Value,
};
use otelctx_format::record::{self, Appended, RecordError};
use otelctx_format::{KeyMap, KeyMapError, Schema, TraceFlags};
use serde_json::{Value as Json, json};

mod read;

/// Checks every vector of a file: `judge` returns the fields that the vector must have beside its
/// name and its input.
fn check(file: &str, input: &[&str], judge: impl Fn(&Json) -> Json) {
    let mut names = BTreeSet::new();
    for vector in read::vectors(file) {
        let name = read::text(&vector["name"]).to_owned();
        let mut stated = vector.clone();
        let fields = stated.as_object_mut().expect("a vector is an object");
        fields.retain(|field, _| field != "name" && !input.contains(&field.as_str()));
        // As text, because numbers compare 0.0 and -0.0 as equal.
        assert_eq!(judge(&vector).to_string(), stated.to_string(), "{name}");
        assert!(names.insert(name), "two vectors have one name");
    }
}

fn object(fields: Json, more: Json) -> Json {
    let [Json::Object(mut fields), Json::Object(more)] = [fields, more] else {
        panic!("not two objects")
    };
    fields.extend(more);
    Json::Object(fields)
}

#[test]
fn every_file_is_checked() {
    let checked = [
        "headers",
        "key_maps",
        "payloads",
        "record_writes",
        "records",
    ];
    let files = std::fs::read_dir(read::DIRECTORY).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let files: BTreeSet<_> = names.collect();
    assert_eq!(files, checked.map(|name| format!("{name}.json")).into());
}

#[test]
fn records_are_read_as_stated() {
    check("records", &["hex", "keys"], |vector| {
        let keys: Vec<_> = read::array(&vector["keys"])
            .iter()
            .map(read::text)
            .collect();
        let keys = KeyMap::new(keys).expect("256 keys at most");
        match record::decode(&read::bytes(&vector["hex"])) {
            Err(RecordError::NotValid { .. }) => json!({"verdict": "not_valid"}),
            Err(RecordError::TooShort { .. }) => json!({"verdict": "too_short"}),
            Err(other) => panic!("no verdict for: {other}"),
            Ok(record) => {
                let context = record.resolve(&keys);
                let (trace, span) = (context.trace_id, context.span_id);
                json!({"verdict": "ok", "context": {
                    "trace_id": (!trace.is_zero()).then(|| trace.to_string()),
                    "span_id": (!span.is_zero()).then(|| span.to_string()),
                    "trace_flags": context.trace_flags.0,
                    "attributes": context.attributes,
                    "skipped": {
                        "unknown_key": context.skipped.unknown_key,
                        "not_utf8": context.skipped.not_utf8,
                        "incomplete_bytes": context.skipped.incomplete_bytes,
                    },
                }})
            }
        }
    });
}

#[test]
fn records_are_written_as_stated() {
    let input = ["capacity", "trace_id", "span_id", "trace_flags"];
    check("record_writes", &input, |vector| {
        let mut bytes = vec![0; vector["capacity"].as_u64().unwrap() as usize];
        let mut used = 0;
        let appends = read::array(&vector["appends"]).iter().map(|append| {
            let (key, value) = (&append["key"], &append["value"]);
            let room = &mut bytes[record::HEADER_SIZE..];
            let key_index = key.as_u64().unwrap() as u8;
            let verdict = match record::append(room, &mut used, key_index, read::text(value)) {
                Appended::Whole => "whole",
                Appended::Cut => "cut",
                Appended::NoRoom => "no_room",
            };
            json!({"key": key, "value": value, "verdict": verdict})
        });
        let appends: Json = appends.collect();
        let header = record::Header {
            trace_id: read::text(&vector["trace_id"]).parse().expect("32 digits"),
            span_id: read::text(&vector["span_id"]).parse().expect("16 digits"),
            valid: record::VALID,
            trace_flags: TraceFlags(vector["trace_flags"].as_u64().unwrap() as u8),
            attributes_size: u16::try_from(used).expect("no record is larger"),
        };
        bytes[..record::HEADER_SIZE].copy_from_slice(&header.encode());
        bytes.truncate(record::HEADER_SIZE + used);
        let is_same = bytes == read::bytes(&vector["hex"]);
        json!({"appends": appends, "hex": if is_same { &vector["hex"] } else { &Json::Null }})
    });
}

#[test]
fn headers_are_read_as_stated() {
    check("headers", &["hex"], |vector| {
        let bytes = read::bytes(&vector["hex"]);
        let bytes: &[u8; HEADER_SIZE] = bytes[..].try_into().expect("a header has 32 bytes");
        match Header::decode(bytes) {
            Err(HeaderError::Signature { .. }) => json!({"verdict": "bad_signature"}),
            Err(HeaderError::Version { .. }) => json!({"verdict": "bad_version"}),
            Err(other) => panic!("no verdict for: {other}"),
            Ok(header) => json!({
                "verdict": match header.monotonic_published_at_ns {
                    0 => "being_updated",
                    _ => "ok",
                },
                "payload_size": header.payload_size,
                "monotonic_published_at_ns": header.monotonic_published_at_ns.to_string(),
                "payload_address": header.payload_address.to_string(),
            }),
        }
    });
}

#[test]
fn payloads_are_read_and_written_as_stated() {
    check("payloads", &["hex", "may_be_accepted"], |vector| {
        let bytes = read::bytes(&vector["hex"]);
        let (canonical, outcome) = match Payload::decode(&bytes) {
            Ok(mut payload) => {
                let problem = |problem| match problem {
                    Problem::EmptyKey => json!("empty_key"),
                    Problem::RepeatedKey(key) => json!({"repeated_key": key}),
                    other => panic!("no word for: {other}"),
                };
                let problems: Json = payload.take_problems().into_iter().map(problem).collect();
                let outcome = json!({
                    "verdict": "ok", "payload": payload_as_json(&payload), "problems": problems,
                });
                (payload.encode() == bytes, outcome)
            }
            Err(error) => (false, refused(error.kind)),
        };
        object(json!({"canonical": canonical}), outcome)
    });
}

fn refused(kind: PayloadErrorKind) -> Json {
    let reason = match kind {
        PayloadErrorKind::TooDeep => return json!({"verdict": "too_deep"}),
        PayloadErrorKind::TooManyValues => return json!({"verdict": "too_many_values"}),
        PayloadErrorKind::CutShort => "cut_short",
        PayloadErrorKind::Varint => "varint",
        PayloadErrorKind::FieldNumber => "field_number",
        PayloadErrorKind::WireType => "wire_type",
        PayloadErrorKind::NotUtf8 => "not_utf8",
        other => panic!("no word for {other:?}"),
    };
    json!({"verdict": "malformed", "reason": reason})
}

#[test]
fn key_maps_are_read_as_stated() {
    check("key_maps", &["hex"], |vector| {
        let payload = Payload::decode(&read::bytes(&vector["hex"])).expect("a well-formed payload");
        let schema = Schema::of(&payload);
        let announced = json!({
            "thread_local_record": schema.as_ref().is_some_and(Schema::is_thread_local_record),
            "schema": schema.map(|schema| schema.to_string()),
        });
        let key_map = match KeyMap::of(&payload) {
            Ok(Some(keys)) => json!({"verdict": "ok", "keys": keys.names()}),
            Ok(None) => json!({"verdict": "absent"}),
            Err(KeyMapError::NotAnArray) => json!({"verdict": "not_an_array"}),
            Err(KeyMapError::NotAString { .. }) => json!({"verdict": "not_a_string"}),
            Err(KeyMapError::TooMany) => json!({"verdict": "too_many"}),
            Err(other) => panic!("no verdict for: {other}"),
        };
        object(announced, key_map)
    });
}

/// A payload in OTLP's JSON mapping: lowerCamelCase names, 64-bit integers as strings, bytes in
/// Base64, and `"NaN"`, `"Infinity"`, `"-Infinity"` where JSON has no number.
fn payload_as_json(payload: &Payload) -> Json {
    json!({
        "resource": {"attributes": attributes_as_json(&payload.resource)},
        "attributes": attributes_as_json(&payload.attributes),
    })
}

fn attributes_as_json(attributes: &Attributes) -> Json {
    let attribute = |(key, value): &(String, Value)| json!({"key": key, "value": as_json(value)});
    attributes.iter().map(attribute).collect()
}

fn as_json(value: &Value) -> Json {
    match value {
        Value::Empty => json!({}),
        Value::String(text) => json!({"stringValue": text}),
        Value::Bool(truth) => json!({"boolValue": truth}),
        Value::Int(number) => json!({"intValue": number.to_string()}),
        Value::Double(number) if number.is_finite() => json!({"doubleValue": number}),
        Value::Double(number) if number.is_nan() => json!({"doubleValue": "NaN"}),
        Value::Double(number) if *number > 0.0 => json!({"doubleValue": "Infinity"}),
        Value::Double(_) => json!({"doubleValue": "-Infinity"}),
        Value::Array(items) => {
            json!({"arrayValue": {"values": items.iter().map(as_json).collect::<Json>()}})
        }
        Value::Map(items) => json!({"kvlistValue": {"values": attributes_as_json(items)}}),
        Value::Bytes(bytes) => json!({"bytesValue": base64(bytes)}),
        other => panic!("no JSON for {other:?}"),
    }
}

/// Base64 with padding (RFC 4648, section 4).
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = |group: &[u8]| {
        let bits = (0..3).fold(0, |bits, at| {
            bits << 8 | u32::from(*group.get(at).unwrap_or(&0))
        });
        let digit = |at: usize| ALPHABET[(bits >> (18 - 6 * at) & 63) as usize].into();
        [0, 1, 2, 3].map(|at| if at <= group.len() { digit(at) } else { '=' })
    };
    bytes.chunks(3).flat_map(digits).collect()
}
