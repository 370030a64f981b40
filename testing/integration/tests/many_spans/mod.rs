//! Many spans on tasks that move between threads, each compared with OpenTelemetry's current context.
//!
//! `OTELCTX_SPANS` is the number of spans.

use std::fs;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use opentelemetry::Context;
use opentelemetry::trace::TraceContextExt;

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

/// How often [`compare`] was called.
static COMPARED: AtomicU64 = AtomicU64::new(0);

/// Compares what the thread publishes with OpenTelemetry's current context.
pub(crate) fn compare(route: &str) {
    let seen = otelctx::visible_to_readers().expect("a context is attached");
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
    COMPARED.fetch_add(1, Ordering::Relaxed);
}

/// Runs requests of two spans each, and checks that every one was compared and that memory does not grow.
pub(crate) fn check<F>(request: impl Fn(String) -> F + Send + Sync + 'static)
where
    F: Future<Output = ()> + Send + 'static,
{
    let spans = std::env::var("OTELCTX_SPANS").map_or(SPANS, |text| text.parse().unwrap());
    let request = Arc::new(request);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .build()
        .unwrap();
    let run = |spans: u64| {
        runtime.block_on(async {
            let tasks: Vec<_> = (0..TASKS)
                .map(|task| {
                    let request = Arc::clone(&request);
                    tokio::spawn(async move {
                        for number in 0..spans / TASKS / 2 {
                            request(format!("/{task}/{}", number % 10)).await;
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
    let compared = COMPARED.load(Ordering::Relaxed);
    println!("{spans} spans, compared {compared} times; {before} KiB before, {after} KiB after");
    assert!(compared > 2 * spans);
    assert!(after < before + GROWTH, "{before} KiB, then {after} KiB");
    assert_eq!(otelctx::visible_to_readers(), None);
}
