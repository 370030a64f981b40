//! Publishes the context that OpenTelemetry attaches to a thread.

use std::any::Any;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use opentelemetry::baggage::BaggageExt;
use opentelemetry::context::{ContextObserver, GlobalContextObserver, ObserverContextView};
use opentelemetry::trace::{self, SpanContext, TraceContextExt};
use opentelemetry::Context;
use otelctx::{integration, raw, Key, SharedContext, TraceFlags};

use crate::problem::{self, Problem};
use crate::{added, started, truncated};

/// A context of OpenTelemetry in the form that is published.
pub(crate) struct View(pub(crate) SharedContext);

impl ObserverContextView for View {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Returns what is published of a context that was created while the observer was set.
///
/// Compiled once, with the table of functions of the views that are made here.
pub(crate) fn shared(context: &Context) -> Option<&SharedContext> {
    let view = &**context.observer_view().as_ref()?;
    // Asking for the type takes two calls, and 5 to 10 ns.
    let ours = ptr::from_ref(view).cast::<View>();
    #[allow(ambiguous_wide_pointer_comparisons)] // With another table, the view is asked below.
    let is_ours = ptr::eq(view, ours as *const dyn ObserverContextView);
    if is_ours {
        // SAFETY: the view has the function table of a `View`. Types share one only if all
        // functions are the same, and `as_any` of another type returns another `Any`.
        return Some(unsafe { &(*ours).0 });
    }
    Some(&view.as_any().downcast_ref::<View>()?.0)
}

/// The options for all contexts, whichever provider their spans are from.
#[derive(Debug, Default)]
pub(crate) struct Options {
    pub(crate) baggage: Vec<Key>,
    pub(crate) span_name: Option<Key>,
    pub(crate) local_root: Option<Key>,
}

impl Options {
    /// Returns whether everything that `asked` has is published.
    fn include(&self, asked: &Self) -> bool {
        let same = |ours: &Option<Key>, asked: &Option<Key>| {
            let name = |key: &Option<Key>| key.as_ref().map(Key::name);
            asked.is_none() || name(ours) == name(asked)
        };
        let has = |asked: &Key| self.baggage.iter().any(|key| key.name() == asked.name());
        asked.baggage.iter().all(has)
            && same(&self.span_name, &asked.span_name)
            && same(&self.local_root, &asked.local_root)
    }
}

/// The options of the first [`install`](crate::install).
static OPTIONS: OnceLock<Options> = OnceLock::new();

pub(crate) fn options() -> &'static Options {
    // Before the observer is set, spans may start already.
    static NONE: Options = Options {
        baggage: Vec::new(),
        span_name: None,
        local_root: None,
    };
    OPTIONS.get().unwrap_or(&NONE)
}

/// Tells [`set`] that the observer was called for the context that it created.
static CALLED: AtomicBool = AtomicBool::new(false);

/// The value in a context that tells the observer that it was set.
struct Probe;

/// Sets the observer, unless another one was set. Returns whether it is ours.
pub(crate) fn set(options: Options) -> bool {
    let refused = OPTIONS.set(options).err();
    if !CALLED.load(Ordering::Relaxed) {
        // Without a result: a second observer is only logged. So see which one is called.
        GlobalContextObserver::set(Arc::new(Observer));
        drop(Context::new().with_value(Probe));
    }
    let is_ours = CALLED.load(Ordering::Relaxed);
    if is_ours {
        integration::set_observed();
        if refused.is_some_and(|asked| !self::options().include(&asked)) {
            problem::report(Problem::OtherOptions);
        }
    }
    is_ours
}

/// Publishes the context that is attached to this thread already.
pub(crate) fn publish_current() {
    Context::map_current(publish);
}

struct Observer;

impl ContextObserver for Observer {
    fn on_context_enter(&self, _from: &Context, to: &Context) {
        publish(to);
    }

    fn on_context_exit(&self, _from: &Context, to: &Context) {
        publish(to);
    }

