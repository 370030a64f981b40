//! Partial results: only some threads of a process were read.

use std::fmt;
use std::time::Duration;

use crate::Process;

/// Only some threads were read. Displays as `2 of 5 threads: the deadline of 2 s has passed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Partial {
    /// Number of threads that were read.
    pub read: usize,
    /// Number of all threads, except threads that have ended since.
    pub of: usize,
    /// The reason.
    pub why: PartialReason,
}

/// The reason why not all threads were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PartialReason {
    /// The deadline passed, after this time.
    Deadline(Duration),
    /// The results exceed this size, in bytes.
    Memory(usize),
    /// Libraries were loaded or unloaded while the threads were read, or it is unknown whether they
    /// were, and no time was left to read the threads again: none of the results is reliable. This was the time.
    Modules(Duration),
}

impl Partial {
    /// No thread of this process was read.
    #[must_use]
    pub fn none_read(process: &Process, why: PartialReason) -> Self {
        Self {
            read: 0,
            of: process.thread_count(),
            why,
        }
    }
}

impl fmt::Display for Partial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} threads: {}", self.read, self.of, self.why)
    }
}

impl fmt::Display for PartialReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadline(timeout) => {
                write!(f, "the deadline of {} s has passed", timeout.as_secs_f64())
            }
            Self::Memory(bytes) => write!(f, "their contexts take more than {} MiB", bytes >> 20),
            Self::Modules(timeout) => write!(
                f,
                "libraries may have been loaded or unloaded meanwhile, and the deadline of {} s left no time to \
                 read the threads again",
                timeout.as_secs_f64()
            ),
        }
    }
}
