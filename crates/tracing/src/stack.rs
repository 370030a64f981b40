//! The spans that are entered on this thread.

use std::cell::RefCell;

use otelctx::{set_current, SharedRecord};

use crate::fields::Made;
use crate::ids::Ids;

/// The number that stands for a task on the stack: no span has it.
pub(crate) const TASK: u64 = 0;

/// Number of spans whose records a thread remembers.
const KNOWN: usize = 4;

/// The records of the entered spans, the latest last: the one that readers see.
struct Stack {
    entered: Vec<(u64, SharedRecord)>,
    known: [Option<Known>; KNOWN],
    next: usize,
}

/// A span that was entered before, with the IDs of OpenTelemetry that it had.
struct Known {
    span: u64,
    ids: Ids,
    made: Made,
}

impl Stack {
    fn publish(&self) {
        // SAFETY: the stack has a handle, which is dropped after another record is set.
        unsafe { set_current(self.entered.last().map(|(_, record)| record)) };
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        if !self.entered.is_empty() {
            // SAFETY: there is no record.
            unsafe { set_current(None) };
        }
    }
}

thread_local! {
    static STACK: RefCell<Stack> = const {
        RefCell::new(Stack { entered: Vec::new(), known: [const { None }; KNOWN], next: 0 })
    };
}

/// Publishes the record of a span that was entered.
///
/// This and the others do nothing while the thread's variables are dropped.
#[inline]
pub(crate) fn push(span: u64, record: SharedRecord) {
    let _ = STACK.try_with(|stack| {
        let stack = &mut *stack.borrow_mut();
        stack.entered.push((span, record));
        stack.publish();
    });
}

/// [`push`] for a span that this thread has entered before, with these IDs. Returns whether its record is known.
///
/// Looking up a span and its data takes longer than everything else together. IDs of spans may be used
/// again in `tracing`, but those of OpenTelemetry are not.
#[inline]
pub(crate) fn push_known(span: u64, ids: Ids) -> bool {
    let pushed = STACK.try_with(|stack| {
        let stack = &mut *stack.borrow_mut();
        let mut known = stack.known.iter().flatten();
        let known = known
            .find(|known| known.span == span && known.ids == ids && known.made.is_up_to_date());
        let Some(known) = known else {
            return false;
        };
        let record = known.made.record.clone();
        stack.entered.push((span, record));
        stack.publish();
        true
    });
    // While the thread's variables are dropped, there is nothing to look up, either.
    pushed.unwrap_or(true)
}

/// Remembers the record of a span for [`push_known`], in place of the one that was remembered first.
pub(crate) fn know(span: u64, ids: Ids, made: Made) {
    let forgotten = STACK.try_with(|stack| {
        let stack = &mut *stack.borrow_mut();
        let old = stack
            .known
            .iter()
            .position(|known| known.as_ref().is_some_and(|known| known.span == span));
        let at = old.unwrap_or(stack.next);
        if old.is_none() {
            stack.next = (stack.next + 1) % KNOWN;
        }
        stack.known[at].replace(Known { span, ids, made })
    });
    drop(forgotten);
}

/// Publishes what was published before a span was entered. Exiting another span than the latest
/// changes nothing that is seen.
#[inline]
pub(crate) fn pop(span: u64) {
    let exited = STACK.try_with(|stack| {
        let stack = &mut *stack.borrow_mut();
        let at = stack
            .entered
            .iter()
            .rposition(|(entered, _)| *entered == span)?;
        let (_, exited) = stack.entered.remove(at);
        if at == stack.entered.len() {
            stack.publish();
        }
        Some(exited)
    });
    drop(exited);
}

/// The spans that are entered, the latest last, each once.
pub(crate) fn entered() -> Vec<u64> {
    let spans = STACK.try_with(|stack| {
        stack
            .borrow()
            .entered
            .iter()
            .map(|(span, _)| *span)
            .collect()
    });
    let mut spans: Vec<u64> = spans.unwrap_or_default();
    spans.dedup();
    spans.retain(|span| *span != TASK);
    spans
}

/// Replaces the record of a span wherever it is entered on this thread.
pub(crate) fn replace(span: u64, record: &SharedRecord) {
    let replaced = STACK.try_with(|stack| {
        let stack = &mut *stack.borrow_mut();
        let mut replaced = Vec::new();
        for (entered, old) in &mut stack.entered {
            if *entered == span {
                replaced.push(std::mem::replace(old, record.clone()));
            }
        }
        stack.publish();
        replaced
    });
    drop(replaced);
}
