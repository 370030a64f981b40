//! The order of samples and traces in the page, and the unit of its times.

use crate::{Kind, Recording, Sample};

/// Nanoseconds of the unit of weights.
pub(crate) const WEIGHT_UNIT: u64 = 1_000;
/// Nanoseconds of the unit of times, if the recording is shorter than 6 hours.
const TIME_UNIT: u64 = 10_000;
/// Times are at most this, so that differences of two are signed 32-bit numbers.
const MAX_TIME: u64 = i32::MAX as u64;

/// Samples sorted by thread and time, and traces by the time of their first sample or span.
#[derive(Debug)]
pub(crate) struct Ordered {
    /// Indexes of samples.
    pub(crate) samples: Vec<u32>,
    /// Number of samples by thread.
    pub(crate) of_thread: Vec<u32>,
    /// Indexes of traces that occur.
    pub(crate) traces: Vec<u32>,
    /// By trace: its place in `traces` + 1, or 0 if it does not occur.
    pub(crate) trace_number: Vec<u32>,
    /// The earliest time of a sample or span, in nanoseconds after the recording's start.
    pub(crate) first: u64,
    /// Nanoseconds of the unit of times.
    pub(crate) unit: u64,
    /// The period of samples, in the unit of weights.
    pub(crate) period: u32,
}

impl Ordered {
    pub(crate) fn new(recording: &Recording) -> Self {
        let samples = sorted(&recording.samples);
        let mut of_thread = vec![0; recording.threads.len()];
        for sample in &recording.samples {
            of_thread[sample.thread as usize] += 1;
        }
        let (first, last) = extent(recording);
        let (traces, trace_number) = traces_by_time(recording);
        Self {
            samples,
            of_thread,
            traces,
            trace_number,
            first,
            unit: TIME_UNIT.max((last - first).div_ceil(MAX_TIME)),
            period: in_weight_units(recording.period),
        }
    }

    /// A time in the page's unit, from the earliest one.
    pub(crate) fn time(&self, nanoseconds: u64) -> i32 {
        let since = nanoseconds.saturating_sub(self.first);
        let units = since / self.unit + u64::from(since % self.unit >= self.unit.div_ceil(2));
        units.min(MAX_TIME) as i32
    }

    /// The number of a sample's trace, from 1; 0 for none.
    pub(crate) fn trace(&self, recording: &Recording, sample: &Sample) -> u32 {
        let context = sample
            .context
            .map(|index| recording.contexts[index as usize]);
        let trace = context.and_then(|context| context.trace);
        trace.map_or(0, |trace| self.trace_number[trace as usize])
    }
}

/// Rounds nanoseconds to the unit of weights, of which no sample has less than one.
pub(crate) fn in_weight_units(nanoseconds: u64) -> u32 {
    let units = nanoseconds.saturating_add(WEIGHT_UNIT / 2) / WEIGHT_UNIT;
    u32::try_from(units).unwrap_or(u32::MAX).max(1)
}

fn sorted(samples: &[Sample]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..samples.len() as u32).collect();
    let key = |index: &u32| {
        let sample = &samples[*index as usize];
        (sample.thread, sample.time)
    };
    if !samples.is_sorted_by_key(|sample| (sample.thread, sample.time)) {
        order.sort_by_key(key);
    }
    order
}

/// The earliest and the latest time of samples and spans.
fn extent(recording: &Recording) -> (u64, u64) {
    let (mut first, mut last) = (u64::MAX, 0);
    for sample in &recording.samples {
        first = first.min(sample.time);
        last = last.max(sample.time);
    }
    for span in &recording.spans {
        first = first.min(span.start);
        last = last.max(span.start.saturating_add(span.duration));
    }
    if first > last { (0, 0) } else { (first, last) }
}

/// Traces that occur, by the time of their first sample or span, and their numbers.
fn traces_by_time(recording: &Recording) -> (Vec<u32>, Vec<u32>) {
    let mut first = vec![u64::MAX; recording.traces.len()];
    let mut occurs = vec![false; recording.traces.len()];
    let mut note = |trace: u32, time: u64| {
        let trace = trace as usize;
        first[trace] = first[trace].min(time);
        occurs[trace] = true;
    };
    for sample in &recording.samples {
        let context = sample
            .context
            .map(|index| recording.contexts[index as usize]);
        if let Some(trace) = context.and_then(|context| context.trace) {
            note(trace, sample.time);
        }
    }
    for span in &recording.spans {
        note(span.trace, span.start);
    }
    let all = 0..recording.traces.len() as u32;
    let mut traces: Vec<u32> = all.filter(|trace| occurs[*trace as usize]).collect();
    traces.sort_by_key(|trace| first[*trace as usize]);
    let mut numbers = vec![0; recording.traces.len()];
    for (place, trace) in traces.iter().enumerate() {
        numbers[*trace as usize] = place as u32 + 1;
    }
    (traces, numbers)
}

/// A sample's kind as the page has it.
pub(crate) const fn kind(sample: &Sample) -> u8 {
    match sample.kind {
        Kind::Running => 0,
        Kind::Queued => 1,
        Kind::Waiting => 2,
        Kind::Idle => 3,
    }
}
