//! `payloads.json`.

use otelctx_format::process_context::{Payload, PayloadErrorKind, Problem};
use serde::Serialize;
use serde_json::Value as Json;

use crate::Hex;
use crate::value::payload_to_json;

mod malformed;
mod well_formed;

pub(crate) use well_formed::service;

/// A payload, and what it says.
#[derive(Serialize)]
pub struct Vector {
    /// Short and unique in its file.
    pub name: &'static str,
    /// The bytes.
    pub hex: Hex,
    /// Whether a writer that is given `payload` writes just these bytes.
    pub canonical: bool,
    /// Whether some Protocol Buffers libraries read it, although the verdict is another.
    pub may_be_accepted: bool,
    /// What a reader does with them.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// What a reader does with a payload.
#[derive(Debug, PartialEq, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Outcome {
    /// Reads it.
    Ok {
        /// The payload in OTLP's JSON mapping, without the attributes that are problems.
        payload: Json,
        /// What was taken out of it.
        problems: Vec<Reported>,
    },
    /// It is no such message.
    Malformed {
        /// Why.
        reason: Reason,
    },
    /// Beyond the depth that `otelctx-format` decodes.
    TooDeep,
    /// Beyond the number of values that `otelctx-format` decodes.
    TooManyValues,
}

/// An attribute that a reader leaves out and reports.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reported {
    /// It has no name.
    EmptyKey,
    /// Its name stands there already.
    RepeatedKey(String),
}

/// Why bytes are no payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// A value announces more bytes than there are.
    CutShort,
    /// A number has more than 64 bits.
    Varint,
    /// A field number is zero or too large.
    FieldNumber,
    /// A field has a wire type that it can't have.
    WireType,
    /// A text is not UTF-8.
    NotUtf8,
}

/// All vectors of the file.
#[must_use]
pub fn vectors() -> Vec<Vector> {
    let mut vectors = well_formed::vectors();
    vectors.extend(malformed::vectors());
    vectors
}

/// What `otelctx-format` makes of the bytes.
#[must_use]
pub fn judge(bytes: &[u8]) -> Outcome {
    let mut payload = match Payload::decode(bytes) {
        Ok(payload) => payload,
        Err(error) => return refused(error.kind),
    };
    let problem = |problem| match problem {
        Problem::EmptyKey => Reported::EmptyKey,
        Problem::RepeatedKey(key) => Reported::RepeatedKey(key),
        other => panic!("the files have no name for: {other}"),
    };
    let problems = payload.take_problems().into_iter().map(problem).collect();
    Outcome::Ok {
        payload: payload_to_json(&payload),
        problems,
    }
}

fn refused(kind: PayloadErrorKind) -> Outcome {
    let reason = match kind {
        PayloadErrorKind::TooDeep => return Outcome::TooDeep,
        PayloadErrorKind::TooManyValues => return Outcome::TooManyValues,
        PayloadErrorKind::CutShort => Reason::CutShort,
        PayloadErrorKind::Varint => Reason::Varint,
        PayloadErrorKind::FieldNumber => Reason::FieldNumber,
        PayloadErrorKind::WireType => Reason::WireType,
        PayloadErrorKind::NotUtf8 => Reason::NotUtf8,
        other => panic!("the files have no name for {other:?}"),
    };
    Outcome::Malformed { reason }
}
