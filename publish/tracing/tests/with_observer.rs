//! With the observer of `otelctx-opentelemetry`: it publishes the contexts, and the layer adds what it can't see.

use std::sync::Once;

use opentelemetry_0_33::trace::{TraceContextExt, TracerProvider as _};
use opentelemetry_0_33::Context;
use opentelemetry_sdk_0_33::trace::SdkTracerProvider;
use tracing::field::Empty;
use tracing::info_span;
use tracing_opentelemetry_0_34 as tracing_opentelemetry;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

const NAMES: [&str; 2] = ["http.route", "user"];

/// OpenTelemetry does not know spans that are called "filtered".
fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let provider = otelctx_opentelemetry::install(SdkTracerProvider::builder(), NAMES).build();
        otelctx_opentelemetry::check().unwrap();
        let spans = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        let filter = filter_fn(|metadata| metadata.name() != "filtered");
        tracing_subscriber::registry()
            .with(spans.with_filter(filter))
            .with(otelctx_tracing::layer(NAMES))
            .init();
    });
}

/// The attributes, if the IDs are those of OpenTelemetry's current context.
fn seen() -> Vec<(String, String)> {
    let seen = otelctx::visible_to_readers().unwrap();
    Context::map_current(|context| {
        let span = context.span();
        assert_eq!(
            seen.trace_id.to_bytes(),
            span.span_context().trace_id().to_bytes()
        );
        assert_eq!(
            seen.span_id.to_bytes(),
            span.span_context().span_id().to_bytes()
        );
    });
    seen.attributes
}

fn attributes(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    pairs.iter().map(pair).collect()
}

#[test]
fn the_layer_adds_late_fields_to_what_the_observer_publishes() {
    install();
    let request = info_span!("request", http.route = Empty, user = "first");
    {
        let _request = request.enter();
        assert_eq!(seen(), attributes(&[("user", "first")]));
        request.record("http.route", "/cart");
        let both = attributes(&[("user", "first"), ("http.route", "/cart")]);
        assert_eq!(seen(), both);
        let child = info_span!("child");
        assert_eq!(child.in_scope(seen), both);
        assert_eq!(seen(), both, "after the child");
        // A field of another request, recorded while this one is current.
        let other = info_span!(parent: None, "other", http.route = Empty);
        other.record("http.route", "/other");
        assert_eq!(seen(), both);
        assert_eq!(
            other.in_scope(seen),
            attributes(&[("http.route", "/other")])
        );
        // A child that was started with a value of its own keeps it.
        let own = info_span!("own", user = "own");
        let _own = own.enter();
        request.record("http.route", "/cart");
        let mut shown = seen();
        shown.sort();
        shown.dedup();
        assert_eq!(
            shown,
            attributes(&[("http.route", "/cart"), ("user", "own")])
        );
        drop(_own);
        // What OpenTelemetry attaches without a span of tracing shows what it knows.
        let context = Context::current().with_value(1_u8);
        let _attached = context.attach();
        assert_eq!(seen(), attributes(&[("user", "first")]));
    }
    assert_eq!(otelctx::visible_to_readers(), None);
    let both = attributes(&[("user", "first"), ("http.route", "/cart")]);
    assert_eq!(request.in_scope(seen), both);
    request.record("user", "second");
    let both = attributes(&[("user", "second"), ("http.route", "/cart")]);
    let mut shown = request.in_scope(seen);
    shown.sort_by(|one, other| other.0.cmp(&one.0));
    assert_eq!(shown, both);
}

/// tracing-opentelemetry starts a span when it is first entered.
#[test]
fn a_field_that_is_recorded_before_its_span_is_first_entered_is_seen_without_the_layer() {
    install();
    let provider = otelctx_opentelemetry::install(SdkTracerProvider::builder(), NAMES).build();
    let spans = tracing_opentelemetry::layer().with_tracer(provider.tracer("alone"));
    let subscriber = tracing_subscriber::registry().with(spans);
    tracing::subscriber::with_default(subscriber, || {
        let request = info_span!("request", http.route = Empty, user = Empty);
        request.record("http.route", "/cart");
        let _request = request.enter();
        let route = attributes(&[("http.route", "/cart")]);
        assert_eq!(seen(), route);
        request.record("user", "late");
        assert_eq!(seen(), route);
    });
}

