//! Attributes as text.

use otelctx_reader::ProcessContext;
use otelctx_reader::format::process_context::{Attributes, Value};
use otelctx_reader::format::{THREADLOCAL, hexadecimal};

use super::terminal::escape;

/// Formats each attribute as `key=value`, except the ones that only describe the mechanism.
pub(crate) fn pairs(attributes: &Attributes) -> Vec<String> {
    let shown = attributes.iter();
    let shown = shown.filter(|(key, _)| !key.starts_with(THREADLOCAL));
    shown.map(pair).collect()
}

fn pair((key, value): &(String, Value)) -> String {
    format!("{}={}", escape(key), text(value))
}

/// Formats a value on one line, escaped.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => escape(text),
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Double(value) => value.to_string(),
        Value::Array(values) => {
            let items: Vec<String> = values.iter().map(text).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Map(attributes) => {
            let items: Vec<String> = attributes.iter().map(pair).collect();
            format!("{{{}}}", items.join(", "))
        }
        Value::Bytes(bytes) => format!("0x{}", hexadecimal(bytes)),
        // No value; `Value` may also get more variants.
        _ => "(empty)".into(),
    }
}

/// Returns the value of a string attribute, or `None` if it is missing or not a string.
pub(crate) fn string<'a>(attributes: &'a Attributes, key: &str) -> Option<&'a str> {
    match attributes.iter().find(|(name, _)| name == key) {
        Some((_, Value::String(text))) => Some(text),
        _ => None,
    }
}

/// Returns the service's name in a detected resource, unless it is the specification's name for a
/// service without a name.
pub(crate) fn detected_service(resource: &Attributes) -> Option<&str> {
    string(resource, "service.name").filter(|name| !name.starts_with("unknown_service"))
}

/// Returns the language of a service: that of its SDK, else its runtime.
pub(crate) fn language(resource: &Attributes) -> Option<&str> {
    string(resource, "telemetry.sdk.language").or_else(|| string(resource, "process.runtime.name"))
}

/// Says on which names of attributes of threads' contexts the publishers of a process disagree, if any.
/// `consequence` is a part of the sentence.
pub(crate) fn contested(context: &ProcessContext, consequence: &str) -> Option<String> {
    let Ok(Some(keys)) = &context.keys else {
        return None;
    };
    let contested = keys.contested();
    let first = contested.iter().take(MAX_CONTESTED);
    let mut shown: Vec<String> = first.map(|index| format!("#{index}")).collect();
    if let Some(more @ 1..) = contested.len().checked_sub(MAX_CONTESTED) {
        shown.push(format!("{more} more"));
    }
    (!shown.is_empty()).then(|| {
        format!(
            "the process contexts have different names for attributes of threads{consequence}: {}",
            shown.join(", ")
        )
    })
}

/// Maximum number of indexes that are listed.
const MAX_CONTESTED: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_of_value_has_its_text() {
        let attributes: Attributes = vec![
            ("a\x1b".into(), "b\n".into()),
            ("threadlocal.schema_version".into(), "hidden".into()),
            ("n".into(), (-1_i64).into()),
            ("d".into(), 0.5.into()),
            ("l".into(), vec![Value::Bool(true), Value::Empty].into()),
            (
                "m".into(),
                vec![("k".to_owned(), Value::Bytes(vec![1, 255]))].into(),
            ),
        ];
        assert_eq!(
            pairs(&attributes),
            [
                "a\\u{1b}=b\\n",
                "n=-1",
                "d=0.5",
                "l=[true, (empty)]",
                "m={k=0x01ff}"
            ]
        );
    }
}
