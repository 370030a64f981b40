//! The bytes of OpenTelemetry *process context* (OTEP 4719) and *thread context* (OTEP 4947), as values.
//!
//! A process publishes its resource attributes in a named memory mapping that starts with a
//! [`process_context::Header`] and points at a [`process_context::Payload`]. Each thread points a
//! thread-local variable at a [`record`] with a trace id, a span id, flags and attributes whose
//! keys are positions in the process's [`KeyMap`].
//!
//! What this crate does for you: it encodes and decodes those structures, holds every constant
//! of the two formats once, and refuses what is malformed with an error that names the byte.
//!
//! What stays your job: getting at the bytes. There is no I/O, no operating system, no `unsafe`
//! and no dependency here; publisher and reader stand on it from both sides.
//!
//! Multi-byte integers are in the byte order of the machine, as both proposals demand: writer
//! and reader share it.
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

pub use ids::{hexadecimal, ParseIdError, SpanId, TraceFlags, TraceId};
pub use key_map::{
    KeyMap, KeyMapError, Schema, KEY_MAP, MAX_KEYS, NODEJS_SYMBOL, SCHEMA_VERSION, SYMBOL,
    THREADLOCAL,
};
