//! The values of published fields.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use otelctx::{Context, Key, SharedContext};
use tracing_core::field::{Field, Visit};

/// The values of a span that declares at least one published field. A field that is not declared
/// can't be recorded, so all other spans have those of the next such span above them.
#[derive(Debug)]
pub(crate) struct Fields {
    above: Option<Arc<Fields>>,
    /// The values, in the order of the layer's keys.
    values: Mutex<Box<[Value]>>,
    /// Number of times that values were recorded after the start.
    changes: AtomicU64,
}

#[derive(Debug, Default)]
pub(crate) struct Value {
    text: Option<Box<str>>,
    /// True if it was recorded after the start.
    is_late: bool,
}

impl Fields {
    pub(crate) fn new(above: Option<Arc<Self>>, values: Box<[Value]>) -> Self {
        Self {
            above,
            values: Mutex::new(values),
            changes: AtomicU64::new(0),
        }
    }

    /// Returns how often values of this span or one above it were recorded late.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        let mut changes = self.changes.load(Ordering::Acquire);
        let mut above = &self.above;
        while let Some(fields) = above {
            changes += fields.changes.load(Ordering::Acquire);
            above = &fields.above;
        }
        changes
    }

    /// Replaces the values that were recorded. Returns whether there were any.
    pub(crate) fn record(&self, recorded: Box<[Value]>) -> bool {
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        let mut any = false;
        for (value, recorded) in values.iter_mut().zip(recorded) {
            if recorded.text.is_some() {
                *value = recorded;
                value.is_late = true;
                any = true;
            }
        }
        self.changes.fetch_add(u64::from(any), Ordering::Release);
        any
    }

    /// Calls `add` with the innermost value of each key, and whether it was recorded late. It gets
    /// what the call before returned.
    pub(crate) fn fold<T>(
        &self,
        keys: &[Key],
        mut so_far: T,
        mut add: impl FnMut(T, &Key, &str, bool) -> T,
    ) -> T {
        for (index, key) in keys.iter().enumerate() {
            let mut fields = Some(self);
            while let Some(these) = fields {
                let values = these.values.lock().unwrap_or_else(PoisonError::into_inner);
                let value = &values[index];
                if let Some(text) = &value.text {
                    so_far = add(so_far, key, text, value.is_late);
                    break;
                }
                fields = these.above.as_deref();
            }
        }
        so_far
    }

    /// Appends all values to a context.
    pub(crate) fn append_to(&self, keys: &[Key], context: Context) -> Context {
        self.fold(keys, context, |context, key, value, _| {
            context.with_attribute(key, value)
        })
    }

    /// Replaces a context's values by the late ones.
    pub(crate) fn replace_late(&self, keys: &[Key], context: Context) -> Context {
        self.fold(keys, context, |context, key, value, is_late| {
            if is_late {
                context.without_attribute(key).with_attribute(key, value)
            } else {
                context
            }
        })
    }
}

/// Returns how often the fields of a span were recorded late; 0 for a span without fields.
#[inline]
pub(crate) fn changes(fields: Option<&Arc<Fields>>) -> u64 {
    fields.map_or(0, |fields| fields.changes())
}

/// The context of a span, with the fields that it was made of.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) context: SharedContext,
    fields: Option<Arc<Fields>>,
    /// [`changes`] of the fields when the context was made.
    changes: u64,
}

impl Made {
    pub(crate) fn new(
        fields: Option<&Arc<Fields>>,
        make: impl FnOnce(Option<&Arc<Fields>>) -> SharedContext,
    ) -> Self {
        // Counted first: fields that are recorded meanwhile make the context out of date.
        let changes = changes(fields);
        Self {
            context: make(fields),
            fields: fields.cloned(),
            changes,
        }
    }

    #[inline]
    pub(crate) fn is_up_to_date(&self) -> bool {
        changes(self.fields.as_ref()) == self.changes
    }
}

/// Takes the values of the layer's keys.
#[derive(Debug)]
pub(crate) struct Visitor<'k> {
    keys: &'k [Key],
    pub(crate) values: Box<[Value]>,
}

impl<'k> Visitor<'k> {
    pub(crate) fn new(keys: &'k [Key]) -> Self {
        Self {
            keys,
            values: keys.iter().map(|_| Value::default()).collect(),
        }
    }

    fn take(&mut self, field: &Field, value: impl FnOnce() -> Box<str>) {
        let index = self.keys.iter().position(|key| key.name() == field.name());
        if let Some(index) = index {
            self.values[index].text = Some(value());
        }
    }
}

impl Visit for Visitor<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.take(field, || value.into());
    }

    /// Takes any other value, such as a number or a truth value.
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.take(field, || format!("{value:?}").into());
    }
}
