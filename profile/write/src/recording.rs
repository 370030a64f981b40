//! The result of recording.

use std::num::NonZeroU64;

use otelctx_sample::format::record::DecodedContext;
use otelctx_sample::{Catalog, Counts, Found, Sample};

/// The result of recording.
#[derive(Debug)]
pub struct Recording {
    /// The data that samples refer to.
    pub catalog: Catalog,
    /// The samples, in any order.
    pub samples: Vec<Sample>,
    /// The time that the recording spans.
    pub clock: Clock,
    /// The sampling period, in nanoseconds of CPU time.
    pub period: NonZeroU64,
    /// The counters.
    pub counts: Counts,
}

impl Recording {
    /// Changes each context, once. Calls `add` for each sample with a context, with what `change` has returned for that.
    pub fn change_contexts<T>(
        &mut self,
        mut change: impl FnMut(&mut DecodedContext) -> T,
        mut add: impl FnMut(&T),
    ) {
        let mut changes = Vec::new();
        let ids = self
            .catalog
            .map_contexts(|context| changes.push(change(context)));
        for sample in &mut self.samples {
            if let Found::Attached(id) = &mut sample.found {
                add(&changes[id.index()]);
                *id = ids[id.index()];
            }
        }
    }
}

/// The time that a recording spans, with the relation of its clock to calendar time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// Start, in nanoseconds of `CLOCK_MONOTONIC`.
    pub start: u64,
    /// End, on the same clock.
    pub end: u64,
    /// The calendar time at `start`, in nanoseconds after 1970-01-01 UTC.
    pub start_unix: u64,
}

impl Clock {
    /// Converts a monotonic time to calendar time, in nanoseconds after 1970-01-01 UTC.
    #[must_use]
    pub fn unix(&self, time: u64) -> u64 {
        let sum = self.start_unix.saturating_add(time);
        sum.saturating_sub(self.start)
    }

    /// Returns the length of the recording, in nanoseconds, at least 1.
    #[must_use]
    pub fn duration(&self) -> u64 {
        self.end.saturating_sub(self.start).max(1)
    }

    pub(crate) fn including(self, time: u64) -> Self {
        let start = self.start.min(time);
        Self {
            start,
            end: self.end.max(time.saturating_add(1)),
            start_unix: self.start_unix.saturating_sub(self.start - start),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_grows_around_a_sample_without_moving_it() {
        let clock = Clock {
            start: 100,
            end: 200,
            start_unix: 1000,
        };
        assert_eq!(clock.unix(150), 1050);
        let earlier = clock.including(90);
        assert_eq!((earlier.start, earlier.start_unix), (90, 990));
        assert_eq!(earlier.unix(150), 1050);
        assert_eq!(clock.including(200).end, 201);
        assert_eq!(clock.including(150), clock);
    }
}
