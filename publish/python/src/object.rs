//! Classes whose objects are created with each attach.
//!
//! With each object of a class of its own, PyO3 looks up the type's functions, and whether the
//! thread is attached. These classes are defined as the interpreter's are, and keep freed objects
//! for reuse.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::ffi::{PyObject, PyTypeObject};
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::context::Token;
use crate::lock::{HAS_GIL, Lock};
use crate::opentelemetry::Entry;

/// The number of freed objects of a class that are kept, as the interpreter keeps some of its own.
const MAX_KEPT: usize = 16;

/// Creates the classes, and adds the ones that programs see to the module.
pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    Entry::class().create(module.py())?;
    module.add("Token", Token::class().create(module.py())?)
}

/// The Rust fields of an object of such a class.
pub(crate) trait Fields: Sized + Send + 'static {
    /// The class's name, with the module that it is found in.
    const NAME: &CStr;
    const DOCUMENTATION: &CStr;

    fn class() -> &'static Class<Self>;

    /// Returns the methods, ending with an empty one, or null.
    fn methods() -> *const ffi::PyMethodDef {
        ptr::null()
    }

    /// Returns the only object that these fields refer to and that may refer to others.
    fn collected(&self) -> *mut PyObject;

    /// Releases what the fields refer to.
    fn release(self, py: Python<'_>);
}

/// A class, once [`Class::create`] was called.
pub(crate) struct Class<F> {
    type_object: AtomicPtr<PyTypeObject>,
    kept: Lock<Kept<F>>,
}

struct Kept<F> {
    objects: [*mut Object<F>; MAX_KEPT],
    count: usize,
}

// SAFETY: the objects that are kept have been released, and contain nothing.
unsafe impl<F: Fields> Send for Kept<F> {}

#[repr(C)]
struct Object<F> {
    header: PyObject,
    fields: F,
}

impl<F: Fields> Class<F> {
    pub(crate) const fn new() -> Self {
        Self {
            type_object: AtomicPtr::new(ptr::null_mut()),
            kept: Lock::new(Kept {
                objects: [ptr::null_mut(); MAX_KEPT],
                count: 0,
            }),
        }
    }

    /// Creates the class.
    pub(crate) fn create<'py>(&'static self, py: Python<'py>) -> PyResult<Bound<'py, PyType>> {
        let slot = |slot, pfunc| ffi::PyType_Slot { slot, pfunc };
        let mut slots = [
            slot(ffi::Py_tp_new, refuse::<F> as *mut c_void),
            slot(ffi::Py_tp_dealloc, deallocate::<F> as *mut c_void),
            slot(ffi::Py_tp_traverse, traverse::<F> as *mut c_void),
            slot(ffi::Py_tp_doc, F::DOCUMENTATION.as_ptr().cast_mut().cast()),
            match F::methods() {
                methods if methods.is_null() => slot(0, ptr::null_mut()),
                methods => slot(ffi::Py_tp_methods, methods.cast_mut().cast()),
            },
            slot(0, ptr::null_mut()),
        ];
        let mut specification = ffi::PyType_Spec {
            name: F::NAME.as_ptr(),
            basicsize: size_of::<Object<F>>() as c_int,
            itemsize: 0,
            flags: (ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_HAVE_GC) as u32,
            slots: slots.as_mut_ptr(),
        };
        // SAFETY: the functions fit their slots; all but the methods, which are static, is copied.
        let class = unsafe {
            let class = ffi::PyType_FromSpec(&raw mut specification);
            Bound::from_owned_ptr_or_err(py, class)?.cast_into::<PyType>()?
        };
        // It lives as long as the process.
        let pointer = class.clone().into_ptr().cast();
        self.type_object.store(pointer, Ordering::Relaxed);
        Ok(class)
    }

    /// Creates an object.
    #[inline]
    pub(crate) fn object<'py>(&self, py: Python<'py>, fields: F) -> PyResult<Bound<'py, PyAny>> {
        let class = self.type_object.load(Ordering::Relaxed);
        // SAFETY: the thread is attached. The object is not tracked before its fields are there.
        unsafe {
            let object = match self.kept(py) {
                Some(kept) => ffi::PyObject_Init(kept.cast(), class).cast(),
                None => ffi::PyObject_GC_New::<Object<F>>(class),
            };
            if object.is_null() {
                fields.release(py);
                return Err(PyErr::fetch(py));
            }
            (&raw mut (*object).fields).write(fields);
            ffi::PyObject_GC_Track(object.cast());
            Ok(Bound::from_owned_ptr(py, object.cast()))
        }
    }

    /// Takes a freed object.
    #[inline]
    fn kept(&self, py: Python<'_>) -> Option<*mut Object<F>> {
        if !HAS_GIL {
            return None;
        }
        self.kept.with(py, |kept| {
            kept.count = kept.count.checked_sub(1)?;
            Some(kept.objects[kept.count])
        })
    }

    /// Keeps a freed object; returns whether there was room.
    #[inline]
    fn keep(&self, py: Python<'_>, object: *mut Object<F>) -> bool {
        // The collector of free-threaded builds finds all objects that were not returned.
        HAS_GIL
            && self.kept.with(py, |kept| {
                let has_room = kept.count < MAX_KEPT;
                if has_room {
                    kept.objects[kept.count] = object;
                    kept.count += 1;
                }
                has_room
            })
    }

    /// Returns the fields of an object, if it is one of this class.
    #[inline]
    pub(crate) fn fields<'a>(&self, object: &'a Bound<'_, PyAny>) -> Option<&'a F> {
        // SAFETY: the class cannot be subclassed, and its objects have this layout.
        unsafe {
            let is_own = ffi::Py_TYPE(object.as_ptr()) == self.type_object.load(Ordering::Relaxed);
            is_own.then(|| &(*object.as_ptr().cast::<Object<F>>()).fields)
        }
    }
}

/// `tp_new`, without which the class would have that of `object`.
unsafe extern "C" fn refuse<F: Fields>(
    _class: *mut PyTypeObject,
    _arguments: *mut PyObject,
    _keywords: *mut PyObject,
) -> *mut PyObject {
    // SAFETY: called by an attached thread.
    let py = unsafe { Python::assume_attached() };
    let name = F::NAME.to_string_lossy();
    PyTypeError::new_err(format!("cannot create '{name}' instances")).restore(py);
    ptr::null_mut()
}

unsafe extern "C" fn deallocate<F: Fields>(object: *mut PyObject) {
    // SAFETY: called by an attached thread, with an object of the class that nobody else has.
    unsafe {
        let py = Python::assume_attached();
        let class = ffi::Py_TYPE(object);
        ffi::PyObject_GC_UnTrack(object.cast());
        let object = object.cast::<Object<F>>();
        (&raw mut (*object).fields).read().release(py);
        if !F::class().keep(py, object) {
            ffi::PyObject_GC_Del(object.cast());
        }
        ffi::Py_DECREF(class.cast());
    }
}

unsafe extern "C" fn traverse<F: Fields>(
    object: *mut PyObject,
    visit: ffi::visitproc,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: called with a tracked object of the class.
    unsafe {
        match visit((*object.cast::<Object<F>>()).fields.collected(), argument) {
            0 => visit(ffi::Py_TYPE(object).cast(), argument),
            stopped => stopped,
        }
    }
}
