// Tests with one version of OpenTelemetry: `opentelemetry`, `opentelemetry_sdk` and `tracing_opentelemetry` of the file that
// includes this.

include!("hard_cases.rs");

use std::sync::Once;

use opentelemetry::trace::{TraceContextExt, TracerProvider as _};
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use tracing::debug_span;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Layer as _, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let process = otelctx::ProcessContext::new().with_service_name("test").publish();
        std::mem::forget(process.unwrap());
        let sampler = Sampler::TraceIdRatioBased(0.5);
        let provider = SdkTracerProvider::builder().with_sampler(sampler).build();
        tracing_subscriber::registry()
            .with(tracing_opentelemetry::layer().with_tracer(provider.tracer("test")))
            .with(otelctx_tracing::layer(["http.route", "user"]))
            .init();
    });
}

/// Trace ID, span ID, flags and attributes.
type Seen = ([u8; 16], [u8; 8], u8, Vec<(String, String)>);

fn seen() -> Option<Seen> {
    let context = otelctx::visible_to_readers()?;
    let mut attributes = context.attributes;
    attributes.sort();
    let (trace, span) = (context.trace_id.to_bytes(), context.span_id.to_bytes());
    let flags = if KNOWS_FLAGS { context.trace_flags.0 } else { 0 };
    Some((trace, span, flags, attributes))
}

/// What should be seen: OpenTelemetry's IDs, and these attributes.
fn expected(pairs: &[(&str, &str)]) -> Option<Seen> {
    expected_in(&Span::current(), pairs)
}

/// The same in a span that may not be entered.
fn expected_in(span: &Span, pairs: &[(&str, &str)]) -> Option<Seen> {
    let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    let attributes = pairs.iter().map(pair).collect();
    // What the layer would send to another service.
    let context = span.context();
    let span = context.span();
    let span = span.span_context();
    assert!(span.is_valid());
    let (trace, id) = (span.trace_id().to_bytes(), span.span_id().to_bytes());
    let flags = if KNOWS_FLAGS { span.trace_flags().to_u8() } else { 0 };
    Some((trace, id, flags, attributes))
}

#[test]
fn spans_have_the_ids_of_opentelemetry() {
    install();
    for _ in 0..20 {
        let request = info_span!("request", http.route = "/cart");
        let _request = request.enter();
        assert_eq!(seen(), expected(&[("http.route", "/cart")]));
        {
            let _child = info_span!("child", user = "u1").entered();
            assert_eq!(seen(), expected(&[("http.route", "/cart"), ("user", "u1")]));
        }
        assert_eq!(seen(), expected(&[("http.route", "/cart")]));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _elsewhere = request.enter();
                assert_eq!(seen(), expected(&[("http.route", "/cart")]));
            });
        });
    }
    assert_eq!(seen(), None);
}

#[test]
fn late_fields_are_seen_at_once() {
    install();
    let request = info_span!("request", http.route = Empty);
    let _request = request.enter();
    assert_eq!(seen(), expected(&[]));
    let _child = info_span!("child").entered();
    request.record("http.route", "/cart");
    assert_eq!(seen(), expected(&[("http.route", "/cart")]));
    let later = info_span!("later").entered();
    assert_eq!(seen(), expected(&[("http.route", "/cart")]));
    drop(later);
    // While it is not entered.
    let other = info_span!("other", user = Empty);
    let both = [("http.route", "/cart"), ("user", "u1")];
    other.in_scope(|| assert_eq!(seen(), expected(&[("http.route", "/cart")])));
    other.record("user", "u1");
    other.in_scope(|| assert_eq!(seen(), expected(&both)));
}

#[test]
fn futures_take_their_context_along() {
    install();
    let inner = async {
        assert_eq!(seen(), expected(&[("http.route", "/cart"), ("user", "u1")]));
    };
    let outer = async {
        assert_eq!(seen(), expected(&[("http.route", "/cart")]));
        inner.instrument(info_span!("inner", user = "u1")).await;
        assert_eq!(seen(), expected(&[("http.route", "/cart")]));
    };
    let mut future = Box::pin(outer.instrument(info_span!("outer", http.route = "/cart")));
    let waker = std::task::Waker::noop();
    let mut context = std::task::Context::from_waker(waker);
    assert!(future.as_mut().poll(&mut context).is_ready());
    assert_eq!(seen(), None);
}

#[test]
fn a_span_that_is_filtered_leaves_what_its_parent_publishes() {
    install();
    let provider = SdkTracerProvider::builder().build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    let subscriber = tracing_subscriber::registry()
        .with(layer.with_filter(LevelFilter::INFO))
        .with(otelctx_tracing::layer(["http.route"]).with_filter(LevelFilter::INFO));
    tracing::subscriber::with_default(subscriber, || {
        let request = info_span!("request", http.route = "/cart");
        let in_request = expected_in(&request, &[("http.route", "/cart")]);
        let _request = request.enter();
        let _filtered = debug_span!("filtered", http.route = "/filtered").entered();
        assert_eq!(seen(), in_request);
        info_span!("below").in_scope(|| {
            assert_eq!(seen(), expected(&[("http.route", "/cart")]));
            assert_eq!(seen().map(|it| it.0), in_request.as_ref().map(|it| it.0));
        });
    });
    assert_eq!(seen(), None);
}
