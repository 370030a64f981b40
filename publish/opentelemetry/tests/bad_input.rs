//! More names than a process can have, values that no record has room for, and IDs that are none.

use std::sync::OnceLock;

use opentelemetry::trace::{
    SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState, Tracer as _,
    TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use otelctx_opentelemetry::{truncated, Problem};

fn tracer() -> &'static SdkTracer {
    static TRACER: OnceLock<SdkTracer> = OnceLock::new();
    TRACER.get_or_init(|| {
        let names = (0..300).map(|number| format!("name-{number}"));
        let provider = otelctx_opentelemetry::install(SdkTracerProvider::builder(), names).build();
        provider.tracer("test")
    })
}

/// A context with a span that has these attributes.
fn start(attributes: impl IntoIterator<Item = (String, String)>) -> Context {
    let attributes = attributes
        .into_iter()
        .map(|(key, value)| KeyValue::new(key, value));
    let span = tracer().span_builder("span").with_attributes(attributes);
    Context::current_with_span(span.start(tracer()))
}

fn name(number: usize) -> String {
    format!("name-{number}")
}

/// The span ID and the attributes that are published.
fn seen() -> Option<(SpanId, Vec<(String, String)>)> {
    let context = otelctx::visible_to_readers()?;
    Some((
        SpanId::from_bytes(context.span_id.to_bytes()),
        context.attributes,
    ))
}

fn span_id(context: &Context) -> SpanId {
    context.span().span_context().span_id()
}

#[test]
fn names_and_values_without_room_are_reported() {
    tracer();
    let problem = otelctx_opentelemetry::check().unwrap_err();
    assert!(matches!(problem, Problem::Key(_)), "{problem}");
    assert!(problem.to_string().contains("\"name-256\""), "{problem}");

    let before = truncated();
    let last = start([(name(255), "last".to_owned()), (name(256), "x".to_owned())]);
    {
        let _attached = last.clone().attach();
        let attributes = vec![(name(255), "last".to_owned())];
        assert_eq!(seen(), Some((span_id(&last), attributes)));
    }
    assert_eq!(truncated(), before);

    // A record has 612 bytes, and each attribute a header of 2.
    let values = [300, 255, 200, 96].map(|length| "x".repeat(length));
    let attributes = values.clone().into_iter().enumerate();
    let long = start(attributes.map(|(number, value)| (name(number), value)));
    let _attached = long.clone().attach();
    let attributes = vec![
        (name(0), "x".repeat(255)),
        (name(1), values[1].clone()),
        (name(3), values[3].clone()),
    ];
    assert_eq!(seen(), Some((span_id(&long), attributes.clone())));
    assert_eq!(truncated(), before + 1);
    // What it inherits is not complete, either.
    let child = start([]);
    let _child = child.clone().attach();
    assert_eq!(seen(), Some((span_id(&child), attributes)));
    assert_eq!(truncated(), before + 2);
}

#[test]
fn a_context_with_ids_of_zero_publishes_nothing() {
    let outer = start([(name(0), "outer".to_owned())]);
    let _outer = outer.clone().attach();
    let expected = Some((span_id(&outer), vec![(name(0), "outer".to_owned())]));
    assert_eq!(seen(), expected);
    for (trace, span) in [(0, 0), (1, 0), (0, 1)] {
        let invalid = SpanContext::new(
            TraceId::from(trace),
            SpanId::from(span),
            TraceFlags::SAMPLED,
            false,
            TraceState::default(),
        );
        {
            let _invalid = Context::current()
                .with_remote_span_context(invalid)
                .attach();
            assert_eq!(seen(), None, "{trace} {span}");
            // A span that is started there is the first of a new trace.
            let child = start([]);
            let _child = child.clone().attach();
            assert_eq!(seen(), Some((span_id(&child), Vec::new())));
        }
        assert_eq!(seen(), expected);
    }
}

/// The memory of a record is used again, but not while a context has it.
#[test]
fn a_context_may_be_dropped_on_another_thread() {
    let first = start([(name(0), "first".to_owned())]);
    let expected = Some((span_id(&first), vec![(name(0), "first".to_owned())]));
    let attached = first.clone().attach();
    std::thread::scope(|scope| {
        let moved = first;
        scope.spawn(move || {
            {
                let _attached = moved.clone().attach();
                let child = start([]);
                let _child = child.clone().attach();
                let inherited = vec![(name(0), "first".to_owned())];
                assert_eq!(seen(), Some((span_id(&child), inherited)));
            }
            drop(moved);
            assert_eq!(seen(), None);
        });
    });
    for _ in 0..100 {
        drop(start([]));
        assert_eq!(seen(), expected);
    }
    drop(attached);
    assert_eq!(seen(), None);

    let other = std::thread::spawn(|| start([(name(1), "second".to_owned())]));
    let second = other.join().unwrap();
    let attributes = vec![(name(1), "second".to_owned())];
    let expected = Some((span_id(&second), attributes));
    // The thread that created it has ended.
    let _second = second.attach();
    assert_eq!(seen(), expected);
}
