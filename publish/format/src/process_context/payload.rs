//! The payload: `ProcessContext { Resource resource = 1; repeated KeyValue attributes = 2; }`
//! with OTLP's `Resource`, `KeyValue` and `AnyValue`
//! (package `opentelemetry.proto.processcontext.v1development`).
//!
//! The crate has its own codec because applications depend on it. Tests check that it agrees with
//! prost on every input, except that it rejects nesting deeper than [`MAX_DEPTH`] and more than
//! [`MAX_VALUES`] values.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use super::error::{PayloadError, PayloadErrorKind, MAX_DEPTH, MAX_VALUES};
use super::wire::{put_bytes, put_key, put_varint, varint_size, Input, WireType};

/// The largest payload, in bytes, that a publisher should publish: readers may refuse larger ones.
pub const MAX_PUBLISHED_SIZE: usize = 65_536;

/// Names and values, in the order in which they were written.
pub type Attributes = Vec<(String, Value)>;

/// An attribute's value: OTLP's `AnyValue`.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// No value was set.
    #[default]
    Empty,
    /// A string.
    String(String),
    /// True or false.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Double(f64),
    /// A list.
    Array(Vec<Value>),
    /// Names and values.
    Map(Attributes),
    /// Uninterpreted bytes.
    Bytes(Vec<u8>),
}

macro_rules! value_from {
    ($($from:ty => $variant:ident),*) => {$(
        impl From<$from> for Value {
            fn from(value: $from) -> Self {
                Self::$variant(value.into())
            }
        }
    )*};
}
value_from!(&str => String, String => String, Box<str> => String, Cow<'_, str> => String,
    bool => Bool, i64 => Int, i32 => Int, u32 => Int, f64 => Double, f32 => Double,
    Vec<u8> => Bytes, &[u8] => Bytes, Attributes => Map);

/// An array. Items of typed arrays, as SDKs have them, keep their type.
///
/// ```
/// use otelctx_format::process_context::Value;
///
/// let ports = Value::from(vec![80_i64, 443]);
/// assert_eq!(ports, Value::Array(vec![Value::Int(80), Value::Int(443)]));
/// // Items can be borrowed, or converted from another type.
/// assert_eq!([80_i64, 443].iter().copied().collect::<Value>(), ports);
/// ```
impl<T: Into<Value>> From<Vec<T>> for Value {
    fn from(items: Vec<T>) -> Self {
        items.into_iter().collect()
    }
}

impl<T: Into<Value>> FromIterator<T> for Value {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        Self::Array(items.into_iter().map(Into::into).collect())
    }
}

/// The facts that a process publishes about itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Payload {
    /// The attributes of the OpenTelemetry resource, for example `service.name`.
    pub resource: Attributes,
    /// Attributes of the process context itself, for example `threadlocal.schema_version`.
    pub attributes: Attributes,
}

fn find<'a>(attributes: &'a Attributes, key: &str) -> Option<&'a Value> {
    let mut attributes = attributes.iter();
    attributes.find_map(|(name, value)| (name == key).then_some(value))
}

impl Payload {
    /// Returns the first resource attribute with this name.
    #[must_use]
    pub fn resource_attribute(&self, key: &str) -> Option<&Value> {
        find(&self.resource, key)
    }

    /// Returns the first attribute of the process context itself with this name.
    #[must_use]
    pub fn attribute(&self, key: &str) -> Option<&Value> {
        find(&self.attributes, key)
    }

    /// Removes every attribute without a name and every repetition of a name, and returns what was
    /// removed. Publishers must not write such attributes; readers ignore them.
    pub fn take_problems(&mut self) -> Vec<Problem> {
        let mut problems = Vec::new();
        for attributes in [&mut self.resource, &mut self.attributes] {
            let mut seen = BTreeSet::new();
            attributes.retain(|(key, _)| {
                if key.is_empty() {
                    problems.push(Problem::EmptyKey);
                } else if !seen.insert(key.clone()) {
                    problems.push(Problem::RepeatedKey(key.clone()));
                } else {
                    return true;
                }
                false
            });
        }
        problems
    }

