//! With OpenTelemetry 0.33.

use opentelemetry_0_33 as opentelemetry;
use opentelemetry_sdk_0_33 as opentelemetry_sdk;
use tracing_opentelemetry_0_34 as tracing_opentelemetry;

const KNOWS_FLAGS: bool = true;

include!("common/with_opentelemetry.rs");

#[test]
fn a_span_that_opentelemetry_does_not_attach_has_no_ids() {
    install();
    let provider = SdkTracerProvider::builder().build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    let subscriber = tracing_subscriber::registry()
        .with(layer.with_context_activation(false))
        .with(otelctx_tracing::layer(["http.route"]));
    tracing::subscriber::with_default(subscriber, || {
        let _request = info_span!("request", http.route = "/cart").entered();
        let attributes = vec![("http.route".to_owned(), "/cart".to_owned())];
        assert_eq!(seen(), Some(([0; 16], [0; 8], 0, attributes)));
    });
    assert_eq!(seen(), None);
}
