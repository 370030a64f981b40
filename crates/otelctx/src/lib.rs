//! Publish OpenTelemetry process and thread context for profilers, debuggers and security agents.

mod arch;
mod export;
mod process_context;
mod thread;

pub use otelctx_format::environment::MalformedVariable;
pub use otelctx_format::process_context::Value;
pub use otelctx_format::{Schema, SpanId, TraceFlags, TraceId};
pub use process_context::{Detect, ProcessContext, PublishError, Published};
pub use thread::{
    thread_record, Attached, AttachedShared, Attributes, InScope, Key, KeyError, Record,
    SharedRecord, ThreadRecord,
};
