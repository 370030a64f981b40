//! How much CPU time is spent on the names of functions.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The CPU time from which on decoding a file's debug information is rare.
const MUCH: Duration = Duration::from_millis(50);
/// The time until debug information of such a file is decoded again, as a multiple of the CPU time: a thousandth of a CPU.
const DEBUG_INFO_DIVISOR: u32 = 1000;
/// Maximum number of files that are remembered for taking much.
const MAX_FILES: usize = 4096;

/// The CPU time for resolving functions that are not known: a part of the time that passes.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResolveBudget {
    /// The part of a CPU.
    part: f64,
    max: i64,
    /// Nanoseconds; negative after a request that took longer than what was left.
    left: i64,
    updated: Instant,
}

impl ResolveBudget {
    /// Creates a budget of a part of the time that passes, and of `max` at the start.
    pub(super) fn new(part: f64, max: Duration) -> Self {
        let max = nanoseconds(max);
        Self {
            part,
            max,
            left: max,
            updated: Instant::now(),
        }
    }

    /// Changes the part of the time that passes from now on.
    pub(super) fn set_part(&mut self, part: f64) {
        self.part = part;
    }

    /// Returns whether anything is left at this time.
    pub(super) fn is_left(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.updated);
        self.updated = now;
        let more = nanoseconds(passed.mul_f64(self.part));
        self.left = self.left.saturating_add(more).min(self.max);
        self.left > 0
    }

    pub(super) fn spend(&mut self, time: Duration) {
        self.left = self.left.saturating_sub(nanoseconds(time));
    }
}

fn nanoseconds(time: Duration) -> i64 {
    time.as_nanos().try_into().unwrap_or(i64::MAX)
}

/// Which files' debug information may be decoded again. Further functions of the others have names alone meanwhile.
#[derive(Debug, Default)]
pub(super) struct DebugInfoBudget {
    /// By what identifies the content of a file, the time from which on it may be decoded.
    not_before: HashMap<Box<[u8]>, Instant>,
}

impl DebugInfoBudget {
    /// Returns whether debug information of this file may be decoded.
    pub(super) fn is_left(&self, file: &[u8], now: Instant) -> bool {
        self.not_before.get(file).is_none_or(|it| now >= *it)
    }

    /// Notes how much CPU time decoding a file's debug information has taken.
    pub(super) fn spend(&mut self, file: &[u8], used: Duration, now: Instant) {
        if used < MUCH {
            return;
        }
        if self.not_before.len() >= MAX_FILES {
            self.not_before.retain(|_, until| *until > now);
        }
        let until = now.checked_add(used * DEBUG_INFO_DIVISOR);
        if let Some(until) = until.filter(|_| self.not_before.len() < MAX_FILES) {
            self.not_before.insert(file.into(), until);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_a_part_of_the_time_that_passes() {
        let mut budget = ResolveBudget::new(0.02, Duration::from_secs(2));
        let start = budget.updated;
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(budget.is_left(at(0)));
        budget.spend(Duration::from_secs(7));
        assert!(!budget.is_left(at(0)));
        // Also what was spent beyond it.
        assert!(!budget.is_left(at(7)));
        assert!(!budget.is_left(at(250)));
        assert!(budget.is_left(at(300)));
        assert_eq!(budget.left, 1_000_000_000);
        budget.set_part(0.001);
        assert!(budget.is_left(at(400)));
        assert_eq!(budget.left, 1_100_000_000);
        assert!(budget.is_left(at(5000)));
        assert_eq!(budget.left, 2_000_000_000);
    }

    #[test]
    fn a_file_that_takes_much_is_decoded_for_a_thousandth_of_the_time() {
        let mut budget = DebugInfoBudget::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        budget.spend(b"cheap", Duration::from_millis(49), at(0));
        assert!(budget.is_left(b"cheap", at(0)));
        budget.spend(b"libc", Duration::from_millis(1200), at(10));
        assert!(!budget.is_left(b"libc", at(1209)));
        assert!(budget.is_left(b"libc", at(1210)));
        assert!(budget.is_left(b"other", at(10)));
        for number in 0..2 * MAX_FILES {
            budget.spend(&number.to_ne_bytes(), MUCH, at(10));
        }
        assert_eq!(budget.not_before.len(), MAX_FILES);
        budget.spend(b"late", MUCH, at(2000));
        assert_eq!(budget.not_before.len(), 1);
    }
}
