//! The error of reading a runtime.

use otelctx_remote::MemoryError;

/// A runtime cannot be read. The reason is a sentence without a full stop.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct RuntimeError {
    reason: String,
    pub(super) is_settled: bool,
}

impl RuntimeError {
    /// Creates an error with this reason.
    pub fn new(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            is_settled: true,
        }
    }

    /// The error of a runtime in the middle of a change: the thread is read again, as for
    /// [`RuntimeThread::is_settled`](super::RuntimeThread::is_settled).
    #[must_use]
    pub fn in_a_change(self) -> Self {
        Self {
            is_settled: false,
            ..self
        }
    }
}

impl From<MemoryError> for RuntimeError {
    fn from(error: MemoryError) -> Self {
        Self::new(error.to_string())
    }
}

impl From<otelctx_remote::Error> for RuntimeError {
    fn from(error: otelctx_remote::Error) -> Self {
        Self::new(error.to_string())
    }
}