#[test]
fn a_field_that_is_recorded_again_and_again_is_seen_with_its_latest_value() {
    install();
    let request = info_span!("request", http.route = "/cart", user = Empty);
    let _request = request.enter();
    for round in 0..100 {
        let user = format!("user {round}");
        request.record("user", &user);
        let mut shown = seen();
        assert_eq!(shown.pop(), Some(("user".to_owned(), user)));
        assert_eq!(shown[0], ("http.route".to_owned(), "/cart".to_owned()));
    }
    let child = info_span!("child");
    let last = ("user".to_owned(), "user 99".to_owned());
    assert!(child.in_scope(seen).contains(&last));
    assert!(seen().contains(&last));
}

#[test]
fn late_values_without_room_are_counted_and_leave_no_earlier_one() {
    install();
    let before = otelctx_tracing::truncated();
    let long = |letter: &str| letter.repeat(300);
    let request = info_span!("request", http.route = long("a"), user = "first");
    let _request = request.enter();
    request.record("user", long("b"));
    let cut = attributes(&[("http.route", &"a".repeat(255)), ("user", &"b".repeat(255))]);
    assert_eq!(seen(), cut);
    assert_eq!(otelctx_tracing::truncated(), before + 1);
}

#[test]
fn spans_that_opentelemetry_does_not_know_are_seen_around_its_own() {
    install();
    let shown = || otelctx::visible_to_readers().unwrap();
    let outer = info_span!("filtered", http.route = "/outer", user = Empty);
    let entered = outer.enter();
    let expected = shown();
    assert!(expected.trace_id.is_zero());
    assert_eq!(expected.attributes, attributes(&[("http.route", "/outer")]));
    let inner = info_span!("inner", http.route = "/inner");
    assert_eq!(
        inner.in_scope(seen),
        attributes(&[("http.route", "/inner")])
    );
    assert_eq!(shown(), expected);
    {
        let _inner = inner.enter();
        outer.record("user", "late");
        assert!(seen().contains(&("user".to_owned(), "late".to_owned())));
    }
    let both = attributes(&[("http.route", "/outer"), ("user", "late")]);
    assert_eq!(shown().attributes, both);
    // Exited before the span that OpenTelemetry has attached.
    let inner_entered = inner.enter();
    drop(entered);
    assert!(seen().contains(&("http.route".to_owned(), "/inner".to_owned())));
    drop(inner_entered);
    assert_eq!(otelctx::visible_to_readers(), None);
}

#[test]
fn a_record_without_room_keeps_what_the_application_appended() {
    static OTHER: otelctx::Key = otelctx::Key::new("other");
    install();
    let request = info_span!("request", user = Empty);
    let _request = request.enter();
    assert!(otelctx::append_current(&OTHER, "value"));
    for round in 0..100 {
        let user = format!("user {round}");
        request.record("user", &user);
        let mut shown = seen();
        shown.sort();
        assert_eq!(shown, attributes(&[("other", "value"), ("user", &user)]));
    }
}

#[test]
fn a_record_of_a_guard_is_not_replaced() {
    static OTHER: otelctx::Key = otelctx::Key::new("other");
    install();
    let before = otelctx_tracing::truncated();
    let request = info_span!("request", user = Empty);
    let _request = request.enter();
    let mut record = otelctx::Context::new([7; 16], [7; 8]).unwrap();
    let guard = record.attach();
    while otelctx::append_current(&OTHER, &"x".repeat(200)) {}
    let expected = otelctx::visible_to_readers();
    request.record("user", "y".repeat(200));
    assert_eq!(otelctx::visible_to_readers(), expected);
    assert_eq!(otelctx_tracing::truncated(), before + 1);
    drop(guard);
    assert_eq!(seen(), []);
}
