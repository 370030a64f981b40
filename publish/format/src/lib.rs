//! OpenTelemetry's *process context* (OTEP 4719) and *thread context* (OTEP 4947) as values.
//!
//! A process publishes its resource attributes in a named memory mapping, which starts with a
//! [`process_context::Header`] that points to a [`process_context::Payload`]. Each thread has a
//! thread-local variable that points to a [`record`] with a trace ID, a span ID, flags and
//! attributes. The keys of these attributes are indexes into the process's [`KeyMap`].
//!
//! This crate encodes and decodes these structures, defines every constant of the two formats, and
//! rejects malformed input with an error that gives the position.
//!
//! It does not obtain the bytes: it does no I/O, makes no system calls, and has no `unsafe`
//! code and no dependencies. Both the publisher and the reader are built on it.
//!
//! Multi-byte integers are in the machine's native byte order, as both OTEPs require: writer and
//! reader run on the same machine.
//!
//! ```
//! use otelctx_format::{record, KeyMap, SpanId, TraceId};
//!
//! let mut bytes = [0; record::RECOMMENDED_SIZE];
//! let mut size = 0;
//! record::append(&mut bytes[record::HEADER_SIZE..], &mut size, 0, "/cart");
//! let header = record::Header {
//!     trace_id: TraceId::from_bytes([0x4b; 16]),
//!     span_id: SpanId::from_bytes([0xf0; 8]),
//!     valid: record::VALID,
//!     trace_flags: otelctx_format::TraceFlags::SAMPLED,
//!     attributes_size: size as u16,
//! };
//! bytes[..record::HEADER_SIZE].copy_from_slice(&header.encode());
//!
//! let keys = KeyMap::new(["http.route"]).unwrap();
//! let context = record::decode(&bytes).unwrap().resolve(&keys);
//! assert_eq!(context.attributes, [("http.route".to_owned(), "/cart".to_owned())]);
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod environment;
mod ids;
mod key_map;
pub mod process_context;
pub mod record;

pub use ids::{hexadecimal, ParseIdError, SpanId, TraceFlags, TraceId, ZeroId};
pub use key_map::{
    KeyMap, KeyMapError, Schema, KEY_MAP, MAX_KEYS, NODEJS_SYMBOL, SCHEMA_VERSION, SYMBOL,
    THREADLOCAL,
};
