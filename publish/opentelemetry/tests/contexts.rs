//! What the thread publishes while contexts are attached, compared with OpenTelemetry's own values.

use std::future::Future;
use std::sync::OnceLock;

use opentelemetry::baggage::BaggageExt;
use opentelemetry::trace::{
    FutureExt, Span as _, SpanContext, SpanId, SpanKind, TraceContextExt, TraceFlags, TraceId,
    TraceState, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{
    InMemorySpanExporter, Sampler, SamplingDecision, SamplingResult, SdkTracer, SdkTracerProvider,
    ShouldSample,
};
use opentelemetry_sdk::Resource;

/// Drops spans named "dropped", and otherwise samples.
#[derive(Clone, Debug)]
struct ByName;

impl ShouldSample for ByName {
    fn should_sample(
        &self,
        _parent: Option<&Context>,
        _trace: TraceId,
        name: &str,
        _kind: &SpanKind,
        _attributes: &[KeyValue],
        _links: &[opentelemetry::trace::Link],
    ) -> SamplingResult {
        SamplingResult {
            decision: match name {
                "dropped" => SamplingDecision::Drop,
                "recorded" => SamplingDecision::RecordOnly,
                _ => SamplingDecision::RecordAndSample,
            },
            attributes: vec![KeyValue::new("from.sampler", name.to_owned())],
            trace_state: TraceState::default(),
        }
    }
}

struct Program {
    tracer: SdkTracer,
    /// Of a second provider, which publishes other attributes.
    other: SdkTracer,
    exporter: InMemorySpanExporter,
    /// A context that was created before the observer was set.
    early: Context,
}

fn program() -> &'static Program {
    static PROGRAM: OnceLock<Program> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        assert!(matches!(
            otelctx_opentelemetry::check(),
            Err(otelctx_opentelemetry::Problem::NotInstalled)
        ));
        let early = Context::new().with_remote_span_context(SpanContext::new(
            TraceId::from(1),
            SpanId::from(2),
            TraceFlags::SAMPLED,
            true,
            TraceState::default(),
        ));
        let exporter = InMemorySpanExporter::default();
        let builder = SdkTracerProvider::builder().with_simple_exporter(exporter.clone());
        let provider =
            otelctx_opentelemetry::install(builder, ["http.route", "count", "from.sampler"])
                .with_sampler(ByName)
                .with_resource(
                    Resource::builder_empty()
                        .with_service_name("shop")
                        .with_attribute(KeyValue::new("answer", 42))
                        .build(),
                )
                .with_baggage(["tenant.id"])
                .with_span_name("span.name")
                .with_local_root_span_id("local_root")
                .build();
        let other = otelctx_opentelemetry::install(SdkTracerProvider::builder(), ["user"])
            .with_sampler(Sampler::AlwaysOn)
            .with_resource(
                Resource::builder_empty()
                    .with_attribute(KeyValue::new("other", true))
                    .build(),
            )
            .build();
        otelctx_opentelemetry::check().unwrap();
        let (tracer, other) = (provider.tracer("test"), other.tracer("other"));
        Program {
            tracer,
            other,
            exporter,
            early,
        }
    })
}

/// What is published: trace ID, span ID, flags and attributes.
type Seen = Option<(TraceId, SpanId, u8, Vec<(String, String)>)>;

fn seen() -> Seen {
    let context = otelctx::visible_to_readers()?;
    let mut attributes: Vec<_> = context
        .attributes
        .iter()
        .map(|attribute| (attribute.0.to_string(), attribute.1.to_string()))
        .collect();
    attributes.sort();
    Some((
        TraceId::from_bytes(context.trace_id.to_bytes()),
        SpanId::from_bytes(context.span_id.to_bytes()),
        context.trace_flags.0,
        attributes,
    ))
}

/// What should be published of the current context.
fn expected(attributes: &[(&str, &str)]) -> Seen {
    Context::map_current(|context| of(context, attributes))
}

fn of(context: &Context, attributes: &[(&str, &str)]) -> Seen {
    let span = context.span();
    let span = span.span_context();
    let mut attributes: Vec<_> = attributes
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    attributes.sort();
    span.is_valid().then(|| {
        (
            span.trace_id(),
            span.span_id(),
            span.trace_flags().to_u8(),
            attributes,
        )
    })
}

