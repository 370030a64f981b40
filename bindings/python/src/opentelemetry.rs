//! OpenTelemetry's runtime context: the same context variable, with OpenTelemetry's context in it.

use std::ffi::CStr;

use pyo3::Borrowed;
use pyo3::exceptions::{PyException, PyKeyError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString, PyTuple};

use crate::context::{Attributes, Context, Token, key, merge};
use crate::contextvars::loaded;
use crate::object::{Class, Fields};
use crate::outside::Outside;
use crate::switch::publish_value;

/// A value of the context variable: OpenTelemetry's context, and the thread context of its span.
#[repr(C)]
pub(crate) struct Entry {
    // Comes first.
    outside: Outside,
    pub(crate) context: Option<Py<Context>>,
    pub(crate) opentelemetry: Py<PyAny>,
}

impl Entry {
    pub(crate) fn new(context: Option<Py<Context>>, opentelemetry: Py<PyAny>) -> Self {
        Self {
            outside: Outside::of_context(context.as_ref().map(Py::as_ptr)),
            context,
            opentelemetry,
        }
    }
}

impl Fields for Entry {
    const NAME: &CStr = c"otelctx.Entry";
    const DOCUMENTATION: &CStr = c"A context of OpenTelemetry with what is published of it.";

    fn class() -> &'static Class<Self> {
        static CLASS: Class<Entry> = Class::new();
        &CLASS
    }

    fn collected(&self) -> *mut ffi::PyObject {
        self.opentelemetry.as_ptr()
    }

    fn release(self, py: Python<'_>) {
        // Unlike `Py`, `Bound` need not find out whether the thread is attached.
        drop(self.context.map(|it| it.into_bound(py)));
        drop(self.opentelemetry.into_bound(py));
    }
}

struct Configuration {
    /// OpenTelemetry's context where none was attached.
    empty: Py<PyAny>,
    /// The names of the attributes of spans that are published.
    published: Vec<String>,
}

static CONFIGURATION: PyOnceLock<Configuration> = PyOnceLock::new();

/// Sets OpenTelemetry's empty context, and the names of the attributes of spans to publish.
#[pyfunction]
pub(crate) fn opentelemetry_use(py: Python<'_>, empty: Py<PyAny>, published: Vec<String>) {
    // Only the first call counts.
    let _ = CONFIGURATION.set(py, Configuration { empty, published });
}

/// The key of the span in OpenTelemetry's contexts. It is random, and set while the API is imported.
fn span_key(py: Python<'_>) -> Option<&Py<PyAny>> {
    static SPAN_KEY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    SPAN_KEY.get(py).or_else(|| {
        let modules = py.import("sys").ok()?.getattr("modules").ok()?;
        let propagation = modules.get_item("opentelemetry.trace.propagation").ok()?;
        let key = propagation.getattr("_SPAN_KEY").ok()?;
        Some(SPAN_KEY.get_or_init(py, || key.unbind()))
    })
}

/// The attribute of a span with its [`Context`]. The package sets it to `None` on the class of spans.
fn context_name(py: Python<'_>) -> &Bound<'_, PyString> {
    pyo3::intern!(py, "_otelctx")
}

/// `RuntimeContext.attach`.
pub(crate) fn opentelemetry_attach<'py>(
    context: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = context.py();
    let own = match span_of(context) {
        Some(span) => context_of(&span)?,
        None => None,
    };
    let published = own.clone();
    let entry = Entry::new(own.map(Bound::unbind), context.clone().unbind());
    let token = loaded()?.set(&Entry::class().object(py, entry)?)?;
    publish_value(&token, published.as_ref().map(Bound::get))?;
    Token::wrap(token)
}

/// `RuntimeContext.get_current`.
#[pyfunction]
pub(crate) fn opentelemetry_current(py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
    let value = loaded()?.get(py);
    let entry = value.as_ref().and_then(|it| Entry::class().fields(it));
    if let Some(entry) = entry {
        return Ok(Some(entry.opentelemetry.clone_ref(py)));
    }
    let configuration = CONFIGURATION.get(py);
    Ok(configuration.map(|configuration| configuration.empty.clone_ref(py)))
}

/// The span in a context of OpenTelemetry.
fn span_of<'py>(context: &Bound<'py, PyAny>) -> Option<Bound<'py, PyAny>> {
    let key = span_key(context.py())?;
    context.cast::<PyDict>().ok()?.get_item(key).ok()?
}

