//! Counts of samples, by outcome and by reason.

mod incomplete_stacks;
mod incomplete_steps;

use otelctx_sample::Counts;

use crate::WaitFacts;
use crate::generated::Unread;
pub use incomplete_stacks::IncompleteStacks;
pub(crate) use incomplete_stacks::{StackTally, last_module};
pub use incomplete_steps::IncompleteSteps;
pub(crate) use incomplete_steps::StepTally;

/// Everything that a [`Sampler`](crate::Sampler) has counted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// The counters.
    pub counts: Counts,
    /// See [`Sampler::incomplete_stacks`](crate::Sampler::incomplete_stacks).
    pub incomplete_stacks: Vec<IncompleteStacks>,
    /// The reasons for [`Counts::incomplete_steps`], most samples first.
    pub incomplete_steps: Vec<IncompleteSteps>,
    /// See [`Sampler::waits`](crate::Sampler::waits): with the last scan.
    pub waits: Option<WaitFacts>,
}

/// The counters while samples are taken.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) counts: Counts,
    pub(crate) incomplete_stacks: StackTally,
    pub(crate) incomplete_steps: StepTally,
}

impl Tally {
    pub(crate) fn add_unread(&mut self, unread: Unread) {
        self.counts.dropped_names += unread.names;
        self.counts.damaged_jit_dumps += unread.dumps;
        self.counts.unread_name_files += unread.files;
        self.counts.stale_name_files += unread.stale_files;
    }
}
