//! A builder that has a sampler of its own, which cannot be taken out of it.

use opentelemetry::trace::{
    Span as _, SpanId, TraceContextExt, TraceId, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{IdGenerator, Sampler, SdkTracerProvider};
use opentelemetry_sdk::Resource;
use otelctx_opentelemetry::Problem;

#[test]
fn the_builders_sampler_is_kept_and_reported() {
    let builder = SdkTracerProvider::builder()
        .with_sampler(Sampler::AlwaysOff)
        .with_resource(
            Resource::builder_empty()
                .with_service_name("from the builder")
                .build(),
        );
    let provider = otelctx_opentelemetry::install(builder, ["http.route"]).build();
    let problem = otelctx_opentelemetry::check().unwrap_err();
    assert!(matches!(problem, Problem::OwnSampler), "{problem}");
    let tracer = provider.tracer("test");
    let span = tracer
        .span_builder("span")
        .with_attributes([KeyValue::new("http.route", "/")]);
    let context = Context::current_with_span(span.start(&tracer));
    let ids = context.span().span_context().clone();
    assert!(!ids.is_sampled());
    let _attached = context.attach();
    let seen = otelctx::visible_to_readers().unwrap();
    assert_eq!(seen.trace_id.to_bytes(), ids.trace_id().to_bytes());
    assert_eq!(seen.span_id.to_bytes(), ids.span_id().to_bytes());
    assert_eq!(seen.attributes, []);
}

/// Generates the same span ID again and again.
#[derive(Debug)]
struct Constant;

impl IdGenerator for Constant {
    fn new_trace_id(&self) -> TraceId {
        TraceId::from(7)
    }

    fn new_span_id(&self) -> SpanId {
        SpanId::from(8)
    }
}

#[test]
fn a_sampler_that_was_passed_is_used_although_the_builder_has_a_generator() {
    let builder = SdkTracerProvider::builder().with_id_generator(Constant);
    let provider = otelctx_opentelemetry::install(builder, ["http.route"])
        .with_sampler(Sampler::AlwaysOff)
        .build();
    let tracer = provider.tracer("test");
    let span = tracer.start("span");
    let context = span.span_context();
    assert_eq!(
        (context.trace_id(), context.span_id()),
        (TraceId::from(7), SpanId::from(8))
    );
    assert!(!context.is_sampled());
}
