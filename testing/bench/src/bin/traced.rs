//! Times one way of publishing the contexts of OpenTelemetry or `tracing`: `traced WAY`. Without one: `none`.
//!
//! OpenTelemetry's observer can't be removed, so each way is a process. For each line `WORK COUNT` on
//! standard input, it repeats that work, after a quarter of the repetitions to warm up, and prints the nanoseconds.

use std::hint::black_box;
use std::io::BufRead;
use std::time::{Duration, Instant};

use opentelemetry::trace::{TraceContextExt, Tracer as _, TracerProvider as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, Span, SpanData, SpanProcessor};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Stands for an exporter.
#[derive(Debug)]
struct Discard;

impl SpanProcessor for Discard {
    fn on_start(&self, _span: &mut Span, _context: &Context) {}
    fn on_end(&self, span: SpanData) {
        drop(black_box(span));
    }
    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }
    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        Ok(())
    }
}

fn main() {
    let way = std::env::args().nth(1).unwrap_or_default();
    let builder = SdkTracerProvider::builder().with_span_processor(Discard);
    let resource = Resource::builder().with_service_name("bench").build();
    let provider = match &*way {
        "observer" => {
            let provider = otelctx_opentelemetry::install(builder, ["http.route"])
                .with_profile_id(false)
                .with_resource(resource)
                .build();
            otelctx_opentelemetry::check().expect("everything is published");
            provider
        }
        _ => builder.with_resource(resource).build(),
    };
    let layer = (way == "layer").then(|| {
        let process = otelctx::ProcessContext::detect().publish();
        std::mem::forget(process.expect("a process context can be published"));
        otelctx_tracing::layer(["http.route"])
    });
    let tracer = provider.tracer("bench");
    let spans = tracing_opentelemetry::layer().with_tracer(provider.tracer("bench"));
    tracing_subscriber::registry()
        .with(spans)
        .with(layer)
        .init();

    let route = [KeyValue::new("http.route", "/cart/{id}")];
    let request = tracer
        .span_builder("request")
        .with_attributes(route)
        .start(&tracer);
    let request = Context::new().with_span(request);
    let _request = request.clone().attach();
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("standard input is readable");
        let (work, count) = line.split_once(' ').expect("a work and a count");
        let count: u64 = count.parse().expect("a count");
        let repeat = |count| match work {
            "attach" => attach(&request, count),
            "span" => span(&tracer, count),
            "enter" => enter(count),
            _ => panic!("no such work: {work}"),
        };
        // Untimed: another process has used the caches meanwhile.
        repeat(count / 4);
        let start = Instant::now();
        repeat(count);
        println!("{}", start.elapsed().as_nanos());
    }
}

/// Attaches a context and detaches it.
fn attach(context: &Context, count: u64) {
    for _ in 0..count {
        drop(black_box(context.clone().attach()));
    }
}

/// A span below the request's, from its start to its end.
fn span(tracer: &SdkTracer, count: u64) {
    for _ in 0..count {
        let span = tracer.start("query");
        drop(black_box(Context::current_with_span(span).attach()));
    }
}

/// Enters and exits a span of `tracing` with two fields.
fn enter(count: u64) {
    let span = tracing::info_span!("handler", http.route = "/cart/{id}", user = 1);
    for _ in 0..count {
        drop(black_box(span.enter()));
    }
}
