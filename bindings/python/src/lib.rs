//! The extension module of the Python package `otelctx`.
//!
//! What a thread works on is the value of one context variable (`contextvars`). Setting it publishes
//! it; whenever the interpreter switches the thread to another context, `switch` publishes that
//! context's value. A thread's slot shows the value of its current context, or nothing.

mod context;
mod contextvars;
mod methods;
mod opentelemetry;
mod outside;
mod process;
mod switch;
mod thread;

/// The functions and classes that the package's Python files use.
#[pyo3::pymodule(name = "_otelctx", gil_used = true)]
mod module {
    #[pymodule_export]
    use crate::context::{Context, Scope, current, published, register_keys, scope, update};
    #[pymodule_export]
    use crate::opentelemetry::{
        opentelemetry_current, opentelemetry_use, span_started, span_updated,
    };
    #[pymodule_export]
    use crate::process::publish;
    #[pymodule_export]
    use crate::switch::{greenlets_switched, run_entered, run_unseen, trace_greenlets, watch};

    #[pymodule_init]
    fn init(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        crate::methods::add(module)
    }
}
