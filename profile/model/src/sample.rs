//! One sample of one thread.

use crate::gil::GilState;
use crate::id::{ReasonId, StackId, ThreadId};
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
    /// A timer found it off the CPU.
    OffCpu(OffCpu),
}

/// Time of a thread off the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OffCpu {
    /// What kept it off the CPU.
    pub state: OffCpuState,
    /// The time that the sample stands for, in nanoseconds.
    pub nanoseconds: u64,
    /// The time since which it is off the CPU, in nanoseconds of the recorder's `CLOCK_MONOTONIC`; 0 if that is unknown.
    pub since: u64,
    /// The reason, which the catalog has; `None` if that is unknown.
    pub reason: Option<ReasonId>,
}

/// What keeps a thread off the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum OffCpuState {
    /// It is ready to run, and other threads have the CPUs.
    Queued,
    /// It waits for an event, in a sleep that a signal interrupts.
    Asleep,
    /// It waits in a sleep that no signal interrupts, as for a disk.
    Disk,
    /// It was stopped by a signal or a debugger, or is frozen.
    Stopped,
    /// It waits, and the recording does not tell how.
    Unknown,
}

impl OffCpuState {
    /// The states that a sampler finds.
    pub const ALL: [Self; 4] = [Self::Queued, Self::Asleep, Self::Disk, Self::Stopped];

    /// Its name in attributes of samples.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Asleep => "asleep",
            Self::Disk => "disk",
            Self::Stopped => "stopped",
            Self::Unknown => "unknown",
        }
    }
}

/// Why a thread waits, in words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Reason {
    /// The system call, such as `poll`, or what takes its place, such as `page fault`.
    pub call: String,
    /// The call and what it waits for, such as `poll for 127.0.0.1:5432 (postgres)`.
    pub text: String,
}
