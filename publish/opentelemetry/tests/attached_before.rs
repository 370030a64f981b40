//! A context that is attached when the publisher is installed.

use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use opentelemetry::Context;
use opentelemetry_sdk::trace::SdkTracerProvider;

#[test]
fn a_context_that_is_attached_already_is_published() {
    let (trace, span) = (TraceId::from(1), SpanId::from(2));
    let context = SpanContext::new(
        trace,
        span,
        TraceFlags::SAMPLED,
        true,
        TraceState::default(),
    );
    let guard = Context::new().with_remote_span_context(context).attach();
    drop(otelctx_opentelemetry::install(SdkTracerProvider::builder(), [""; 0]).build());
    let seen = otelctx::visible_to_readers().unwrap();
    assert_eq!(seen.trace_id.to_bytes(), trace.to_bytes());
    assert_eq!(seen.span_id.to_bytes(), span.to_bytes());
    drop(guard);
    assert_eq!(otelctx::visible_to_readers(), None);
}
