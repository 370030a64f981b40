//! A sampler that decides nothing: it sees the attributes of each span that is started.

use std::borrow::Cow;
use std::sync::Arc;

use opentelemetry::trace::{
    Link, SpanContext, SpanId, SpanKind, TraceContextExt, TraceFlags, TraceId,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SamplingDecision, SamplingResult, ShouldSample};
use otelctx::{Key, SharedContext};

use crate::observer::{self, converted};
use crate::{ids, started, truncated};

/// The attribute that links a span to its profile in Grafana.
const PROFILE_ID: &str = "pyroscope.profile.id";

/// The attributes to publish of a provider's spans.
#[derive(Debug, Default)]
pub(crate) struct Published {
    pub(crate) attributes: Vec<Key>,
    pub(crate) profile_id: bool,
}

/// Makes the context of each span, then lets another sampler decide.
#[derive(Clone, Debug)]
pub(crate) struct Recording {
    pub(crate) decide: Box<dyn ShouldSample>,
    pub(crate) published: Arc<Published>,
}

impl ShouldSample for Recording {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        trace: TraceId,
        name: &str,
        kind: &SpanKind,
        attributes: &[KeyValue],
        links: &[Link],
    ) -> SamplingResult {
        // Before another sampler can start spans of its own.
        let span = ids::take_new_span();
        let decide = &self.decide;
        let mut result = decide.should_sample(parent, trace, name, kind, attributes, links);
        if span == SpanId::INVALID {
            return result;
        }
        let parent_span = parent.map(TraceContextExt::span);
        let parent_span = parent_span.as_ref().map(|span| span.span_context());
        let parent_span = parent_span.filter(|span| span.is_valid());
        let flags = flags(parent_span, &result.decision);
        let local_parent = parent.filter(|_| parent_span.is_some_and(|span| !span.is_remote()));
        let attributes = [attributes, &result.attributes];
        let inherited = local_parent.and_then(observer::shared);
        match inherited {
            Some(parent) if self.adds_nothing(attributes) => copy((trace, span, flags), parent),
            _ => self.publish((trace, span, flags), local_parent, name, attributes),
        }
        if self.published.profile_id && local_parent.is_none() {
            result
                .attributes
                .push(KeyValue::new(PROFILE_ID, span.to_string()));
        }
        result
    }
}

impl Recording {
    /// Returns whether a span without its parent's attributes would have nothing to publish but its
    /// IDs, which is seen without comparing names.
    #[inline]
    fn adds_nothing(&self, attributes: [&[KeyValue]; 2]) -> bool {
        let has_none = attributes.iter().all(|given| given.is_empty());
        (has_none || self.published.attributes.is_empty())
            && observer::options().span_name.is_none()
    }

    /// Makes a context with the span's own attributes, and those of its parent.
    #[inline(never)]
    fn publish(
        &self,
        (trace, span, flags): (TraceId, SpanId, TraceFlags),
        parent: Option<&Context>,
        name: &str,
        attributes: [&[KeyValue]; 2],
    ) {
        let inherited = parent.and_then(observer::shared);
        let options = observer::options();
        // A parent without a context was started before the observer was set.
        let local_root = options.local_root.as_ref();
        let local_root = local_root.filter(|_| inherited.is_none()).map(|key| {
            let root = parent.map_or(span, |parent| parent.span().span_context().span_id());
            (key, Cow::Owned(root.to_string()))
        });
        let span_name = options.span_name.as_ref();
        let span_name = span_name.map(|key| (key, Cow::Borrowed(name)));
        let given = self.published.attributes.iter().filter_map(|key| {
            let given = attributes.into_iter().flatten();
            let given = given.filter(|given| given.key.as_str() == key.name());
            Some((key, given.last()?.value.as_str()))
        });
        let mut own = given.chain(span_name).chain(local_root).peekable();

        let (trace_id, span_id) = (trace.to_bytes(), span.to_bytes());
        let context = match inherited {
            Some(parent) if own.peek().is_none() => return copy((trace, span, flags), parent),
            Some(parent) => parent.copy_with_ids(trace_id, span_id, converted(flags)),
            None => otelctx::Context::new(trace_id, span_id)
                .map(|context| context.with_flags(converted(flags))),
        };
        // The application's ID generator may give a trace ID of zero.
        let Ok(context) = context else { return };
        let context = own.fold(context, |context, (key, value)| {
            context.without_attribute(key).with_attribute(key, &value)
        });
        truncated::count(context.is_truncated());
        started::add(context.share());
    }
}

/// Makes a context with the attributes of the parent's.
fn copy((trace, span, flags): (TraceId, SpanId, TraceFlags), parent: &SharedContext) {
    truncated::count(parent.is_truncated());
    started::add_copy(trace, span, flags, parent);
}

/// Returns the flags that the SDK gives the span (opentelemetry_sdk,
/// `SdkTracer::build_with_context`). If it gives it others, the context is not used.
fn flags(parent: Option<&SpanContext>, decision: &SamplingDecision) -> TraceFlags {
    let sampled = match decision {
        SamplingDecision::Drop => return TraceFlags::default(),
        SamplingDecision::RecordOnly => false,
        SamplingDecision::RecordAndSample => true,
    };
    let flags = parent.map_or(TraceFlags::default(), SpanContext::trace_flags);
    flags.with_sampled(sampled)
}
