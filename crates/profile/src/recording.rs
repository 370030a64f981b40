//! What a recorder has in hand when it ends.

use std::num::NonZeroU64;

use otelctx_sample::{Catalog, Counts, Sample};

/// What a recorder has in hand when it ends.
#[derive(Debug)]
pub struct Recording {
    /// What the samples name.
    pub catalog: Catalog,
    /// The samples, in any order.
    pub samples: Vec<Sample>,
    /// When they were taken.
    pub clock: Clock,
    /// Nanoseconds of a processor's time between two looks at it.
    pub period: NonZeroU64,
    /// How many looks there were.
    pub counts: Counts,
}

/// The time that a recording spans, and how its clock goes with the calendar's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// When it began, in nanoseconds of `CLOCK_MONOTONIC`.
    pub start: u64,
    /// When it ended, on the same clock.
    pub end: u64,
    /// What the calendar's clock showed at `start`, in nanoseconds after 1970-01-01 UTC.
    pub start_unix: u64,
}

impl Clock {
    /// A monotonic time as calendar time, in nanoseconds after 1970-01-01 UTC.
    #[must_use]
    pub fn unix(&self, time: u64) -> u64 {
        self.start_unix
            .saturating_add(time)
            .saturating_sub(self.start)
    }

    /// How long it took, in nanoseconds, at least 1.
    #[must_use]
    pub fn duration(&self) -> u64 {
        self.end.saturating_sub(self.start).max(1)
    }

    /// The same clock, with a span that has `time` inside.
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
