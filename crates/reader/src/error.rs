//! Errors of reading contexts.

use crate::thread_context::Unreadable;
use otelctx_remote::MemoryError;
use otelctx_sample::{Found, ReadStep};

/// Why a process, or one of its threads, could not be read.
///
/// That a process publishes nothing, or something unreadable, is an answer and no error: see
/// [`ContextState`](crate::ContextState) and [`ThreadSupport`](crate::ThreadSupport).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The process, a thread or a file could not be read at all.
    #[error(transparent)]
    Remote(#[from] otelctx_remote::Error),
    /// The process has more mappings than the caller's limit.
    #[error("process {pid} has more than {limit} mappings; raise the limit to read it")]
    TooManyMappings {
        /// The process.
        pid: i32,
        /// [`Options::max_mappings`](crate::Options::max_mappings).
        limit: u64,
    },
    /// The caller's deadline has passed.
    #[error("process {pid}: the deadline left no time to {action}")]
    Deadline {
        /// The process.
        pid: i32,
        /// What was not done, or not to its end.
        action: &'static str,
    },
    /// The threads of this process have no context that could be read.
    #[error("the threads of process {pid} cannot be read: {why}")]
    Unreadable {
        /// The process.
        pid: i32,
        /// Why not, and what its publisher can do.
        why: Unreadable,
    },
    /// The thread exists, and yet every attempt to stop it failed as if it did not.
    #[error("thread {tid} could not be stopped: it kept changing state")]
    NotStopped {
        /// The thread.
        tid: i32,
    },
    /// The thread sleeps in a call with a time-out, and reading it takes a stop, after which the
    /// time-out would begin anew: it was left alone.
    #[error(
        "thread {tid} was not stopped: it sleeps in a system call whose timeout would start \
         again, and its thread pointer cannot be found without a stop"
    )]
    WouldLengthen {
        /// The thread.
        tid: i32,
    },
    /// The thread's variable lies in memory that can't be read.
    #[error("thread {tid}: its variable in {module} cannot be read: {source}")]
    Variable {
        /// The thread.
        tid: i32,
        /// The module that defines the variable.
        module: String,
        /// Which address, and what the system said.
        source: MemoryError,
    },
    /// The record of the thread is missing from the core file.
    #[error("thread {tid}: its record at {pointer:#x} cannot be read: {source}")]
    Record {
        /// The thread.
        tid: i32,
        /// What its variable holds.
        pointer: u64,
        /// What is missing.
        source: MemoryError,
    },
    /// Only what was saved of the process can be read.
    #[error("{name} is no running process")]
    NotRunning {
        /// The core file.
        name: String,
    },
    /// The core file does not have the thread's registers.
    #[error("thread {tid}: its thread pointer is not in the core file")]
    NoThreadPointer {
        /// The thread.
        tid: i32,
    },
    /// The thread's variable points at something that can't be a record.
    #[error("thread {tid}: its variable points to {pointer:#x}, which is not a record: {reason}")]
    Pointer {
        /// The thread.
        tid: i32,
        /// What the variable holds.
        pointer: u64,
        /// Why that is no record.
        reason: String,
    },
}

impl Error {
    /// The same as an outcome, for readers that count errors instead of showing them.
    #[must_use]
    pub fn found<C>(&self) -> Found<C> {
        Found::Unreadable(match self {
            Self::Unreadable {
                why: Unreadable::NoProcessContext | Unreadable::NoSchema,
                ..
            } => return Found::NotPublished,
            Self::Unreadable { .. } => ReadStep::Access,
            Self::TooManyMappings { .. } => ReadStep::Resolve,
            Self::Deadline { .. }
            | Self::NotStopped { .. }
            | Self::WouldLengthen { .. }
            | Self::NotRunning { .. }
            | Self::NoThreadPointer { .. } => ReadStep::Thread,
            Self::Remote(_) => ReadStep::Memory,
            Self::Variable { .. } => ReadStep::Variable,
            Self::Record { .. } | Self::Pointer { .. } => ReadStep::Record,
        })
    }
}
