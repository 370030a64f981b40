//! Partial results: only some threads of a process were read.

use std::fmt;
use std::time::Duration;

use crate::Process;

/// Only some threads were read. Displays as `2 of 5 threads: the deadline of 2 s has passed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{read} of {of} threads: {why}")]
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
    /// Libraries may have been loaded or unloaded while the threads were read, and in this time,
    /// the threads could not be read again: none of the results is reliable.
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

/// A number of bytes: whole MiB, below 1 MiB whole KiB, below 1 KiB bytes.
pub(super) struct Size(pub(super) usize);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(bytes) = self;
        if *bytes >= 1 << 20 {
            write!(f, "{} MiB", bytes >> 20)
        } else if *bytes >= 1 << 10 {
            write!(f, "{} KiB", bytes >> 10)
        } else {
            write!(f, "{bytes} bytes")
        }
    }
}

impl fmt::Display for PartialReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadline(timeout) => {
                write!(f, "the deadline of {} s has passed", timeout.as_secs_f64())
            }
            Self::Memory(bytes) => write!(f, "their contexts take more than {}", Size(*bytes)),
            Self::Modules(timeout) => write!(
                f,
                "libraries may have been loaded or unloaded meanwhile, and the deadline of {} s left \
                 no time to read the threads again",
                timeout.as_secs_f64()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memory_bound_is_shown_in_the_largest_unit_that_it_has() {
        let text = |bytes| PartialReason::Memory(bytes).to_string();
        assert_eq!(text(24 << 20), "their contexts take more than 24 MiB");
        assert_eq!(text(1 << 20), "their contexts take more than 1 MiB");
        assert_eq!(
            text((1 << 20) - 1),
            "their contexts take more than 1023 KiB"
        );
        assert_eq!(text(1024), "their contexts take more than 1 KiB");
        assert_eq!(text(1023), "their contexts take more than 1023 bytes");
        assert_eq!(text(0), "their contexts take more than 0 bytes");
    }
}