/// The published attributes that every span of a program has.
fn with<'a>(name: &'a str, root: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut all = vec![
        ("span.name", name),
        ("local_root", root),
        ("from.sampler", name),
    ];
    all.extend(more);
    all
}

fn id(context: &Context) -> String {
    context.span().span_context().span_id().to_string()
}

fn start(name: &'static str, attributes: &[(&'static str, &'static str)]) -> Context {
    let attributes = attributes
        .iter()
        .map(|(key, value)| KeyValue::new(*key, *value));
    let tracer = &program().tracer;
    let span = tracer
        .span_builder(name)
        .with_attributes(attributes)
        .start(tracer);
    Context::current_with_span(span)
}

#[test]
fn the_thread_publishes_what_is_attached() {
    program();
    assert_eq!(seen(), None);
    let outer = start(
        "GET /cart",
        &[("http.route", "/cart"), ("unpublished", "x")],
    );
    let root = id(&outer);
    {
        let _outer = outer.attach();
        assert!(expected(&[]).is_some());
        assert_eq!(
            seen(),
            expected(&with("GET /cart", &root, &[("http.route", "/cart")]))
        );
        {
            let _inner = start("query", &[]).attach();
            assert_eq!(
                seen(),
                expected(&with("query", &root, &[("http.route", "/cart")]))
            );
            let _detached = Context::new().attach();
            assert_eq!(seen(), None);
        }
        assert_eq!(
            seen(),
            expected(&with("GET /cart", &root, &[("http.route", "/cart")]))
        );
        let _own = start("nested", &[("http.route", "/cart/:id")]).attach();
        assert_eq!(
            seen(),
            expected(&with("nested", &root, &[("http.route", "/cart/:id")]))
        );
    }
    assert_eq!(seen(), None);
}

#[test]
fn spans_that_are_not_sampled_publish_the_same() {
    for name in ["dropped", "recorded"] {
        let context = start(name, &[("http.route", "/health")]);
        assert!(!context.span().span_context().is_sampled());
        let root = id(&context);
        let _attached = context.attach();
        assert_eq!(
            seen(),
            expected(&with(name, &root, &[("http.route", "/health")]))
        );
    }
}

/// Spans of one trace, so that only their span IDs tell them apart.
#[test]
fn spans_that_are_started_before_the_first_is_attached_are_distinguished() {
    let parent = start("parent", &[]);
    let root = id(&parent);
    let _parent = parent.attach();
    let tracer = &program().tracer;
    for name in ["dropped", "sampled"] {
        let routes = ["/first", "/second", "/never attached"];
        let spans = routes.map(|route| {
            let attributes = [KeyValue::new("http.route", route)];
            let span = tracer.span_builder(name).with_attributes(attributes);
            span.start(tracer)
        });
        for (span, route) in spans.into_iter().zip(routes).take(2) {
            let _attached = Context::current_with_span(span).attach();
            let expected_attributes = with(name, &root, &[("http.route", route)]);
            assert_eq!(seen(), expected(&expected_attributes));
        }
    }
}

#[test]
fn guards_that_are_dropped_out_of_order_leave_what_is_current() {
    let first = start("first", &[]);
    let first_root = id(&first);
    let first_guard = first.clone().attach();
    let second = start("second", &[]);
    let second_guard = second.attach();
    drop(first_guard);
    assert_eq!(seen(), expected(&with("second", &first_root, &[])));
    drop(second_guard);
    assert_eq!(seen(), expected(&[]));
    assert_eq!(seen(), None);
}

#[test]
fn contexts_keep_their_attributes_on_other_threads() {
    let context = start("request", &[("http.route", "/cart")]);
    let root = id(&context);
    let attributes = with("request", &root, &[("http.route", "/cart")]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _attached = context.clone().attach();
            assert_eq!(seen(), expected(&attributes));
            // A context that is derived there.
            let _derived = Context::current_with_value(1_u8).attach();
            assert_eq!(seen(), expected(&attributes));
            let _suppressed = Context::enter_telemetry_suppressed_scope();
            assert_eq!(seen(), expected(&attributes));
        });
    });
    let future = async {
        assert_eq!(seen(), expected(&attributes));
    };
    let mut future = std::pin::pin!(future.with_context(context.clone()));
    let waker = std::task::Waker::noop();
    assert!(future
        .as_mut()
        .poll(&mut std::task::Context::from_waker(waker))
        .is_ready());
    assert_eq!(seen(), None);
}

