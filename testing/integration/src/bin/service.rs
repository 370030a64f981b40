//! A service with axum, tokio, tracing and OpenTelemetry, whose handlers note what they work on, and compare what
//! their thread publishes with what OpenTelemetry says: `service WAY`.
//!
//! It prints `pid ADDRESS`, and ends with standard input. Then it prints a line for each time that a handler
//! worked: `work TID START END TRACE SPAN ROUTE`, in nanoseconds of `CLOCK_MONOTONIC`; and `compared COUNT WRONG`.

use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{MatchedPath, Request};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::get;
use opentelemetry::Context;
use opentelemetry::trace::{TraceContextExt, TracerProvider};
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use otelctx::ProcessContext;
use tokio::task::yield_now;
use tokio::time::sleep;
use tracing::{Instrument, info_span, instrument};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// How long a handler works at a time.
const WORK: Duration = Duration::from_micros(150);

static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());
static COMPARED: AtomicU64 = AtomicU64::new(0);
static WRONG: AtomicU64 = AtomicU64::new(0);

fn main() {
    let way = std::env::args().nth(1).unwrap_or_default();
    let builder = SdkTracerProvider::builder();
    // Half of the spans are dropped.
    let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(0.5)));
    let mut layer = None;
    let provider = match &*way {
        "observer" => {
            let install = otelctx_opentelemetry::install(builder, ["http.route"]);
            let provider = install.with_sampler(sampler).build();
            otelctx_opentelemetry::check().expect("everything is published");
            provider
        }
        "layer" => {
            let process = ProcessContext::detect().publish();
            std::mem::forget(process.expect("a process context can be published"));
            layer = Some(otelctx_tracing::layer(["http.route"]));
            builder.with_sampler(sampler).build()
        }
        _ => panic!("no such way: {way:?}"),
    };
    let spans = tracing_opentelemetry::layer().with_tracer(provider.tracer("service"));
    tracing_subscriber::registry()
        .with(spans)
        .with(layer)
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .expect("threads can be started");
    runtime.spawn(serve());
    // Whether it ends or fails, the test is gone.
    let _ = std::io::stdin().read(&mut [0]);
    for line in &*LOG.lock().unwrap_or_else(PoisonError::into_inner) {
        println!("{line}");
    }
    println!(
        "compared {} {}",
        COMPARED.load(Ordering::Relaxed),
        WRONG.load(Ordering::Relaxed)
    );
}

async fn serve() {
    let service = Router::new()
        .route("/compute/{number}", get(compute))
        .route("/wait", get(wait))
        .route("/fan/out", get(fan_out))
        .route_layer(from_fn(traced));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("a port is free");
    let address = listener.local_addr().expect("it has an address");
    println!("{} {address}", std::process::id());
    axum::serve(listener, service).await.expect("it serves");
}

async fn traced(path: MatchedPath, request: Request, next: Next) -> Response {
    let route = path.as_str().to_owned();
    let span = info_span!("request", http.route = route);
    ROUTE.scope(route, next.run(request)).instrument(span).await
}

tokio::task_local! {
    /// The route of the request, which also spawned tasks know.
    static ROUTE: String;
}

async fn compute() {
    work(&ROUTE.get());
    nested(&ROUTE.get());
    work(&ROUTE.get());
}

#[instrument(skip_all)]
fn nested(route: &str) {
    work(route);
}

async fn wait() {
    work(&ROUTE.get());
    step(1).await;
    step(0).await;
    work(&ROUTE.get());
}

#[instrument(skip_all)]
async fn step(milliseconds: u64) {
    work(&ROUTE.get());
    match milliseconds {
        0 => yield_now().await,
        _ => sleep(Duration::from_millis(milliseconds)).await,
    }
    work(&ROUTE.get());
}

async fn fan_out() {
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let task = ROUTE.scope(ROUTE.get(), step(1));
            tokio::spawn(task.in_current_span())
        })
        .collect();
    // Usually dropped while it waits, as a request is that its client gives up on.
    let _ = tokio::time::timeout(Duration::from_micros(200), step(5)).await;
    work(&ROUTE.get());
    for task in tasks {
        task.await.expect("no step panics");
    }
    let route = ROUTE.get();
    let span = tracing::Span::current();
    let blocking = move || span.in_scope(|| work(&route));
    tokio::task::spawn_blocking(blocking)
        .await
        .expect("it does not panic");
}

/// Keeps the CPU busy, and compares again and again what this thread publishes.
#[inline(never)]
fn work(route: &str) {
    let span = Context::map_current(|context| context.span().span_context().clone());
    let expected = (
        span.trace_id().to_bytes(),
        span.span_id().to_bytes(),
        span.trace_flags().to_u8(),
    );
    let start = now();
    let mut end = start;
    while Duration::from_nanos(end - start) < WORK {
        let is_right = otelctx::visible_to_readers().is_some_and(|seen| {
            let [(key, value)] = &seen.attributes[..] else {
                return false;
            };
            let ids = (
                seen.trace_id.to_bytes(),
                seen.span_id.to_bytes(),
                seen.trace_flags.0,
            );
            ids == expected && key == "http.route" && value == route
        });
        COMPARED.fetch_add(1, Ordering::Relaxed);
        WRONG.fetch_add(u64::from(!is_right || !span.is_valid()), Ordering::Relaxed);
        end = now();
    }
    // SAFETY: gettid takes nothing and cannot fail.
    let tid = unsafe { libc::gettid() };
    let (trace, id) = (span.trace_id(), span.span_id());
    let line = format!("work {tid} {start} {end} {trace} {id} {route}");
    LOG.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(line);
}

/// Nanoseconds of `CLOCK_MONOTONIC`.
fn now() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the structure is valid during the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
