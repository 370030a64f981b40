//! OpenTelemetry's runtime context: the same context variable, with OpenTelemetry's context in it.

use std::ffi::CStr;
use std::ptr;

use pyo3::Borrowed;
use pyo3::exceptions::PyException;
use pyo3::ffi;
use pyo3::ffi::PyObject;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString, PyTuple};

use crate::context::{Context, Token, attributes_of, merge};
use crate::contextvars::{Contextvars, loaded};
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
            outside: Outside::of_entry(context.as_ref().map(Py::as_ptr)),
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

    fn collected(&self) -> *mut PyObject {
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
    /// A function of Python that creates the [`Context`] of a span.
    new_context: Py<PyAny>,
}

static CONFIGURATION: PyOnceLock<Configuration> = PyOnceLock::new();

/// Sets OpenTelemetry's empty context, and the function that returns the [`Context`] of a span that
/// has none yet, or `None`.
#[pyfunction]
pub(crate) fn opentelemetry_use(py: Python<'_>, empty: Py<PyAny>, new_context: Py<PyAny>) {
    // Only the first call counts.
    let _ = CONFIGURATION.set(py, Configuration { empty, new_context });
}

/// Returns the key of the span in OpenTelemetry's contexts, which is random in each process.
fn span_key(py: Python<'_>) -> Option<&Py<PyAny>> {
    static SPAN_KEY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    SPAN_KEY.get(py).or_else(|| {
        let modules = py.import("sys").ok()?.getattr("modules").ok()?;
        let propagation = modules.get_item("opentelemetry.trace.propagation").ok()?;
        let key = propagation.getattr("_SPAN_KEY").ok()?;
        Some(SPAN_KEY.get_or_init(py, || key.unbind()))
    })
}

