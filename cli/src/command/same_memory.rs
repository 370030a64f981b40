//! Processes that share their memory with another, and so show the same context: after vfork(2), or
//! clone(2) with CLONE_VM.

use std::collections::HashMap;

use otelctx_reader::ProcessContext;
use otelctx_reader::remote::Process;
use serde::{Deserialize, Serialize};

/// The address of a context, and when it was published.
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

/// The processes so far, by the place of their context. Two processes with the same place share
/// their memory, or one was forked from the other and its publisher let it inherit the mapping.
#[derive(Debug, Default)]
pub(super) struct SameMemory(HashMap<Place, Vec<i32>>);

impl SameMemory {
    /// Returns an earlier process whose memory `pid` shares. If there is none, adds `pid`.
    pub(super) fn find_or_add(&mut self, pid: i32, place: Place) -> Option<i32> {
        let known = self.0.entry(place).or_default();
        let same = known.iter().copied().find(|known| share(*known, pid));
        if same.is_none() {
            known.push(pid);
        }
        same
    }
}

/// Returns whether two processes, whose contexts agree in address and time, share their memory.
/// True if the kernel cannot tell.
fn share(one: i32, other: i32) -> bool {
    match (Process::open(one), Process::open(other)) {
        (Ok(one), Ok(other)) => one.shares_memory_with(&other).unwrap_or(true),
        // One of them has ended.
        _ => false,
    }
}
