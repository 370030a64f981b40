//! Errors of reading contexts.

use otelctx_remote::MemoryError;
use otelctx_sample::{Found, ReadStep};

use crate::unreadable::Unreadable;

/// A process, or one of its threads, could not be read.
///
/// If a process publishes nothing, or something unreadable, that is a result rather than an error:
/// see [`ContextState`](crate::ContextState) and [`ThreadSupport`](crate::ThreadSupport).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The process, a thread or a file could not be read at all.
    #[error(transparent)]
    Remote(#[from] otelctx_remote::Error),
    /// The process has more mappings than [`Options::max_mappings`](crate::Options::max_mappings).
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
        /// The action that was not done, or not completed.
        action: &'static str,
    },
    /// The threads of this process have no readable context.
    #[error("the threads of process {pid} cannot be read: {why}")]
    Unreadable {
        /// The process.
        pid: i32,
        /// The reason, and what its publisher can do about it.
        why: Unreadable,
    },
    /// The thread exists, but every attempt to stop it failed as if it did not.
    #[error("thread {tid} could not be stopped: it kept changing state")]
    NotStopped {
        /// The thread.
        tid: i32,
    },
    /// [`Options::never_stop`](crate::Options::never_stop) forbids to stop the thread.
    #[error("thread {tid} was not asleep, and can be read only if it is stopped")]
    NotAsleep {
        /// The thread.
        tid: i32,
    },
    /// The thread sleeps in a system call whose timeout a stop would restart: it was not stopped.
    #[error(
        "thread {tid} was not stopped: it sleeps in a system call whose timeout would start \
         again, and its thread pointer cannot be found without a stop"
    )]
    WouldLengthen {
        /// The thread.
        tid: i32,
    },
    /// The memory of the thread's variable cannot be read.
    #[error("thread {tid}: its variable in {module} cannot be read: {source}")]
    Variable {
        /// The thread.
        tid: i32,
        /// The module that defines the variable.
        module: String,
        /// The address, and the error.
        source: MemoryError,
    },
    /// The thread's record is missing from the core file.
    #[error("thread {tid}: its record at {pointer:#x} cannot be read: {source}")]
    Record {
        /// The thread.
        tid: i32,
        /// The value of its variable.
        pointer: u64,
        /// The part that is missing.
        source: MemoryError,
    },
    /// The operation needs a running process, but this is a core file.
    #[error("{name} is no running process")]
    NotRunning {
        /// The core file.
        name: String,
    },
    /// The core file does not contain the thread's registers.
    #[error("thread {tid}: its thread pointer is not in the core file")]
    NoThreadPointer {
        /// The thread.
        tid: i32,
    },
    /// The contexts of the threads could not be read while they run.
    #[error("{reason}")]
    Snapshot {
        /// The reason, as a sentence.
        reason: String,
    },
    /// The thread's variable points to something that is not a record.
    #[error("thread {tid}: its variable points to {pointer:#x}, which is not a record: {reason}")]
    Pointer {
        /// The thread.
        tid: i32,
        /// The value of the variable.
        pointer: u64,
        /// The reason why it is not a record.
        reason: String,
    },
}

impl Error {
    /// Converts the error to an outcome, for readers that count errors instead of showing them.
    #[must_use]
    pub fn found<C>(&self) -> Found<C> {
        Found::Unreadable(match self {
            Self::Unreadable { why, .. } => return why.found(),
            Self::TooManyMappings { .. } => ReadStep::Resolve,
            Self::Deadline { .. }
            | Self::NotStopped { .. }
            | Self::NotAsleep { .. }
            | Self::WouldLengthen { .. }
            | Self::NotRunning { .. }
            | Self::NoThreadPointer { .. } => ReadStep::Thread,
            Self::Remote(_) => ReadStep::Memory,
            Self::Variable { .. } => ReadStep::Variable,
            Self::Record { .. } | Self::Snapshot { .. } | Self::Pointer { .. } => ReadStep::Record,
        })
    }

    /// Returns true if the process or the thread has ended.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        use otelctx_remote::Error as Remote;
        matches!(
            self,
            Self::Remote(Remote::NoSuchProcess { .. } | Remote::NoSuchThread { .. })
        )
    }
}