    /// Encodes the payload. Empty fields are omitted, as usual in Protocol Buffers.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut output = Vec::new();
        let resource = list_size(RESOURCE_ATTRIBUTES, &self.resource);
        if resource > 0 {
            put_key(&mut output, CONTEXT_RESOURCE, WireType::Length);
            put_varint(&mut output, resource as u64);
            put_list(&mut output, RESOURCE_ATTRIBUTES, &self.resource);
        }
        put_list(&mut output, CONTEXT_ATTRIBUTES, &self.attributes);
        output
    }

    /// Decodes a payload. Unknown fields are ignored.
    ///
    /// # Errors
    /// If the bytes are not such a message, or exceed [`MAX_DEPTH`] or [`MAX_VALUES`].
    pub fn decode(bytes: &[u8]) -> Result<Self, PayloadError> {
        let mut payload = Self::default();
        let mut budget = Budget { values: MAX_VALUES };
        let mut input = Input::new(bytes);
        while !input.is_empty() {
            match input.key()? {
                (CONTEXT_RESOURCE, wire_type) => {
                    let resource = message(&mut input, wire_type)?;
                    decode_resource(resource, &mut payload.resource, &mut budget)?;
                }
                (CONTEXT_ATTRIBUTES, wire_type) => {
                    let attribute = message(&mut input, wire_type)?;
                    let attribute = budget.key_value(attribute, MAX_DEPTH)?;
                    payload.attributes.push(attribute);
                }
                (number, wire_type) => input.skip(number, wire_type, MAX_DEPTH)?,
            }
        }
        Ok(payload)
    }
}

// Field numbers of opentelemetry.proto.processcontext.v1development.ProcessContext,
// opentelemetry.proto.resource.v1.Resource and opentelemetry.proto.common.v1.
const CONTEXT_RESOURCE: u32 = 1;
const CONTEXT_ATTRIBUTES: u32 = 2;
const RESOURCE_ATTRIBUTES: u32 = 1;
const RESOURCE_DROPPED: u32 = 2;
const KEY_VALUE_KEY: u32 = 1;
const KEY_VALUE_VALUE: u32 = 2;
const ANY_STRING: u32 = 1;
const ANY_BOOL: u32 = 2;
const ANY_INT: u32 = 3;
const ANY_DOUBLE: u32 = 4;
const ANY_ARRAY: u32 = 5;
const ANY_MAP: u32 = 6;
const ANY_BYTES: u32 = 7;
/// `ArrayValue.values` and `KeyValueList.values`.
const LIST_VALUES: u32 = 1;

/// The number of values that may still be decoded.
struct Budget {
    values: u32,
}

fn expect(input: &Input<'_>, found: WireType, expected: WireType) -> Result<(), PayloadError> {
    if found == expected {
        Ok(())
    } else {
        Err(input.error(PayloadErrorKind::WireType))
    }
}

fn message<'a>(input: &mut Input<'a>, wire_type: WireType) -> Result<Input<'a>, PayloadError> {
    expect(input, wire_type, WireType::Length)?;
    input.length_delimited()
}

fn decode_resource(
    mut input: Input<'_>,
    attributes: &mut Attributes,
    budget: &mut Budget,
) -> Result<(), PayloadError> {
    while !input.is_empty() {
        match input.key()? {
            (RESOURCE_ATTRIBUTES, wire_type) => {
                let attribute = message(&mut input, wire_type)?;
                attributes.push(budget.key_value(attribute, MAX_DEPTH)?);
            }
            (RESOURCE_DROPPED, wire_type) => {
                expect(&input, wire_type, WireType::Varint)?;
                input.varint()?;
            }
            (number, wire_type) => input.skip(number, wire_type, MAX_DEPTH)?,
        }
    }
    Ok(())
}

