//! The SDK's ID generator, and what it has generated.

use std::cell::Cell;

use opentelemetry::trace::{SpanId, TraceId};
use opentelemetry_sdk::trace::IdGenerator;

thread_local! {
    /// The span that is being started on this thread.
    static NEW_SPAN: Cell<SpanId> = const { Cell::new(SpanId::INVALID) };
}

/// Returns the ID of the span that the sampler is called for, once.
///
/// The SDK asks for a span ID immediately before it calls the sampler, which does not get the ID.
pub(crate) fn take_new_span() -> SpanId {
    NEW_SPAN.replace(SpanId::INVALID)
}

/// Remembers the span ID that another generator returns.
#[derive(Debug)]
pub(crate) struct Remembered(pub(crate) Box<dyn IdGenerator>);

impl IdGenerator for Remembered {
    fn new_trace_id(&self) -> TraceId {
        self.0.new_trace_id()
    }

    fn new_span_id(&self) -> SpanId {
        let id = self.0.new_span_id();
        NEW_SPAN.set(id);
        id
    }
}
