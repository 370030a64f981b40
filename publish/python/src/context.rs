//! Thread contexts as Python objects, and the functions that attach them.

use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use otelctx::{Key, SharedContext, SpanId, TraceFlags, TraceId, ZeroId};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::ffi::{PyMethodDef, PyObject};

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyInt, PyString};

use crate::contextvars::loaded;
use crate::lock::Lock;
use crate::object::{Class, Fields};
use crate::opentelemetry::Entry;
use crate::outside::Outside;
use crate::switch::{is_reported, publish_value, reset};
use crate::thread::{publish_again, warn};

/// A trace, a span, and attributes: what a thread is working on.
#[pyclass(frozen, module = "otelctx")]
#[repr(C)]
pub(crate) struct Context {
    // Comes first.
    outside: Outside,
    content: Lock<Content>,
}

struct Content {
    trace_id: TraceId,
    span_id: SpanId,
    flags: TraceFlags,
    attributes: Attributes,
    shared: SharedContext,
}

/// Attributes in the order in which they were first set.
pub(crate) type Attributes = Vec<(&'static Key, String)>;

impl Content {
    fn new(trace_id: TraceId, span_id: SpanId, flags: TraceFlags, attributes: Attributes) -> Self {
        let mut context = otelctx::Context::new(trace_id, span_id).map_or_else(
            |_| otelctx::Context::without_ids(),
            |context| context.with_flags(flags),
        );
        for (key, value) in &attributes {
            context = context.with_attribute(key, value);
        }
        Self {
            trace_id,
            span_id,
            flags,
            attributes,
            shared: context.share(),
        }
    }
}

impl Context {
    /// Creates a context.
    pub(crate) fn with(
        trace_id: impl Into<TraceId>,
        span_id: impl Into<SpanId>,
        flags: u8,
        attributes: Attributes,
    ) -> Self {
        let (trace_id, span_id) = (trace_id.into(), span_id.into());
        let content = Content::new(trace_id, span_id, TraceFlags(flags), attributes);
        Self {
            outside: Outside::of_context(&content.shared),
            content: Lock::new(content),
        }
    }

    /// Returns what readers see of the context.
    #[inline]
    pub(crate) fn shared(&self, py: Python<'_>) -> SharedContext {
        self.content.with(py, |content| content.shared.clone())
    }

    pub(crate) fn attributes(&self, py: Python<'_>) -> Attributes {
        self.content.with(py, |content| content.attributes.clone())
    }

    /// Sets attributes, and publishes them if readers see this context on the calling thread.
    pub(crate) fn set(&self, py: Python<'_>, attributes: Attributes) {
        self.content.with(py, |content| {
            let merged = merge(content.attributes.clone(), attributes);
            let new = Content::new(content.trace_id, content.span_id, content.flags, merged);
            self.outside.set_context(&new.shared);
            *content = new;
        });
        publish_again(py, self);
    }
}

/// Adds attributes to others; a key that is there already gets the new value.
pub(crate) fn merge(mut attributes: Attributes, others: Attributes) -> Attributes {
    for (key, value) in others {
        let mut known = attributes.iter_mut();
        match known.find(|(known, _)| known.name() == key.name()) {
            Some((_, known)) => *known = value,
            None => attributes.push((key, value)),
        }
    }
    attributes
}

/// The arguments of the constructor of [`Context`].
type Arguments<'py> = (Option<String>, Option<String>, u8, Bound<'py, PyDict>);

#[pymethods]
impl Context {
    #[new]
    #[pyo3(signature = (trace_id=None, span_id=None, trace_flags=0, attributes=None))]
    fn new(
        trace_id: Option<&Bound<'_, PyAny>>,
        span_id: Option<&Bound<'_, PyAny>>,
        trace_flags: u8,
        attributes: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let trace_id = trace_id.map(|it| id("trace_id", it)).transpose()?;
        let span_id = span_id.map(|it| id("span_id", it)).transpose()?;
        let (trace_id, span_id): ([u8; 16], [u8; 8]) = match (trace_id, span_id) {
            (Some(trace_id), Some(span_id)) => (trace_id, span_id),
            (None, None) => ([0; 16], [0; 8]),
            // A context has both or none.
            _ => {
                let message = "give trace_id and span_id, or neither";
                return Err(PyValueError::new_err(message));
            }
        };
        let attributes = attributes_of(attributes)?;
        Ok(Self::with(trace_id, span_id, trace_flags, attributes))
    }