impl Budget {
    fn spend(&mut self, input: &Input<'_>) -> Result<(), PayloadError> {
        let left = self.values.checked_sub(1);
        self.values = left.ok_or_else(|| input.error(PayloadErrorKind::TooManyValues))?;
        Ok(())
    }

    fn key_value(
        &mut self,
        mut input: Input<'_>,
        depth: u32,
    ) -> Result<(String, Value), PayloadError> {
        self.spend(&input)?;
        let mut key = String::new();
        let mut value = Value::Empty;
        while !input.is_empty() {
            match input.key()? {
                (KEY_VALUE_KEY, wire_type) => {
                    key = message(&mut input, wire_type)?.string()?.into()
                }
                (KEY_VALUE_VALUE, wire_type) => {
                    let any = message(&mut input, wire_type)?;
                    self.merge_value(any, &mut value, depth)?;
                }
                (number, wire_type) => input.skip(number, wire_type, depth)?,
            }
        }
        Ok((key, value))
    }

    /// Merges an encoded `AnyValue` into `value`, by the merge rules of the wire format: the last
    /// of several alternatives counts, and consecutive lists are concatenated.
    fn merge_value(
        &mut self,
        mut input: Input<'_>,
        value: &mut Value,
        depth: u32,
    ) -> Result<(), PayloadError> {
        while !input.is_empty() {
            match input.key()? {
                (ANY_STRING, wire_type) => {
                    *value = Value::String(message(&mut input, wire_type)?.string()?.into());
                }
                (ANY_BOOL, wire_type) => {
                    expect(&input, wire_type, WireType::Varint)?;
                    *value = Value::Bool(input.varint()? != 0);
                }
                (ANY_INT, wire_type) => {
                    expect(&input, wire_type, WireType::Varint)?;
                    *value = Value::Int(input.varint()? as i64);
                }
                (ANY_DOUBLE, wire_type) => {
                    expect(&input, wire_type, WireType::Fixed64)?;
                    *value = Value::Double(f64::from_bits(input.fixed64()?));
                }
                (ANY_ARRAY, wire_type) => {
                    let list = message(&mut input, wire_type)?;
                    if !matches!(value, Value::Array(_)) {
                        *value = Value::Array(Vec::new());
                    }
                    let Value::Array(items) = value else { continue };
                    self.list(list, depth, |budget, item, depth| {
                        budget.spend(&item)?;
                        let mut value = Value::Empty;
                        budget.merge_value(item, &mut value, depth)?;
                        items.push(value);
                        Ok(())
                    })?;
                }
                (ANY_MAP, wire_type) => {
                    let list = message(&mut input, wire_type)?;
                    if !matches!(value, Value::Map(_)) {
                        *value = Value::Map(Vec::new());
                    }
                    let Value::Map(items) = value else { continue };
                    self.list(list, depth, |budget, item, depth| {
                        items.push(budget.key_value(item, depth)?);
                        Ok(())
                    })?;
                }
                (ANY_BYTES, wire_type) => {
                    *value = Value::Bytes(message(&mut input, wire_type)?.bytes().into());
                }
                (number, wire_type) => input.skip(number, wire_type, depth)?,
            }
        }
        Ok(())
    }

    fn list<'a>(
        &mut self,
        mut input: Input<'a>,
        depth: u32,
        mut each: impl FnMut(&mut Self, Input<'a>, u32) -> Result<(), PayloadError>,
    ) -> Result<(), PayloadError> {
        let deeper = depth.checked_sub(1);
        let deeper = deeper.ok_or_else(|| input.error(PayloadErrorKind::TooDeep))?;
        while !input.is_empty() {
            match input.key()? {
                (LIST_VALUES, wire_type) => {
                    let item = message(&mut input, wire_type)?;
                    each(self, item, deeper)?;
                }
                (number, wire_type) => input.skip(number, wire_type, depth)?,
            }
        }
        Ok(())
    }
}

/// Size of a length-delimited field whose number is below 16, in bytes.
fn field_size(content: usize) -> usize {
    1 + varint_size(content as u64) + content
}

