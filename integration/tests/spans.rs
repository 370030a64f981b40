//! Many spans of OpenTelemetry's SDK on tasks that move between threads: what a thread publishes is always the
//! span that is active on it, and memory does not grow.
//!
//! `OTELCTX_SPANS` is the number of spans.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use opentelemetry::trace::{FutureExt, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use otelctx_reader::ContextState;
use otelctx_reader::format::process_context::Value as Published;
use tokio::task::yield_now;

const SPANS: u64 = 100_000;
const TASKS: u64 = 64;
const THREADS: usize = 8;
/// How much memory may grow after a tenth of the spans, in KiB: what an allocator may keep.
const GROWTH: u64 = 4096;

fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Compares what the thread publishes with OpenTelemetry's current context.
fn compare(route: &str, compared: &AtomicU64) {
    let seen = otelctx::current().expect("a context is attached");
    Context::map_current(|context| {
        let span = context.span();
        let span = span.span_context();
        assert_eq!(seen.trace_id.to_bytes(), span.trace_id().to_bytes());
        assert_eq!(seen.span_id.to_bytes(), span.span_id().to_bytes());
        assert_eq!(seen.trace_flags.0, span.trace_flags().to_u8());
    });
    assert_eq!(
        seen.attributes,
        [("http.route".to_owned(), route.to_owned())]
    );
    compared.fetch_add(1, Ordering::Relaxed);
}

/// Two spans, one below the other, each polled several times.
async fn request(tracer: Arc<SdkTracer>, route: String, compared: Arc<AtomicU64>) {
    let attributes = [KeyValue::new("http.route", route.clone())];
    let span = tracer
        .span_builder("request")
        .with_attributes(attributes)
        .start(&*tracer);
    let context = Context::new().with_span(span);
    let below = Arc::clone(&tracer);
    async {
        compare(&route, &compared);
        yield_now().await;
        compare(&route, &compared);
        let child = Context::current_with_span(below.start("child"));
        async {
            compare(&route, &compared);
            yield_now().await;
            compare(&route, &compared);
        }
        .with_context(child)
        .await;
        compare(&route, &compared);
    }
    .with_context(context)
    .await;
}

/// The service's name, as a reader finds it.
fn service_name() -> Option<Published> {
    let pid = i32::try_from(std::process::id()).unwrap();
    let mut process = otelctx_reader::Process::open(pid).unwrap();
    let ContextState::Published(context) = process.context().unwrap() else {
        panic!("it is published");
    };
    context.payload.resource_attribute("service.name").cloned()
}

#[test]
fn spans_on_many_tasks_and_threads_are_always_the_active_one() {
    let spans = std::env::var("OTELCTX_SPANS").map_or(SPANS, |text| text.parse().unwrap());
    let resource = Resource::builder_empty().with_service_name("spans");
    // From the builder, which a span processor learns.
    let builder = SdkTracerProvider::builder().with_resource(resource.build());
    let provider = otelctx_opentelemetry::install(builder, ["http.route"]).build();
    otelctx_opentelemetry::check().unwrap();
    assert_eq!(service_name(), Some(Published::String("spans".to_owned())));

    let tracer = Arc::new(provider.tracer("spans"));
    let compared = Arc::new(AtomicU64::new(0));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .build()
        .unwrap();
    let run = |spans: u64| {
        runtime.block_on(async {
            let tasks: Vec<_> = (0..TASKS)
                .map(|task| {
                    let (tracer, compared) = (Arc::clone(&tracer), Arc::clone(&compared));
                    tokio::spawn(async move {
                        for number in 0..spans / TASKS / 2 {
                            let route = format!("/{task}/{}", number % 10);
                            request(Arc::clone(&tracer), route, Arc::clone(&compared)).await;
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
        });
    };
    run(spans / 10);
    let before = resident();
    run(spans - spans / 10);
    let after = resident();
    let compared = compared.load(Ordering::Relaxed);
    println!("{spans} spans, compared {compared} times; {before} KiB before, {after} KiB after");
    assert!(compared > 2 * spans);
    assert!(after < before + GROWTH, "{before} KiB, then {after} KiB");
    assert_eq!(otelctx::current(), None);
}
