//! Tasks of tokio that are spawned without a span, where the observer of `otelctx-opentelemetry` publishes the contexts.

#![cfg(all(feature = "tokio", tokio_unstable))]

use opentelemetry_0_33::trace::TracerProvider as _;
use opentelemetry_sdk_0_33::trace::SdkTracerProvider;
use tokio::task::yield_now;
use tracing::info_span;
use tracing_opentelemetry_0_34 as tracing_opentelemetry;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::{Layer as _, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// OpenTelemetry does not know spans that are called "filtered".
#[test]
fn a_task_goes_on_with_what_it_inherited_after_a_span() {
    let builder = SdkTracerProvider::builder();
    let provider = otelctx_opentelemetry::install(builder, ["http.route"]).build();
    otelctx_opentelemetry::check().unwrap();
    let spans = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    let filter = filter_fn(|metadata| metadata.name() != "filtered");
    tracing_subscriber::registry()
        .with(spans.with_filter(filter))
        .with(otelctx_tracing::layer(["http.route"]))
        .init();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = otelctx_tracing::inherit(builder.worker_threads(2))
        .build()
        .unwrap();

    let request = info_span!("request", http.route = "/cart");
    let (expected, task) = request.in_scope(|| {
        let expected = otelctx::visible_to_readers();
        let work = {
            let expected = expected.clone();
            async move {
                for _ in 0..20 {
                    assert_eq!(otelctx::visible_to_readers(), expected);
                    let own = info_span!("own", http.route = "/own");
                    own.in_scope(|| {
                        let seen = otelctx::visible_to_readers().unwrap();
                        assert_ne!(Some(seen.span_id), expected.as_ref().map(|it| it.span_id));
                        assert_eq!(seen.attributes[0].1, "/own");
                    });
                    assert_eq!(otelctx::visible_to_readers(), expected);
                    yield_now().await;
                }
            }
        };
        (expected, runtime.spawn(work))
    });
    assert!(expected.is_some());
    runtime.block_on(task).unwrap();
    let after = runtime.spawn(async { otelctx::visible_to_readers() });
    assert_eq!(runtime.block_on(after).unwrap(), None);

    // A runtime that polls a task on a thread on which the observer publishes a context, in a span that
    // OpenTelemetry does not know.
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = otelctx_tracing::inherit(&mut builder).build().unwrap();
    let task = request.in_scope(|| runtime.spawn(async { otelctx::visible_to_readers() }));
    let _outer = info_span!("filtered", http.route = "/outer").entered();
    let _around = info_span!("around", http.route = "/around").entered();
    let around = otelctx::visible_to_readers();
    assert_eq!(runtime.block_on(task).unwrap(), expected);
    assert_eq!(otelctx::visible_to_readers(), around);
}
