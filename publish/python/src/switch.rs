//! Switches of a thread from one context to another.
//!
//! | Python | who switches | seen by |
//! |---|---|---|
//! | 3.14+ | everything below | a context watcher |
//! | up to 3.13 | `Context.run`: asyncio's callbacks and tasks, `asyncio.to_thread` | [`run`] in its place |
//! | up to 3.13 | eager tasks of asyncio | [`eager`](crate::eager), in place of `Task.__init__` |
//! | up to 3.13 | libraries with `PyContext_Enter`, such as uvloop's | [`native`](crate::native), in place of that |
//! | up to 3.13 | other code with `PyContext_Enter`, such as that of `ctypes` | not seen, nothing is published: [`is_covered`] |
//! | all | greenlets, which do not tell the interpreter | `greenlet.settrace`: [`greenlets_switched`] |
//! | all | asgiref, which sets variables to another context's values | in place of its function: [`value_was_set`] |

use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use pyo3::exceptions::PyImportError;
use pyo3::ffi::{METH_KEYWORDS, Py_DECREF, PyObject};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::context::{Context, value_of};
use crate::contextvars::{context_of, is_entered, load, loaded};
use crate::thread;

/// The C function behind `Context.run`, before [`run`] replaced it.
type Run = unsafe extern "C-unwind" fn(
    *mut PyObject,
    *const *mut PyObject,
    isize,
    *mut PyObject,
) -> *mut PyObject;

/// `PyMethodDef` of a method of this kind (`METH_FASTCALL | METH_KEYWORDS`).
#[repr(C)]
struct MethodDefinition {
    name: *const c_char,
    function: Run,
    flags: c_int,
    documentation: *const c_char,
}

/// The flag of CPython's `methodobject.h`; in the stable ABI from 3.10 on.
const METH_FASTCALL: c_int = 0x80;

static ORIGINAL_RUN: OnceLock<Run> = OnceLock::new();
/// Set if the interpreter reports all switches to watchers, as 3.14 and later do.
static IS_REPORTED: AtomicBool = AtomicBool::new(false);
/// Set once they are reported to this module: by the first attach, so that they cost nothing
/// before.
static IS_WATCHED: OnceLock<bool> = OnceLock::new();
/// Set once the variable was set. Until then, a switch reads nothing.
static IS_USED: AtomicBool = AtomicBool::new(false);
static GREENLETS: PyOnceLock<Greenlets> = PyOnceLock::new();
static WARNED: AtomicBool = AtomicBool::new(false);

/// Prepares to watch switches; returns whether the interpreter reports all of them.
#[pyfunction]
pub(crate) fn watch(py: Python<'_>) -> PyResult<bool> {
    let contextvars = load(py)?;
    if contextvars.add_watcher.is_some() {
        IS_REPORTED.store(true, Ordering::Relaxed);
        return Ok(true);
    }
    if ORIGINAL_RUN.get().is_none() {
        replace_run(py)?;
    }
    Ok(false)
}

/// Returns whether the interpreter reports all switches, as 3.14 and later do.
#[inline]
pub(crate) fn is_reported() -> bool {
    IS_REPORTED.load(Ordering::Relaxed)
}

/// Returns whether the interpreter reports switches to this module, from now on at the latest.
#[inline]
fn is_watched(py: Python<'_>) -> bool {
    *IS_WATCHED.get_or_init(|| add_watcher(py))
}

/// Adds the watcher; returns whether there was room for it.
#[cold]
fn add_watcher(py: Python<'_>) -> bool {
    let Some(add_watcher) = loaded().ok().and_then(|it| it.add_watcher) else {
        return false;
    };
    // SAFETY: the thread is attached. Nothing in the function runs other threads.
    let is_added = unsafe { add_watcher(switched) } >= 0;
    if !is_added {
        // `warn_unseen` says it.
        drop(PyErr::take(py));
    }
    is_added
}

/// Called by the interpreter after each switch, possibly with a pending exception.
unsafe extern "C" fn switched(_event: c_int, _context: *mut PyObject) -> c_int {
    // SAFETY: only attached threads switch.
    publish_current(unsafe { Python::assume_attached() });
    0
}

/// Publishes the value of the thread's current context.
#[inline]
pub(crate) fn publish_current(py: Python<'_>) {
    if !IS_USED.load(Ordering::Relaxed) {
        return;
    }
    let value = loaded().ok().and_then(|contextvars| contextvars.get(py));
    let context = value.as_ref().and_then(value_of);
    thread::publish(py, context.filter(|_| are_greenlets_traced(py)));
}

