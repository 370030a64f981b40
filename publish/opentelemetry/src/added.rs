//! Attributes that a context has for readers besides the ones that its span was started with.

use opentelemetry::trace::{SpanContext, TraceContextExt};
use opentelemetry::Context;
use otelctx::{Key, SharedContext};

/// The attributes that were added to a span's contexts. A context keeps them when another span is
/// put into it, which has inherited them.
struct Added {
    span: SpanContext,
    attributes: Vec<(&'static Key, String)>,
}

/// Returns a context with another attribute for readers, for what becomes known after its span was
/// started. Contexts that are derived from it have the attribute, and so have spans that are
/// started in it. It is not sent to other processes.
///
/// The name need not have been given to [`install`](crate::install). A context without a span
/// publishes nothing. A context that is derived from an earlier one on another thread, while this
/// one is attached there, may show the attribute, too.
///
/// ```
/// use opentelemetry::Context;
/// use otelctx::Key;
/// use otelctx_opentelemetry::with_attribute;
///
/// static TENANT: Key = Key::new("tenant.id");
///
/// let context = with_attribute(&Context::current(), &TENANT, "blue");
/// let _attached = context.attach(); // or `future.with_context(context)`
/// ```
#[must_use]
pub fn with_attribute(context: &Context, key: &'static Key, value: impl Into<String>) -> Context {
    let span = context.span().span_context().clone();
    let mut attributes = of(context, &span).map_or_else(Vec::new, <[_]>::to_vec);
    attributes.retain(|(added, _)| added.name() != key.name());
    attributes.push((key, value.into()));
    context.with_value(Added { span, attributes })
}

/// Returns the attributes that were added to a context of this span.
#[inline]
pub(crate) fn of<'c>(
    context: &'c Context,
    span: &SpanContext,
) -> Option<&'c [(&'static Key, String)]> {
    let added = context.get::<Added>()?;
    let is_of = added.span.span_id() == span.span_id() && added.span.trace_id() == span.trace_id();
    is_of.then_some(&*added.attributes)
}

/// Copies a context, with added attributes.
pub(crate) fn copy(shared: &SharedContext, added: &[(&'static Key, String)]) -> otelctx::Context {
    added
        .iter()
        .fold(shared.to_context(), |copy, (key, value)| {
            copy.without_attribute(key).with_attribute(key, value)
        })
}
