//! The layer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

use otelctx::{append_current, integration, raw, Key, KeyError};
use tracing_core::span::{Attributes, Id};
use tracing_core::{span, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::{Extensions, LookupSpan, SpanRef};

use crate::fields::{changes, Fields, Made, Visitor};
use crate::ids::{self, Ids, FROM_OPENTELEMETRY};
use crate::problem;
use crate::stack::{self, Entered};

/// Returns a layer that publishes the span of each thread, with these of its fields.
///
/// `fields` are names such as `http.route`; a process has at most 256 names. What is published
/// should be low in number and harmless: everyone who may read the process's memory sees it. A name
/// that can't be registered is left out, see [`check`](crate::check) and [`ContextLayer::refused`].
///
/// If OpenTelemetry's layer is used, add this one after it. Of several such layers in one
/// subscriber, the first publishes.
pub fn layer<F: Into<String>>(fields: impl IntoIterator<Item = F>) -> ContextLayer {
    let (mut keys, mut refused) = (Vec::new(), Vec::new());
    for name in fields {
        match Key::from_string(name.into()) {
            Ok(key) => keys.push(key),
            Err(error) => {
                problem::refused(&error);
                refused.push(error);
            }
        }
    }
    ContextLayer {
        keys: keys.into(),
        refused,
    }
}

/// Publishes the span that each thread is working on. Created by [`layer`].
#[derive(Debug)]
pub struct ContextLayer {
    keys: Arc<[Key]>,
    refused: Vec<KeyError>,
}

/// Number of records of spans so far that have no room for all values, or for a whole one: a record
/// has up to 612 bytes of attributes, and a value 255.
#[must_use]
pub fn truncated() -> u64 {
    TRUNCATED.load(Ordering::Relaxed)
}

static TRUNCATED: AtomicU64 = AtomicU64::new(0);

fn count(is_truncated: bool) {
    TRUNCATED.fetch_add(u64::from(is_truncated), Ordering::Relaxed);
}

/// Longest value of a record, in bytes (OTEP 4947).
const MAX_VALUE_SIZE: usize = 255;

/// Set once a field was recorded late while the observer publishes: before, exiting does nothing.
static ANY_LATE: AtomicBool = AtomicBool::new(false);

/// The data that the layer keeps for each span.
struct Span {
    /// The keys of the layer that keeps it.
    keys: Arc<[Key]>,
    ids: Ids,
    fields: Option<Arc<Fields>>,
    /// The context with `ids` and `fields`.
    made: Option<Made>,
}

impl Span {
    /// Returns the context if it is up to date.
    #[inline]
    fn up_to_date(&self, ids: Ids) -> Option<Made> {
        let made = self.made.as_ref()?;
        (self.ids == ids && made.is_up_to_date()).then(|| made.clone())
    }

    fn make(&mut self, ids: Ids) -> Made {
        let made = Made::new(self.fields.as_ref(), |fields| {
            let mut context = ids.context();
            if let Some(fields) = fields {
                context = fields.append_to(&self.keys, context);
            }
            context.share()
        });
        count(made.context.is_truncated());
        self.ids = ids;
        self.made = Some(made.clone());
        made
    }
}

impl ContextLayer {
    /// Returns the names that are not published, because they could not be registered.
    #[must_use]
    pub fn refused(&self) -> &[KeyError] {
        &self.refused
    }

    /// Returns what this layer keeps for a span.
    #[inline]
    fn of<'e>(&self, extensions: &'e Extensions<'_>) -> Option<&'e Span> {
        let span = extensions.get::<Span>()?;
        Arc::ptr_eq(&span.keys, &self.keys).then_some(span)
    }

    fn fields<S: for<'s> LookupSpan<'s>>(&self, span: &SpanRef<'_, S>) -> Option<Arc<Fields>> {
        self.of(&span.extensions())?.fields.clone()
    }

    /// Returns the record of a span as it is now, given OpenTelemetry's IDs of it.
    #[inline]
    fn made<S: for<'s> LookupSpan<'s>>(
        &self,
        span: &SpanRef<'_, S>,
        now: Option<Ids>,
    ) -> Option<Made> {
        let ids = {
            let extensions = span.extensions();
            let this = self.of(&extensions)?;
            let ids = if FROM_OPENTELEMETRY {
                now.unwrap_or(Ids::NONE)
            } else {
                this.ids
            };
            if let Some(made) = this.up_to_date(ids) {
                return Some(made);
            }
            ids
        };
        let mut extensions = span.extensions_mut();
        Some(extensions.get_mut::<Span>()?.make(ids))
    }

    /// Returns whether `otelctx-opentelemetry` publishes the thread's context.
    #[inline]
    fn is_observed() -> bool {
        integration::is_observed() && (!FROM_OPENTELEMETRY || ids::is_observed())
    }

    /// Adds the fields recorded after a span's start to what the observer has published of it.
    fn add_late<S: for<'s> LookupSpan<'s>>(&self, span: &SpanRef<'_, S>) {
        let fields = self.fields(span);
        let Some(fields) = fields.filter(|fields| changes(Some(fields)) > 0) else {
            return;
        };
        let fit = fields.fold(&self.keys, true, |fit, key, value, is_late| {
            let fits = || value.len() <= MAX_VALUE_SIZE && append_current(key, value);
            (!is_late || fits()) && fit
        });
        if !fit {
            self.rebuild(&fields);
        }
    }

    /// Replaces what the observer has published by a record with the late fields in place of their
    /// earlier values: appending a field again leaves its earlier value, until the record is full.
    #[cold]
    fn rebuild(&self, fields: &Fields) {
        // Everything that is seen: the application may have appended values, too.
        let Some(seen) = otelctx::visible_to_readers() else {
            return;
        };
        let ids = Ids {
            trace: seen.trace_id,
            span: seen.span_id,
            flags: seen.trace_flags,
        };
        if raw::current().is_none_or(|it| (it.trace_id(), it.span_id()) != (ids.trace, ids.span)) {
            // A guard has attached a context of the application's.
            return count(true);
        }
        let mut new = ids.context();
        for (name, value) in seen.attributes {
            if let Ok(key) = Key::from_string(name) {
                new = new.with_attribute(&key, &value);
            }
        }
        let new = fields.replace_late(&self.keys, new).share();
        count(new.is_truncated());
        drop(raw::swap_current(Some(new)));
    }

    fn entered(&self, id: &Id) -> Entered {
        Entered {
            layer: self.keys.as_ptr() as usize,
            span: id.into_u64(),
        }
    }
}

impl<S> Layer<S> for ContextLayer
where
    S: Subscriber + for<'s> LookupSpan<'s>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else {
            return;
        };
        let parent = span.parent().and_then(|parent| {
            let extensions = parent.extensions();
            let parent = self.of(&extensions)?;
            Some((parent.ids, parent.fields.clone()))
        });
        let (parent, above) = parent.unzip();
        let above = above.flatten();
        let declared = attributes.metadata().fields();
        let mut names = self.keys.iter().map(Key::name);
        let fields = if names.any(|name| declared.field(name).is_some()) {
            let mut visitor = Visitor::new(&self.keys);
            attributes.record(&mut visitor);
            Some(Arc::new(Fields::new(above, visitor.values)))
        } else {
            above
        };
        let mut extensions = span.extensions_mut();
        if extensions.get_mut::<Span>().is_none() {
            extensions.insert(Span {
                keys: Arc::clone(&self.keys),
                ids: Ids::new(parent),
                fields,
                made: None,
            });
        }
    }

    fn on_record(&self, id: &Id, values: &span::Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else {
            return;
        };
        let mut visitor = Visitor::new(&self.keys);
        values.record(&mut visitor);
        let fields = self.fields(&span);
        if !fields.is_some_and(|fields| fields.record(visitor.values)) {
            return;
        }
        if integration::is_observed() {
            ANY_LATE.store(true, Ordering::Relaxed);
        }
        if Self::is_observed() {
            let current = context.lookup_current();
            if let Some(current) = current.filter(|it| it.scope().any(|it| it.id() == *id)) {
                self.add_late(&current);
            }
        }
        // Other threads see it when they enter the span again.
        for entered in stack::entered(self.entered(id).layer) {
            let Some(entered) = context.span(&Id::from_u64(entered)) else {
                continue;
            };
            // Of OpenTelemetry's IDs, only those of the latest span are current.
            let mut extensions = entered.extensions_mut();
            let this = extensions.get_mut::<Span>();
            let this = this.filter(|this| Arc::ptr_eq(&this.keys, &self.keys));
            let old = this.filter(|this| this.up_to_date(this.ids).is_none());
            let made = old.map(|this| this.make(this.ids));
            drop(extensions);
            if let Some(made) = made {
                stack::replace(self.entered(&entered.id()), &made.context);
            }
        }
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        let (entered, now) = (self.entered(id), ids::current());
        let is_observed = Self::is_observed();
        if !is_observed && now.is_some_and(|ids| stack::push_remembered(entered, ids)) {
            return;
        }
        let Some(span) = context.span(id) else {
            return;
        };
        if is_observed {
            return self.add_late(&span);
        }
        let Some(made) = self.made(&span, now.or_else(|| ids::of(&span))) else {
            return;
        };
        if let Some(ids) = now {
            stack::remember(entered, ids, made.clone());
        }
        stack::push(entered, made.context);
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        stack::pop(self.entered(id));
        if ANY_LATE.load(Ordering::Relaxed) && Self::is_observed() {
            // The observer has published what the span around it was started with.
            if let Some(current) = context.lookup_current() {
                self.add_late(&current);
            }
        }
    }
}