/// Replaces the function behind `Context.run`. A built-in method has its function in a structure of
/// its type, which all bound methods refer to, too.
fn replace_run(py: Python<'_>) -> PyResult<()> {
    let context = py.import("contextvars")?.getattr("Context")?.call0()?;
    let method = context.getattr("run")?;
    // SAFETY: `m_ml` is the first field of a built-in method (`PyCFunctionObject`) after its
    // header, in all versions up to 3.13. The definition is a static variable of the interpreter.
    let definition = unsafe { *method.as_ptr().add(1).cast::<*mut MethodDefinition>() };
    // SAFETY: the definition is a static variable of the interpreter; the name is a C string.
    let (name, flags) = unsafe { (CStr::from_ptr((*definition).name), (*definition).flags) };
    if name != c"run" || flags != METH_FASTCALL | METH_KEYWORDS {
        return Err(PyImportError::new_err("Context.run is not CPython's"));
    }
    // SAFETY: the definition is static. Other threads read the field at once.
    unsafe {
        let _ = ORIGINAL_RUN.set((*definition).function);
        let function = AtomicPtr::from_ptr((&raw mut (*definition).function).cast::<*mut ()>());
        function.store(run as *mut (), Ordering::Release);
    }
    Ok(())
}

/// `Context.run(callable, *args, **kwargs)`, as CPython up to 3.13 implements it. Publishes the
/// variable's value after entering and after leaving the context.
///
/// It holds nothing that has a destructor while it calls the function
/// ([`Contextvars::call`](crate::contextvars::Contextvars::call)).
unsafe extern "C-unwind" fn run(
    context: *mut PyObject,
    arguments: *const *mut PyObject,
    count: isize,
    keywords: *mut PyObject,
) -> *mut PyObject {
    // SAFETY: called with the arguments of a method by a thread that is attached.
    unsafe {
        let py = Python::assume_attached();
        let contextvars = match loaded() {
            Ok(contextvars) if count > 0 && contextvars.is_in_interpreter(py) => contextvars,
            // It also raises the exception for a missing argument.
            _ => match ORIGINAL_RUN.get() {
                Some(original) => return original(context, arguments, count, keywords),
                None => return ptr::null_mut(),
            },
        };
        if (contextvars.enter)(context) != 0 {
            return ptr::null_mut();
        }
        thread::push(context);
        publish_current(py);
        let others = arguments.add(1);
        let result = contextvars.call(*arguments, others, count as usize - 1, keywords);
        let outer = thread::pop(context);
        let left = (contextvars.exit)(context);
        restore(py, outer);
        if left != 0 {
            if !result.is_null() {
                Py_DECREF(result);
            }
            return ptr::null_mut();
        }
        result
    }
}

/// Publishes the outer context's value, if it was published before: its address is `outer`. If it
/// was not, leaving the outer context may not be seen.
#[inline]
pub(crate) fn restore(py: Python<'_>, outer: usize) {
    if outer == 0 {
        thread::publish(py, None);
        return;
    }
    let value = loaded().ok().and_then(|contextvars| contextvars.get(py));
    let context = value.as_ref().and_then(value_of);
    let context = context.filter(|context| ptr::from_ref(*context).addr() == outer);
    thread::publish(py, context.filter(|_| are_greenlets_traced(py)));
}

/// Publishes nothing for the calling thread, which will switch contexts where this module does not
/// see it. Returns what was published, for [`resume`].
#[pyfunction]
pub(crate) fn suspend(py: Python<'_>) -> usize {
    let outer = thread::published();
    thread::publish(py, None);
    outer
}

/// Publishes again what was published before [`suspend`].
#[pyfunction]
pub(crate) fn resume(py: Python<'_>, outer: usize) {
    restore(py, outer);
}

/// Publishes what the variable was just set to, or nothing if leaving the current context would not
/// be seen. `token` is from that context.
#[inline]
pub(crate) fn publish_value(token: &Bound<'_, PyAny>, value: Option<&Context>) -> PyResult<()> {
    let py = token.py();
    let Some(value) = value else {
        thread::publish(py, None);
        return Ok(());
    };
    IS_USED.store(true, Ordering::Relaxed);
    if let Some(greenlets) = GREENLETS.get(py)
        && let Err(error) = greenlets.trace(py)
    {
        thread::publish(py, None);
        return Err(error);
    }
    if is_covered(token) {
        thread::publish(py, Some(value));
    } else {
        thread::publish(py, None);
        warn_unseen(py);
    }
    Ok(())
}

