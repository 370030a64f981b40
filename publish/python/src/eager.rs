//! Eager tasks of asyncio (Python 3.12 and 3.13): the task enters its context in C when it is
//! created, which [`run`](crate::switch) does not see.
//!
//! A factory and a program itself both call `_asyncio.Task.__init__` to create it. This
//! module replaces its C function.

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::exceptions::PyImportError;
use pyo3::ffi::{Py_DECREF, Py_ssize_t, Py_tp_init, PyObject, PyType_GetSlot};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

use crate::context::value_of;
use crate::contextvars::loaded;
use crate::switch::restore;
use crate::thread;

/// `initproc` of CPython. It may unwind
/// ([`Contextvars::call`](crate::contextvars::Contextvars::call)).
type Init = unsafe extern "C-unwind" fn(*mut PyObject, *mut PyObject, *mut PyObject) -> c_int;

static ORIGINAL_INIT: OnceLock<Init> = OnceLock::new();

/// The start of `PyTypeObject`, with which all versions up to 3.13 begin (`cpython/object.h`).
#[repr(C)]
struct Type {
    header: PyObject,
    size: Py_ssize_t,
    /// `tp_name` to `tp_dictoffset`.
    others: [usize; 34],
    init: *mut (),
}

/// `PyWrapperDescrObject` (`cpython/descrobject.h`): what `Task.__init__` is.
#[repr(C)]
struct Descriptor {
    header: PyObject,
    /// `d_type`, `d_name`, `d_qualname` and `d_base`.
    others: [usize; 4],
    wrapped: *mut (),
}

/// Replaces the function behind `Task.__init__`. `task` is `_asyncio.Task`.
///
/// # Errors
/// If the type is not CPython's.
#[pyfunction]
pub(crate) fn watch_eager_tasks(task: &Bound<'_, PyType>) -> PyResult<()> {
    let py = task.py();
    if ORIGINAL_INIT.get().is_some() || !loaded()?.is_in_interpreter(py) {
        return Ok(());
    }
    let other = || PyImportError::new_err("asyncio.Task is not CPython's");
    let descriptor = task.getattr("__dict__")?.get_item("__init__")?;
    // SAFETY: the argument is a type.
    let slot = unsafe { PyType_GetSlot(task.as_type_ptr(), Py_tp_init) }.cast::<()>();
    if slot.is_null() || descriptor.get_type().name()? != "wrapper_descriptor" {
        return Err(other());
    }
    let mut types = vec![task.clone()];
    let mut places = Vec::new();
    // SAFETY: the descriptor has the layout of its type, which was checked.
    places.push(unsafe { &raw mut (*descriptor.as_ptr().cast::<Descriptor>()).wrapped });
    while let Some(class) = types.pop() {
        // Classes that were defined before have a copy of the function's address, or an `__init__`
        // of their own. Later ones copy it from the descriptor.
        // SAFETY: the object is a type.
        unsafe {
            if PyType_GetSlot(class.as_type_ptr(), Py_tp_init).cast::<()>() == slot {
                places.push(&raw mut (*class.as_ptr().cast::<Type>()).init);
            }
        }
        for subclass in class.call_method0("__subclasses__")?.try_iter()? {
            types.push(subclass?.cast_into::<PyType>()?);
        }
    }
    // SAFETY: the places are in the descriptor and in types, which are alive: `task` holds the
    // descriptor, and the interpreter is not left in between.
    unsafe {
        if places.iter().any(|place| place.read() != slot) {
            return Err(other());
        }
        let original = std::mem::transmute::<*mut (), Init>(slot);
        let _ = ORIGINAL_INIT.set(original);
        for place in places {
            AtomicPtr::from_ptr(place).store(init as *mut (), Ordering::Release);
        }
    }
    Ok(())
}

/// `Task.__init__`. If the task starts eagerly, its context's value is published meanwhile: what
/// runs in the context of the caller does not take long.
///
/// It holds nothing that has a destructor while it calls the original.
unsafe extern "C-unwind" fn init(
    task: *mut PyObject,
    arguments: *mut PyObject,
    keywords: *mut PyObject,
) -> c_int {
    // SAFETY: called with the arguments of `__init__` by a thread that is attached. The original
    // was set before this function could be called.
    unsafe {
        let py = Python::assume_attached();
        let Some(original) = ORIGINAL_INIT.get() else {
            return -1;
        };
        if !loaded().is_ok_and(|it| it.is_in_interpreter(py)) {
            return original(task, arguments, keywords);
        }
        match eager_context(py, keywords) {
            Err(()) => -1,
            Ok(None) => original(task, arguments, keywords),
            Ok(Some(Eager { context, keywords })) => {
                publish(py, context);
                let result = original(task, arguments, keywords);
                let outer = thread::pop(context);
                restore(py, outer);
                Py_DECREF(context);
                Py_DECREF(keywords);
                result
            }
        }
    }
}

/// A task that enters its context at once: two references, which the caller releases.
#[derive(Clone, Copy)]
struct Eager {
    context: *mut PyObject,
    /// The keywords of the call, with the context.
    keywords: *mut PyObject,
}

/// Returns what a task enters at once; `None` if it starts later.
///
/// # Errors
/// If an exception is set.
///
/// # Safety
/// The argument is an object or null.
unsafe fn eager_context(py: Python<'_>, keywords: *mut PyObject) -> Result<Option<Eager>, ()> {
    // SAFETY: the caller ensures that the argument is an object or null.
    let Some(keywords) = (unsafe { Bound::from_borrowed_ptr_or_opt(py, keywords) }) else {
        return Ok(None);
    };
    let found = context_and_keywords(&keywords).map_err(|error| error.restore(py))?;
    Ok(found.map(|(context, keywords)| Eager {
        context: context.into_ptr(),
        keywords: keywords.into_ptr(),
    }))
}

fn context_and_keywords<'py>(
    keywords: &Bound<'py, PyAny>,
) -> PyResult<Option<(Bound<'py, PyAny>, Bound<'py, PyDict>)>> {
    let py = keywords.py();
    let keywords = keywords.cast::<PyDict>()?;
    let eager = keywords.get_item(pyo3::intern!(py, "eager_start"))?;
    if !eager.map_or(Ok(false), |eager| eager.is_truthy())? {
        return Ok(None);
    }
    let name = pyo3::intern!(py, "context");
    if let Some(given) = keywords.get_item(name)?
        && !given.is_none()
    {
        return Ok(Some((given, keywords.clone())));
    }
    // As the task would make it.
    let copy = py.import("contextvars")?.call_method0("copy_context")?;
    let keywords = keywords.copy()?;
    keywords.set_item(name, &copy)?;
    Ok(Some((copy, keywords)))
}

/// Notes that a context will be entered, and publishes its value.
///
/// # Safety
/// The argument is a context.
unsafe fn publish(py: Python<'_>, context: *mut PyObject) {
    // SAFETY: the caller ensures that the argument is a context.
    let context = unsafe { Bound::from_borrowed_ptr(py, context) };
    let value = loaded().ok().and_then(|it| it.get_in(&context));
    thread::push(context.as_ptr());
    thread::publish(py, value.as_ref().and_then(value_of));
}
