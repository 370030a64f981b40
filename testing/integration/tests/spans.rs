//! Many spans of OpenTelemetry's SDK on tasks that move between threads: what a thread publishes is always the
//! span that is active on it, and memory does not grow.

mod many_spans;

use std::sync::Arc;

use opentelemetry::trace::{FutureExt, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use otelctx_reader::ContextState;
use otelctx_reader::format::process_context::Value as Published;
use tokio::task::yield_now;

use many_spans::compare;

/// Two spans, one below the other, each polled several times.
async fn request(tracer: Arc<SdkTracer>, route: String) {
    let attributes = [KeyValue::new("http.route", route.clone())];
    let span = tracer
        .span_builder("request")
        .with_attributes(attributes)
        .start(&*tracer);
    let context = Context::new().with_span(span);
    let below = Arc::clone(&tracer);
    async {
        compare(&route);
        yield_now().await;
        compare(&route);
        let child = Context::current_with_span(below.start("child"));
        async {
            compare(&route);
            yield_now().await;
            compare(&route);
        }
        .with_context(child)
        .await;
        compare(&route);
    }
    .with_context(context)
    .await;
}

/// The service's name, as a reader finds it.
fn service_name() -> Option<Published> {
    let pid = i32::try_from(std::process::id()).unwrap();
    let mut process = otelctx_reader::Process::open(pid).unwrap();
    let ContextState::Published(context) = process.context().unwrap() else {
        panic!("it is published");
    };
    context.payload.resource_attribute("service.name").cloned()
}

#[test]
fn spans_on_many_tasks_and_threads_are_always_the_active_one() {
    let resource = Resource::builder_empty().with_service_name("spans");
    // From the builder, which a span processor learns.
    let builder = SdkTracerProvider::builder().with_resource(resource.build());
    let provider = otelctx_opentelemetry::install(builder, ["http.route"]).build();
    otelctx_opentelemetry::check().unwrap();
    assert_eq!(service_name(), Some(Published::String("spans".to_owned())));

    let tracer = Arc::new(provider.tracer("spans"));
    many_spans::check(move |route| request(Arc::clone(&tracer), route));
}