    /// Returns a context for a child span: the same trace, flags and attributes, and more.
    #[pyo3(signature = (span_id, attributes=None))]
    fn child(
        &self,
        span_id: &Bound<'_, PyAny>,
        attributes: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let py = span_id.py();
        let span_id: [u8; 8] = id("span_id", span_id)?;
        let attributes = merge(self.attributes(py), attributes_of(attributes)?);
        let (trace_id, flags) = self.content.with(py, |it| (it.trace_id, it.flags));
        if trace_id.is_zero() {
            return Err(PyValueError::new_err("the context has no trace"));
        }
        Ok(Self::with(trace_id, span_id, flags.0, attributes))
    }

    /// Sets attributes.
    fn update(&self, attributes: &Bound<'_, PyDict>) -> PyResult<()> {
        self.set(attributes.py(), attributes_of(Some(attributes))?);
        Ok(())
    }

    /// Returns the trace ID, as 32 hexadecimal digits.
    #[getter]
    fn trace_id(&self, py: Python<'_>) -> String {
        self.content.with(py, |it| it.trace_id.to_string())
    }

    /// Returns the span ID, as 16 hexadecimal digits.
    #[getter]
    fn span_id(&self, py: Python<'_>) -> String {
        self.content.with(py, |it| it.span_id.to_string())
    }

    /// Returns the W3C trace flags.
    #[getter]
    fn trace_flags(&self, py: Python<'_>) -> u8 {
        self.content.with(py, |it| it.flags.0)
    }

    /// Returns a copy of the attributes.
    #[getter(attributes)]
    fn attributes_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (key, value) in self.attributes(py) {
            dict.set_item(key.name(), value)?;
        }
        Ok(dict)
    }

    /// Returns whether an attribute was cut or omitted, because the record has no room for it or
    /// its key could not be published.
    #[getter]
    fn is_truncated(&self, py: Python<'_>) -> bool {
        self.shared(py).is_truncated()
    }

    /// Supports `copy` and `pickle` of a span, which has its context as an attribute.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Arguments<'py>)> {
        let has_ids = self.content.with(py, |it| !it.trace_id.is_zero());
        let ids = has_ids.then(|| (self.trace_id(py), self.span_id(py)));
        let (trace_id, span_id) = ids.unzip();
        let (flags, attributes) = (self.trace_flags(py), self.attributes_dict(py)?);
        let arguments = (trace_id, span_id, flags, attributes);
        Ok((py.get_type::<Self>().into_any(), arguments))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let (trace_id, span_id) = (self.trace_id(py), self.span_id(py));
        format!("otelctx.Context({trace_id:?}, {span_id:?})")
    }
}

/// Reads an ID: an int, hexadecimal digits, or bytes. Zero is invalid in W3C Trace Context.
fn id<const N: usize>(name: &str, value: &Bound<'_, PyAny>) -> PyResult<[u8; N]> {
    let bytes = bytes_of(name, value)?;
    if bytes != [0; N] {
        return Ok(bytes);
    }
    let zero = if N == 16 {
        ZeroId::TraceId
    } else {
        ZeroId::SpanId
    };
    Err(PyValueError::new_err(zero.to_string()))
}

fn bytes_of<const N: usize>(name: &str, value: &Bound<'_, PyAny>) -> PyResult<[u8; N]> {
    let wrong = || {
        let digits = 2 * N;
        PyValueError::new_err(format!(
            "{name}: give an int below 16**{digits}, {digits} hexadecimal digits, or {N} bytes"
        ))
    };
    let number = if let Ok(given) = value.cast::<PyBytes>() {
        return given.as_bytes().try_into().map_err(|_| wrong());
    } else if let Ok(digits) = value.cast::<PyString>() {
        let digits = digits.to_string_lossy();
        let are_digits = digits.len() == 2 * N && digits.bytes().all(|it| it.is_ascii_hexdigit());
        let number = u128::from_str_radix(&digits, 16).ok();
        number.filter(|_| are_digits)
    } else if let Ok(number) = value.cast::<PyInt>() {
        number.extract().ok()
    } else {
        None
    };
    let number: [u8; 16] = number.ok_or_else(wrong)?.to_be_bytes();
    let (above, below) = number.split_at(16 - N);
    if above.iter().any(|byte| *byte != 0) {
        return Err(wrong());
    }
    below.try_into().map_err(|_| wrong())
}

