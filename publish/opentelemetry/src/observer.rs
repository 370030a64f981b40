//! Publishes the context that OpenTelemetry attaches to a thread.

use std::any::Any;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use opentelemetry::baggage::BaggageExt;
use opentelemetry::context::{ContextObserver, GlobalContextObserver, ObserverContextView};
use opentelemetry::trace::{self, SpanContext, TraceContextExt};
use opentelemetry::Context;
use otelctx::{
    current_record, integration, set_current, swap_current, Key, Record, SharedRecord, TraceFlags,
};

use crate::problem::{self, Problem};
use crate::{added, started, truncated};

/// What readers see of a context.
pub(crate) struct View(pub(crate) SharedRecord);

impl ObserverContextView for View {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The record of a context that was created while the observer was set.
///
/// Compiled once, with the table of functions of the views that are made here.
pub(crate) fn record(context: &Context) -> Option<&SharedRecord> {
    let view = &**context.observer_view().as_ref()?;
    // Asking for the type takes two calls, and 5 to 10 ns.
    let ours = ptr::from_ref(view).cast::<View>();
    #[allow(ambiguous_wide_pointer_comparisons)] // With another table, the view is asked below.
    let is_ours = ptr::eq(view, ours as *const dyn ObserverContextView);
    if is_ours {
        // SAFETY: the view has the table of functions of a `View`. Types share a table only if all functions are the
        // same, and `as_any` of another type returns another `Any`.
        return Some(unsafe { &(*ours).0 });
    }
    Some(&view.as_any().downcast_ref::<View>()?.0)
}

/// What to publish of every context, whichever provider its span is from.
#[derive(Debug, Default)]
pub(crate) struct Options {
    pub(crate) baggage: Vec<Key>,
    pub(crate) span_name: Option<Key>,
    pub(crate) local_root: Option<Key>,
}

impl Options {
    /// Whether everything that `asked` has is published.
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

/// Those of the first [`install`](crate::install).
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

/// Whether the observer has seen the context of [`set`].
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
            return Some(view.unwrap_or_else(|| Arc::new(View(known_record(span)))));
        }
        let record = view.map_or_else(|| known_record(span), |view| view.0.clone());
        let copy = added::copy(&record, added.unwrap_or_default());
        Some(Arc::new(View(with_baggage(copy, context, baggage))))
    }
}

/// Detaches what is attached when the thread ends.
struct AtExit;

impl Drop for AtExit {
    fn drop(&mut self) {
        drop(swap_current(None));
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
    let record = record(context);
    if record.is_none() && context.has_active_span() {
        return publish_without_view(context);
    }
    if AT_EXIT.try_with(|_| ()).is_ok() {
        // SAFETY: the context has a handle, if there is a record. OpenTelemetry keeps it in its thread-local stack until it
        // has called the observer for the next one, or drops the stack when the thread ends. The
        // standard library drops thread-local variables in reverse order of their first use (which is how it is
        // implemented: `sys::thread_local::destructors`), so `AT_EXIT` has detached the record before:
        // the stack is in use while this is called.
        unsafe { set_current(record) };
    }
}

/// Publishes a context with a span that was created before the observer was set.
#[cold]
#[inline(never)]
fn publish_without_view(context: &Context) {
    let span = context.span();
    let span = span.span_context();
    let record = span.is_valid().then(|| plain(span).share());
    drop(swap_current(record));
}

/// The record of a span that was not started on this thread: with its attributes if the thread
/// is working on it.
fn known_record(span: &SpanContext) -> SharedRecord {
    current_record()
        .filter(|record| is_of(record, span))
        .unwrap_or_else(|| plain(span).share())
}

/// Whether a record has a span's IDs and flags.
pub(crate) fn is_of(record: &SharedRecord, span: &SpanContext) -> bool {
    record.span_id() == span.span_id().to_bytes().into()
        && record.trace_id() == span.trace_id().to_bytes().into()
        && record.flags() == converted(span.trace_flags())
}

/// A record without attributes.
fn plain(span: &SpanContext) -> Record {
    Record::new(span.trace_id().to_bytes(), span.span_id().to_bytes())
        .flags(converted(span.trace_flags()))
}

pub(crate) fn converted(flags: trace::TraceFlags) -> TraceFlags {
    TraceFlags(flags.to_u8())
}

/// Replaces a record's attributes from the baggage by those of this context.
fn with_baggage(mut record: Record, context: &Context, keys: &[Key]) -> SharedRecord {
    for key in keys {
        record = record.without(key);
        if let Some(value) = context.baggage().get(key.name()) {
            record = record.with(key, value.as_str());
        }
    }
    truncated::count(record.is_truncated());
    record.share()
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
