//! A process that forks in a span of OpenTelemetry. Alone in its program: while it forks, another thread could have a lock.

use opentelemetry_0_33::trace::TracerProvider as _;
use opentelemetry_sdk_0_33::trace::SdkTracerProvider;

include!("common/fork.rs");

fn install() {
    let tracer = SdkTracerProvider::builder().build().tracer("test");
    tracing_subscriber::registry()
        .with(tracing_opentelemetry_0_34::layer().with_tracer(tracer))
        .with(otelctx_tracing::layer(["http.route", "user"]))
        .init();
}