    fn make_view(&self, context: &Context) -> Option<Arc<dyn ObserverContextView>> {
        if !context.has_active_span() {
            if context.get::<Probe>().is_some() {
                CALLED.store(true, Ordering::Relaxed);
            }
            return None;
        }
        let span = context.span();
        let span = span.span_context();
        if !span.is_valid() {
            return None;
        }
        let view = started::find(span);
        let (baggage, added) = (&*options().baggage, added::of(context, span));
        if baggage.is_empty() && added.is_none() {
            return Some(view.unwrap_or_else(|| Arc::new(View(known(span)))));
        }
        let shared = view.map_or_else(|| known(span), |view| view.0.clone());
        let copy = added::copy(&shared, added.unwrap_or_default());
        Some(Arc::new(View(with_baggage(copy, context, baggage))))
    }
}

/// Detaches what is attached when the thread ends.
struct AtExit;

impl Drop for AtExit {
    fn drop(&mut self) {
        drop(raw::swap_current(None));
    }
}

thread_local! {
    static AT_EXIT: AtExit = const { AtExit };
}

/// Makes a context what readers see of this thread.
///
/// OpenTelemetry has its own thread-local variable borrowed here: `Context::current()` would panic.
#[inline]
fn publish(context: &Context) {
    let shared = shared(context);
    if shared.is_none() && context.has_active_span() {
        return publish_without_view(context);
    }
    if AT_EXIT.try_with(|_| ()).is_ok() {
        // SAFETY: OpenTelemetry's context has a handle. OpenTelemetry keeps the context in its
        // thread-local stack until it has called the observer for the next one, or drops the stack
        // when the thread ends. `AT_EXIT` has detached it before: the standard library drops
        // thread-local variables in reverse order of their first use
        // (`sys::thread_local::destructors`), and the stack is in use while this is called.
        unsafe { raw::set_current(shared) };
    }
}

/// Publishes a context with a span that was created before the observer was set.
#[cold]
#[inline(never)]
fn publish_without_view(context: &Context) {
    let span = context.span();
    let span = span.span_context();
    let shared = span.is_valid().then(|| plain(span).share());
    drop(raw::swap_current(shared));
}

/// Returns what to publish of a span that was not started on this thread: with its attributes if
/// the thread is working on it.
fn known(span: &SpanContext) -> SharedContext {
    raw::current()
        .filter(|shared| is_of(shared, span))
        .unwrap_or_else(|| plain(span).share())
}

/// Returns whether a context has a span's IDs and flags.
pub(crate) fn is_of(shared: &SharedContext, span: &SpanContext) -> bool {
    shared.span_id() == span.span_id().to_bytes().into()
        && shared.trace_id() == span.trace_id().to_bytes().into()
        && shared.flags() == converted(span.trace_flags())
}

/// Creates a context without attributes for a span that has valid IDs.
fn plain(span: &SpanContext) -> otelctx::Context {
    otelctx::Context::new(span.trace_id().to_bytes(), span.span_id().to_bytes()).map_or_else(
        |_| otelctx::Context::without_ids(),
        |plain| plain.with_flags(converted(span.trace_flags())),
    )
}

pub(crate) fn converted(flags: trace::TraceFlags) -> TraceFlags {
    TraceFlags(flags.to_u8())
}

/// Replaces the attributes that come from the baggage by those of this context.
fn with_baggage(mut copy: otelctx::Context, context: &Context, keys: &[Key]) -> SharedContext {
    for key in keys {
        copy = copy.without_attribute(key);
        if let Some(value) = context.baggage().get(key.name()) {
            copy = copy.with_attribute(key, value.as_str());
        }
    }
    truncated::count(copy.is_truncated());
    copy.share()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_include_what_is_not_asked_for() {
        let key = |name| Key::new(name);
        let options = |baggage: &[&'static str], span_name, local_root| Options {
            baggage: baggage.iter().map(|name| key(name)).collect(),
            span_name: Option::map(span_name, key),
            local_root: Option::map(local_root, key),
        };
        let first = options(&["tenant", "user"], Some("name"), Some("root"));
        for asked in [
            options(&[], None, None),
            options(&["user"], Some("name"), None),
            options(&["user", "tenant"], None, Some("root")),
        ] {
            assert!(first.include(&asked), "{asked:?}");
        }
        for asked in [
            options(&["user", "other"], None, None),
            options(&[], Some("other"), None),
            options(&[], None, Some("other")),
        ] {
            assert!(!first.include(&asked), "{asked:?}");
        }
        assert!(!Options::default().include(&options(&[], Some("name"), None)));
    }
}
