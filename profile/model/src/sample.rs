//! One sample of one thread.

use crate::gil::GilState;
use crate::id::{StackId, ThreadId};
use crate::outcome::{Found, StackEnd};

/// One sample of one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The time at which it was taken, in nanoseconds of the recorder's `CLOCK_MONOTONIC`.
    pub time: u64,
    /// The CPU that the thread ran on.
    pub cpu: u32,
    /// The thread, which names its process.
    pub thread: ThreadId,
    /// The event that caused it.
    pub event: Event,
    /// Its context.
    pub found: Found,
    /// Its state with regard to the interpreter's lock. `None` if it executes no interpreter with a
    /// lock, or if that is unknown.
    pub gil: Option<GilState>,
    /// The user-mode frames, innermost first.
    pub user_stack: StackId,
    /// The reason why they end. `None` if that is unknown, for example because no stack was taken.
    pub stack_end: Option<StackEnd>,
    /// The kernel frames, innermost first; empty if the thread was in user mode.
    pub kernel_stack: StackId,
}

/// The event that caused a sample of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Event {
    /// It was running when the sampling clock fired.
    OnCpu,
    /// It was scheduled again after being off-CPU.
    OffCpu {
        /// The time that it was off-CPU.
        nanoseconds: u64,
    },
}
