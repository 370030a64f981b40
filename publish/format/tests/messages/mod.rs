//! The payload's messages as prost derives them, and the way from a [`Payload`] to them: the
//! judge that the crate's own codec is held against. The fuzz target `payload` uses this file too.

use otelctx_format::process_context::{Attributes, Payload, Value};
use prost::{Message, Oneof};

/// `opentelemetry.proto.processcontext.v1development.ProcessContext`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProcessContext {
    #[prost(message, optional, tag = "1")]
    pub(crate) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) attributes: Vec<KeyValue>,
}

/// `opentelemetry.proto.resource.v1.Resource`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub(crate) attributes: Vec<KeyValue>,
    #[prost(uint32, tag = "2")]
    pub(crate) dropped_attributes_count: u32,
}

/// `opentelemetry.proto.common.v1.KeyValue` before `key_strindex = 3` was added.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) value: Option<AnyValue>,
}

/// `opentelemetry.proto.common.v1.AnyValue` before `string_value_strindex = 8` was added.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AnyValue {
    #[prost(oneof = "Any", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub(crate) value: Option<Any>,
}

/// The alternatives of [`AnyValue`].
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Any {
    #[prost(string, tag = "1")]
    String(String),
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(int64, tag = "3")]
    Int(i64),
    #[prost(double, tag = "4")]
    Double(f64),
    #[prost(message, tag = "5")]
    Array(ArrayValue),
    #[prost(message, tag = "6")]
    Map(KeyValueList),
    #[prost(bytes = "vec", tag = "7")]
    Bytes(Vec<u8>),
}

/// `opentelemetry.proto.common.v1.ArrayValue`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ArrayValue {
    #[prost(message, repeated, tag = "1")]
    pub(crate) values: Vec<AnyValue>,
}

/// `opentelemetry.proto.common.v1.KeyValueList`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct KeyValueList {
    #[prost(message, repeated, tag = "1")]
    pub(crate) values: Vec<KeyValue>,
}

impl From<&Payload> for ProcessContext {
    fn from(payload: &Payload) -> Self {
        let resource = Resource {
            attributes: key_values(&payload.resource),
            dropped_attributes_count: 0,
        };
        Self {
            resource: (!resource.attributes.is_empty()).then_some(resource),
            attributes: key_values(&payload.attributes),
        }
    }
}

fn key_values(attributes: &Attributes) -> Vec<KeyValue> {
    let key_value = |(key, value): &(String, Value)| KeyValue {
        key: key.clone(),
        value: Some(value.into()),
    };
    attributes.iter().map(key_value).collect()
}

impl From<&Value> for AnyValue {
    fn from(value: &Value) -> Self {
        let any = match value {
            Value::Empty => return Self { value: None },
            Value::String(text) => Any::String(text.clone()),
            Value::Bool(truth) => Any::Bool(*truth),
            Value::Int(number) => Any::Int(*number),
            Value::Double(number) => Any::Double(*number),
            Value::Array(items) => Any::Array(ArrayValue {
                values: items.iter().map(Self::from).collect(),
            }),
            Value::Map(items) => Any::Map(KeyValueList {
                values: key_values(items),
            }),
            Value::Bytes(bytes) => Any::Bytes(bytes.clone()),
            other => panic!("prost's message has no {other:?}"),
        };
        Self { value: Some(any) }
    }
}

impl ProcessContext {
    /// Without the three differences that a [`Payload`] does not keep: a resource without
    /// attributes is none, a value that is not there is an empty one, and the count of attributes that an SDK
    /// dropped.
    #[must_use]
    pub(crate) fn normalized(mut self) -> Self {
        self.resource = self.resource.filter(|it| !it.attributes.is_empty());
        if let Some(resource) = &mut self.resource {
            resource.dropped_attributes_count = 0;
            resource.attributes.iter_mut().for_each(normalize);
        }
        self.attributes.iter_mut().for_each(normalize);
        self
    }
}

fn normalize(attribute: &mut KeyValue) {
    normalize_any(attribute.value.get_or_insert_with(AnyValue::default));
}

fn normalize_any(value: &mut AnyValue) {
    match &mut value.value {
        Some(Any::Array(array)) => array.values.iter_mut().for_each(normalize_any),
        Some(Any::Map(map)) => map.values.iter_mut().for_each(normalize),
        _ => {}
    }
}

/// Whether both codecs accept `bytes`.
///
/// # Panics
/// When they disagree: one accepts what the other refuses (our two documented limits aside), or
/// they read different values. Values are compared by prost's encoding of them, which tells
/// one NaN from another.
pub(crate) fn assert_decoders_agree(bytes: &[u8]) -> bool {
    use otelctx_format::process_context::PayloadErrorKind::{TooDeep, TooManyValues};
    match (Payload::decode(bytes), ProcessContext::decode(bytes)) {
        (Ok(ours), Ok(prosts)) => {
            assert_encoders_agree(&ours);
            let ours = ProcessContext::from(&ours).encode_to_vec();
            assert_eq!(ours, prosts.normalized().encode_to_vec(), "of {bytes:02x?}");
            true
        }
        (Err(error), _) if matches!(error.kind, TooDeep | TooManyValues) => false,
        (Err(error), Err(_)) => {
            assert!(error.position <= bytes.len(), "{error:?} of {bytes:02x?}");
            false
        }
        (Ok(ours), Err(error)) => panic!("{bytes:02x?} is {ours:?}, but prost says {error}"),
        (Err(error), Ok(prosts)) => panic!("{bytes:02x?}: {error}, but prost reads {prosts:?}"),
    }
}

/// Asserts that both codecs write the same bytes for `payload`.
pub(crate) fn assert_encoders_agree(payload: &Payload) {
    let prosts = ProcessContext::from(payload).encode_to_vec();
    assert_eq!(payload.encode(), prosts, "of {payload:?}");
}
