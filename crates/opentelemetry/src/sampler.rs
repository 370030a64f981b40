//! A sampler that decides nothing: it sees the attributes of each span that is started.

use std::sync::Arc;

use opentelemetry::trace::{
    Link, SpanContext, SpanId, SpanKind, TraceContextExt, TraceFlags, TraceId,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SamplingDecision, SamplingResult, ShouldSample};
use otelctx::{Key, Record};

use crate::observer::{self, View};
use crate::{ids, started};

/// The attribute that links a span to its profile in Grafana.
const PROFILE_ID: &str = "pyroscope.profile.id";

/// What to publish of a provider's spans.
#[derive(Debug, Default)]
pub(crate) struct Published {
    pub(crate) attributes: Vec<Key>,
    pub(crate) profile_id: bool,
}

/// Writes the record of each span, then lets another sampler decide.
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
        let mut result = self
            .decide
            .should_sample(parent, trace, name, kind, attributes, links);
        if span == SpanId::INVALID {
            return result;
        }
        let local_parent = parent.filter(|parent| {
            let parent = parent.span();
            let parent = parent.span_context();
            parent.is_valid() && !parent.is_remote()
        });
        let flags = flags(parent, &result.decision);
        let context = SpanContext::new(trace, span, flags, false, Default::default());
        let record = self.record(&context, local_parent, name, attributes, &result.attributes);
        started::add(trace, span, Arc::new(View(record.share())));
        if self.published.profile_id && local_parent.is_none() {
            let id = KeyValue::new(PROFILE_ID, span.to_string());
            result.attributes.push(id);
        }
        result
    }
}

impl Recording {
    /// A record with the span's own attributes, and those of its parent.
    fn record(
        &self,
        span: &SpanContext,
        parent: Option<&Context>,
        name: &str,
        attributes: &[KeyValue],
        from_sampler: &[KeyValue],
    ) -> Record {
        let inherited = parent.and_then(observer::record);
        let mut record = match inherited {
            Some(parent) => parent.copy_with_ids(
                span.trace_id().to_bytes(),
                span.span_id().to_bytes(),
                otelctx::TraceFlags(span.trace_flags().to_u8()),
            ),
            None => observer::plain(span),
        };
        let mut set = |key: &Key, value: &str| {
            let kept = std::mem::replace(&mut record, Record::new([0; 16], [0; 8]));
            record = kept.without(key).with(key, value);
        };
        for key in &self.published.attributes {
            let given = attributes.iter().chain(from_sampler);
            if let Some(given) = given.filter(|it| it.key.as_str() == key.name()).last() {
                set(key, &given.value.as_str());
            }
        }
        let options = observer::options();
        if let Some(key) = &options.span_name {
            set(key, name);
        }
        if let Some(key) = options.local_root.as_ref().filter(|_| inherited.is_none()) {
            // A parent without a record was started before the observer was set, or by another tracer.
            let root = parent.map_or(span.span_id(), |parent| {
                parent.span().span_context().span_id()
            });
            set(key, &root.to_string());
        }
        record
    }
}

/// The flags that the SDK gives the span (opentelemetry_sdk, `SdkTracer::build_with_context`). If it
/// gives it others, the record is not used.
fn flags(parent: Option<&Context>, decision: &SamplingDecision) -> TraceFlags {
    let sampled = match decision {
        SamplingDecision::Drop => return TraceFlags::default(),
        SamplingDecision::RecordOnly => false,
        SamplingDecision::RecordAndSample => true,
    };
    let parent = parent.filter(|parent| parent.span().span_context().is_valid());
    let flags = parent.map_or(TraceFlags::default(), |parent| {
        parent.span().span_context().trace_flags()
    });
    flags.with_sampled(sampled)
}