/// Returns the attribute of a span with its [`Context`]. The class of spans has it as `None`.
fn context_name(py: Python<'_>) -> &Bound<'_, PyString> {
    pyo3::intern!(py, "_otelctx")
}

/// `RuntimeContext.attach`.
///
/// It holds nothing that has a destructor while code of Python runs ([`Contextvars::call`]).
///
/// # Safety
/// Called by the interpreter with a context of OpenTelemetry.
pub(crate) unsafe extern "C-unwind" fn opentelemetry_attach(
    _module: *mut PyObject,
    context: *mut PyObject,
) -> *mut PyObject {
    // SAFETY: the interpreter calls this in an attached thread.
    unsafe {
        let py = Python::assume_attached();
        let published = match span_in(py, context) {
            Span::Failed => return ptr::null_mut(),
            Span::Absent => ptr::null_mut(),
            Span::Known(published) => published,
            Span::New(span, new_context, contextvars) => {
                let created = contextvars.call(new_context, &raw const span, 1, ptr::null_mut());
                ffi::Py_DECREF(span);
                if created.is_null() {
                    return ptr::null_mut();
                }
                created
            }
        };
        set(py, context, published)
    }
}

/// The span in a context of OpenTelemetry. The caller releases the object.
#[derive(Clone, Copy)]
enum Span {
    Absent,
    /// The span has this [`Context`].
    Known(*mut PyObject),
    /// It has none yet: the span, and [`Configuration::new_context`].
    New(*mut PyObject, *mut PyObject, &'static Contextvars),
    /// An exception is set.
    Failed,
}

/// Finds the span in a context of OpenTelemetry.
///
/// # Safety
/// The argument is an object.
unsafe fn span_in(py: Python<'_>, context: *mut PyObject) -> Span {
    // SAFETY: the caller ensures that the argument is an object.
    let context = unsafe { Bound::from_borrowed_ptr(py, context) };
    let Some(span) = span_of(&context) else {
        return Span::Absent;
    };
    let failed = |error: PyErr| {
        error.restore(py);
        Span::Failed
    };
    match known_context(&span) {
        Ok(Some(known)) => return Span::Known(known.into_ptr()),
        Ok(None) => {}
        Err(error) => return failed(error),
    }
    match (CONFIGURATION.get(py), loaded()) {
        (Some(Configuration { new_context, .. }), Ok(contextvars)) => {
            Span::New(span.into_ptr(), new_context.as_ptr(), contextvars)
        }
        (None, _) => Span::Absent,
        (_, Err(error)) => failed(error),
    }
}

/// Attaches a context of OpenTelemetry, and publishes another object if it is a [`Context`]. Takes
/// over a reference to that. Returns a token, or null with an exception.
///
/// # Safety
/// The arguments are objects; the second may be null.
unsafe fn set(py: Python<'_>, context: *mut PyObject, published: *mut PyObject) -> *mut PyObject {
    // SAFETY: the caller ensures that the arguments are objects; the second may be null.
    let (context, published) = unsafe {
        let context = Bound::from_borrowed_ptr(py, context);
        (context, Bound::from_owned_ptr_or_opt(py, published))
    };
    let published = published.and_then(|it| it.cast_into_exact::<Context>().ok());
    let attach = || {
        let own = published.clone().map(Bound::unbind);
        let entry = Entry::new(own, context.unbind());
        let token = loaded()?.set(&Entry::class().object(py, entry)?)?;
        publish_value(&token, published.as_ref().map(Bound::get))?;
        Token::wrap(token)
    };
    match attach() {
        Ok(token) => token.into_ptr(),
        Err(error) => {
            error.restore(py);
            ptr::null_mut()
        }
    }
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

/// Returns the span in a context of OpenTelemetry.
fn span_of<'py>(context: &Bound<'py, PyAny>) -> Option<Bound<'py, PyAny>> {
    let key = span_key(context.py())?;
    context.cast::<PyDict>().ok()?.get_item(key).ok()?
}

/// Returns the thread context of a span, if it has one.
///
/// # Errors
/// The span raises an exception that is not an `Exception`, such as `KeyboardInterrupt`.
fn known_context<'py>(span: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, Context>>> {
    let known = without_exception(span.py(), span.getattr(context_name(span.py())))?;
    Ok(known.and_then(|known| known.cast_into_exact().ok()))
}

/// Returns the trace ID, span ID and flags of a `SpanContext`. `None` if they are not valid.
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

/// Returns the lower 64 bits of an `int`; 0 of other objects.
fn low_half(number: Borrowed<'_, '_, PyAny>) -> u64 {
    // SAFETY: the thread is attached.
    let half = unsafe { ffi::PyLong_AsUnsignedLongLongMask(number.as_ptr()) };
    if half == u64::MAX {
        // Either the value, or an exception.
        return PyErr::take(number.py()).map_or(half, |_| 0);
    }
    half
}

/// Creates the thread context of a span, and keeps it with the span. `parent` is the context of
/// OpenTelemetry with its parent, or another object. `None` if its `SpanContext` is not valid.
#[pyfunction]
pub(crate) fn new_context<'py>(
    span: &Bound<'py, PyAny>,
    span_context: &Bound<'py, PyAny>,
    parent: &Bound<'py, PyAny>,
    attributes: &Bound<'py, PyDict>,
) -> PyResult<Option<Bound<'py, Context>>> {
    let py = span.py();
    let Some((trace_id, span_id, flags)) = ids_of(span_context) else {
        return Ok(None);
    };
    let parent = span_of(parent).map_or(Ok(None), |parent| known_context(&parent))?;
    let inherited = parent.map(|parent| parent.get().attributes(py));
    let own = attributes_of(Some(attributes))?;
    let attributes = merge(inherited.unwrap_or_default(), own);
    let context = Bound::new(py, Context::with(trace_id, span_id, flags, attributes))?;
    // A span of another class may refuse the attribute. Its context is then created again when the
    // span is attached again.
    without_exception(py, span.setattr(context_name(py), &context))?;
    Ok(Some(context))
}
