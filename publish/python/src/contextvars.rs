//! The interpreter's context variables: C functions that are not part of the stable ABI.
//!
//! Every CPython since 3.7 exports them, so they are found by name when the module is imported.

use std::ffi::{CStr, c_int};
use std::mem::transmute_copy;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::exceptions::PyImportError;
use pyo3::ffi::{
    Py_AtExit, Py_DECREF, Py_INCREF, Py_XDECREF, PyDict_New, PyDict_SetItem, PyInterpreterState,
    PyInterpreterState_Get, PyObject, PyTuple_GetItem, PyTuple_New, PyTuple_SetItem, PyTuple_Size,
};
use pyo3::prelude::*;

type Get = unsafe extern "C" fn(*mut PyObject, *mut PyObject, *mut *mut PyObject) -> c_int;
type Set = unsafe extern "C" fn(*mut PyObject, *mut PyObject) -> *mut PyObject;
/// `PyContext_Enter` and `PyContext_Exit`.
pub(crate) type OnContext = unsafe extern "C" fn(*mut PyObject) -> c_int;
type Pair = unsafe extern "C" fn(*mut PyObject, *mut PyObject) -> c_int;
/// `PyObject_Vectorcall`, which is in the stable ABI from 3.12 on. It may unwind
/// ([`Contextvars::call`]).
type Call = unsafe extern "C-unwind" fn(
    *mut PyObject,
    *const *mut PyObject,
    usize,
    *mut PyObject,
) -> *mut PyObject;
/// `PyContext_AddWatcher` (3.14), with its callback.
pub(crate) type AddWatcher = unsafe extern "C" fn(Watcher) -> c_int;
pub(crate) type Watcher = unsafe extern "C" fn(c_int, *mut PyObject) -> c_int;

/// The functions, and the context variable of this module.
pub(crate) struct Contextvars {
    variable: *mut PyObject,
    /// The interpreter that the variable belongs to, or null once it has ended.
    interpreter: AtomicPtr<PyInterpreterState>,
    get: Get,
    set: Set,
    reset: Pair,
    pub(crate) enter: OnContext,
    pub(crate) exit: OnContext,
    /// A function of its own from 3.11 on; a macro before.
    call: Option<Call>,
    /// The function that adds a watcher; from 3.14 on.
    pub(crate) add_watcher: Option<AddWatcher>,
}

// SAFETY: the variable lives as long as the process, and is only used by attached threads.
unsafe impl Send for Contextvars {}
// SAFETY: as for Send.
unsafe impl Sync for Contextvars {}

static CONTEXTVARS: OnceLock<Contextvars> = OnceLock::new();

/// Finds the functions and creates the variable.
///
/// # Errors
/// If the interpreter lacks a function: it is not CPython.
pub(crate) fn load(py: Python<'_>) -> PyResult<&'static Contextvars> {
    if let Some(loaded) = CONTEXTVARS.get() {
        return Ok(loaded);
    }
    let class = py.import("contextvars")?.getattr("ContextVar")?;
    let variable = class.call1(("otelctx",))?.into_ptr();
    // SAFETY: the types are those of CPython's headers.
    let loaded = unsafe {
        Contextvars {
            variable,
            interpreter: AtomicPtr::new(PyInterpreterState_Get()),
            get: required(c"PyContextVar_Get")?,
            set: required(c"PyContextVar_Set")?,
            reset: required(c"PyContextVar_Reset")?,
            enter: required(c"PyContext_Enter")?,
            exit: required(c"PyContext_Exit")?,
            call: find(c"PyObject_Vectorcall"),
            add_watcher: find(c"PyContext_AddWatcher"),
        }
    };
    // SAFETY: the function calls nothing of the interpreter. Without room for it, only programs
    // that start the interpreter again are not prepared for.
    unsafe { Py_AtExit(Some(ended)) };
    Ok(CONTEXTVARS.get_or_init(|| loaded))
}

/// Called after the interpreter's end. An embedding program may start it again at the same address.
extern "C" fn ended() {
    if let Some(loaded) = CONTEXTVARS.get() {
        loaded.interpreter.store(ptr::null_mut(), Ordering::Relaxed);
    }
}

/// Checks that the interpreter that [`load`] was called in has not ended: objects of it are kept,
/// as PyO3 keeps some, too.
pub(crate) fn check_interpreter() -> PyResult<()> {
    match CONTEXTVARS.get() {
        Some(loaded) if loaded.interpreter.load(Ordering::Relaxed).is_null() => Err(
            PyImportError::new_err("otelctx cannot be imported again after the interpreter ended"),
        ),
        _ => Ok(()),
    }
}

/// Returns what [`load`] loaded, which happens first when the module is imported.
///
/// # Errors
/// If it was not.
#[inline]
pub(crate) fn loaded() -> PyResult<&'static Contextvars> {
    CONTEXTVARS
        .get()
        .ok_or_else(|| PyImportError::new_err("import otelctx, not otelctx._otelctx"))
}

/// Returns the function of this name.
///
/// # Errors
/// If there is none.
///
/// # Safety
/// `F` is the type of the function.
unsafe fn required<F: Copy>(name: &CStr) -> PyResult<F> {
    // SAFETY: the caller ensures that `F` is the type of the function.
    unsafe { find(name) }.ok_or_else(|| {
        let name = name.to_string_lossy();
        PyImportError::new_err(format!("otelctx needs CPython: no {name}"))
    })
}

/// Returns the function of this name, if there is one.
///
/// # Safety
/// `F` is the type of the function.
unsafe fn find<F: Copy>(name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut ()>()) };
    // SAFETY: the name is a C string.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    // SAFETY: the caller ensures that `F` is the type of the function.
    (!address.is_null()).then(|| unsafe { transmute_copy(&address) })
}

