//! Many spans of `tracing` on tasks that move between threads: what the layer publishes is always the span that is active
//! on the thread, and memory does not grow.

mod many_spans;

use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tokio::task::yield_now;
use tracing::{Instrument, info_span};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use many_spans::compare;

/// Two spans, one below the other, each entered several times; the first one's route is known late.
async fn request(route: String) {
    let span = info_span!("request", http.route = tracing::field::Empty);
    let late = span.clone();
    async {
        late.record("http.route", &*route);
        compare(&route);
        yield_now().await;
        compare(&route);
        async {
            compare(&route);
            yield_now().await;
            compare(&route);
        }
        .instrument(info_span!("child"))
        .await;
        compare(&route);
    }
    .instrument(span)
    .await;
}

#[test]
fn spans_on_many_tasks_and_threads_are_always_the_active_one() {
    let process = otelctx::ProcessContext::new().with_service_name("spans");
    let _process = process.publish().unwrap();
    let provider = SdkTracerProvider::builder().build();
    tracing_subscriber::registry()
        .with(tracing_opentelemetry::layer().with_tracer(provider.tracer("spans")))
        .with(otelctx_tracing::layer(["http.route"]))
        .init();
    otelctx_tracing::check().unwrap();
    many_spans::check(request);
}
