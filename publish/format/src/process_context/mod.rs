//! The process context (OTEP 4719): a header at the start of a named mapping, and the
//! Protocol Buffers payload that it points to.

mod error;
mod header;
mod payload;
mod wire;

pub use error::{PayloadError, PayloadErrorKind, MAX_DEPTH, MAX_VALUES};
pub use header::{Header, HeaderError, HEADER_SIZE, SIGNATURE, VERSION};
pub use payload::{Attributes, Payload, Problem, Value, MAX_PUBLISHED_SIZE};

/// The name that a publisher gives its mapping, both as a memfd and as an anonymous mapping.
pub const MAPPING_NAME: &str = "OTEL_CTX";

/// Offset of the address of a structure in its publisher's read-only data, in a mapping of otelctx.
/// Part of how copies of otelctx find each other, and not of the OTEP.
pub const DESCRIPTOR_OFFSET: usize = HEADER_SIZE;
/// The bytes behind the descriptor's address, which tell that the mapping is one of otelctx.
pub const COPY_MARK: [u8; 16] = *b"otelctx_withdraw";

/// Prefixes of that mapping's name in `/proc/PID/maps`, by its kind: named shared memory, named
/// private memory, or a memfd, whose name is usually followed by ` (deleted)` (OTEP 4719,
/// "Reading").
pub const MAPPING_PREFIXES: [&[u8]; 3] = [
    b"[anon_shmem:OTEL_CTX]",
    b"[anon:OTEL_CTX]",
    b"/memfd:OTEL_CTX",
];
