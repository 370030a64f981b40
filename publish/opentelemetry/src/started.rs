//! Spans that were started on a thread and may soon be put into a context.

use std::cell::RefCell;
use std::sync::Arc;

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId};
use otelctx::{raw, SharedContext};

use crate::observer::{converted, is_of, View};

/// Number of spans to remember for each thread. Programs put a span into a context when they have
/// started it; some start a few first.
const SPANS: usize = 16;

/// The latest spans of this thread, in a ring.
struct Started {
    spans: [Option<Arc<View>>; SPANS],
    /// The place of the oldest.
    next: usize,
}

impl Started {
    fn advance(&mut self) {
        self.next = (self.next + 1) % SPANS;
    }
}

thread_local! {
    static STARTED: RefCell<Started> = const {
        RefCell::new(Started { spans: [const { None }; SPANS], next: 0 })
    };
}

/// Remembers a span by a copy of another context with these IDs: usually without allocating,
/// because the context of the oldest span has ended. A trace ID of zero, which an application's own
/// generator may give, is not published.
pub(crate) fn add_copy(trace: TraceId, span: SpanId, flags: TraceFlags, of: &SharedContext) {
    let (trace, span, flags) = (trace.to_bytes(), span.to_bytes(), converted(flags));
    let is_used_again = STARTED.try_with(|started| {
        let started = &mut *started.borrow_mut();
        let oldest = started.spans[started.next].as_mut();
        let Some(View(shared)) = oldest.and_then(Arc::get_mut) else {
            return false;
        };
        if raw::replace_by_copy(shared, of, trace, span, flags).is_ok() {
            started.advance();
        }
        true
    });
    if is_used_again != Ok(true) {
        if let Ok(copy) = of.copy_with_ids(trace, span, flags) {
            add(copy.share());
        }
    }
}

/// Remembers a span by its context.
pub(crate) fn add(shared: SharedContext) {
    // While the thread's variables are dropped, nothing is published any more.
    let oldest = STARTED.try_with(|started| {
        let started = &mut *started.borrow_mut();
        let oldest = started.spans[started.next].replace(Arc::new(View(shared)));
        started.advance();
        oldest
    });
    // Dropped when the ring is not borrowed any more.
    drop(oldest);
}

/// Returns the view of a span that was started on this thread.
pub(crate) fn find(span: &SpanContext) -> Option<Arc<View>> {
    let find = |started: &RefCell<Started>| {
        let started = started.borrow();
        let latest = (1..=SPANS).map(|back| (started.next + SPANS - back) % SPANS);
        let mut latest = latest.filter_map(|at| started.spans[at].as_ref());
        latest.find(|view| is_of(&view.0, span)).cloned()
    };
    STARTED.try_with(find).ok().flatten()
}