/// Returns the attributes in a dict.
///
/// # Errors
/// If a name is no string, or a value cannot be converted to one.
pub(crate) fn attributes_of(attributes: Option<&Bound<'_, PyDict>>) -> PyResult<Attributes> {
    let mut result = Attributes::new();
    // A copy: another thread, or the method `__str__` of a value, may change the dict meanwhile.
    let attributes = attributes.map(|it| it.copy()).transpose()?;
    for (name, value) in attributes.into_iter().flatten() {
        let name = name.cast::<PyString>()?;
        if let Some(key) = key(name.py(), &name.to_string_lossy()) {
            result.push((key, value.str()?.to_string_lossy().into_owned()));
        }
    }
    Ok(result)
}

/// Number of names that are kept, including refused ones: twice as many as can be registered.
const MAX_NAMES: usize = 512;

static KEYS: Mutex<Option<HashMap<String, Option<&'static Key>>>> = Mutex::new(None);

/// Returns the key of this name. `None` if it could not be registered, which is logged once.
pub(crate) fn key(py: Python<'_>, name: &str) -> Option<&'static Key> {
    let error = {
        let mut keys = KEYS.lock().unwrap_or_else(PoisonError::into_inner);
        let keys = keys.get_or_insert_default();
        if let Some(known) = keys.get(name) {
            return *known;
        }
        match Key::from_string(name.into()) {
            Ok(key) => {
                let key: &'static Key = Box::leak(Box::new(key));
                keys.insert(name.into(), Some(key));
                return Some(key);
            }
            // Names that are made from data must not fill the memory.
            Err(_) if keys.len() >= MAX_NAMES => return None,
            Err(error) => {
                keys.insert(name.into(), None);
                error
            }
        }
    };
    // Logging may run other threads, which must find the lock free.
    warn(py, &format!("attribute omitted: {error}"));
    None
}

/// Registers the names of attributes, so that they are published with the process context.
#[pyfunction]
pub(crate) fn register_keys(py: Python<'_>, names: Vec<String>) {
    for name in names {
        key(py, &name);
    }
}

/// Returns the context in a value of the context variable.
#[inline]
pub(crate) fn value_of<'a>(value: &'a Bound<'_, PyAny>) -> Option<&'a Context> {
    // Neither class can be subclassed.
    match value.cast_exact::<Context>() {
        Ok(context) => Some(context.get()),
        Err(_) => Some(Entry::class().fields(value)?.context.as_ref()?.get()),
    }
}

/// Returns the context in a value of the context variable, as an object.
pub(crate) fn object_of<'py>(value: &Bound<'py, PyAny>) -> Option<Bound<'py, Context>> {
    if let Ok(context) = value.cast_exact::<Context>() {
        return Some(context.clone());
    }
    let context = Entry::class().fields(value)?.context.as_ref()?;
    Some(context.bind(value.py()).clone())
}

/// The result of `attach` from 3.14 on.
///
/// The interpreter's own token restores the variable without this module at the end of a `with`
/// block. Watchers are not called, so the context would stay published. Older versions have no such
/// tokens, and are spared the cost of another object.
pub(crate) struct Token(Py<PyAny>);

impl Token {
    /// Wraps a token of the interpreter, if it would be a context manager itself.
    #[inline]
    pub(crate) fn wrap(token: Bound<'_, PyAny>) -> PyResult<Bound<'_, PyAny>> {
        if !is_reported() {
            return Ok(token);
        }
        let py = token.py();
        Self::class().object(py, Self(token.unbind()))
    }
}

impl Fields for Token {
    const NAME: &CStr = c"otelctx.Token";
    const DOCUMENTATION: &CStr =
        c"The result of `attach`, for `detach`; also a context manager, which detaches at its end.";

    fn class() -> &'static Class<Self> {
        static CLASS: Class<Token> = Class::new();
        &CLASS
    }

    fn methods() -> *const PyMethodDef {
        crate::methods::TOKEN.as_ptr()
    }

    fn collected(&self) -> *mut PyObject {
        self.0.as_ptr()
    }

    fn release(self, py: Python<'_>) {
        drop(self.0.into_bound(py));
    }
}

/// `Token.__enter__`.
#[allow(clippy::unnecessary_wraps)]
pub(crate) fn enter<'py>(token: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    Ok(token.clone())
}

/// Makes `context` the work of the current `contextvars` context; returns a token for [`detach`].
pub(crate) fn attach<'py>(context: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    Token::wrap(set(context)?)
}

