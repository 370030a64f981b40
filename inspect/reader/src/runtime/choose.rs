//! Chooses a thread's context from several sources.

use otelctx_format::record::DecodedContext;
use otelctx_sample::Found;

use super::thread::{RuntimeReading, RuntimeThread};
use crate::{Error, StopReason};

/// A reading of a thread at one moment.
#[derive(Debug)]
#[non_exhaustive]
pub struct ThreadState {
    /// The native record; [`Found::NotPublished`] if the process publishes none.
    pub native: Result<Found<DecodedContext>, Error>,
    /// The runtimes' readings.
    pub runtimes: Vec<RuntimeReading>,
    /// The reason if the thread was stopped.
    pub stop: Option<StopReason>,
}

impl ThreadState {
    /// Chooses the context from all sources.
    ///
    /// # Errors
    /// The error of the native record, if no runtime has a context.
    pub fn choose(&self) -> Result<Chosen, &Error> {
        let native = match &self.native {
            Ok(found) => found.clone(),
            Err(error) => error.found(),
        };
        let chosen = choose(native, &self.runtimes);
        match (&self.native, chosen.context.attached()) {
            (Err(error), None) => Err(error),
            _ => Ok(chosen),
        }
    }
}

/// The context of a thread, chosen from several sources.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Chosen {
    /// The context of the most reliable source that has one, or else its outcome.
    pub context: Found<DecodedContext>,
    /// Sources have contexts with different trace or span IDs.
    pub is_conflict: bool,
}

/// Chooses between sources: the native record, then data published by a runtime, then labels.
#[must_use]
pub fn choose(native: Found<DecodedContext>, runtimes: &[RuntimeReading]) -> Chosen {
    let mut others: Vec<&RuntimeThread> = runtimes
        .iter()
        .filter_map(|reading| reading.thread.as_ref().ok())
        .filter(|thread| thread.context != Found::NotPublished)
        .collect();
    others.sort_by_key(|thread| thread.source);
    let ids = |context: &DecodedContext| (context.trace_id, context.span_id);
    let attached = others.iter().filter_map(|thread| thread.context.attached());
    let all = native.attached().into_iter().chain(attached.clone());
    let mut all = all.map(ids);
    let first = all.next();
    let is_conflict = all.any(|other| Some(other) != first);
    let context = match (&native, attached.clone().next(), others.first()) {
        (Found::Attached(_), ..) => native,
        (_, Some(context), _) => Found::Attached(context.clone()),
        (Found::NotPublished, None, Some(other)) => other.context.clone(),
        _ => native,
    };
    Chosen {
        context,
        is_conflict,
    }
}

#[cfg(test)]
mod tests {
    use otelctx_format::{SpanId, TraceId};
    use otelctx_sample::ReadStep;

    use super::*;
    use crate::runtime::Source;

    fn context(id: u8) -> Found<DecodedContext> {
        let mut context = DecodedContext::default();
        context.trace_id = TraceId::from_bytes([id; 16]);
        context.span_id = SpanId::from_bytes([id; 8]);
        Found::Attached(context)
    }

    fn reading(source: Source, context: Found<DecodedContext>) -> RuntimeReading {
        RuntimeReading {
            name: "toy",
            thread: Ok(RuntimeThread::new(context, source)),
        }
    }

    #[test]
    fn the_native_record_goes_before_the_runtime_and_that_before_labels() {
        let labels = reading(Source::Labels, context(3));
        let runtime = reading(Source::Runtime, context(2));
        let both = [labels.clone(), runtime.clone()];
        let chosen = |native, others: &[RuntimeReading]| {
            let chosen = choose(native, others);
            (chosen.context, chosen.is_conflict)
        };
        assert_eq!(chosen(context(1), &both), (context(1), true));
        assert_eq!(chosen(Found::Detached, &both), (context(2), true));
        assert_eq!(chosen(Found::Detached, &both[..1]), (context(3), false));
        // Equal IDs are not a conflict.
        assert_eq!(chosen(context(2), &both[1..]), (context(2), false));
        assert_eq!(chosen(context(2), &[]), (context(2), false));
    }

    #[test]
    fn without_a_context_the_native_outcome_stands_unless_nothing_native_is_published() {
        let detached = [reading(Source::Runtime, Found::Detached)];
        let without = [reading(Source::Runtime, Found::NotPublished)];
        let unreadable = Found::Unreadable(ReadStep::Record);
        assert_eq!(choose(unreadable.clone(), &detached).context, unreadable);
        assert_eq!(
            choose(Found::NotPublished, &detached).context,
            Found::Detached
        );
        assert_eq!(
            choose(Found::NotPublished, &without).context,
            Found::NotPublished
        );
        assert_eq!(choose(Found::Invalid, &without).context, Found::Invalid);
    }
}
