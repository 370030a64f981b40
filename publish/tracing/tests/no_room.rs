//! Values that a record has no room for together, without OpenTelemetry. Alone in its program: they are counted.

#![cfg(not(any(
    feature = "opentelemetry_0_29",
    feature = "opentelemetry_0_30",
    feature = "opentelemetry_0_31",
    feature = "opentelemetry_0_32",
    feature = "opentelemetry_0_33",
)))]

use tracing_subscriber::layer::SubscriberExt;

include!("common/no_room.rs");

fn subscriber() -> impl tracing::Subscriber + Send + Sync {
    publish();
    tracing_subscriber::registry().with(otelctx_tracing::layer(NAMES))
}
