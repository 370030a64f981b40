//! Processes that run in the memory of another, and so show the same context: after vfork(2), or
//! clone(2) with CLONE_VM.

use std::collections::HashMap;

use otelctx_reader::ProcessContext;
use otelctx_reader::remote::Process;
use serde::{Deserialize, Serialize};

/// Where a context lies and when it was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Place {
    address: u64,
    monotonic_published_at_ns: u64,
}

impl Place {
    pub(super) fn of(context: &ProcessContext) -> Self {
        Self {
            address: context.address,
            monotonic_published_at_ns: context.monotonic_published_at_ns,
        }
    }
}

/// The processes seen so far, by the place of their context. Two that agree in it share their memory, or one was forked from the other and its publisher let the mapping be
/// inherited.
#[derive(Debug, Default)]
pub(super) struct SameMemory(HashMap<Place, Vec<i32>>);

impl SameMemory {
    /// A process seen before in whose memory `pid` runs. If there is none, `pid` is kept for those to
    /// come.
    pub(super) fn known(&mut self, pid: i32, place: Place) -> Option<i32> {
        let known = self.0.entry(place).or_default();
        let same = known.iter().copied().find(|known| share(*known, pid));
        if same.is_none() {
            known.push(pid);
        }
        same
    }
}

/// Whether two processes, whose contexts agree in place and time, run in the same memory. A kernel
/// that can't tell is taken to say yes.
fn share(one: i32, other: i32) -> bool {
    match (Process::open(one), Process::open(other)) {
        (Ok(one), Ok(other)) => one.shares_memory_with(&other).unwrap_or(true),
        // One has ended.
        _ => false,
    }
}
