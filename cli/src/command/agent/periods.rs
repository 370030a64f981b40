//! The sampling periods of a recording whose frequency changes: each profile has one.

use std::num::NonZeroU64;
use std::time::Duration;

use otelctx_profile::sample::Counts;
use otelctx_profile::{Clock, Recording};

/// The time after a change for which samples from before it may be passed on: those of threads that wait come late.
const MAX_DELAY: Duration = Duration::from_secs(60);

/// The periods, each with the time since which it holds (`CLOCK_MONOTONIC`, nanoseconds). There is always one.
#[derive(Debug)]
pub(super) struct Periods {
    newest: (u64, NonZeroU64),
    /// In the order of time.
    older: Vec<(u64, NonZeroU64)>,
}

impl Periods {
    /// The period from the start.
    pub(super) fn new(period: NonZeroU64) -> Self {
        Self {
            newest: (0, period),
            older: Vec::new(),
        }
    }

    /// Notes a change.
    pub(super) fn change(&mut self, time: u64, period: NonZeroU64) {
        let before = std::mem::replace(&mut self.newest, (time, period));
        self.older.push(before);
    }

    /// Divides a recording by the periods of its samples. Counters are those of the last part.
    pub(super) fn divide(&mut self, mut whole: Recording) -> Vec<Recording> {
        let mut parts = Vec::new();
        let older = std::mem::take(&mut self.older);
        let ends = older.iter().skip(1).map(|it| it.0).chain([self.newest.0]);
        for ((start, period), end) in older.iter().zip(ends) {
            let is_in_part = |time: u64| time < end;
            let (samples, later) = whole
                .samples
                .into_iter()
                .partition(|it| is_in_part(it.time));
            whole.samples = later;
            let samples: Vec<_> = samples;
            if !samples.is_empty() {
                parts.push(Recording {
                    catalog: whole.catalog.clone(),
                    samples,
                    clock: clock(&whole.clock, *start, end),
                    period: *period,
                    counts: Counts::default(),
                });
            }
        }
        whole.clock = clock(&whole.clock, self.newest.0, u64::MAX);
        whole.period = self.newest.1;
        let oldest = whole.clock.end.saturating_sub(MAX_DELAY.as_nanos() as u64);
        let mut older = older;
        if self.newest.0 < oldest {
            older.clear();
        }
        self.older = older;
        parts.push(whole);
        parts
    }
}

/// The part of a time in which a period holds.
fn clock(whole: &Clock, start: u64, end: u64) -> Clock {
    let begins = whole.start.max(start).min(whole.end);
    Clock {
        start: begins,
        end: whole.end.min(end).max(begins),
        start_unix: whole
            .start_unix
            .saturating_add(begins - whole.start.min(begins)),
    }
}

#[cfg(test)]
mod tests {
    use otelctx_profile::sample::{Catalog, Event, Found, ProcessFacts, Sample};

    use super::*;

    fn period(nanoseconds: u64) -> NonZeroU64 {
        NonZeroU64::new(nanoseconds).unwrap()
    }

    fn recording(clock: (u64, u64), times: &[u64]) -> Recording {
        let mut catalog = Catalog::new();
        let process = catalog.add_process(ProcessFacts::default());
        let thread = catalog.thread(process, 1, "t");
        let stack = catalog.native_stack(&[]);
        let mut counts = Counts::default();
        counts.lost = 3;
        let sample = |time: &u64| Sample {
            time: *time,
            cpu: 0,
            thread,
            event: Event::OnCpu,
            found: Found::NotPublished,
            gil: None,
            user_stack: stack,
            stack_end: None,
            kernel_stack: stack,
        };
        Recording {
            samples: times.iter().map(sample).collect(),
            catalog,
            clock: Clock {
                start: clock.0,
                end: clock.1,
                start_unix: 1_000_000 + clock.0,
            },
            period: NonZeroU64::MIN,
            counts,
        }
    }

    /// Period, start, end, calendar time of the start, lost samples and times of each part.
    fn divided(periods: &mut Periods, clock: (u64, u64), times: &[u64]) -> Vec<String> {
        let parts = periods.divide(recording(clock, times));
        let text = |part: &Recording| {
            let times: Vec<u64> = part.samples.iter().map(|it| it.time).collect();
            assert_eq!(part.catalog.processes().len(), 1);
            format!(
                "{} {}-{} {} {} {times:?}",
                part.period,
                part.clock.start,
                part.clock.end,
                part.clock.start_unix - 1_000_000,
                part.counts.lost
            )
        };
        parts.iter().map(text).collect()
    }

    #[test]
    fn each_sample_has_the_period_of_its_time() {
        let mut periods = Periods::new(period(10));
        let texts = divided(&mut periods, (100, 200), &[100, 150]);
        assert_eq!(texts, ["10 100-200 100 3 [100, 150]"]);
        periods.change(240, period(20));
        periods.change(260, period(30));
        let texts = divided(&mut periods, (200, 300), &[290, 239, 240, 210, 259, 260]);
        assert_eq!(
            texts,
            [
                "10 200-240 200 0 [239, 210]",
                "20 240-260 240 0 [240, 259]",
                "30 260-300 260 3 [290, 260]"
            ]
        );
        // One that comes late.
        let texts = divided(&mut periods, (300, 400), &[250, 390]);
        assert_eq!(texts, ["20 300-300 300 0 [250]", "30 300-400 300 3 [390]"]);
        // Periods do not accumulate.
        let later = 301 + MAX_DELAY.as_nanos() as u64;
        divided(&mut periods, (400, later), &[]);
        assert_eq!(periods.older, []);
    }
}