#[test]
fn baggage_is_published_on_request() {
    let context = start("request", &[]);
    let root = id(&context);
    let baggage = context.with_baggage([
        KeyValue::new("tenant.id", "blue"),
        KeyValue::new("secret", "x"),
    ]);
    let _baggage = baggage.clone().attach();
    let blue = [("tenant.id", "blue")];
    assert_eq!(seen(), expected(&with("request", &root, &blue)));
    {
        let _child = start("child", &[]).attach();
        assert_eq!(seen(), expected(&with("child", &root, &blue)));
        let _cleared = Context::map_current(|context| context.with_cleared_baggage()).attach();
        assert_eq!(seen(), expected(&with("child", &root, &[])));
    }
    let _other = baggage
        .with_baggage([KeyValue::new("tenant.id", "green")])
        .attach();
    assert_eq!(
        seen(),
        expected(&with("request", &root, &[("tenant.id", "green")]))
    );
}

#[test]
fn an_appended_attribute_is_seen_until_the_thread_attaches_or_detaches_a_context() {
    static LATE: otelctx::Key = otelctx::Key::new("late");
    let context = start("request", &[]);
    let root = id(&context);
    let _attached = context.attach();
    assert!(otelctx::append_current(&LATE, "x"));
    let late = [("late", "x")];
    assert_eq!(seen(), expected(&with("request", &root, &late)));
    {
        let _child = start("child", &[]).attach();
        assert_eq!(seen(), expected(&with("child", &root, &[])));
    }
    assert_eq!(seen(), expected(&with("request", &root, &[])));
}

#[test]
fn an_attribute_that_is_added_to_a_context_is_seen_in_it_and_in_what_is_derived_from_it() {
    static LATE: otelctx::Key = otelctx::Key::new("late");
    static ROUTE: otelctx::Key = otelctx::Key::new("http.route");
    let add = |key: &'static otelctx::Key, value: &str| {
        otelctx_opentelemetry::with_attribute(&Context::current(), key, value)
    };
    let request = start("request", &[("http.route", "/early")]);
    let root = id(&request);
    let _request = request.clone().attach();
    let late = add(&LATE, "x");
    let early = [("http.route", "/early")];
    assert_eq!(seen(), expected(&with("request", &root, &early)));
    {
        let _late = late.clone().attach();
        let both = [("http.route", "/early"), ("late", "x")];
        assert_eq!(seen(), expected(&with("request", &root, &both)));
        {
            let _child = start("child", &[]).attach();
            assert_eq!(seen(), expected(&with("child", &root, &both)));
            // A value of its own.
            let _own = start("own", &[("http.route", "/own")]).attach();
            let own = [("http.route", "/own"), ("late", "x")];
            assert_eq!(seen(), expected(&with("own", &root, &own)));
            let _added = add(&ROUTE, "/added").attach();
            let added = [("http.route", "/added"), ("late", "x")];
            assert_eq!(seen(), expected(&with("own", &root, &added)));
            let _sibling = late.with_value(1_u8).attach();
            assert_eq!(seen(), expected(&with("request", &root, &both)));
        }
        let _again = add(&LATE, "y").attach();
        let again = [("http.route", "/early"), ("late", "y")];
        assert_eq!(seen(), expected(&with("request", &root, &again)));
        let _route = add(&ROUTE, "/cart/{id}").attach();
        let route = [("http.route", "/cart/{id}"), ("late", "y")];
        assert_eq!(seen(), expected(&with("request", &root, &route)));
        let current = Context::current();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _elsewhere = current.clone().attach();
                assert_eq!(seen(), expected(&with("request", &root, &route)));
            });
        });
        let _baggage = Context::current()
            .with_baggage([KeyValue::new("tenant.id", "blue")])
            .attach();
        let all = [&route[..], &[("tenant.id", "blue")]].concat();
        assert_eq!(seen(), expected(&with("request", &root, &all)));
    }
    assert_eq!(seen(), expected(&with("request", &root, &early)));
    // A span of another trace, and no span.
    let _other = late
        .with_remote_span_context(program().early.span().span_context().clone())
        .attach();
    assert_eq!(seen(), expected(&[]));
    let _none = otelctx_opentelemetry::with_attribute(&Context::new(), &LATE, "x").attach();
    assert_eq!(seen(), None);
}

