//! The process context.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use otelctx::{ProcessContext, PublishError, Published, Value};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyList, PyTuple};

use crate::thread::warn;

static PUBLISHED: Mutex<Option<Published>> = Mutex::new(None);
/// Set once a malformed variable was reported. Forked children do not report it again.
static WARNED: AtomicBool = AtomicBool::new(false);

/// Number of nested lists that a value can have, as in [`PublishError::TooDeep`].
const MAX_DEPTH: u32 = 32;

/// Publishes the process context: what the environment says, and these resource attributes.
/// Replaces the one that was published before. Each forked child publishes its own.
#[pyfunction]
pub(crate) fn publish(attributes: &Bound<'_, PyDict>) -> PyResult<()> {
    let py = attributes.py();
    let mut context = ProcessContext::detect();
    if let Some(malformed) = context.malformed_variable()
        && !WARNED.swap(true, Ordering::Relaxed)
    {
        warn(py, &format!("otelctx: {malformed}"));
    }
    for (name, value) in attributes {
        context = context.with_attribute(name.extract::<String>()?, value_of(&value, MAX_DEPTH)?);
    }
    let mut published = PUBLISHED.lock().unwrap_or_else(PoisonError::into_inner);
    let updated = published.as_mut().map(|it| it.replace(context.clone()));
    let result = match updated {
        // Not yet, or another copy of the publisher has taken over.
        None | Some(Err(PublishError::NotPublished)) => context.publish().and_then(|mut new| {
            new.republish_after_fork()?;
            *published = Some(new);
            Ok(())
        }),
        Some(updated) => updated,
    };
    result.map_err(error_of)
}

/// Returns the line of the process's maps with a second process context, which another publisher
/// has published after this module; `None` if there is none.
#[pyfunction]
pub(crate) fn find_other(py: Python<'_>) -> Option<String> {
    py.detach(ProcessContext::find_other)
}

#[allow(clippy::needless_pass_by_value)]
fn error_of(error: PublishError) -> PyErr {
    PyOSError::new_err(error.to_string())
}

/// Converts a value. A list may contain itself, so the depth is checked here, too.
fn value_of(value: &Bound<'_, PyAny>, depth_left: u32) -> PyResult<Value> {
    // A bool is an int, too.
    if let Ok(value) = value.cast::<PyBool>() {
        return Ok(value.is_true().into());
    }
    if let Ok(value) = value.extract::<i64>() {
        return Ok(value.into());
    }
    if let Ok(value) = value.extract::<f64>() {
        return Ok(value.into());
    }
    if let Ok(value) = value.cast::<PyBytes>() {
        return Ok(Value::Bytes(value.as_bytes().to_vec()));
    }
    if value.is_instance_of::<PyTuple>() || value.is_instance_of::<PyList>() {
        let deeper = depth_left.checked_sub(1);
        let deeper = deeper.ok_or_else(|| error_of(PublishError::TooDeep))?;
        let items = value.try_iter()?.map(|item| value_of(&item?, deeper));
        return Ok(Value::Array(items.collect::<PyResult<_>>()?));
    }
    Ok(value.str()?.to_string_lossy().as_ref().into())
}