fn list_size(number: u32, attributes: &Attributes) -> usize {
    debug_assert!(number < 16);
    attributes
        .iter()
        .map(|(key, value)| field_size(key_value_size(key, value)))
        .sum()
}

fn key_value_size(key: &str, value: &Value) -> usize {
    let value = field_size(value_size(value));
    if key.is_empty() {
        value
    } else {
        field_size(key.len()) + value
    }
}

fn value_size(value: &Value) -> usize {
    match value {
        Value::Empty => 0,
        Value::String(text) => field_size(text.len()),
        Value::Bool(_) => 2,
        Value::Int(number) => 1 + varint_size(*number as u64),
        Value::Double(_) => 9,
        Value::Array(items) => field_size(array_size(items)),
        Value::Map(items) => field_size(list_size(LIST_VALUES, items)),
        Value::Bytes(bytes) => field_size(bytes.len()),
    }
}

fn array_size(items: &[Value]) -> usize {
    items.iter().map(|item| field_size(value_size(item))).sum()
}

fn put_list(output: &mut Vec<u8>, number: u32, attributes: &Attributes) {
    for (key, value) in attributes {
        put_key(output, number, WireType::Length);
        put_varint(output, key_value_size(key, value) as u64);
        if !key.is_empty() {
            put_bytes(output, KEY_VALUE_KEY, key.as_bytes());
        }
        put_any(output, KEY_VALUE_VALUE, value);
    }
}

/// Writes `value` as field `number`, of type `AnyValue`.
fn put_any(output: &mut Vec<u8>, number: u32, value: &Value) {
    put_key(output, number, WireType::Length);
    put_varint(output, value_size(value) as u64);
    match value {
        Value::Empty => {}
        Value::String(text) => put_bytes(output, ANY_STRING, text.as_bytes()),
        Value::Bool(truth) => {
            put_key(output, ANY_BOOL, WireType::Varint);
            put_varint(output, u64::from(*truth));
        }
        Value::Int(number) => {
            put_key(output, ANY_INT, WireType::Varint);
            put_varint(output, *number as u64);
        }
        Value::Double(number) => {
            put_key(output, ANY_DOUBLE, WireType::Fixed64);
            output.extend_from_slice(&number.to_bits().to_le_bytes());
        }
        Value::Array(items) => {
            put_key(output, ANY_ARRAY, WireType::Length);
            put_varint(output, array_size(items) as u64);
            for item in items {
                put_any(output, LIST_VALUES, item);
            }
        }
        Value::Map(items) => {
            put_key(output, ANY_MAP, WireType::Length);
            put_varint(output, list_size(LIST_VALUES, items) as u64);
            put_list(output, LIST_VALUES, items);
        }
        Value::Bytes(bytes) => put_bytes(output, ANY_BYTES, bytes),
    }
}

