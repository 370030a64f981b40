//! With OpenTelemetry 0.29.

use opentelemetry_0_29 as opentelemetry;
use opentelemetry_sdk_0_29 as opentelemetry_sdk;
use tracing_opentelemetry_0_30 as tracing_opentelemetry;

// The sampler decides when the span ends, or when a request is sent.
const KNOWS_FLAGS: bool = false;

include!("common/with_opentelemetry.rs");

#[test]
fn the_flags_are_seen_after_a_request_was_sent() {
    install();
    for _ in 0..20 {
        let span = info_span!("request");
        // As to send it with a request.
        let flags = span.context().span().span_context().trace_flags().to_u8();
        let _span = span.entered();
        assert_eq!(otelctx::visible_to_readers().unwrap().trace_flags.0, flags);
    }
}
