//! The extension module of the Python package `otelctx`.
//!
//! What a thread works on is the value of one context variable (`contextvars`). Setting it
//! publishes it; whenever the interpreter switches the thread to another context, `switch`
//! publishes that context's value. A thread's slot shows the value of its current context, or
//! nothing.
//!
//! Without a GIL, threads call this module at the same time. What belongs to one thread is
//! thread-local (`thread`); all else is set once, atomic, or behind a lock. No function of Python
//! is called, and no object released, while a lock is held: a thread that waits for one cannot be
//! stopped by the interpreter, which stops all threads to collect garbage and before it forks.

mod context;
mod contextvars;
mod eager;
mod lock;
mod methods;
mod native;
mod object;
mod opentelemetry;
mod outside;
mod process;
mod switch;
mod thread;

/// The functions and classes that the package's Python files use.
#[pyo3::pymodule(name = "_otelctx", gil_used = false)]
mod module {
    #[pymodule_export]
    use crate::context::{
        Context, Scope, current, register_keys, scope, update, visible_to_readers,
    };
    #[pymodule_export]
    use crate::eager::watch_eager_tasks;
    #[pymodule_export]
    use crate::native::{is_watched, watch_libraries};
    #[pymodule_export]
    use crate::opentelemetry::{new_context, opentelemetry_current, opentelemetry_use};
    #[pymodule_export]
    use crate::process::{find_other, publish};
    #[pymodule_export]
    use crate::switch::{greenlets_switched, resume, suspend, use_greenlets, value_was_set, watch};

    #[pymodule_init]
    fn init(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        crate::contextvars::check_interpreter()?;
        crate::object::add(module)?;
        crate::methods::add(module)
    }
}
