//! The two ways of taking samples: eBPF and ptrace.

use std::io;
use std::time::Duration;

use otelctx_sample::{Catalog, Counts, Sample};

use crate::processes::Processes;
use crate::refusal::Refusal;
use crate::tally::{IncompleteStacks, IncompleteSteps};

pub(crate) trait Backend: Send {
    fn drain(&mut self, catalog: &mut Catalog, on_sample: &mut dyn FnMut(Sample));

    /// Samples taken until then can still be drained.
    fn stop(&mut self);

    /// Returns false once all requested processes have ended.
    fn has_targets(&self) -> bool;

    fn started(&self) -> u64;

    fn processes(&self) -> &Processes;

    fn processes_mut(&mut self) -> &mut Processes;

    /// Returns true if drains have had only samples of native code for a while.
    fn is_quiet(&self) -> bool {
        false
    }

    fn max_frames(&self) -> usize {
        otelctx_unwind::MAX_FRAMES
    }

    /// Why stacks have fewer frames, if they have.
    fn without_loops(&self) -> Option<&Refusal> {
        None
    }

    /// Why stacks are walked by frame pointers alone, if they are.
    fn without_tables(&self) -> Option<&Refusal> {
        None
    }

    fn without_reports(&self) -> Option<&io::Error> {
        None
    }

    fn kernel_time(&self) -> Option<(Duration, u64)> {
        None
    }

    /// Notes that the next catalog is empty.
    fn reset_catalog(&mut self) {
        self.processes_mut().reset_catalog();
    }

    fn counts(&self) -> Counts {
        self.processes().counts()
    }

    fn incomplete_stacks(&self) -> Vec<IncompleteStacks> {
        self.processes().tally.incomplete_stacks.sorted()
    }

    fn incomplete_steps(&self) -> Vec<IncompleteSteps> {
        self.processes().tally.incomplete_steps.sorted()
    }
}
