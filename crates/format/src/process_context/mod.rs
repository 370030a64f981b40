//! The process context (OTEP 4719): a header at the start of a named mapping, and the
//! Protocol Buffers payload that it points at.

mod header;
mod payload;
mod wire;

pub use header::{Header, HeaderError, HEADER_SIZE, SIGNATURE, VERSION};
pub use payload::{
    Attributes, Payload, PayloadError, PayloadErrorKind, Problem, Value, MAX_DEPTH,
    MAX_PUBLISHED_SIZE, MAX_VALUES,
};

/// The name that a publisher gives its mapping, both as a memfd and as an anonymous mapping.
pub const MAPPING_NAME: &str = "OTEL_CTX";
