//! A shop: a service with axum, tracing and OpenTelemetry that publishes which trace and which route
//! each of its threads is working on.
//!
//! `shop [--load] [--log] [ADDRESS]` listens on <http://127.0.0.1:3000>, or on another address. With `--load` it also sends
//! requests to itself; with `--log` it prints the trace and the route of each request.

mod load;

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{MatchedPath, Path, Request};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::get;
use opentelemetry::Context;
use opentelemetry::trace::{TraceContextExt, TracerProvider};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tokio::net::TcpListener;
use tracing::{Instrument, info_span, instrument};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Whether requests are logged.
static LOG: AtomicBool = AtomicBool::new(false);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let builder = SdkTracerProvider::builder(); // .with_batch_exporter(…)
    let provider = otelctx_opentelemetry::install(builder, ["http.route"])
        .with_resource(Resource::builder().with_service_name("shop").build())
        .build();
    if let Err(problem) = otelctx_opentelemetry::check() {
        eprintln!("{problem}");
    }
    let spans = tracing_opentelemetry::layer().with_tracer(provider.tracer("shop"));
    tracing_subscriber::registry().with(spans).init();

    let service = Router::new()
        .route("/cart/{id}", get(cart))
        .route("/search/{words}", get(search))
        .route("/health", get(async || "fine\n"))
        .route_layer(from_fn(traced));
    let (mut address, mut load) = ("127.0.0.1:3000".to_owned(), false);
    for argument in std::env::args().skip(1) {
        match &*argument {
            "--load" => load = true,
            "--log" => LOG.store(true, Ordering::Relaxed),
            _ if argument.starts_with('-') => {
                return Err(format!("unknown option {argument}").into());
            }
            _ => address = argument,
        }
    }
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    println!("pid {}, http://{address}", std::process::id());
    if load {
        std::thread::spawn(move || load::run(address));
    }
    axum::serve(listener, service).await?;
    Ok(())
}

/// Starts a span for each request, with its route.
async fn traced(path: MatchedPath, request: Request, next: Next) -> Response {
    let span = info_span!("request", http.route = path.as_str());
    let answer = async {
        if LOG.load(Ordering::Relaxed) {
            let trace = Context::map_current(|context| context.span().span_context().trace_id());
            println!("{trace} {}", path.as_str());
        }
        next.run(request).await
    };
    answer.instrument(span).await
}

async fn cart(Path(id): Path<u32>) -> String {
    let items = load_items(id).await;
    // Not traced, but it still belongs to the request.
    let prices = items.iter().map(|item| price(*item)).sum::<u64>();
    format!("cart {id}: {} items, {prices}\n", items.len())
}

#[instrument(skip_all)]
async fn load_items(id: u32) -> Vec<u32> {
    // The database answers, perhaps on another thread.
    tokio::time::sleep(Duration::from_millis(2)).await;
    (0..id % 10 + 1).collect()
}

async fn search(Path(words): Path<String>) -> String {
    let found = rank(&words);
    format!("{found} products match {words}\n")
}

#[inline(never)]
fn price(item: u32) -> u64 {
    100 + compute(Duration::from_micros(100), u64::from(item)) % 900
}

#[inline(never)]
#[instrument(skip_all)]
fn rank(words: &str) -> u64 {
    compute(Duration::from_millis(2), words.len() as u64) % 100
}

/// Keeps the CPU busy.
#[inline(never)]
fn compute(time: Duration, mut value: u64) -> u64 {
    let start = Instant::now();
    while start.elapsed() < time {
        for _ in 0..1000 {
            value = black_box(
                value
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1),
            );
        }
    }
    value
}
