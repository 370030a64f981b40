//! The reasons why samples lack the part of a language runtime.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use otelctx_reader::runtime::RuntimeError;

/// Maximum number of reasons, some of which have an address; `Counts::incomplete_steps` has all.
const MAX_REASONS: usize = 32;

/// Samples that lack the part of a runtime, for the same reason.
///
/// With eBPF, a runtime whose step is not in
/// [`Options::kernel_object`](crate::Options::kernel_object) adds nothing, and has no entry. Its
/// samples count in [`Counts::unresolved_threads`](otelctx_sample::Counts::unresolved_threads), or
/// nowhere if it has no [`kernel_step`](otelctx_reader::runtime::RuntimeProcess::kernel_step) at
/// all.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IncompleteSteps {
    /// The name of the runtime, such as `nodejs`.
    pub runtime: &'static str,
    /// The reason, as a sentence without a full stop.
    pub reason: String,
    /// Number of samples.
    pub samples: u64,
}

impl IncompleteSteps {
    /// Creates an entry, for example to test code that shows it.
    #[must_use]
    pub fn new(runtime: &'static str, reason: &str, samples: u64) -> Self {
        Self {
            runtime,
            reason: reason.to_owned(),
            samples,
        }
    }
}

/// Counts samples that lack the part of a runtime, by runtime and reason.
#[derive(Debug, Default)]
pub(crate) struct StepTally {
    counts: HashMap<(&'static str, String), u64, RandomState>,
}

impl StepTally {
    pub(crate) fn add(&mut self, runtime: &'static str, error: &RuntimeError) {
        let key = (runtime, error.to_string());
        if self.counts.len() < MAX_REASONS || self.counts.contains_key(&key) {
            *self.counts.entry(key).or_default() += 1;
        }
    }

    pub(crate) fn sorted(&self) -> Vec<IncompleteSteps> {
        let counts = self.counts.iter();
        let entry = |(key, samples): (&(&'static str, String), &u64)| {
            IncompleteSteps::new(key.0, &key.1, *samples)
        };
        let mut all: Vec<_> = counts.map(entry).collect();
        all.sort_by(|a, b| (b.samples, &a.reason).cmp(&(a.samples, &b.reason)));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_frequent_reason_comes_first_and_their_number_is_bounded() {
        let mut reasons = StepTally::default();
        for number in 0..2 * MAX_REASONS {
            reasons.add("toy", &RuntimeError::new(format!("reason {number}")));
        }
        reasons.add("toy", &RuntimeError::new("reason 3"));
        let sorted = reasons.sorted();
        assert_eq!(sorted.len(), MAX_REASONS);
        assert_eq!(sorted[0], IncompleteSteps::new("toy", "reason 3", 2));
        assert_eq!(sorted[1], IncompleteSteps::new("toy", "reason 0", 1));
    }
}
