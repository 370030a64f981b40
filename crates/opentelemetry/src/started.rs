//! Spans that were started on a thread and may soon be put into a context.

use std::cell::RefCell;
use std::sync::Arc;

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId};
use otelctx::SharedRecord;

use crate::observer::{converted, View};

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

/// Remembers a span with a record with these IDs, and the attributes of another record: usually
/// without allocating, because the context of an earlier span has ended.
pub(crate) fn add_copy(trace: TraceId, span: SpanId, flags: TraceFlags, of: &SharedRecord) {
    let (trace_id, span_id, flags) = (trace.to_bytes(), span.to_bytes(), converted(flags));
    add_with(trace, span, |earlier| {
        if let Some(mut view) = earlier {
            if let Some(View(record)) = Arc::get_mut(&mut view) {
                record.replace_by_copy(of, trace_id, span_id, flags);
                return (view, None);
            }
            return (copy(of, trace_id, span_id, flags), Some(view));
        }
        (copy(of, trace_id, span_id, flags), None)
    });
}

fn copy(
    of: &SharedRecord,
    trace: [u8; 16],
    span: [u8; 8],
    flags: otelctx::TraceFlags,
) -> Arc<View> {
    Arc::new(View(of.copy_with_ids(trace, span, flags).share()))
}

/// Remembers a span.
pub(crate) fn add(trace: TraceId, span: SpanId, record: SharedRecord) {
    add_with(trace, span, |earlier| (Arc::new(View(record)), earlier));
}

/// Remembers a span. `view` gets the view in whose place it is remembered, and returns it if it is
/// to be dropped.
fn add_with(
    trace: TraceId,
    span: SpanId,
    view: impl FnOnce(Option<Arc<View>>) -> (Arc<View>, Option<Arc<View>>),
) {
    // While the thread's variables are dropped, nothing is published any more.
    let earlier = STARTED.try_with(|started| {
        let started = &mut *started.borrow_mut();
        let at = started.next;
        started.next = (at + 1) % SPANS;
        let (view, earlier) = view(started.spans[at].take().map(|(.., view)| view));
        started.spans[at] = Some((trace, span, view));
        earlier
    });
    // Dropped when the ring is not borrowed any more.
    drop(earlier);
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
