//! A program in which another library has set OpenTelemetry's context observer.

use std::any::Any;
use std::sync::Arc;

use opentelemetry::context::{ContextObserver, GlobalContextObserver, ObserverContextView};
use opentelemetry::trace::{Span as _, TraceContextExt, Tracer as _, TracerProvider as _};
use opentelemetry::Context;
use opentelemetry_sdk::trace::SdkTracerProvider;
use otelctx_opentelemetry::Problem;

struct Other;

/// As large as a view of ours.
struct View(#[allow(dead_code)] Box<u8>);

impl ObserverContextView for View {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl ContextObserver for Other {
    fn on_context_enter(&self, _from: &Context, _to: &Context) {}
    fn on_context_exit(&self, _from: &Context, _to: &Context) {}
    fn make_view(&self, _context: &Context) -> Option<Arc<dyn ObserverContextView>> {
        Some(Arc::new(View(Box::new(7))))
    }
}

#[test]
fn another_observer_is_reported() {
    GlobalContextObserver::set(Arc::new(Other));
    let provider =
        otelctx_opentelemetry::install(SdkTracerProvider::builder(), ["http.route"]).build();
    let problem = otelctx_opentelemetry::check().unwrap_err();
    assert!(matches!(problem, Problem::OtherObserver), "{problem}");
    assert_eq!(
        problem.to_string(),
        "thread contexts are not published: another library has set OpenTelemetry's context observer \
         (GlobalContextObserver::set), and a process has only one; remove it, or install \
         otelctx_opentelemetry first"
    );
    let tracer = provider.tracer("test");
    let _attached = Context::current_with_span(tracer.start("span")).attach();
    assert_eq!(otelctx::visible_to_readers(), None);
    // Its view is not taken for one of ours.
    let child = tracer.start("child");
    assert!(child.span_context().is_valid());
    let _child = Context::current_with_span(child).attach();
    assert_eq!(otelctx::visible_to_readers(), None);
}
