//! Waits of threads, as they are seen from outside.

use std::sync::Arc;

use otelctx_reader::runtime::RuntimeReading;
use otelctx_sample::{Found, Frame, OffCpuState};
use otelctx_waits::Call;

use crate::second_walk::CopiedStack;

/// A thread: its process, and its own ID.
pub(crate) type ThreadId = (i32, i32);

/// More time of a known wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// Times by state ([`OffCpuState::ALL`]), in nanoseconds.
    pub(crate) by_state: [u64; OffCpuState::ALL.len()],
    /// When the thread was last found in the wait.
    pub(crate) last: u64,
}

/// What was seen of a thread that is off the CPU.
#[derive(Debug)]
pub(crate) enum WaitEvent {
    /// A wait that was not known.
    New {
        /// More time of the wait that was known before.
        former: Times,
        look: Box<Look>,
    },
    /// More time of a wait that is known.
    Same {
        thread: ThreadId,
        time: u64,
        more: Times,
    },
}

impl WaitEvent {
    pub(crate) fn pid(&self) -> i32 {
        match self {
            Self::New { look, .. } => look.pid,
            Self::Same { thread, .. } => thread.0,
        }
    }

    /// Its memory, in bytes, as an estimate.
    pub(crate) fn size(&self) -> usize {
        let stack = match self {
            Self::New { look, .. } => look.stack.as_ref().map_or(0, |it| it.stack.1.len()),
            Self::Same { .. } => 0,
        };
        size_of::<Look>() + stack
    }

    /// Its time, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(crate) fn time(&self) -> u64 {
        match self {
            Self::New { look, .. } => look.time,
            Self::Same { time, .. } => *time,
        }
    }
}

/// A thread off the CPU, and what was read of it.
#[derive(Debug)]
pub(crate) struct Look {
    pub(crate) time: u64,
    pub(crate) pid: i32,
    pub(crate) tid: i32,
    pub(crate) comm: String,
    /// How often it had been switched out.
    pub(crate) switches: u64,
    /// It went on meanwhile: nothing else that was read counts.
    pub(crate) is_torn: bool,
    /// The configuration under which the record was read.
    pub(crate) serial: u32,
    /// The position of the variable that points to the record.
    pub(crate) variable: usize,
    pub(crate) context: Found<Vec<u8>>,
    pub(crate) call: Call,
    pub(crate) state: OffCpuState,
    /// Since when it is off the CPU; 0 if that is unknown.
    pub(crate) since: u64,
    /// The time that this look stands for, in nanoseconds.
    pub(crate) weight: u64,
    /// What the call's arguments point to: addresses, and the bytes from there on.
    pub(crate) call_memory: Vec<(u64, Vec<u8>)>,
    pub(crate) stack: Option<Arc<CopiedStack>>,
    pub(crate) kernel_stack: Vec<Frame>,
    pub(crate) runtimes: Vec<RuntimeReading>,
}

/// How threads off the CPU are looked at, and what was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitFacts {
    /// Looks in a second at present: fewer than were asked for where there are many threads.
    pub frequency: u32,
    /// Threads at the last look.
    pub threads: u64,
    /// Waits of which context and stack were read.
    pub read: u64,
    /// Waits that ended while they were read: their time counts, without context and stack.
    pub torn: u64,
    /// Looks at threads that were lost because the recorder was too slow.
    pub lost: u64,
}
