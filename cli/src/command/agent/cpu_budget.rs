//! Adapts the sampling frequency to the CPU time that the agent may take.

use std::time::{Duration, Instant};

/// The time between two decisions.
const WINDOW: Duration = Duration::from_secs(10);
/// The time at the start that is not counted: programs that run already are read.
const WARM_UP: Duration = Duration::from_secs(30);
/// The lowest frequency, in Hz: below, what the agent takes hardly depends on it.
const LOWEST: u32 = 7;
/// Above this part of the budget, the frequency is not raised, so that it does not go up and down.
const RAISE_BELOW: f64 = 0.7;
/// The part of the budget that a higher frequency aims at.
const AIM: f64 = 0.85;
/// A lower frequency has helped if the agent takes at most this part of the CPU time before. Otherwise something else takes it, such
/// as reading programs that start all the time.
const HELPED: f64 = 0.8;
/// The time for which the frequency stays if a lower one has not helped.
const HOLD: Duration = Duration::from_secs(600);

/// The CPU time of the agent in windows of time, and the frequency that follows from it.
#[derive(Debug)]
pub(super) struct CpuBudget {
    frequency: u32,
    /// The frequency that is never exceeded.
    highest: u32,
    /// The start of the window, and the CPU time by then; `None` until the first update.
    window: Option<(Instant, Duration)>,
    start: Instant,
    /// The frequency before it was lowered in the last window, and the part of a CPU that the agent took.
    lowered: Option<(u32, f64)>,
    /// The time until which the frequency stays.
    held: Option<Instant>,
}

/// A decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Decision {
    /// Sampling frequency per CPU, in Hz.
    pub(super) frequency: u32,
    /// The part of a CPU that the agent took.
    pub(super) taken: f64,
    /// True if the last, lower frequency has not helped.
    pub(super) is_back: bool,
}

impl CpuBudget {
    /// Starts with the highest frequency.
    pub(super) fn new(frequency: u32, now: Instant) -> Self {
        Self {
            frequency,
            highest: frequency,
            window: None,
            start: now,
            lowered: None,
            held: None,
        }
    }

    /// Returns whether [`update`](Self::update) decides at this time, or begins a window.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        match self.window {
            None => now.saturating_duration_since(self.start) >= WARM_UP,
            Some((begun, _)) => now.saturating_duration_since(begun) >= WINDOW,
        }
    }

    /// Decides at the end of a window, given the CPU time that was taken so far, and the part of a CPU that may be taken:
    /// infinite without a budget. Returns another frequency if there should be one.
    pub(super) fn update(&mut self, now: Instant, used: Duration, part: f64) -> Option<Decision> {
        if !self.is_due(now) {
            return None;
        }
        let (begun, before) = self.window.replace((now, used))?;
        let passed = now.saturating_duration_since(begun);
        let taken = used.saturating_sub(before).as_secs_f64() / passed.as_secs_f64();
        if part.is_finite() && self.held.is_some_and(|it| now < it) {
            return None;
        }
        let before = self.lowered.take().filter(|_| taken > part);
        let in_vain = before.filter(|(_, before)| taken > before * HELPED);
        let frequency = match in_vain {
            Some((frequency, _)) => {
                self.held = Some(now + HOLD);
                frequency
            }
            None => self.next(taken, part),
        };
        if frequency < self.frequency {
            self.lowered = Some((self.frequency, taken));
        }
        (frequency != self.frequency).then(|| {
            self.frequency = frequency;
            Decision {
                frequency,
                taken,
                is_back: in_vain.is_some(),
            }
        })
    }

    fn next(&self, taken: f64, part: f64) -> u32 {
        let lowest = LOWEST.min(self.highest);
        let scaled = |factor: f64| (f64::from(self.frequency) * factor) as u32;
        if taken > part {
            // Not all of it depends on the frequency: half of it in a window at most.
            let lower = scaled((part / taken).max(0.5));
            return uneven(lower.min(self.frequency - 1)).clamp(lowest, self.highest);
        }
        if self.frequency < self.highest && taken < part * RAISE_BELOW {
            let higher = scaled((part * AIM / taken).min(2.0)).max(self.frequency + 1);
            if higher >= self.highest {
                return self.highest;
            }
            return uneven(higher).clamp(self.frequency, self.highest);
        }
        self.frequency
    }
}