/// Publishes the variable's value after other code has set it, of which the interpreter does not
/// tell. Called after each such step: it is cheap if the value is published already.
#[pyfunction]
pub(crate) fn value_was_set(py: Python<'_>) -> PyResult<()> {
    if !IS_USED.load(Ordering::Relaxed) {
        return Ok(());
    }
    let contextvars = loaded()?;
    let Some(value) = contextvars.get(py) else {
        return Ok(());
    };
    let context = value_of(&value);
    if context.map_or(0, |context| ptr::from_ref(context).addr()) == thread::published() {
        return Ok(());
    }
    // Setting it again yields a token, which leads to the current context.
    let token = contextvars.set(&value)?;
    publish_value(&token, context)
}

/// Returns whether leaving the current context, which `token` is from, is seen.
#[inline]
fn is_covered(token: &Bound<'_, PyAny>) -> bool {
    if is_reported() {
        return is_watched(token.py());
    }
    if ORIGINAL_RUN.get().is_none() {
        return false;
    }
    // SAFETY: the interpreter knows the token, and is older than 3.14: `run` was replaced.
    unsafe {
        let context = context_of(token);
        !is_entered(context) || thread::has_entered(context)
    }
}

#[cold]
fn warn_unseen(py: Python<'_>) {
    if !WARNED.swap(true, Ordering::Relaxed) {
        let message = if is_reported() {
            "otelctx publishes no contexts: the interpreter has no room for a context watcher"
        } else {
            "otelctx does not publish some contexts: native code switches \
             between them, which only Python 3.14 and later report"
        };
        thread::warn(py, message);
    }
}

/// Publishes the value of the greenlet that the thread has switched to, for `greenlet.settrace`.
#[pyfunction]
pub(crate) fn greenlets_switched(
    event: &Bound<'_, PyAny>,
    _greenlets: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let (py, contextvars) = (event.py(), loaded()?);
    match contextvars.get(py) {
        None => thread::publish(py, None),
        // The token tells which context is the current one.
        Some(value) => {
            let token = contextvars.set(&value)?;
            let covered = is_covered(&token);
            thread::publish(py, value_of(&value).filter(|_| covered));
        }
    }
    Ok(())
}

/// The program uses greenlets, which have to be traced in each thread that publishes.
struct Greenlets {
    /// `greenlet.gettrace`.
    get_trace: Py<PyAny>,
    /// [`greenlets_switched`], as a function of Python.
    tracer: Py<PyAny>,
    /// The class of tracers that also call another one.
    chained: Py<PyAny>,
}

impl Greenlets {
    /// Traces the calling thread's greenlets again if the program has replaced the tracer.
    fn trace(&self, py: Python<'_>) -> PyResult<()> {
        let current = self.get_trace.bind(py).call0()?;
        if current.is(&self.tracer) || current.get_type().is(&self.chained) {
            return Ok(());
        }
        let hooks = py.import("otelctx._hooks")?;
        hooks.call_method0("trace_greenlets").map(drop)
    }
}

/// Returns whether the calling thread's greenlets are traced, from now on if they were not before,
/// or the program uses none. Keeps a pending exception.
#[inline]
fn are_greenlets_traced(py: Python<'_>) -> bool {
    let Some(greenlets) = GREENLETS.get(py) else {
        return true;
    };
    let pending = PyErr::take(py);
    let traced = greenlets.trace(py);
    let traced = traced.map_err(|error| error.write_unraisable(py, None));
    if let Some(pending) = pending {
        pending.restore(py);
    }
    traced.is_ok()
}

/// Notes that the program uses greenlets. `tracer` is [`greenlets_switched`], and `chained` the
/// class of tracers that call it and another one.
#[pyfunction]
pub(crate) fn use_greenlets(
    py: Python<'_>,
    get_trace: Py<PyAny>,
    tracer: Py<PyAny>,
    chained: Py<PyAny>,
) {
    let greenlets = Greenlets {
        get_trace,
        tracer,
        chained,
    };
    // Only the first call counts.
    let _ = GREENLETS.set(py, greenlets);
}

/// Restores the value from before a token.
pub(crate) fn reset(token: &Bound<'_, PyAny>) -> PyResult<()> {
    let contextvars = loaded()?;
    contextvars.reset(token)?;
    let value = contextvars.get(token.py());
    publish_value(token, value.as_ref().and_then(value_of))
}
