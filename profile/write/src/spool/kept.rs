//! The newest part of a recording that has no end, in memory: segments as in a file, of which the oldest are dropped whole.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use otelctx_sample::{Catalog, Counts, FrameKind, Rotation, Sample};

use super::codec::{self, SAMPLE_SIZE};
use super::{LIMITS, Last, MAX_PART_MEMORY, Parts, Segments};
use crate::Clock;

/// Maximum size of all segments, in bytes. A minute of two busy CPUs at 99 Hz takes a few MiB.
const MAX_MEMORY: usize = 32 << 20;
/// Segments in the time that is kept: what is dropped at once is at most this part of it.
const SEGMENTS: u32 = 6;
/// Segments that a full memory has at least.
const SEGMENTS_OF_MEMORY: usize = 8;

#[derive(Clone, Copy, Debug)]
pub(super) struct KeptLimits {
    pub(super) rotation: Rotation,
    pub(super) memory: usize,
}

/// Keeps the newest samples of a recording in memory.
///
/// A sample is kept for the requested time at least, unless all segments exceed 32 MiB: then the oldest are dropped
/// earlier, and [`Parts::clock`] starts later.
#[derive(Debug)]
pub struct KeptSpool {
    /// The time to keep, in nanoseconds.
    kept: u64,
    limits: KeptLimits,
    pub(super) segments: VecDeque<Arc<KeptSegment>>,
    pub(super) open: OpenSegment,
    kinds: Vec<FrameKind>,
    /// Size of the closed segments, in bytes.
    pub(super) size: usize,
    /// The time from which on no sample was dropped (`CLOCK_MONOTONIC`, nanoseconds).
    complete_since: u64,
    /// Number of segments that were dropped although they were not old enough.
    dropped_early: u64,
}

/// Samples that were taken with the current catalog.
#[derive(Debug, Default)]
pub(super) struct OpenSegment {
    pub(super) samples: Vec<u8>,
    /// The times of its oldest and newest samples.
    times: Option<(u64, u64)>,
    /// The counters at its start.
    before: Counts,
}

/// Samples with the catalog that they were taken with.
#[derive(Debug)]
pub(super) struct KeptSegment {
    pub(super) samples: Vec<u8>,
    pub(super) catalog: Vec<u8>,
    newest: u64,
    before: Counts,
}

impl KeptSegment {
    pub(super) fn size(&self) -> usize {
        self.samples.len() + self.catalog.len()
    }
}

impl KeptSpool {
    /// Keeps samples for the time `kept`, of a recording that started at `start` (`CLOCK_MONOTONIC`, nanoseconds).
    #[must_use]
    pub fn new(kept: Duration, start: u64) -> Self {
        let limits = KeptLimits {
            rotation: LIMITS.rotation,
            memory: MAX_MEMORY,
        };
        Self::with(kept, start, limits)
    }

    pub(super) fn with(kept: Duration, start: u64, limits: KeptLimits) -> Self {
        Self {
            kept: u64::try_from(kept.as_nanos()).unwrap_or(u64::MAX),
            limits,
            segments: VecDeque::new(),
            open: OpenSegment::default(),
            kinds: Vec::new(),
            size: 0,
            complete_since: start,
            dropped_early: 0,
        }
    }

    /// Adds a sample. [`KeptSpool::write`] must be called regularly.
    pub fn push(&mut self, sample: &Sample) {
        self.limits.rotation.count(1);
        let (oldest, newest) = self.open.times.unwrap_or((sample.time, sample.time));
        self.open.times = Some((oldest.min(sample.time), newest.max(sample.time)));
        codec::write_sample(&mut self.open.samples, sample);
    }

    /// Closes the current segment if it spans a sixth of the time to keep, or is large, and drops segments older than the
    /// time to keep. Returns true if the catalog is empty now: the caller calls `Sampler::reset_catalog`.
    ///
    /// `now` is the time until which all samples were added; `counts` are the recording's counters.
    pub fn write(&mut self, catalog: &mut Catalog, now: u64, counts: Counts) -> bool {
        let is_closed = self.is_due(catalog, now);
        if is_closed {
            self.close(catalog, counts);
        }
        let oldest = now.saturating_sub(self.kept);
        while let Some(segment) = self.segments.front() {
            let is_old = segment.newest < oldest;
            if !is_old && self.size + self.open.samples.len() <= self.limits.memory {
                break;
            }
            self.dropped_early += u64::from(!is_old);
            self.size -= segment.size();
            self.complete_since = self.complete_since.max(segment.newest + 1);
            self.segments.pop_front();
        }
        is_closed
    }

