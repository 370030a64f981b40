//! The spans that are entered on this thread.

use std::cell::RefCell;

use otelctx::{set_current, SharedRecord};

/// The records of the entered spans, the latest last: the one that readers see.
struct Stack(Vec<(u64, SharedRecord)>);

impl Stack {
    fn publish(&self) {
        // SAFETY: the stack has a handle, which is dropped after another record is set.
        unsafe { set_current(self.0.last().map(|(_, record)| record)) };
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            // SAFETY: there is no record.
            unsafe { set_current(None) };
        }
    }
}

thread_local! {
    static STACK: RefCell<Stack> = const { RefCell::new(Stack(Vec::new())) };
}

/// Publishes the record of a span that was entered.
///
/// This and the others do nothing while the thread's variables are dropped.
#[inline]
pub(crate) fn push(span: u64, record: SharedRecord) {
    let _ = STACK.try_with(|stack| {
        let stack = &mut *stack.borrow_mut();
        stack.0.push((span, record));
        stack.publish();
    });
}

/// Publishes what was published before a span was entered. Exiting another span than the latest
/// changes nothing that is seen.
#[inline]
pub(crate) fn pop(span: u64) {
    let exited = STACK.try_with(|stack| {
        let stack = &mut *stack.borrow_mut();
        let at = stack.0.iter().rposition(|(entered, _)| *entered == span)?;
        let (_, exited) = stack.0.remove(at);
        if at == stack.0.len() {
            stack.publish();
        }
        Some(exited)
    });
    drop(exited);
}

/// The spans that are entered, the latest last, each once.
pub(crate) fn entered() -> Vec<u64> {
    let spans = STACK.try_with(|stack| stack.borrow().0.iter().map(|(span, _)| *span).collect());
    let mut spans: Vec<u64> = spans.unwrap_or_default();
    spans.dedup();
    spans
}

/// Replaces the record of a span wherever it is entered on this thread.
pub(crate) fn replace(span: u64, record: &SharedRecord) {
    let replaced = STACK.try_with(|stack| {
        let stack = &mut *stack.borrow_mut();
        let mut replaced = Vec::new();
        for (entered, old) in &mut stack.0 {
            if *entered == span {
                replaced.push(std::mem::replace(old, record.clone()));
            }
        }
        stack.publish();
        replaced
    });
    drop(replaced);
}
