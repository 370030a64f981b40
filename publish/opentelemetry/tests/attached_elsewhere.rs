//! Contexts that other threads have attached when the publisher is installed.

use std::sync::Barrier;

use opentelemetry::trace::{TraceContextExt, Tracer as _, TracerProvider as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};

/// A context with a span that has this route.
fn start(tracer: &SdkTracer, route: &'static str) -> Context {
    let route = KeyValue::new("http.route", route);
    let span = tracer.span_builder("span").with_attributes([route]);
    Context::current_with_span(span.start(tracer))
}

/// The IDs and the flags of a context, and its route if it is published.
type Seen = ([u8; 16], [u8; 8], u8, Option<String>);

fn of(context: &Context, route: Option<&str>) -> Option<Seen> {
    let span = context.span();
    let span = span.span_context();
    let (trace, id) = (span.trace_id().to_bytes(), span.span_id().to_bytes());
    let flags = span.trace_flags().to_u8();
    Some((trace, id, flags, route.map(str::to_owned)))
}

fn seen() -> Option<Seen> {
    let seen = otelctx::visible_to_readers()?;
    let mut attributes = seen.attributes.into_iter();
    let route = attributes.next().map(|(key, value)| {
        assert_eq!(key, "http.route");
        value
    });
    assert_eq!(attributes.next(), None);
    let (trace, id) = (seen.trace_id.to_bytes(), seen.span_id.to_bytes());
    Some((trace, id, seen.trace_flags.0, route))
}

#[test]
fn a_context_of_another_thread_is_published_with_its_ids_from_the_next_change_on() {
    let before = SdkTracerProvider::builder().build().tracer("before");
    let outer = start(&before, "/before");
    let barrier = Barrier::new(3);
    let install = || {
        barrier.wait();
        let provider =
            otelctx_opentelemetry::install(SdkTracerProvider::builder(), ["http.route"]).build();
        otelctx_opentelemetry::check().unwrap();
        barrier.wait();
        provider.tracer("after")
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let attached = outer.clone().attach();
            barrier.wait();
            barrier.wait();
            assert_eq!(seen(), None, "nothing has changed");
            {
                // Of a tracer that nothing was installed for.
                let inner = start(&before, "/inner");
                let _inner = inner.clone().attach();
                assert_eq!(seen(), of(&inner, None));
            }
            assert_eq!(seen(), of(&outer, None), "it is current again");
            drop(attached);
            assert_eq!(seen(), None);
        });
        scope.spawn(|| {
            let attached = outer.clone().attach();
            barrier.wait();
            barrier.wait();
            assert_eq!(seen(), None, "nothing has changed");
            drop(attached);
            assert_eq!(seen(), None);
            // The context is known no better where it is attached later.
            let _attached = outer.clone().attach();
            assert_eq!(seen(), of(&outer, None));
        });
        let after = install();
        let _outer = outer.clone().attach();
        assert_eq!(seen(), of(&outer, None));
        // Its child has attributes of its own.
        let child = start(&after, "/after");
        let _child = child.clone().attach();
        assert_eq!(seen(), of(&child, Some("/after")));
        assert_eq!(
            child.span().span_context().trace_id(),
            outer.span().span_context().trace_id()
        );
    });
}
