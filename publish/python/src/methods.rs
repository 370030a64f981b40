//! Functions and methods that programs call all the time, as plain C functions.
//!
//! For the stable ABI of Python 3.9, PyO3 passes arguments in a tuple, which would cost more than
//! the rest of these functions.

use std::ffi::{CStr, c_int};
use std::mem::transmute;
use std::ptr;

use pyo3::ffi::{
    METH_NOARGS, METH_O, METH_VARARGS, PyCFunction, PyCFunction_NewEx, PyMethodDef,
    PyMethodDefPointer, PyObject,
};
use pyo3::prelude::*;

use crate::context::{attach, detach, enter};
use crate::opentelemetry::opentelemetry_attach;

/// A definition that passes its argument, or the object of a method, to a Rust function.
macro_rules! method {
    ($name:literal, $function:path, $documentation:literal) => {
        method!($name, $function, $documentation, METH_O)
    };
    ($name:literal, $function:path, $documentation:literal, $flags:ident) => {{
        unsafe extern "C-unwind" fn call(
            object: *mut PyObject,
            argument: *mut PyObject,
        ) -> *mut PyObject {
            // SAFETY: the interpreter calls this in an attached thread, with an object.
            let passed = unsafe {
                let passed = if $flags == METH_O { argument } else { object };
                Bound::from_borrowed_ptr(Python::assume_attached(), passed)
            };
            match $function(&passed) {
                Ok(object) => object.into_ptr(),
                Err(error) => {
                    error.restore(passed.py());
                    ptr::null_mut()
                }
            }
        }
        definition($name, call, $documentation, $flags)
    }};
}

/// A C function for the interpreter.
type Function = unsafe extern "C-unwind" fn(*mut PyObject, *mut PyObject) -> *mut PyObject;

const fn definition(
    name: &'static CStr,
    function: Function,
    documentation: &'static CStr,
    flags: c_int,
) -> PyMethodDef {
    PyMethodDef {
        ml_name: name.as_ptr(),
        ml_meth: PyMethodDefPointer {
            // SAFETY: only the interpreter calls the function, and its frames may be unwound.
            PyCFunction: unsafe { transmute::<Function, PyCFunction>(function) },
        },
        ml_flags: flags,
        ml_doc: documentation.as_ptr(),
    }
}

pub(crate) struct Methods<const N: usize>([PyMethodDef; N]);

// SAFETY: nothing changes the definitions.
unsafe impl<const N: usize> Sync for Methods<N> {}

static METHODS: Methods<3> = Methods([
    method!(
        c"attach",
        attach,
        c"attach(context, /)\n--\n\nMake `context` what the calling thread or asyncio task is working on."
    ),
    method!(
        c"detach",
        detach,
        c"detach(token, /)\n--\n\nRestore what was attached before the call of `attach` that returned this token."
    ),
    definition(
        c"opentelemetry_attach",
        opentelemetry_attach,
        c"opentelemetry_attach(context, /)\n--\n\n`RuntimeContext.attach`.",
        METH_O,
    ),
]);

/// The methods of [`Token`](crate::context::Token).
pub(crate) static TOKEN: Methods<3> = Methods([
    method!(c"__enter__", enter, c"Return the token.", METH_NOARGS),
    method!(c"__exit__", detach, c"Detach.", METH_VARARGS),
    PyMethodDef::zeroed(),
]);

impl<const N: usize> Methods<N> {
    pub(crate) fn as_ptr(&self) -> *const PyMethodDef {
        self.0.as_ptr()
    }
}

/// Adds the functions to the module.
pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    for method in &METHODS.0 {
        // SAFETY: the definition is static; the result is a new reference, or null.
        let function = unsafe {
            let definition = ptr::from_ref(method).cast_mut();
            let function = PyCFunction_NewEx(definition, ptr::null_mut(), module.name()?.as_ptr());
            Bound::from_owned_ptr_or_err(py, function)?
        };
        module.add(function.getattr("__name__")?.extract::<String>()?, function)?;
    }
    Ok(())
}
