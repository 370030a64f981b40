//! Values of attributes in OTLP.

use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use otelctx_sample::format::process_context::Value;

use crate::digits;

fn malformed(what: &str, index: u64, length: usize) -> String {
    format!("{what} is entry {index} of {length}")
}

/// Returns an entry of a table.
pub(super) fn entry<'v, T>(table: &'v [T], index: u64, what: &str) -> Result<&'v T, String> {
    let found = usize::try_from(index).ok().and_then(|at| table.get(at));
    found.ok_or_else(|| malformed(what, index, table.len()))
}

/// Deepest value of a resource's attribute: deeper ones have none.
const MAX_DEPTH: usize = 16;

/// Decodes an ID of hexadecimal digits.
pub(super) fn id<const N: usize>(text: &str) -> Option<[u8; N]> {
    digits::bytes(text)?.try_into().ok()
}

/// Converts a resource's attribute, whose name may be in the dictionary's string table.
pub(super) fn attribute_of(
    strings: &[&str],
    attribute: &KeyValue,
) -> Result<(String, Value), String> {
    let key = match attribute.key_strindex {
        0 => attribute.key.clone(),
        index => (*entry(strings, index as u64, "a resource's attribute")?).to_owned(),
    };
    let value = attribute.value.as_ref();
    Ok((key, value_of(strings, value, 0)?))
}

fn value_of(strings: &[&str], value: Option<&AnyValue>, depth: usize) -> Result<Value, String> {
    use any_value::Value as Any;
    let value = value.and_then(|value| value.value.as_ref());
    Ok(match value {
        Some(Any::StringValue(text)) => Value::String(text.clone()),
        Some(Any::StringValueStrindex(index)) => {
            let text = entry(strings, *index as u64, "a resource's value")?;
            Value::String((*text).to_owned())
        }
        Some(Any::BoolValue(value)) => Value::Bool(*value),
        Some(Any::IntValue(value)) => Value::Int(*value),
        Some(Any::DoubleValue(value)) => Value::Double(*value),
        Some(Any::BytesValue(bytes)) => Value::Bytes(bytes.clone()),
        Some(Any::ArrayValue(list)) if depth < MAX_DEPTH => {
            let values = list.values.iter();
            let values = values.map(|it| value_of(strings, Some(it), depth + 1));
            Value::Array(values.collect::<Result<_, _>>()?)
        }
        Some(Any::KvlistValue(list)) if depth < MAX_DEPTH => {
            let entries = list.values.iter().map(|it| {
                let key = attribute_of(strings, it)?.0;
                Ok((key, value_of(strings, it.value.as_ref(), depth + 1)?))
            });
            Value::Map(entries.collect::<Result<_, String>>()?)
        }
        _ => Value::Empty,
    })
}