    fn is_due(&self, catalog: &Catalog, now: u64) -> bool {
        let Some((oldest, _)) = self.open.times else {
            return false;
        };
        let step = self.kept / u64::from(SEGMENTS);
        now.saturating_sub(oldest) >= step
            || self.open.samples.len() >= self.limits.memory / SEGMENTS_OF_MEMORY
            || self.limits.rotation.is_due(catalog)
    }

    fn close(&mut self, catalog: &mut Catalog, counts: Counts) {
        let open = std::mem::take(&mut self.open);
        self.open.before = counts;
        let Some((_, newest)) = open.times else {
            return;
        };
        let mut encoded = Vec::new();
        codec::write_catalog(&mut encoded, catalog, &mut self.kinds);
        encoded.shrink_to_fit();
        // The next segment has as many samples, more or less.
        self.open.samples.reserve(open.samples.len());
        let mut samples = open.samples;
        samples.shrink_to_fit();
        let segment = KeptSegment {
            samples,
            catalog: encoded,
            newest,
            before: open.before,
        };
        self.size += segment.size();
        self.segments.push_back(Arc::new(segment));
        self.limits.rotation.rotate(catalog);
    }

    /// Returns the time since which no sample was dropped (`CLOCK_MONOTONIC`, nanoseconds).
    #[must_use]
    pub fn complete_since(&self) -> u64 {
        self.complete_since
    }

    /// Returns the number of segments that were dropped before their time, because all take more than 32 MiB.
    #[must_use]
    pub fn dropped_early(&self) -> u64 {
        self.dropped_early
    }

    /// Returns the segment that was closed last, if there is one, without counters: to resolve its functions.
    #[must_use]
    pub fn newest(&self, clock: Clock, period: NonZeroU64) -> Option<Parts> {
        let segment = self.segments.back()?;
        let last = Last {
            samples: 0..0,
            buffer: segment.samples.clone(),
            catalog: segment.catalog.clone(),
        };
        Some(Parts {
            samples: (segment.samples.len() / SAMPLE_SIZE) as u64,
            segments: Segments::Read,
            last: Some(last),
            kinds: self.kinds.clone(),
            part_memory: MAX_PART_MEMORY,
            since: 0,
            clock,
            rest: clock,
            period,
            counts: Counts::default(),
        })
    }

    /// Returns the samples of the last `time`, part by part, and keeps them: recording goes on. `catalog` is the current
    /// one, `clock` that of the recording until now. The counters are those since the start of the oldest segment that has
    /// such samples: up to a sixth of the time to keep before the first one.
    #[must_use]
    pub fn last(
        &mut self,
        time: Duration,
        catalog: &Catalog,
        clock: Clock,
        period: NonZeroU64,
        counts: Counts,
    ) -> Parts {
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let since = clock.end.saturating_sub(time.min(self.kept));
        let since = since.max(self.complete_since).max(clock.start);
        let recent = self.segments.iter().filter(|it| it.newest >= since);
        let segments: Vec<_> = recent.cloned().collect();
        let before = segments.first().map_or(self.open.before, |it| it.before);
        let mut last = Last {
            samples: 0..0,
            buffer: self.open.samples.clone(),
            catalog: Vec::new(),
        };
        codec::write_catalog(&mut last.catalog, catalog, &mut self.kinds);
        let closed: usize = segments.iter().map(|it| it.samples.len()).sum();
        let clock = Clock {
            start: since,
            start_unix: clock.unix(since),
            end: clock.end,
        };
        Parts {
            samples: ((closed + last.buffer.len()) / SAMPLE_SIZE) as u64,
            segments: Segments::InMemory(segments.into_iter()),
            last: Some(last),
            kinds: self.kinds.clone(),
            part_memory: MAX_PART_MEMORY,
            since,
            clock,
            rest: clock,
            period,
            counts: counts.since(before),
        }
    }
}
