//! The state of this module for each thread.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_void};
use std::ptr;

use pyo3::ffi::{PyCapsule_GetPointer, PyCapsule_New, PyObject, PyThreadState_GetDict};
use pyo3::prelude::*;

use crate::context::Context;

thread_local! {
    /// The [`Context`] whose record this module made current, or 0. Only compared.
    static PUBLISHED: Cell<usize> = const { Cell::new(0) };
    /// The contexts that were entered, and will be left, where this module sees it, and what was
    /// [`published`] before each. Greenlets leave them in any order. Only compared.
    static ENTERED: RefCell<Vec<(*mut PyObject, usize)>> = const { RefCell::new(Vec::new()) };
    /// True if the thread's state in the interpreter has an object whose end is the state's end.
    static HAS_WITNESS: Cell<bool> = const { Cell::new(false) };
}

/// Makes a context what readers see of the calling thread.
#[inline]
pub(crate) fn publish(py: Python<'_>, context: Option<&Context>) {
    let new = context.map_or(0, |context| ptr::from_ref(context).addr());
    let old = PUBLISHED.replace(new);
    if new != 0 || old != 0 {
        drop(otelctx::raw::swap_current(context.map(|it| it.shared(py))));
    }
    if new != 0 && !HAS_WITNESS.get() {
        add_witness(py);
    }
}

/// Lets the thread publish nothing once its state in the interpreter ends. A thread that native
/// code has started gets a new one for each call into Python (`PyGILState_Ensure`), without the
/// context that was attached in the call before.
#[cold]
fn add_witness(py: Python<'_>) {
    HAS_WITNESS.set(true);
    let thread = HAS_WITNESS.with(ptr::from_ref).cast::<c_void>();
    let pending = PyErr::take(py);
    // SAFETY: the thread is attached. The dict is borrowed, and null while the state ends; the
    // other is a new reference or null.
    let added = unsafe {
        let dict = Bound::from_borrowed_ptr_or_opt(py, PyThreadState_GetDict());
        let witness = PyCapsule_New(thread.cast_mut(), NAME.as_ptr(), Some(state_ended));
        Bound::from_owned_ptr_or_err(py, witness)
            .and_then(|witness| dict.map_or(Ok(()), |dict| dict.set_item("otelctx", witness)))
    };
    // There is no memory, for one. The thread's context is the right one until the state ends.
    drop(added);
    if let Some(pending) = pending {
        pending.restore(py);
    }
}

/// The name of the object.
const NAME: &CStr = c"otelctx";

/// Destroys the object. Another thread may call this: after a fork, and when the interpreter ends.
unsafe extern "C" fn state_ended(witness: *mut PyObject) {
    // SAFETY: called by an attached thread, with the object that `add_witness` has made.
    unsafe {
        let py = Python::assume_attached();
        let thread = PyCapsule_GetPointer(witness, NAME.as_ptr());
        let is_own = HAS_WITNESS.try_with(|own| ptr::from_ref(own).cast() == thread.cast_const());
        if is_own == Ok(true) {
            HAS_WITNESS.set(false);
            publish(py, None);
        }
    }
}

/// Publishes the new record of a context, if readers see the context on the calling thread.
pub(crate) fn publish_again(py: Python<'_>, context: &Context) {
    if PUBLISHED.get() == ptr::from_ref(context).addr() {
        publish(py, Some(context));
    }
}

/// Returns the address of the [`Context`] that readers see on this thread, or 0, for comparison.
#[inline]
pub(crate) fn published() -> usize {
    PUBLISHED.get()
}

/// Notes that a context was entered, and nothing of it published yet.
pub(crate) fn push(context: *mut PyObject) {
    let entry = (context, published());
    let _ = ENTERED.try_with(|entered| entered.borrow_mut().push(entry));
}

/// Notes that a context was left. Returns what was [`published`] when it was entered, or 0.
pub(crate) fn pop(context: *mut PyObject) -> usize {
    let outer = ENTERED.try_with(|entered| {
        let mut entered = entered.borrow_mut();
        let position = entered.iter().rposition(|(known, _)| *known == context)?;
        Some(entered.remove(position).1)
    });
    outer.ok().flatten().unwrap_or(0)
}

/// Returns whether a context was entered where this module sees it.
pub(crate) fn has_entered(context: *mut PyObject) -> bool {
    let has_entered = ENTERED.try_with(|entered| {
        let entered = entered.borrow();
        entered.iter().rev().any(|(known, _)| *known == context)
    });
    has_entered.unwrap_or(false)
}

/// Logs a warning through Python's `logging`.
pub(crate) fn warn(py: Python<'_>, message: &str) {
    let logged = py
        .import("logging")
        .and_then(|logging| logging.call_method1("getLogger", ("otelctx",)))
        .and_then(|logger| logger.call_method1("warning", (message,)));
    // The program goes on without the message.
    drop(logged);
}
