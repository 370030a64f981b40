//! A program in which another library has set OpenTelemetry's context observer.

use std::sync::Arc;

use opentelemetry::context::{ContextObserver, GlobalContextObserver};
use opentelemetry::trace::{TraceContextExt, Tracer as _, TracerProvider as _};
use opentelemetry::Context;
use opentelemetry_sdk::trace::SdkTracerProvider;
use otelctx_opentelemetry::Problem;

struct Other;

impl ContextObserver for Other {
    fn on_context_enter(&self, _from: &Context, _to: &Context) {}
    fn on_context_exit(&self, _from: &Context, _to: &Context) {}
}

#[test]
fn another_observer_is_reported() {
    GlobalContextObserver::set(Arc::new(Other));
    let provider =
        otelctx_opentelemetry::install(SdkTracerProvider::builder(), ["http.route"]).build();
    let problem = otelctx_opentelemetry::check().unwrap_err();
    assert!(matches!(problem, Problem::OtherObserver), "{problem}");
    let tracer = provider.tracer("test");
    let _attached = Context::current_with_span(tracer.start("span")).attach();
    assert_eq!(otelctx::current(), None);
}