impl Contextvars {
    /// Calls a function as `PyObject_Vectorcall` does.
    ///
    /// Up to 3.13, it may not return: after the program's end, the interpreter ends a daemon thread
    /// that wants the GIL with `pthread_exit` (`take_gil` in Python/ceval_gil.h or .c). That
    /// unwinds the stack, and would run destructors without the GIL. So no caller may have a value
    /// with one.
    ///
    /// # Safety
    /// The thread is attached; the arguments are those of `PyObject_Vectorcall`.
    #[inline]
    pub(crate) unsafe fn call(
        &self,
        function: *mut PyObject,
        arguments: *const *mut PyObject,
        count: usize,
        keywords: *mut PyObject,
    ) -> *mut PyObject {
        // SAFETY: the caller's thread is attached, and passes what `PyObject_Vectorcall` takes.
        unsafe {
            match self.call {
                Some(call) => call(function, arguments, count, keywords),
                None => call_with_tuple(function, arguments, count, keywords),
            }
        }
    }

    /// Returns whether the calling thread runs in the interpreter that has imported the module, and
    /// not in a subinterpreter, whose lock does not protect the variable, or in a later one.
    #[inline]
    pub(crate) fn is_in_interpreter(&self, _py: Python<'_>) -> bool {
        // SAFETY: the thread is attached.
        unsafe { PyInterpreterState_Get() == self.interpreter.load(Ordering::Relaxed) }
    }

    /// Returns the variable's value in the thread's current context. Keeps a pending exception.
    #[inline]
    pub(crate) fn get<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        let mut value = ptr::null_mut();
        // SAFETY: the thread is attached, and the result is a new reference or null.
        unsafe {
            (self.get)(self.variable, ptr::null_mut(), &raw mut value);
            Bound::from_owned_ptr_or_opt(py, value)
        }
    }

    /// Returns the variable's value in a context that may not be the current one.
    pub(crate) fn get_in<'py>(&self, context: &Bound<'py, PyAny>) -> Option<Bound<'py, PyAny>> {
        // SAFETY: the variable lives as long as the process.
        let variable = unsafe { Bound::from_borrowed_ptr(context.py(), self.variable) };
        let value = context.call_method1("get", (variable,)).ok()?;
        (!value.is_none()).then_some(value)
    }

    /// Sets the variable in the current context; returns a token for [`reset`](Self::reset).
    #[inline]
    pub(crate) fn set<'py>(&self, value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: the thread is attached; the result is a new reference, or null with an exception.
        unsafe {
            let token = (self.set)(self.variable, value.as_ptr());
            Bound::from_owned_ptr_or_err(value.py(), token)
        }
    }

    /// Restores the value from before a call of [`set`](Self::set) in the same context.
    #[inline]
    pub(crate) fn reset(&self, token: &Bound<'_, PyAny>) -> PyResult<()> {
        // SAFETY: the thread is attached; the function checks the token's type.
        match unsafe { (self.reset)(self.variable, token.as_ptr()) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(token.py())),
        }
    }
}

unsafe extern "C-unwind" {
    /// PyO3 declares that it does not unwind.
    fn PyObject_Call(
        function: *mut PyObject,
        arguments: *mut PyObject,
        keywords: *mut PyObject,
    ) -> *mut PyObject;
}

/// [`Contextvars::call`] up to 3.10.
///
/// # Safety
/// Same as [`Contextvars::call`].
unsafe fn call_with_tuple(
    function: *mut PyObject,
    arguments: *const *mut PyObject,
    count: usize,
    keywords: *mut PyObject,
) -> *mut PyObject {
    // SAFETY: the caller's thread is attached. The keywords' values follow the positional
    // arguments. The tuple takes over a reference to each argument; the others are borrowed.
    unsafe {
        let positional = PyTuple_New(count as isize);
        if positional.is_null() {
            return ptr::null_mut();
        }
        for index in 0..count {
            let argument = *arguments.add(index);
            Py_INCREF(argument);
            PyTuple_SetItem(positional, index as isize, argument);
        }
        let mut named = ptr::null_mut();
        if !keywords.is_null() {
            named = PyDict_New();
            let mut is_complete = !named.is_null();
            for index in 0..PyTuple_Size(keywords) {
                let name = PyTuple_GetItem(keywords, index);
                let value = *arguments.add(count + index as usize);
                is_complete = is_complete && PyDict_SetItem(named, name, value) == 0;
            }
            if !is_complete {
                Py_DECREF(positional);
                Py_XDECREF(named);
                return ptr::null_mut();
            }
        }
        let result = PyObject_Call(function, positional, named);
        Py_DECREF(positional);
        Py_XDECREF(named);
        result
    }
}

/// Returns the context that a token of [`Contextvars::set`] belongs to, up to 3.13: `tok_ctx` of
/// `struct _pycontexttokenobject`, which is the first field after the object's header since 3.7.
///
/// # Safety
/// The object is a token.
#[inline]
pub(crate) unsafe fn context_of(token: &Bound<'_, PyAny>) -> *mut PyObject {
    // SAFETY: the caller ensures that the object is a token.
    unsafe { token.as_ptr().add(1).cast::<*mut PyObject>().read() }
}

/// Returns whether a context was entered and not left, up to 3.13: `ctx_entered` of `struct
/// _pycontextobject`, after `ctx_prev`, `ctx_vars` and `ctx_weakreflist`. The context that a thread
/// starts with was never entered.
///
/// # Safety
/// The object is a context.
#[inline]
pub(crate) unsafe fn is_entered(context: *mut PyObject) -> bool {
    // SAFETY: the caller ensures that the object is a context.
    unsafe {
        let fields = context.add(1).cast::<*mut PyObject>();
        fields.add(3).cast::<c_int>().read() != 0
    }
}