/// The thread context of a span. A span that the SDK did not start gets one now.
///
/// # Errors
/// The span raises an exception that is not an `Exception`, such as `KeyboardInterrupt`.
fn context_of<'py>(span: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, Context>>> {
    let known = without_exception(span.py(), span.getattr(context_name(span.py())))?;
    if let Some(known) = known
        && let Ok(known) = known.cast_into_exact::<Context>()
    {
        return Ok(Some(known));
    }
    new_context(span, Attributes::new())
}

fn new_context<'py>(
    span: &Bound<'py, PyAny>,
    attributes: Attributes,
) -> PyResult<Option<Bound<'py, Context>>> {
    let py = span.py();
    let ids = span.call_method0(pyo3::intern!(py, "get_span_context"));
    let Some((trace_id, span_id, flags)) = without_exception(py, ids)?.and_then(|it| ids_of(&it))
    else {
        return Ok(None);
    };
    let context = Bound::new(py, Context::with(trace_id, span_id, flags, attributes))?;
    // A span of another class may refuse the attribute. Its context is then created again when the
    // span is attached again.
    without_exception(py, span.setattr(context_name(py), &context))?;
    Ok(Some(context))
}

/// The trace ID, span ID and flags of a `SpanContext`. `None` if they are not valid.
fn ids_of(span_context: &Bound<'_, PyAny>) -> Option<([u8; 16], [u8; 8], u8)> {
    let ids = span_context.cast::<PyTuple>().ok()?;
    let number = |index| ids.get_borrowed_item(index).ok();
    let trace_id = trace_id(number(0)?)?;
    let span_id = low_half(number(1)?).to_be_bytes();
    let flags = low_half(number(3)?) as u8;
    (trace_id != [0; 16] && span_id != [0; 8]).then_some((trace_id, span_id, flags))
}

/// Drops an `Exception`: the program goes on without the span's context. Others end the program or
/// what it does, such as `KeyboardInterrupt` and `SystemExit`.
fn without_exception<T>(py: Python<'_>, result: PyResult<T>) -> PyResult<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_instance_of::<PyException>(py) => Ok(None),
        Err(error) => Err(error),
    }
}

fn trace_id(number: Borrowed<'_, '_, PyAny>) -> Option<[u8; 16]> {
    let high = number.rshift(64).ok()?;
    let number = u128::from(low_half(high.as_borrowed())) << 64 | u128::from(low_half(number));
    Some(number.to_be_bytes())
}

/// The lower 64 bits of an `int`; 0 of other objects.
fn low_half(number: Borrowed<'_, '_, PyAny>) -> u64 {
    // SAFETY: the thread is attached.
    let half = unsafe { ffi::PyLong_AsUnsignedLongLongMask(number.as_ptr()) };
    if half == u64::MAX {
        // Either the value, or an exception.
        return PyErr::take(number.py()).map_or(half, |_| 0);
    }
    half
}

/// Notes that the SDK has started a span, with these attributes, as a child of the span in
/// `parent`, a context of OpenTelemetry.
#[pyfunction]
pub(crate) fn span_started(
    span: &Bound<'_, PyAny>,
    parent: &Bound<'_, PyAny>,
    attributes: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let inherited = match span_of(parent) {
        Some(parent) => context_of(&parent)?,
        None => None,
    };
    let inherited = inherited.map(|parent| parent.get().attributes(span.py()));
    let own = published_of(attributes)?;
    new_context(span, merge(inherited.unwrap_or_default(), own))?;
    Ok(())
}

/// Notes that attributes of a span were set.
#[pyfunction]
pub(crate) fn span_updated(span: &Bound<'_, PyAny>, attributes: &Bound<'_, PyAny>) -> PyResult<()> {
    let attributes = published_of(attributes)?;
    if !attributes.is_empty()
        && let Some(context) = context_of(span)?
    {
        context.get().set(span.py(), attributes);
    }
    Ok(())
}

/// Those of a span's attributes that are published.
fn published_of(attributes: &Bound<'_, PyAny>) -> PyResult<Attributes> {
    let py = attributes.py();
    let mut result = Attributes::new();
    let names = CONFIGURATION
        .get(py)
        .map(|configuration| &configuration.published);
    for name in names.into_iter().flatten() {
        if attributes.contains(name)?
            && let Some(key) = key(py, name)
        {
            let value = match attributes.get_item(name) {
                // Another thread may have removed it since.
                Err(error) if error.is_instance_of::<PyKeyError>(py) => continue,
                value => value?,
            };
            result.push((key, value.str()?.to_string_lossy().into_owned()));
        }
    }
    Ok(result)
}
