//! A process that forks in a span. Alone in its program: while it forks, another thread could have a lock.

#![cfg(not(any(
    feature = "opentelemetry_0_29",
    feature = "opentelemetry_0_30",
    feature = "opentelemetry_0_31",
    feature = "opentelemetry_0_32",
    feature = "opentelemetry_0_33",
)))]

include!("common/fork.rs");

fn install() {
    tracing_subscriber::registry()
        .with(otelctx_tracing::layer(["http.route", "user"]))
        .init();
}
