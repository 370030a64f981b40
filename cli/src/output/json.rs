//! Writes one JSON value to standard output, described in docs/json.md.

use std::io::{self, Write};

use otelctx_reader::format::hexadecimal;
use otelctx_reader::format::process_context::{Attributes, Value};
use serde::Serialize;
use serde::ser::Serializer;

use super::terminal::is_control;

/// Formats `answer` as indented JSON.
pub(crate) fn render(answer: &impl Serialize) -> String {
    let mut json = Vec::new();
    // Cannot fail: keys are strings, all types serialize, and the output is memory.
    write(answer, &mut json).expect("answers are plain data");
    String::from_utf8(json).expect("JSON is text")
}

/// Writes `answer` as indented JSON.
pub(crate) fn write(answer: &impl Serialize, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer_pretty(Harmless(&mut *out), answer)?;
    out.write_all(b"\n")
}

/// Writes `answer` as one line of JSON.
pub(crate) fn write_line(answer: &impl Serialize, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer(Harmless(&mut *out), answer)?;
    out.write_all(b"\n")
}

/// Escapes control characters that JSON itself permits (DEL, C1, and bidirectional formatting),
/// because the value may end up on a terminal. Each write must consist of whole characters, as
/// those of `serde_json` do.
struct Harmless<'w>(&'w mut dyn Write);

impl Write for Harmless<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut rest = str::from_utf8(bytes).map_err(io::Error::other)?;
        // Line breaks of the layout are the only controls outside strings, and inside strings
        // they are escaped already. All other controls have at most four hexadecimal digits.
        let harmful = |character| character != '\n' && is_control(character);
        while let Some((at, character)) = rest.char_indices().find(|(_, it)| harmful(*it)) {
            self.0.write_all(&rest.as_bytes()[..at])?;
            write!(self.0, "\\u{:04x}", u32::from(character))?;
            rest = &rest[at + character.len_utf8()..];
        }
        self.0.write_all(rest.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// A value, or the reason why it cannot be read: `{"error": "…"}`.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum OrError<T> {
    Value(T),
    /// The message: what was being read, what was found, and what to do.
    Error {
        error: String,
    },
}

impl<T> OrError<T> {
    pub(crate) fn error(why: &impl ToString) -> Self {
        let error = why.to_string();
        Self::Error { error }
    }
}

/// Attributes as an object, in the order in which they were published. If a map value repeats a
/// name, the first one counts.
#[derive(Debug)]
pub(crate) struct AttributeMap(pub(crate) Attributes);

impl Serialize for AttributeMap {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        map(&self.0, serializer)
    }
}

fn map<S: Serializer>(attributes: &Attributes, serializer: S) -> Result<S::Ok, S::Error> {
    let mut seen = std::collections::BTreeSet::new();
    let first = attributes.iter().filter(|(key, _)| seen.insert(key));
    serializer.collect_map(first.map(|(key, value)| (key, Natural(value))))
}

/// A value as the nearest JSON type.
struct Natural<'a>(&'a Value);

impl Serialize for Natural<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::String(text) => serializer.serialize_str(text),
            Value::Bool(value) => serializer.serialize_bool(*value),
            Value::Int(value) => serializer.serialize_i64(*value),
            Value::Double(value) if value.is_finite() => serializer.serialize_f64(*value),
            // JSON has no such numbers; these are the names in Protocol Buffers' JSON.
            Value::Double(value) if value.is_nan() => serializer.serialize_str("NaN"),
            Value::Double(value) if *value > 0.0 => serializer.serialize_str("Infinity"),
            Value::Double(_) => serializer.serialize_str("-Infinity"),
            Value::Array(values) => serializer.collect_seq(values.iter().map(Natural)),
            Value::Map(attributes) => map(attributes, serializer),
            Value::Bytes(bytes) => serializer.serialize_str(&hexadecimal(bytes)),
            // `Value` may get more variants; unknown ones become null.
            _ => serializer.serialize_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_of_value_has_its_json() {
        let attributes: Attributes = vec![
            ("string".into(), "a\"\n\x1b\x7f\u{9b}\u{202e}é".into()),
            ("bool".into(), true.into()),
            ("int".into(), i64::MIN.into()),
            ("double".into(), 0.5.into()),
            ("nan".into(), f64::NAN.into()),
            ("more".into(), f64::INFINITY.into()),
            ("less".into(), f64::NEG_INFINITY.into()),
            ("bytes".into(), vec![0_u8, 255].into()),
            ("empty".into(), Value::Empty),
            (
                "list".into(),
                vec![Value::Int(1), Value::Array(vec![])].into(),
            ),
            (
                "map".into(),
                vec![
                    ("a".to_owned(), Value::Int(1)),
                    ("a".to_owned(), Value::Int(2)),
                ]
                .into(),
            ),
        ];
        let text = render(&AttributeMap(attributes));
        let compact: String = text.split('\n').map(str::trim).collect();
        assert_eq!(
            compact,
            r#"{"string": "a\"\n\u001b\u007f\u009b\u202eé","bool": true,"int": -9223372036854775808,"double": 0.5,"nan": "NaN","more": "Infinity","less": "-Infinity","bytes": "00ff","empty": null,"list": [1,[]],"map": {"a": 1}}"#
        );
    }
}
