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

/// How the name of that mapping starts in `/proc/PID/maps`, by how it was made: named shared or private
/// anonymous memory, or a memfd, whose name ` (deleted)` usually follows (OTEP 4719, "Reading").
pub const MAPPING_PREFIXES: [&[u8]; 3] = [
    b"[anon_shmem:OTEL_CTX]",
    b"[anon:OTEL_CTX]",
    b"/memfd:OTEL_CTX",
];
