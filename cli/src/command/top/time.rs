//! Times of threads: on a CPU, in the queue for one, or waiting.

use std::ops::AddAssign;

use otelctx_profile::sample::{OffCpuState, Reason};

use super::shared::Shared;

/// The time of threads, by what they did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Time {
    /// Samples of threads on a CPU.
    pub(super) samples: u64,
    /// The time that these stand for, in nanoseconds.
    pub(super) running: u64,
    /// Time in which threads were ready to run, without a CPU, in nanoseconds.
    pub(super) queued: u64,
    /// Time in which they waited, in nanoseconds.
    pub(super) waiting: u64,
    /// The part of `waiting` with a context attached.
    pub(super) waiting_with_context: u64,
}

impl Time {
    /// The time of one sample on a CPU.
    pub(super) fn sample(period: u64) -> Self {
        Self {
            samples: 1,
            running: period,
            ..Self::default()
        }
    }

    /// Time off the CPU.
    pub(super) fn off(state: OffCpuState, has_context: bool, nanoseconds: u64) -> Self {
        match state {
            OffCpuState::Queued => Self {
                queued: nanoseconds,
                ..Self::default()
            },
            _ => Self {
                waiting: nanoseconds,
                waiting_with_context: if has_context { nanoseconds } else { 0 },
                ..Self::default()
            },
        }
    }

    /// Returns all of it, in nanoseconds.
    pub(super) fn all(self) -> u64 {
        let off = self.queued.saturating_add(self.waiting);
        self.running.saturating_add(off)
    }
}

impl AddAssign for Time {
    fn add_assign(&mut self, other: Self) {
        let add = |to: &mut u64, more: u64| *to = to.saturating_add(more);
        add(&mut self.samples, other.samples);
        add(&mut self.running, other.running);
        add(&mut self.queued, other.queued);
        add(&mut self.waiting, other.waiting);
        add(&mut self.waiting_with_context, other.waiting_with_context);
    }
}

/// The kinds of times that are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kinds {
    /// Threads that run are sampled.
    pub(super) running: bool,
    /// Waits are sampled.
    pub(super) waits: bool,
}

impl Kinds {
    /// Samples of threads that run, as without any option.
    pub(super) const RUNNING: Self = Self {
        running: true,
        waits: false,
    };
}

impl Default for Kinds {
    fn default() -> Self {
        Self::RUNNING
    }
}

/// What kept a thread off the CPU.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Wait {
    pub(super) state: OffCpuState,
    pub(super) reason: Option<Shared<Reason>>,
}

impl Wait {
    /// Returns true if the thread waited, and false if it was ready to run.
    pub(super) fn is_waiting(&self) -> bool {
        self.state != OffCpuState::Queued
    }

    /// Formats the reason, and the state unless it is sleep, the usual one; empty if nothing is known.
    pub(super) fn text(&self) -> String {
        let reason = self.reason.as_ref().map_or("", |it| &it.text);
        match (self.state, reason) {
            (OffCpuState::Asleep, reason) => reason.to_owned(),
            (state, "") => state.name().to_owned(),
            (state, reason) => format!("{}: {reason}", state.name()),
        }
    }
}

/// A wait that goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Present {
    pub(super) wait: Wait,
    /// How long it has lasted, in nanoseconds; `None` if that is unknown.
    pub(super) lasts: Option<u64>,
}

impl Present {
    /// Formats since when it lasts and why: `since 4.2 s: poll`.
    pub(super) fn text(&self) -> String {
        let since = self.lasts.map(|it| format!("since {}", duration(it)));
        let reason = Some(self.wait.text()).filter(|it| !it.is_empty());
        let parts: Vec<String> = since.into_iter().chain(reason).collect();
        parts.join(": ")
    }
}

/// Formats a time that passes, with less precision the longer it is: `350 ms`, `4.2 s`, `12 min`.
pub(super) fn duration(nanoseconds: u64) -> String {
    let milliseconds = nanoseconds / 1_000_000;
    let seconds = milliseconds / 1000;
    match seconds {
        0 => format!("{milliseconds} ms"),
        // Rounded down, so that it is never in the future.
        1..100 => format!("{seconds}.{} s", milliseconds % 1000 / 100),
        100..6_000 => format!("{} min", seconds / 60),
        6_000..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_a_wait_lasts_the_rounder_it_is() {
        let of = |milliseconds: u64| duration(milliseconds * 1_000_000);
        assert_eq!(of(0), "0 ms");
        assert_eq!(of(999), "999 ms");
        assert_eq!(of(4_299), "4.2 s");
        assert_eq!(of(99_999), "99.9 s");
        assert_eq!(of(100_000), "1 min");
        assert_eq!(of(5_999_999), "99 min");
        assert_eq!(of(6_000_000), "1 h");
        assert_eq!(of(172_800_000), "2 days");
        assert_eq!(duration(u64::MAX), "213503 days");
    }

    #[test]
    fn a_wait_says_since_when_and_why_as_far_as_that_is_known() {
        let text = |state, lasts| {
            let wait = Wait {
                state,
                reason: None,
            };
            Present { wait, lasts }.text()
        };
        let long = Some(4_200_000_000);
        assert_eq!(text(OffCpuState::Asleep, long), "since 4.2 s");
        assert_eq!(text(OffCpuState::Asleep, None), "");
        assert_eq!(text(OffCpuState::Stopped, long), "since 4.2 s: stopped");
        assert_eq!(text(OffCpuState::Disk, None), "disk");
    }
}
