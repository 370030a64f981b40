//! An ID generator that is passed to the installation, and spans without a link to a profile.

use std::sync::atomic::{AtomicU64, Ordering};

use opentelemetry::trace::{SpanId, TraceContextExt, TraceId, Tracer as _, TracerProvider as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{IdGenerator, InMemorySpanExporter, SdkTracerProvider};

/// Generates 1, 2, 3 … for traces, and for spans.
#[derive(Debug, Default)]
struct Counting {
    traces: AtomicU64,
    spans: AtomicU64,
}

fn next(counter: &AtomicU64) -> u64 {
    counter.fetch_add(1, Ordering::Relaxed) + 1
}

impl IdGenerator for Counting {
    fn new_trace_id(&self) -> TraceId {
        TraceId::from(u128::from(next(&self.traces)))
    }

    fn new_span_id(&self) -> SpanId {
        SpanId::from(next(&self.spans))
    }
}

#[test]
fn the_ids_of_a_generator_that_is_passed_are_published_with_the_spans_attributes() {
    let exporter = InMemorySpanExporter::default();
    let builder = SdkTracerProvider::builder().with_simple_exporter(exporter.clone());
    let provider = otelctx_opentelemetry::install(builder, ["http.route"])
        .with_id_generator(Counting::default())
        .with_profile_id(false)
        .build();
    otelctx_opentelemetry::check().unwrap();
    let tracer = provider.tracer("test");
    for (number, route) in [(1_u64, "/cart"), (2, "/checkout")] {
        let route_of_span = KeyValue::new("http.route", route);
        let new = tracer.span_builder("span").with_attributes([route_of_span]);
        let context = Context::current_with_span(new.start(&tracer));
        let ids = context.span().span_context().clone();
        let expected = (TraceId::from(u128::from(number)), SpanId::from(number));
        assert_eq!((ids.trace_id(), ids.span_id()), expected);
        let _attached = context.attach();
        let seen = otelctx::visible_to_readers().unwrap();
        assert_eq!(seen.trace_id.to_bytes(), expected.0.to_bytes());
        assert_eq!(seen.span_id.to_bytes(), expected.1.to_bytes());
        let route = ("http.route".to_owned(), route.to_owned());
        assert_eq!(seen.attributes, [route]);
    }
    let spans = exporter.get_finished_spans().unwrap();
    assert_eq!(spans.len(), 2);
    for span in spans {
        // No `pyroscope.profile.id`.
        let names: Vec<_> = span.attributes.iter().map(|it| it.key.as_str()).collect();
        assert_eq!(names, ["http.route"]);
    }
}
