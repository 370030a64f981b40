//! The layer.

use std::sync::Arc;

use otelctx::{Key, Record, SharedRecord};
use tracing_core::span::{Attributes, Id};
use tracing_core::{span, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::{LookupSpan, SpanRef};

use crate::fields::{Fields, Visitor};
use crate::ids::{self, Ids};
use crate::stack;

/// A layer that publishes the span that each thread is working on, with these of its fields.
///
/// `fields` are names such as `http.route`; a process has at most 256 names. What is published should be low in number
/// and harmless: everyone who may read the process's memory sees it. A name that can't be registered is left
/// out, see [`otelctx::KeyError`].
///
/// If OpenTelemetry's layer is used, add this one after it.
pub fn layer<F: Into<String>>(fields: impl IntoIterator<Item = F>) -> ContextLayer {
    let keys = fields.into_iter().map(Into::into).map(Key::from_string);
    ContextLayer {
        keys: keys.filter_map(Result::ok).collect(),
    }
}

/// Publishes the span that each thread is working on. Created by [`layer`].
#[derive(Debug)]
pub struct ContextLayer {
    keys: Box<[Key]>,
}

/// What is kept for each span.
struct Span {
    ids: Ids,
    fields: Option<Arc<Fields>>,
    /// The record of `ids` and `fields`, and how often the latter had changed when it was made.
    record: Option<(SharedRecord, u64)>,
}

impl Span {
    fn changes(&self) -> u64 {
        self.fields.as_ref().map_or(0, |fields| fields.changes())
    }

    /// The record, if it is up to date.
    #[inline]
    fn record(&self, ids: Ids) -> Option<SharedRecord> {
        let (record, changes) = self.record.as_ref()?;
        (self.ids == ids && self.changes() == *changes).then(|| record.clone())
    }

    fn make_record(&mut self, ids: Ids, keys: &[Key]) -> SharedRecord {
        let changes = self.changes();
        let mut record = Record::new(ids.trace, ids.span).flags(ids.flags);
        if let Some(fields) = &self.fields {
            record = fields.add_to(keys, record);
        }
        let record = record.share();
        self.ids = ids;
        self.record = Some((record.clone(), changes));
        record
    }
}

impl ContextLayer {
    /// The record of a span as it is now.
    #[inline]
    fn record<S: for<'s> LookupSpan<'s>>(&self, span: &SpanRef<'_, S>) -> Option<SharedRecord> {
        let ids = {
            let extensions = span.extensions();
            let this = extensions.get::<Span>()?;
            let ids = this.ids.now(&extensions);
            if let Some(record) = this.record(ids) {
                return Some(record);
            }
            ids
        };
        let mut extensions = span.extensions_mut();
        let this = extensions.get_mut::<Span>()?;
        Some(this.make_record(ids, &self.keys))
    }

    /// Whether `otelctx-opentelemetry` publishes the thread's context.
    #[inline]
    fn is_observed() -> bool {
        otelctx::integration::is_observed() && ids::current().is_some()
    }

    /// Adds the fields that were recorded after the span's start to what the observer has published.
    fn add_late<S: for<'s> LookupSpan<'s>>(&self, span: &SpanRef<'_, S>) {
        let fields = span
            .extensions()
            .get::<Span>()
            .and_then(|span| span.fields.clone());
        if let Some(fields) = fields.filter(|fields| fields.changes() > 0) {
            fields.each(&self.keys, |key, value, is_late| {
                if is_late {
                    otelctx::append_current(key, value);
                }
            });
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
        let (parent, above) = span.parent().map_or((None, None), |parent| {
            let extensions = parent.extensions();
            extensions.get::<Span>().map_or((None, None), |parent| {
                (Some(parent.ids), parent.fields.clone())
            })
        });
        let declared = attributes.metadata().fields();
        let fields = match self
            .keys
            .iter()
            .any(|key| declared.field(key.name()).is_some())
        {
            true => {
                let mut visitor = Visitor::new(&self.keys);
                attributes.record(&mut visitor);
                Some(Arc::new(Fields::new(above, visitor.values)))
            }
            false => above,
        };
        span.extensions_mut().insert(Span {
            ids: Ids::new(parent),
            fields,
            record: None,
        });
    }

    fn on_record(&self, id: &Id, values: &span::Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else {
            return;
        };
        let mut visitor = Visitor::new(&self.keys);
        values.record(&mut visitor);
        let fields = span
            .extensions()
            .get::<Span>()
            .and_then(|span| span.fields.clone());
        let is_new = fields.is_some_and(|fields| fields.record(visitor.values));
        if !is_new {
            return;
        }
        if Self::is_observed() {
            return self.add_late(&span);
        }
        // Other threads see it when they enter the span again.
        for entered in stack::entered() {
            let Some(entered) = context.span(&Id::from_u64(entered)) else {
                continue;
            };
            // Not now(): OpenTelemetry's current context is that of the latest span alone.
            let record = entered.extensions_mut().get_mut::<Span>().and_then(|this| {
                let is_old = this.record(this.ids).is_none();
                is_old.then(|| this.make_record(this.ids, &self.keys))
            });
            if let Some(record) = record {
                stack::replace(entered.id().into_u64(), &record);
            }
        }
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        let (number, now) = (id.into_u64(), ids::current());
        let is_observed = now.is_some() && otelctx::integration::is_observed();
        if !is_observed && now.is_some_and(|ids| stack::push_known(number, ids)) {
            return;
        }
        let Some(span) = context.span(id) else {
            return;
        };
        if is_observed {
            return self.add_late(&span);
        }
        if let Some(record) = self.record(&span) {
            if let Some(ids) = now {
                let extensions = span.extensions();
                let this = extensions.get::<Span>();
                let fields = this.and_then(|this| this.fields.clone());
                let changes = this.and_then(|this| Some(this.record.as_ref()?.1));
                stack::know(number, ids, fields, changes.unwrap_or(0), record.clone());
            }
            stack::push(number, record);
        }
    }

    fn on_exit(&self, id: &Id, _context: Context<'_, S>) {
        stack::pop(id.into_u64());
    }
}
