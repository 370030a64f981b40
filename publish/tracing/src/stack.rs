//! The spans that are entered on this thread.

use std::cell::RefCell;

use otelctx::{integration, raw, SharedContext};

use crate::fields::Made;
use crate::ids::Ids;

/// An entered span, and its layer: layers of other subscribers have spans of the same number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entered {
    /// The address of the layer's keys.
    pub(crate) layer: usize,
    pub(crate) span: u64,
}

/// Stands for a task on the stack: no span has the number 0.
#[cfg(all(feature = "tokio", tokio_unstable))]
pub(crate) const TASK: Entered = Entered { layer: 0, span: 0 };

/// Number of spans whose contexts a thread remembers.
const REMEMBERED: usize = 4;

/// The contexts of the entered spans, the latest last: the one that readers see.
struct Stack {
    entered: Vec<(Entered, SharedContext)>,
    remembered: [Option<RememberedSpan>; REMEMBERED],
    next: usize,
}

/// A span that was entered before, with the IDs of OpenTelemetry that it had.
struct RememberedSpan {
    entered: Entered,
    ids: Ids,
    made: Made,
}

impl Stack {
    fn publish(&self) {
        // SAFETY: the stack has a handle, which is dropped after another context is set.
        unsafe { raw::set_current(self.entered.last().map(|(_, context)| context)) };
    }

    /// Publishes the latest context after `old` was removed, unless the observer has published a
    /// context since, which OpenTelemetry still has attached.
    fn publish_after(&self, old: &SharedContext) {
        let is_over = |current: SharedContext| raw::record_of(&current) != raw::record_of(old);
        if !(integration::is_observed() && raw::current().is_some_and(is_over)) {
            self.publish();
        }
    }

    /// Publishes the latest context if the observer has detached OpenTelemetry's last one.
    fn publish_after_observer(&self) {
        if !self.entered.is_empty() && integration::is_observed() && raw::current().is_none() {
            self.publish();
        }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        if !self.entered.is_empty() {
            // SAFETY: no context needs a handle.
            unsafe { raw::set_current(None) };
        }
    }
}

thread_local! {
    static STACK: RefCell<Stack> = const {
        RefCell::new(Stack { entered: Vec::new(), remembered: [const { None }; REMEMBERED], next: 0 })
    };
}

/// Publishes the context of a span that was entered.
///
/// This and the others do nothing while the thread's variables are dropped.
#[inline]
pub(crate) fn push(entered: Entered, context: SharedContext) {
    let _ = STACK.try_with(|stack| {
        let stack = &mut *stack.borrow_mut();
        stack.entered.push((entered, context));
        stack.publish();
    });
}

/// [`push`] for a span that this thread has entered with these IDs. Returns whether it is
/// remembered.
///
/// Looking up a span and its data takes longer than everything else together. IDs of spans may be
/// used again in `tracing`, but those of OpenTelemetry are not.
#[inline]
pub(crate) fn push_remembered(entered: Entered, ids: Ids) -> bool {
    let pushed = STACK.try_with(|stack| {
        let stack = &mut *stack.borrow_mut();
        let mut spans = stack.remembered.iter().flatten();
        let span =
            spans.find(|it| it.entered == entered && it.ids == ids && it.made.is_up_to_date());
        let Some(span) = span else {
            return false;
        };
        let context = span.made.context.clone();
        stack.entered.push((entered, context));
        stack.publish();
        true
    });
    // While the thread's variables are dropped, there is nothing to look up, either.
    pushed.unwrap_or(true)
}

/// Remembers the context of a span for [`push_remembered`], in place of the oldest one.
pub(crate) fn remember(entered: Entered, ids: Ids, made: Made) {
    let forgotten = STACK.try_with(|stack| {
        let stack = &mut *stack.borrow_mut();
        let mut spans = stack.remembered.iter();
        let old = spans.position(|it| it.as_ref().is_some_and(|it| it.entered == entered));
        let at = old.unwrap_or(stack.next);
        if old.is_none() {
            stack.next = (stack.next + 1) % REMEMBERED;
        }
        stack.remembered[at].replace(RememberedSpan { entered, ids, made })
    });
    drop(forgotten);
}

/// Publishes what was published before a span was entered. Exiting another span than the latest
/// changes nothing that is seen.
///
/// A span that was not pushed is one of the observer, which has published the context
/// around it: if that is empty, the latest span or task of the stack is seen again.
#[inline]
pub(crate) fn pop(exited: Entered) {
    let popped = STACK.try_with(|stack| {
        let stack = &mut *stack.borrow_mut();
        let at = stack.entered.iter().rposition(|(it, _)| *it == exited);
        let Some(at) = at else {
            stack.publish_after_observer();
            return None;
        };
        let (_, context) = stack.entered.remove(at);
        if at == stack.entered.len() {
            stack.publish_after(&context);
        }
        Some(context)
    });
    drop(popped);
}

/// Returns whether a context is that of the latest span or task.
#[cfg(all(feature = "tokio", tokio_unstable))]
pub(crate) fn is_latest(context: &SharedContext) -> bool {
    let is_latest = STACK.try_with(|stack| {
        let stack = stack.borrow();
        let latest = stack.entered.last();
        latest.is_some_and(|(_, latest)| raw::record_of(latest) == raw::record_of(context))
    });
    is_latest.unwrap_or(false)
}

/// Returns the spans of a layer that are entered, the latest last, each once.
pub(crate) fn entered(layer: usize) -> Vec<u64> {
    let spans = STACK.try_with(|stack| {
        let stack = stack.borrow();
        let entered = stack.entered.iter().filter(|(it, _)| it.layer == layer);
        entered.map(|(it, _)| it.span).collect()
    });
    let mut spans: Vec<u64> = spans.unwrap_or_default();
    spans.dedup();
    spans
}

/// Replaces the context of a span wherever it is entered on this thread.
pub(crate) fn replace(span: Entered, context: &SharedContext) {
    let replaced = STACK.try_with(|stack| {
        let stack = &mut *stack.borrow_mut();
        let mut replaced = Vec::new();
        for (entered, old) in &mut stack.entered {
            if *entered == span {
                replaced.push(std::mem::replace(old, context.clone()));
            }
        }
        for old in &replaced {
            stack.publish_after(old);
        }
        replaced
    });
    drop(replaced);
}
