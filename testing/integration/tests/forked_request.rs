//! A process that forks in a request of OpenTelemetry: the child goes on with it, as a reader sees.

use std::io::{Read, Write, pipe};

use opentelemetry::trace::{TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use otelctx_reader::format::process_context::Value;
use otelctx_reader::{ContextState, Process};

fn start(tracer: &SdkTracer, attributes: Vec<KeyValue>) -> Context {
    let span = tracer.span_builder("span").with_attributes(attributes);
    Context::current_with_span(span.start(tracer))
}

/// Trace ID, span ID and attributes.
type Seen = Option<([u8; 16], [u8; 8], Vec<(String, String)>)>;

/// What a reader finds in a process with one thread.
fn seen(process: &mut Process) -> Seen {
    let threads = process.threads().unwrap();
    assert_eq!(threads.len(), 1);
    let state = threads[0].context().unwrap();
    let context = state.attached()?;
    Some((
        context.trace_id.to_bytes(),
        context.span_id.to_bytes(),
        context.attributes.clone(),
    ))
}

fn ids(context: &Context) -> ([u8; 16], [u8; 8]) {
    let span = context.span();
    let span = span.span_context();
    (span.trace_id().to_bytes(), span.span_id().to_bytes())
}

#[test]
fn a_child_that_is_forked_in_a_request_goes_on_with_it() {
    let resource = Resource::builder_empty().with_service_name("forking");
    let provider =
        otelctx_opentelemetry::install(SdkTracerProvider::builder(), ["http.route", "step"])
            .with_resource(resource.build())
            .build();
    otelctx_opentelemetry::check().unwrap();
    let tracer = provider.tracer("test");
    let request = start(&tracer, vec![KeyValue::new("http.route", "/cart")]);
    let attached = request.clone().attach();

    // The child does a step whenever it gets a byte, and answers with one, and with its span's ID.
    let ((mut orders, mut order), (mut answers, mut answer)) = (pipe().unwrap(), pipe().unwrap());
    // SAFETY: the child uses what the handlers of fork(2) leave in order, and ends without unwinding.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(order);
        let work = std::panic::AssertUnwindSafe(|| {
            let mut next = || orders.read_exact(&mut [0]).unwrap();
            let mut done = |span: [u8; 8]| answer.write_all(&span).unwrap();
            done(ids(&request).1);
            next();
            let step = start(&tracer, vec![KeyValue::new("step", "child")]);
            let of_step = step.clone().attach();
            done(ids(&step).1);
            next();
            drop(of_step);
            drop(attached);
            done([0; 8]);
            next();
        });
        let result = std::panic::catch_unwind(work);
        // SAFETY: ends this process.
        unsafe { libc::_exit(i32::from(result.is_err())) };
    }
    assert!(child > 0);
    drop(answer);
    let mut answered = || {
        let mut span = [0; 8];
        answers.read_exact(&mut span).unwrap();
        span
    };
    let (trace, span) = ids(&request);
    let route = ("http.route".to_owned(), "/cart".to_owned());

    assert_eq!(answered(), span);
    let mut process = Process::open(child).unwrap();
    let ContextState::Published(context) = process.context().unwrap() else {
        panic!("the child has a process context of its own");
    };
    let name = context.payload.resource_attribute("service.name");
    assert_eq!(name, Some(&Value::String("forking".into())));
    assert_eq!(seen(&mut process), Some((trace, span, vec![route.clone()])));

    order.write_all(&[0]).unwrap();
    let step = answered();
    assert_ne!(step, span);
    let both = vec![route.clone(), ("step".to_owned(), "child".to_owned())];
    assert_eq!(seen(&mut process), Some((trace, step, both)));
    // The parent's thread goes on with its own.
    let own = otelctx::visible_to_readers().unwrap();
    assert_eq!(
        (own.span_id.to_bytes(), own.attributes),
        (span, vec![route])
    );

    order.write_all(&[0]).unwrap();
    assert_eq!(answered(), [0; 8]);
    assert_eq!(seen(&mut process), None);
    order.write_all(&[0]).unwrap();
    let mut status = 0;
    // SAFETY: the child is ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child failed");
    drop(attached);
}
