//! The data of contexts that no thread has attached, for readers: those of suspended tasks.
//!
//! A reader gets from a task to its `contextvars.Context`, and from there to a value of this
//! package's context variable. Such an object starts, after Python's header, with a mark and an
//! address (`inspect/runtimes/cpython/src/tasks/context.rs`).

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use otelctx::{SharedContext, raw};
use pyo3::ffi::PyObject;

/// The first field of an object that readers understand.
#[repr(C)]
pub(crate) struct Outside {
    mark: [u8; 8],
    address: AtomicPtr<u8>,
}

impl Outside {
    /// Creates the field of a `Context`, with the address of its record.
    pub(crate) fn of_context(context: &SharedContext) -> Self {
        Self {
            mark: *b"otelctx1",
            address: AtomicPtr::new(raw::record_of(context).cast_mut()),
        }
    }

    /// Creates the field of an `Entry`, with the address of its `Context`, or null.
    pub(crate) fn of_entry(context: Option<*mut PyObject>) -> Self {
        let address = context.unwrap_or(ptr::null_mut());
        Self {
            mark: *b"otelctxE",
            address: AtomicPtr::new(address.cast()),
        }
    }

    /// Replaces the address by that of another record.
    pub(crate) fn set_context(&self, context: &SharedContext) {
        self.address
            .store(raw::record_of(context).cast_mut(), Ordering::Release);
    }
}
