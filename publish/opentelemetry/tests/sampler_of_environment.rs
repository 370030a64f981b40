//! A sampler that the environment names.

use opentelemetry::trace::{TraceContextExt, Tracer as _, TracerProvider as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::SdkTracerProvider;

#[test]
fn spans_that_the_environments_sampler_drops_are_published() {
    std::env::set_var("OTEL_TRACES_SAMPLER", "always_off");
    let provider =
        otelctx_opentelemetry::install(SdkTracerProvider::builder(), ["http.route"]).build();
    otelctx_opentelemetry::check().unwrap();
    let tracer = provider.tracer("test");
    let span = tracer
        .span_builder("span")
        .with_attributes([KeyValue::new("http.route", "/cart")]);
    let context = Context::current_with_span(span.start(&tracer));
    let ids = context.span().span_context().clone();
    assert!(ids.is_valid() && !ids.is_sampled());
    let _attached = context.attach();
    let seen = otelctx::visible_to_readers().unwrap();
    assert_eq!(seen.trace_id.to_bytes(), ids.trace_id().to_bytes());
    assert_eq!(seen.span_id.to_bytes(), ids.span_id().to_bytes());
    assert_eq!(seen.trace_flags.0, 0);
    assert_eq!(
        seen.attributes,
        [("http.route".to_owned(), "/cart".to_owned())]
    );
}