/// Makes `context` what the current `contextvars` context is working on; returns a token of the
/// interpreter for [`reset`].
fn set<'py>(context: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = context.py();
    let context = context.cast_exact::<Context>()?;
    let contextvars = loaded()?;
    // OpenTelemetry's own context stays as it is.
    let opentelemetry = contextvars
        .get(py)
        .and_then(|value| Some(Entry::class().fields(&value)?.opentelemetry.clone_ref(py)));
    let token = match opentelemetry {
        None => contextvars.set(context.as_any())?,
        Some(opentelemetry) => {
            let context = Some(context.clone().unbind());
            contextvars.set(&Entry::class().object(py, Entry::new(context, opentelemetry))?)?
        }
    };
    publish_value(&token, Some(context.get()))?;
    Ok(token)
}

/// Restores what was attached before.
pub(crate) fn detach<'py>(token: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    match Token::class().fields(token) {
        Some(wrapped) => reset(wrapped.0.bind(token.py()))?,
        None => reset(token)?,
    }
    Ok(token.py().None().into_bound(token.py()))
}

/// Returns the context that is attached in the current `contextvars` context.
#[pyfunction]
pub(crate) fn current(py: Python<'_>) -> PyResult<Option<Bound<'_, Context>>> {
    Ok(loaded()?.get(py).as_ref().and_then(object_of))
}

/// Sets attributes of the attached context; returns whether there is one.
#[pyfunction]
pub(crate) fn update(attributes: &Bound<'_, PyDict>) -> PyResult<bool> {
    let context = current(attributes.py())?;
    if let Some(context) = &context {
        context.get().update(attributes)?;
    }
    Ok(context.is_some())
}

/// Returns what readers see of the calling thread: the record in its slot.
#[pyfunction]
pub(crate) fn visible_to_readers(py: Python<'_>) -> PyResult<Option<Bound<'_, PyDict>>> {
    let Some(record) = otelctx::visible_to_readers() else {
        return Ok(None);
    };
    let attributes = PyDict::new(py);
    for (name, value) in &record.attributes {
        attributes.set_item(name, value)?;
    }
    let seen = PyDict::new(py);
    seen.set_item("trace_id", record.trace_id.to_string())?;
    seen.set_item("span_id", record.span_id.to_string())?;
    seen.set_item("trace_flags", record.trace_flags.0)?;
    seen.set_item("attributes", attributes)?;
    Ok(Some(seen))
}

/// Attaches a context for the duration of a `with` block.
#[pyfunction]
pub(crate) fn scope(context: &Bound<'_, Context>) -> Scope {
    Scope {
        context: context.clone().unbind(),
        tokens: Mutex::default(),
    }
}

/// The result of [`scope`]. Several threads and tasks may have entered it at the same time.
#[pyclass(frozen, module = "otelctx")]
pub(crate) struct Scope {
    context: Py<Context>,
    /// The tokens of all threads and tasks that have entered it, in order.
    tokens: Mutex<Vec<Py<PyAny>>>,
}

#[pymethods]
impl Scope {
    fn __enter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, Context>> {
        let context = self.context.bind(py);
        let token = set(context.as_any())?.unbind();
        self.tokens().push(token);
        Ok(context.clone())
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        let tokens: Vec<_> = {
            let tokens = self.tokens();
            tokens.iter().rev().map(|it| it.clone_ref(py)).collect()
        };
        let mut error = PyRuntimeError::new_err("the scope was not entered");
        for token in tokens {
            match reset(token.bind(py)) {
                Ok(()) => {
                    let mut tokens = self.tokens();
                    let position = tokens.iter().rposition(|it| it.is(&token));
                    let used = position.map(|position| tokens.remove(position));
                    drop(tokens);
                    drop(used);
                    return Ok(());
                }
                // Another thread or task got this token: it has entered the scope later.
                Err(refused) => error = refused,
            }
        }
        Err(error)
    }

    // The tokens refer to `contextvars` contexts, whose variables may refer to a task in the scope
    // that nobody waits for any more.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // The interpreter calls this while no thread runs that has the lock.
        let Ok(tokens) = self.tokens.try_lock() else {
            return Ok(());
        };
        tokens.iter().try_for_each(|token| visit.call(token))
    }
}

impl Scope {
    fn tokens(&self) -> MutexGuard<'_, Vec<Py<PyAny>>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
