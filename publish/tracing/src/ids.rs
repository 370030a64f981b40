//! The source of a span's IDs.

use otelctx::{SpanId, TraceFlags, TraceId};
use tracing_subscriber::registry::{LookupSpan, SpanRef};

/// The IDs of the current context of one version.
#[cfg(any(
    feature = "opentelemetry_0_31",
    feature = "opentelemetry_0_32",
    feature = "opentelemetry_0_33",
))]
macro_rules! current_of {
    ($opentelemetry:ident) => {{
        use $opentelemetry::trace::TraceContextExt;
        $opentelemetry::Context::map_current(|context| {
            let span = context.span();
            let span = span.span_context();
            span.is_valid().then(|| Ids {
                trace: span.trace_id().to_bytes().into(),
                span: span.span_id().to_bytes().into(),
                flags: TraceFlags(span.trace_flags().to_u8()),
            })
        })
    }};
}

/// The IDs of a context; zeroes for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ids {
    pub(crate) trace: TraceId,
    pub(crate) span: SpanId,
    pub(crate) flags: TraceFlags,
}

impl Ids {
    pub(crate) const NONE: Self = Self {
        trace: TraceId::ZERO,
        span: SpanId::ZERO,
        flags: TraceFlags::NONE,
    };

    /// Creates a context with these IDs, without attributes.
    pub(crate) fn context(self) -> otelctx::Context {
        match otelctx::Context::new(self.trace, self.span) {
            Ok(context) => context.with_flags(self.flags),
            Err(_) => otelctx::Context::without_ids(),
        }
    }

    /// Returns new IDs for a span, in its parent's trace if it has a parent.
    pub(crate) fn new(parent: Option<Self>) -> Self {
        if FROM_OPENTELEMETRY {
            return Self::NONE;
        }
        let random = || TraceId::from_bytes(fastrand::u128(1..=u128::MAX).to_be_bytes());
        Self {
            trace: parent.map_or_else(random, |parent| parent.trace),
            span: SpanId::from_bytes(fastrand::u64(1..=u64::MAX).to_be_bytes()),
            flags: TraceFlags::SAMPLED,
        }
    }
}

/// True if the IDs are those of OpenTelemetry.
pub(crate) const FROM_OPENTELEMETRY: bool = cfg!(any(
    feature = "opentelemetry_0_29",
    feature = "opentelemetry_0_30",
    feature = "opentelemetry_0_31",
    feature = "opentelemetry_0_32",
    feature = "opentelemetry_0_33",
));

/// Returns the IDs of a span of `tracing-opentelemetry` before 0.32, which attaches no contexts. A
/// span that a filter disables for it has those of the next span above it.
///
/// Its sampler decides when the span ends or a request is sent. Before, the flags are the parent's.
#[inline]
#[allow(unused_variables)]
pub(crate) fn of<S: for<'s> LookupSpan<'s>>(span: &SpanRef<'_, S>) -> Option<Ids> {
    #[cfg(any(feature = "opentelemetry_0_29", feature = "opentelemetry_0_30"))]
    return span.scope().find_map(|span| of_one(&span.extensions()));
    #[cfg(not(any(feature = "opentelemetry_0_29", feature = "opentelemetry_0_30")))]
    None
}

#[cfg(any(feature = "opentelemetry_0_29", feature = "opentelemetry_0_30"))]
fn of_one(span: &tracing_subscriber::registry::Extensions<'_>) -> Option<Ids> {
    macro_rules! version {
        ($feature:literal, $opentelemetry:ident, $layer:ident) => {
            #[cfg(feature = $feature)]
            if let Some(data) = span.get::<$layer::OtelData>() {
                use $opentelemetry::trace::{SamplingDecision, TraceContextExt};
                let parent = data.parent_cx.span();
                let parent = parent.span_context();
                let trace = if parent.is_valid() {
                    Some(parent.trace_id())
                } else {
                    data.builder.trace_id
                };
                let decision = data.builder.sampling_result.as_ref();
                let flags = match decision.map(|result| &result.decision) {
                    Some(SamplingDecision::RecordAndSample) => TraceFlags::SAMPLED,
                    Some(_) => TraceFlags::NONE,
                    None => TraceFlags(parent.trace_flags().to_u8()),
                };
                return Some(Ids {
                    trace: trace?.to_bytes().into(),
                    span: data.builder.span_id?.to_bytes().into(),
                    flags,
                });
            }
        };
    }
    version!(
        "opentelemetry_0_30",
        opentelemetry_0_30,
        tracing_opentelemetry_0_31
    );
    version!(
        "opentelemetry_0_29",
        opentelemetry_0_29,
        tracing_opentelemetry_0_30
    );
    None
}

/// Returns the IDs of OpenTelemetry's current context. If there are several versions in the
/// program, the newest that has one counts.
#[inline]
pub(crate) fn current() -> Option<Ids> {
    macro_rules! version {
        ($feature:literal, $opentelemetry:ident) => {
            #[cfg(feature = $feature)]
            if let Some(ids) = current_of!($opentelemetry) {
                return Some(ids);
            }
        };
    }
    version!("opentelemetry_0_33", opentelemetry_0_33);
    version!("opentelemetry_0_32", opentelemetry_0_32);
    version!("opentelemetry_0_31", opentelemetry_0_31);
    None
}

/// Returns whether a context of the version that the observer serves is current.
#[inline]
pub(crate) fn is_observed() -> bool {
    #[cfg(feature = "opentelemetry_0_33")]
    return current_of!(opentelemetry_0_33).is_some();
    #[cfg(not(feature = "opentelemetry_0_33"))]
    false
}
