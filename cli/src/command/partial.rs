//! Partial answers: only some threads of a process were read.

use std::time::Duration;

use otelctx_reader::{Error, Thread, remote};
use serde::{Deserialize, Serialize};

use crate::error::{MORE_TIME, is_gone};
use crate::output::text::grouped;

/// Only some threads were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Partial {
    /// Number of threads that were read.
    pub(super) read: usize,
    /// Number of all threads, except threads that have ended since.
    pub(super) of: usize,
    pub(super) why: PartialReason,
}

/// Why not all threads were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartialReason {
    /// The deadline passed (`--deadline`).
    Deadline(Duration),
    /// The contexts exceed this size, in bytes.
    Memory(usize),
    /// Libraries were loaded or unloaded while the threads were read, or it is unknown whether they
    /// were, and no time was left to read the threads again: none of the results is reliable.
    Modules(Duration),
}

impl Partial {
    /// A sentence with how many threads were read, and why not more.
    pub(super) fn sentence(&self) -> String {
        let (read, of) = (grouped(self.read), grouped(self.of));
        let why = match self.why {
            PartialReason::Deadline(deadline) => {
                format!("the deadline of {} s has passed", deadline.as_secs_f64())
            }
            PartialReason::Memory(bytes) => {
                format!("their contexts take more than {} MiB", bytes >> 20)
            }
            PartialReason::Modules(deadline) => format!(
                "libraries may have been loaded or unloaded meanwhile, and the deadline of {} s \
                 left no time to read the threads again",
                deadline.as_secs_f64()
            ),
        };
        format!("{read} of {of} threads: {why}")
    }

    /// How to read the rest.
    pub(super) fn hint(&self) -> Option<&'static str> {
        match self.why {
            PartialReason::Deadline(_) | PartialReason::Modules(_) => Some(MORE_TIME),
            PartialReason::Memory(_) => None,
        }
    }
}

/// The same as JSON (docs/json.md).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PartialJson {
    pub(super) read: usize,
    pub(super) of: usize,
    pub(super) text: String,
}

impl PartialJson {
    pub(super) fn of(partial: &Partial) -> Self {
        Self {
            read: partial.read,
            of: partial.of,
            text: partial.sentence(),
        }
    }
}

/// The outcome of reading one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ThreadOutcome {
    /// A context, or that there is none.
    Read,
    /// A record that is being rewritten, or was detached that way.
    Invalid {
        /// The thread sleeps.
        asleep: bool,
    },
    /// The thread has ended.
    Ended,
    /// There was no time left to stop it.
    Late,
}

impl ThreadOutcome {
    /// The outcome for an error from reading `thread`.
    pub(super) fn of(error: &Error, thread: &Thread<'_>) -> Self {
        let whole = thread.process().options().stop_timeout;
        match error {
            Error::Deadline { .. } => Self::Late,
            // It was given the time that was left until the deadline, and might have stopped within
            // the usual time.
            Error::Remote(remote::Error::StopTimeout { timeout, .. }) if *timeout < whole => {
                Self::Late
            }
            // A kernel worker has no context.
            Error::Remote(remote::Error::KernelWorker { .. }) => Self::Ended,
            error if is_gone(error) => Self::Ended,
            _ => Self::Read,
        }
    }
}
