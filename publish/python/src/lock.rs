//! A lock that costs nothing where the interpreter has one.

use std::cell::RefCell;
use std::sync::{Mutex, PoisonError};

use pyo3::ffi::PyObject;
use pyo3::prelude::*;

/// True if at most one thread runs in the interpreter at a time. The header of an object is a count
/// of references and a type; free-threaded builds have more in it.
pub(crate) const HAS_GIL: bool = size_of::<PyObject>() == 2 * size_of::<usize>();

/// A value that attached threads share.
pub(crate) struct Lock<T> {
    /// Protects the content if there is no GIL.
    mutex: Mutex<()>,
    content: RefCell<T>,
}

// SAFETY: only attached threads access the content: one at a time, by the GIL or by the mutex.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) const fn new(content: T) -> Self {
        Self {
            mutex: Mutex::new(()),
            content: RefCell::new(content),
        }
    }

    /// Accesses the content. The function must not call Python or release objects, which may run
    /// others.
    #[inline]
    pub(crate) fn with<R>(&self, _py: Python<'_>, function: impl FnOnce(&mut T) -> R) -> R {
        let _guard = (!HAS_GIL).then(|| self.mutex.lock().unwrap_or_else(PoisonError::into_inner));
        function(&mut self.content.borrow_mut())
    }
}
