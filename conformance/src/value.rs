//! Payloads as OTLP's JSON mapping writes them, so that an implementation on top of a Protocol
//! Buffers library compares with what the library prints.

use otelctx_format::process_context::{Attributes, Payload, Value};
use serde_json::{Value as Json, json};

/// The payload as JSON: lowerCamelCase names, 64-bit integers as strings, bytes in Base64, and
/// `"NaN"`, `"Infinity"`, `"-Infinity"` for what JSON has no number for.
pub(crate) fn payload_to_json(payload: &Payload) -> Json {
    json!({
        "resource": {"attributes": attributes_to_json(&payload.resource)},
        "attributes": attributes_to_json(&payload.attributes),
    })
}

fn attributes_to_json(attributes: &Attributes) -> Json {
    let attribute = |(key, value): &(String, Value)| json!({"key": key, "value": to_json(value)});
    attributes.iter().map(attribute).collect()
}

fn to_json(value: &Value) -> Json {
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
            json!({"arrayValue": {"values": items.iter().map(to_json).collect::<Json>()}})
        }
        Value::Map(items) => json!({"kvlistValue": {"values": attributes_to_json(items)}}),
        Value::Bytes(bytes) => json!({"bytesValue": base64(bytes)}),
        other => panic!("the files have no way to write {other:?}"),
    }
}

/// Base64 with padding (RFC 4648, section 4).
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits = group
            .iter()
            .fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
        let bits = bits << (8 * (3 - group.len()));
        for position in 0..4 {
            let digit = ALPHABET[(bits >> (18 - 6 * position) & 63) as usize];
            text.push(if position <= group.len() {
                digit.into()
            } else {
                '='
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn base64_is_as_rfc_4648_section_10_lists_it() {
        let listed = [
            "", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy",
        ];
        for (length, expected) in listed.iter().enumerate() {
            assert_eq!(base64(&b"foobar"[..length]), *expected);
        }
    }
}
