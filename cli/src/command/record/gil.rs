//! Samples by the state of a global interpreter lock.

use std::ops::AddAssign;

use otelctx_profile::report::Report;
use otelctx_profile::sample::GilState;
use otelctx_profile::{Kind, Profile};
use serde::Serialize;

use crate::output::text::count;

/// Samples by the state of a global interpreter lock (docs/json.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(in crate::command) struct GilSamples {
    pub(super) held: u64,
    pub(super) waiting: u64,
    pub(super) released: u64,
    /// Samples of other threads.
    pub(super) none: u64,
}

impl GilSamples {
    /// Counts the samples of threads that ran, or of threads that waited.
    pub(super) fn of_part(part: &Profile, kind: Kind) -> Self {
        let mut counts = Self::default();
        for group in part.groups().filter(|it| it.kind == kind) {
            counts.add(group.gil, group.samples.len() as u64);
        }
        counts
    }

    pub(in crate::command) fn of_report(report: &Report) -> Self {
        let mut counts = Self::default();
        let states = GilState::ALL.into_iter().zip(&report.by_gil);
        for (state, cost) in states {
            *counts.of(Some(state)) = cost.samples;
        }
        counts.none = report.total.samples.saturating_sub(counts.threads());
        counts
    }

    pub(in crate::command) fn add(&mut self, state: Option<GilState>, samples: u64) {
        *self.of(state) += samples;
    }

    fn of(&mut self, state: Option<GilState>) -> &mut u64 {
        match state {
            Some(GilState::Held) => &mut self.held,
            Some(GilState::Waiting) => &mut self.waiting,
            Some(_) => &mut self.released,
            None => &mut self.none,
        }
    }

    /// Samples of threads that use such a lock.
    pub(super) fn threads(self) -> u64 {
        let threads = self.held.saturating_add(self.waiting);
        threads.saturating_add(self.released)
    }

    pub(super) fn all(self) -> u64 {
        self.threads().saturating_add(self.none)
    }

    /// Formats shares of the samples of threads that use such a lock, if there are any.
    pub(in crate::command) fn line(self) -> Option<String> {
        let all = self.threads();
        let share = |number: u64| format!("{:.1} %", 100.0 * number as f64 / all as f64);
        (all > 0).then(|| {
            format!(
                "GIL: held in {} of {} of interpreter threads on a CPU, waited for in {}, released in {}",
                share(self.held),
                count(all as usize, "sample", "samples"),
                share(self.waiting),
                share(self.released),
            )
        })
    }
}

impl AddAssign for GilSamples {
    fn add_assign(&mut self, other: Self) {
        self.held += other.held;
        self.waiting += other.waiting;
        self.released += other.released;
        self.none += other.none;
    }
}