/// What [`Payload::take_problems`] or [`KeyMap::take_excess`](crate::KeyMap::take_excess) removed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// An attribute has no name.
    EmptyKey,
    /// A name that occurred before.
    RepeatedKey(String),
    /// A key map of this many names, more than an index can refer to.
    TooManyKeys(usize),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyKey => write!(f, "an attribute has an empty key"),
            Self::RepeatedKey(key) => {
                write!(f, "the attribute \"{}\" is repeated", key.escape_debug())
            }
            Self::TooManyKeys(number) => write!(
                f,
                "the key map has {number} keys, of which the first 256 count: an index is one byte"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn everything() -> Payload {
        let map = vec![
            ("k".into(), Value::Empty),
            (String::new(), Value::Bool(true)),
        ];
        Payload {
            resource: vec![
                ("service.name".into(), "shop".into()),
                ("n".into(), Value::Int(-1)),
                ("d".into(), Value::Double(0.5)),
            ],
            attributes: vec![
                (
                    "list".into(),
                    vec![Value::Bool(false), "x".into(), Value::Map(map)].into(),
                ),
                ("bytes".into(), Value::Bytes(vec![0, 255])),
                ("none".into(), Value::Array(vec![])),
            ],
        }
    }

    fn kind(bytes: &[u8]) -> PayloadErrorKind {
        Payload::decode(bytes).unwrap_err().kind
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(Payload::decode(&everything().encode()), Ok(everything()));
        assert_eq!(Payload::default().encode(), []);
        assert_eq!(Payload::decode(&[]), Ok(Payload::default()));
    }

    #[test]
    fn a_known_payload_has_known_bytes() {
        let payload = Payload {
            resource: vec![("a".into(), "b".into())],
            attributes: vec![],
        };
        assert_eq!(
            payload.encode(),
            b"\x0a\x0a\x0a\x08\x0a\x01a\x12\x03\x0a\x01b"
        );
    }

    #[test]
    fn fields_of_later_versions_are_ignored() {
        // A group and a fixed32 as field 3, then a KeyValue with key_strindex = 3 whose AnyValue
        // has string_value_strindex = 8.
        let later = b"\x1b\x08\x01\x1c\x1d\0\0\0\0";
        let attribute = b"\x12\x0c\x0a\x01a\x18\x05\x12\x05\x0a\x01b\x40\x63";
        let payload = Payload::decode(&[&later[..], attribute].concat()).unwrap();
        assert_eq!(payload.attributes, [("a".into(), "b".into())]);
    }

    #[test]
    fn every_cut_is_an_error_or_a_shorter_payload() {
        let bytes = everything().encode();
        for end in 0..bytes.len() {
            let _ = Payload::decode(&bytes[..end]).map_err(|e| assert!(e.position <= end));
        }
        assert_eq!(kind(&bytes[..bytes.len() - 1]), PayloadErrorKind::CutShort);
    }

    #[test]
    fn malformed_bytes_are_distinguished() {
        assert_eq!(kind(&[0x0a, 5]), PayloadErrorKind::CutShort);
        assert_eq!(
            kind(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f]),
            PayloadErrorKind::CutShort
        );
        assert_eq!(kind(&[0xff; 11]), PayloadErrorKind::Varint);
        assert_eq!(kind(&[0x00, 0x00]), PayloadErrorKind::FieldNumber);
        assert_eq!(kind(&[0x08, 0x00]), PayloadErrorKind::WireType);
        assert_eq!(kind(&[0x12, 3, 0x0a, 1, 0xff]), PayloadErrorKind::NotUtf8);
    }

    #[test]
    fn nesting_and_number_of_values_are_bounded() {
        let nested = |depth| {
            let value = (0..depth).fold(Value::Empty, |inner, _| Value::Array(vec![inner]));
            Payload {
                resource: vec![],
                attributes: vec![("a".into(), value)],
            }
        };
        let deepest = nested(MAX_DEPTH);
        assert_eq!(Payload::decode(&deepest.encode()), Ok(deepest));
        assert_eq!(
            kind(&nested(MAX_DEPTH + 1).encode()),
            PayloadErrorKind::TooDeep
        );
        assert_eq!(kind(&[0x1b; 40]), PayloadErrorKind::TooDeep);
        let most = [0x12, 0].repeat(MAX_VALUES as usize);
        assert!(Payload::decode(&most).is_ok());
        assert_eq!(
            kind(&[&most[..], &[0x12, 0]].concat()),
            PayloadErrorKind::TooManyValues
        );
    }

    #[test]
    fn problems_are_taken_out_and_the_first_of_a_name_stays() {
        let mut payload = Payload {
            resource: vec![
                ("a".into(), 1.into()),
                ("".into(), 2.into()),
                ("a".into(), 3.into()),
            ],
            attributes: vec![("a".into(), 4.into())],
        };
        let problems = payload.take_problems();
        assert_eq!(
            problems,
            [Problem::EmptyKey, Problem::RepeatedKey("a".into())]
        );
        assert_eq!(payload.resource, [("a".into(), Value::Int(1))]);
        assert_eq!(payload.attributes, [("a".into(), Value::Int(4))]);
    }
}
