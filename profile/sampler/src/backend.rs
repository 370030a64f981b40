//! The two ways of taking samples: eBPF and ptrace.

use std::io;
use std::time::Duration;

use otelctx_sample::{Catalog, Sample};

use crate::processes::Processes;
use crate::refusal::Refusal;
use crate::waits::WaitFacts;

pub(crate) trait Backend: Send {
    fn drain(&mut self, catalog: &mut Catalog, on_sample: &mut dyn FnMut(Sample));

    /// Samples taken until then can still be drained.
    fn stop(&mut self);

    /// Changes the period, in nanoseconds. Returns false if this method cannot.
    fn set_period(&mut self, _: u64) -> bool {
        false
    }

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

    /// Returns how threads off the CPU are scanned, if they are.
    fn waits(&self) -> Option<WaitFacts> {
        None
    }

    /// Returns why stacks have fewer frames, if they do.
    fn without_loops(&self) -> Option<&Refusal> {
        None
    }

    /// Returns why stacks are walked by frame pointers alone, if they are.
    fn without_tables(&self) -> Option<&Refusal> {
        None
    }

    fn without_reports(&self) -> Option<&io::Error> {
        None
    }

    fn kernel_time(&self) -> Option<(Duration, u64)> {
        None
    }
}
