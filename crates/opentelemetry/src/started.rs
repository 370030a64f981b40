//! Spans that were started on a thread and may soon be put into a context.

use std::cell::RefCell;
use std::sync::Arc;

use opentelemetry::trace::{SpanContext, SpanId, TraceId};

use crate::observer::View;

/// Number of spans to remember for each thread. Programs put a span into a context when they have started
/// it; some start a few first.
const SPANS: usize = 16;

/// The latest spans of this thread, in a ring.
struct Started {
    spans: [Option<(TraceId, SpanId, Arc<View>)>; SPANS],
    next: usize,
}

thread_local! {
    static STARTED: RefCell<Started> = const {
        RefCell::new(Started { spans: [const { None }; SPANS], next: 0 })
    };
}

/// Remembers a span.
pub(crate) fn add(trace: TraceId, span: SpanId, view: Arc<View>) {
    // While the thread's variables are dropped, there is nobody to publish for.
    let forgotten = STARTED.try_with(|started| {
        let started = &mut *started.borrow_mut();
        let at = started.next;
        started.next = (at + 1) % SPANS;
        started.spans[at].replace((trace, span, view))
    });
    // Dropped when the ring is not borrowed any more.
    drop(forgotten);
}

/// The view of a span that was started on this thread.
pub(crate) fn find(context: &SpanContext) -> Option<Arc<View>> {
    let find = |started: &RefCell<Started>| {
        let started = started.borrow();
        let latest = (1..=SPANS).map(|back| (started.next + SPANS - back) % SPANS);
        latest
            .filter_map(|at| started.spans[at].as_ref())
            .find(|(trace, span, _)| *span == context.span_id() && *trace == context.trace_id())
            .map(|(.., view)| Arc::clone(view))
    };
    STARTED.try_with(find).ok().flatten()
}
