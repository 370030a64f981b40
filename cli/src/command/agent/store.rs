//! Collects samples until a batch is due.

use std::io;
use std::mem;
use std::num::NonZeroU64;
use std::time::Duration;

use otelctx_profile::sample::{Catalog, Counts, Event, Sample};
use otelctx_profile::{Clock, Recording};
use otelctx_sampler::{Sampler, calendar_time};

use super::batches::Batches;
use super::periods::Periods;
use super::supervisor::Supervisor;
use crate::command::record::session::{Now, Recorded, Store};

/// Maximum number of samples in a batch. The next thread is far behind if there are as many: a batch of 5 s from 64 CPUs at
/// 99 Hz has 32,000.
const MAX_SAMPLES: usize = 100_000;
/// Maximum memory of what samples refer to, in bytes.
const MAX_CATALOG: usize = 8 << 20;

/// Collects samples, and passes them on in batches.
pub(super) struct AgentStore {
    supervisor: Supervisor,
    batches: Batches,
    samples: Vec<Sample>,
    /// The start of the batch (`CLOCK_MONOTONIC`, in nanoseconds), and the recording's counters by then.
    start: u64,
    before: Counts,
    periods: Periods,
}

impl AgentStore {
    /// Creates an empty one, of a recording that started at `start` (`CLOCK_MONOTONIC`, in nanoseconds) with this period.
    pub(super) fn new(
        supervisor: Supervisor,
        batches: Batches,
        start: u64,
        period: NonZeroU64,
    ) -> Self {
        Self {
            supervisor,
            batches,
            samples: Vec::new(),
            start,
            before: Counts::default(),
            periods: Periods::new(period),
        }
    }

    /// Passes on the last samples, and waits until all are encoded.
    pub(super) fn finish(mut self, recorded: Recorded) -> Supervisor {
        let mut catalog = recorded.catalog;
        let batch = self.take(&mut catalog, &recorded.now);
        let batch = self.periods.divide(batch);
        self.batches.finish(batch);
        self.supervisor
    }

    /// Passes on the batch if there is room for it. Returns true if the catalog is empty now.
    fn pass_on(&mut self, catalog: &mut Catalog, now: &Now) -> bool {
        if self.samples.is_empty() {
            (self.start, self.before) = (now.clock.end, now.counts);
            return false;
        }
        if self.batches.has_room() {
            let batch = self.take(catalog, now);
            let batch = self.periods.divide(batch);
            self.batches.add(batch);
            return true;
        }
        // The next thread is busy: the batch grows, within limits.
        if self.samples.len() < MAX_SAMPLES && catalog.memory() < MAX_CATALOG {
            return false;
        }
        let batch = self.take(catalog, now);
        self.batches.count_dropped(batch.samples.len() as u64);
        true
    }

    /// Takes the batch, with the catalog, and begins the next one.
    fn take(&mut self, catalog: &mut Catalog, now: &Now) -> Recording {
        let before = mem::replace(&mut self.before, now.counts);
        let start = mem::replace(&mut self.start, now.clock.end);
        let samples = mem::take(&mut self.samples);
        // The next batch has as many samples, more or less.
        self.samples.reserve(samples.len());
        Recording {
            catalog: mem::take(catalog),
            samples,
            clock: Clock {
                start,
                end: now.clock.end,
                // Calendar time may be set while the recording runs.
                start_unix: calendar_time(start),
            },
            period: now.period,
            counts: now.counts.since(before),
        }
    }
}

impl Store for AgentStore {
    fn push(&mut self, sample: &Sample) {
        let is_on_cpu = !matches!(sample.event, Event::OffCpu(_));
        self.supervisor.on_cpu += u64::from(is_on_cpu);
        self.samples.push(*sample);
    }

    fn update(&mut self, catalog: &mut Catalog, now: &Now) -> io::Result<bool> {
        self.supervisor.update(now.counts);
        let passed = Duration::from_nanos(now.clock.end.saturating_sub(self.start));
        let is_due = passed >= self.supervisor.interval();
        let is_large = self.samples.len() >= MAX_SAMPLES || catalog.memory() >= MAX_CATALOG;
        Ok((is_due || is_large) && self.pass_on(catalog, now))
    }
    fn new_frequency(&mut self, sampler: &Sampler) -> Option<u32> {
        self.supervisor.new_frequency(sampler)
    }

    fn period_changed(&mut self, time: u64, period: NonZeroU64) {
        self.periods.change(time, period);
    }
}