#[test]
fn remote_parents_and_contexts_from_before_the_installation_publish_their_ids() {
    let early = program().early.clone();
    let _early = early.clone().attach();
    assert_eq!(seen(), expected(&[]));
    assert_eq!(seen().unwrap().2, 1);
    let child = start("child", &[("http.route", "/cart")]);
    let root = id(&child);
    let _child = child.attach();
    assert_eq!(
        seen(),
        expected(&with("child", &root, &[("http.route", "/cart")]))
    );
    let _parent = early.attach();
    assert_eq!(seen(), expected(&[]));
}

#[test]
fn values_that_are_not_strings_are_published_as_text() {
    let tracer = &program().tracer;
    let attributes = [KeyValue::new("count", 1), KeyValue::new("count", 42)];
    let span = tracer
        .span_builder("numbers")
        .with_attributes(attributes)
        .start(tracer);
    let context = Context::current_with_span(span);
    let root = id(&context);
    let _attached = context.attach();
    assert_eq!(
        seen(),
        expected(&with("numbers", &root, &[("count", "42")]))
    );
}

#[test]
fn spans_of_two_providers_inherit_from_each_other() {
    let outer = start("outer", &[("http.route", "/cart")]);
    let root = id(&outer);
    let _outer = outer.attach();
    let other = &program().other;
    let span = other.span_builder("inner").with_attributes([
        KeyValue::new("user", "u1"),
        KeyValue::new("http.route", "/x"),
    ]);
    let _inner = Context::current_with_span(span.start(other)).attach();
    let both = [
        ("span.name", "inner"),
        ("local_root", &root),
        ("from.sampler", "outer"),
        ("http.route", "/cart"),
        ("user", "u1"),
    ];
    assert_eq!(seen(), expected(&both));
}

#[test]
fn local_root_spans_are_linked_to_their_profile() {
    let Program {
        tracer,
        exporter,
        early,
        ..
    } = program();
    let root = tracer
        .span_builder("linked root")
        .start_with_context(tracer, early);
    let (root_id, context) = (
        root.span_context().span_id(),
        Context::new().with_span(root),
    );
    drop(tracer.start_with_context("linked child", &context));
    drop(context);
    let spans = exporter.get_finished_spans().unwrap();
    let profile = |name: &str| {
        let span = spans.iter().find(|span| span.name == name).unwrap();
        let id = span
            .attributes
            .iter()
            .find(|it| it.key.as_str() == "pyroscope.profile.id");
        id.map(|id| id.value.to_string())
    };
    assert_eq!(profile("linked root"), Some(root_id.to_string()));
    assert_eq!(profile("linked child"), None);
}

/// Values that a record has no room for: the IDs are published, and what fits.
#[test]
fn attributes_that_are_too_long_are_cut() {
    let long: &'static str = "x".repeat(1000).leak();
    let context = start("long", &[("http.route", long)]);
    let root = id(&context);
    let _attached = context.attach();
    assert_eq!(
        seen(),
        expected(&with("long", &root, &[("http.route", &long[..255])]))
    );
}

#[test]
fn a_thread_that_ends_with_an_attached_context_is_no_problem() {
    struct AtEnd(Context);
    impl Drop for AtEnd {
        fn drop(&mut self) {
            // OpenTelemetry's own variable may be gone, so the SDK itself can't end a sampled span.
            drop(self.0.with_value(1_u8));
            drop(program().tracer.start_with_context("dropped", &self.0));
        }
    }
    thread_local! {
        static AT_END: std::cell::RefCell<Option<AtEnd>> = const { std::cell::RefCell::new(None) };
    }
    for before in [true, false] {
        let thread = std::thread::spawn(move || {
            if before {
                AT_END.with(|at_end| drop(at_end.borrow_mut().take()));
            }
            let context = start("forgotten", &[]);
            std::mem::forget(context.clone().attach());
            AT_END.with(|at_end| *at_end.borrow_mut() = Some(AtEnd(context)));
        });
        thread.join().unwrap();
    }
}
