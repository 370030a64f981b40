//! Values that a record has no room for together, with OpenTelemetry. Alone in its program: they are counted.

use opentelemetry_0_33::trace::TracerProvider as _;
use opentelemetry_sdk_0_33::trace::SdkTracerProvider;
use tracing_subscriber::layer::SubscriberExt;

include!("common/no_room.rs");

fn subscriber() -> impl tracing::Subscriber + Send + Sync {
    publish();
    let tracer = SdkTracerProvider::builder().build().tracer("test");
    tracing_subscriber::registry()
        .with(tracing_opentelemetry_0_34::layer().with_tracer(tracer))
        .with(otelctx_tracing::layer(NAMES))
}
