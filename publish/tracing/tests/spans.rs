//! What a thread publishes while spans of `tracing` are entered, with IDs of the layer's own.

#![cfg(not(any(
    feature = "opentelemetry_0_29",
    feature = "opentelemetry_0_30",
    feature = "opentelemetry_0_31",
    feature = "opentelemetry_0_32",
    feature = "opentelemetry_0_33",
)))]

include!("common/hard_cases.rs");

use std::sync::Once;

use otelctx::{SpanId, TraceFlags, TraceId};
use tracing::debug_span;
use tracing::field::display;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let process = otelctx::ProcessContext::new()
            .with_service_name("test")
            .publish();
        std::mem::forget(process.unwrap());
        let layer = otelctx_tracing::layer(["http.route", "user"]);
        tracing_subscriber::registry()
            .with(layer.with_filter(LevelFilter::INFO))
            .init();
        otelctx_tracing::check().unwrap();
    });
}

type Seen = Option<(TraceId, SpanId, Vec<(String, String)>)>;

fn seen() -> Seen {
    let context = otelctx::visible_to_readers()?;
    assert_eq!(context.trace_flags, TraceFlags::SAMPLED);
    let mut attributes = context.attributes;
    attributes.sort();
    Some((context.trace_id, context.span_id, attributes))
}

/// What is seen in a span, without changing it.
fn inside(span: &Span) -> Seen {
    span.in_scope(seen)
}

/// What is to be seen in a span: its IDs, and these attributes.
fn expected_in(span: &Span, pairs: &[(&str, &str)]) -> Seen {
    let (trace, id, _) = inside(span)?;
    assert!(!trace.is_zero() && !id.is_zero());
    Some((trace, id, attributes(pairs)))
}

fn attributes(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    pairs.iter().map(pair).collect()
}

#[test]
fn a_child_has_its_parents_trace_and_fields() {
    install();
    let request = info_span!("request", http.route = "/cart", unpublished = 1);
    let (trace, span, fields) = inside(&request).unwrap();
    assert!(!trace.is_zero() && !span.is_zero());
    assert_eq!(fields, attributes(&[("http.route", "/cart")]));
    let _request = request.enter();
    let child = info_span!("child", user = 4711);
    let (child_trace, child_span, fields) = inside(&child).unwrap();
    assert_eq!(child_trace, trace);
    assert_ne!(child_span, span);
    assert_eq!(
        fields,
        attributes(&[("http.route", "/cart"), ("user", "4711")])
    );
    let other = info_span!(parent: None, "other");
    let (other_trace, _, fields) = inside(&other).unwrap();
    assert_ne!(other_trace, trace);
    assert_eq!(fields, []);
    let inner = info_span!("inner", http.route = "/cart/{id}");
    assert_eq!(
        inside(&inner).unwrap().2,
        attributes(&[("http.route", "/cart/{id}")])
    );
    assert_eq!(seen().unwrap().1, span);
}

#[test]
fn a_field_that_is_recorded_late_is_seen_at_once_and_by_all_children() {
    install();
    let request = info_span!("request", http.route = Empty, user = "first");
    let suspended = request.in_scope(|| info_span!("suspended"));
    assert_eq!(
        inside(&suspended).unwrap().2,
        attributes(&[("user", "first")])
    );
    let _request = request.enter();
    assert_eq!(seen().unwrap().2, attributes(&[("user", "first")]));
    {
        let _child = info_span!("child").entered();
        request
            .record("http.route", "/cart")
            .record("user", display("second"));
        let both = attributes(&[("http.route", "/cart"), ("user", "second")]);
        assert_eq!(seen().unwrap().2, both);
        assert_eq!(inside(&suspended).unwrap().2, both);
        assert_eq!(inside(&info_span!("later")).unwrap().2, both);
    }
    let both = attributes(&[("http.route", "/cart"), ("user", "second")]);
    assert_eq!(seen().unwrap().2, both);
}

#[test]
fn a_span_that_is_filtered_leaves_what_its_parent_publishes() {
    install();
    let request = info_span!("request", http.route = "/cart");
    let expected = inside(&request);
    let _request = request.enter();
    let filtered = debug_span!("filtered", http.route = "/filtered");
    let _filtered = filtered.enter();
    assert_eq!(seen(), expected);
    let (trace, _, fields) = inside(&info_span!("below")).unwrap();
    assert_eq!(Some(trace), expected.as_ref().map(|it| it.0));
    assert_eq!(fields, attributes(&[("http.route", "/cart")]));
}

#[test]
fn a_thread_that_ends_inside_a_span_is_no_problem() {
    install();
    let thread = std::thread::spawn(|| {
        let span = info_span!("forgotten");
        std::mem::forget(span.clone().entered());
        assert!(seen().is_some());
    });
    thread.join().unwrap();
}

#[test]
fn only_the_first_of_two_layers_publishes() {
    install();
    let layer = || otelctx_tracing::layer(["http.route"]);
    let subscriber = tracing_subscriber::registry().with(layer()).with(layer());
    tracing::subscriber::with_default(subscriber, || {
        let span = info_span!("twice", http.route = "/cart");
        let expected = inside(&span);
        assert!(expected.is_some());
        let (outer, inner) = (span.enter(), span.enter());
        drop(inner);
        assert_eq!(seen(), expected);
        drop(outer);
        assert_eq!(seen(), None);
    });
}