/// Returns the next lower frequency that is not in lockstep with work at 10 or 100 Hz.
fn uneven(frequency: u32) -> u32 {
    let is_uneven = |it: &u32| !(it.is_multiple_of(2) || it.is_multiple_of(5));
    (1..=frequency).rev().find(is_uneven).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The frequencies after windows in which a sample takes `cost` seconds, beside `fixed` seconds in a second.
    fn frequencies(budget: &mut CpuBudget, part: f64, cost: f64, fixed: f64) -> Vec<u32> {
        let (mut now, mut used) = (budget.start + WARM_UP, Duration::ZERO);
        let mut all = Vec::new();
        budget.window = None;
        for _ in 0..8 {
            budget.update(now, used, part);
            all.push(budget.frequency);
            now += WINDOW;
            let taken = fixed + cost * f64::from(budget.frequency);
            used += WINDOW.mul_f64(taken);
        }
        all
    }

    #[test]
    fn the_frequency_follows_the_cpu_time() {
        let mut budget = CpuBudget::new(99, Instant::now());
        // 0.99 % of a CPU.
        assert_eq!(frequencies(&mut budget, 0.015, 1e-4, 0.0), [99; 8]);
        // Six times as much.
        let falling = frequencies(&mut budget, 0.015, 6e-4, 0.0);
        assert_eq!(falling, [99, 49, 23, 23, 23, 23, 23, 23]);
        // Less again: up, but not to the budget's edge.
        let rising = frequencies(&mut budget, 0.015, 2e-4, 0.0);
        assert_eq!(rising, [23, 43, 63, 63, 63, 63, 63, 63]);
        let free = frequencies(&mut budget, 0.015, 0.0, 0.0);
        assert_eq!(free[..3], [63, 99, 99]);
    }

    #[test]
    fn a_lower_frequency_that_does_not_help_is_given_up() {
        let mut budget = CpuBudget::new(99, Instant::now());
        let all = frequencies(&mut budget, 0.001, 1e-6, 0.01);
        assert_eq!(all, [99, 49, 99, 99, 99, 99, 99, 99]);
        // A part of it does.
        let mut budget = CpuBudget::new(99, Instant::now());
        let all = frequencies(&mut budget, 0.001, 1e-4, 0.003);
        assert_eq!(all, [99, 49, 23, 11, 7, 11, 11, 11]);
        // Nothing holds it without a budget.
        let free = frequencies(&mut budget, f64::INFINITY, 1e-4, 0.003);
        assert_eq!(free, [11, 21, 41, 81, 99, 99, 99, 99]);
        let mut low = CpuBudget::new(3, Instant::now());
        assert_eq!(frequencies(&mut low, 0.001, 1e-6, 0.01), [3; 8]);
    }

    #[test]
    fn nothing_changes_within_a_window_nor_while_programs_are_read() {
        let start = Instant::now();
        let mut budget = CpuBudget::new(99, start);
        let at = |seconds| start + Duration::from_secs(seconds);
        let used = Duration::from_secs;
        assert_eq!(budget.update(at(0), used(0), 0.01), None);
        assert_eq!(budget.update(at(29), used(20), 0.01), None);
        assert_eq!(budget.update(at(31), used(21), 0.01), None);
        assert_eq!(budget.update(at(40), used(30), 0.01), None);
        let decision = budget.update(at(41), used(22), 0.01).unwrap();
        assert_eq!((decision.frequency, decision.taken), (49, 0.1));
    }
}
