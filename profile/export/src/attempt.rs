//! Single attempts to send, for callers that keep messages and retry themselves.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;

use crate::Error;

/// An encoded message, as it is sent.
#[derive(Clone, Debug)]
pub struct Message {
    pub(crate) body: Bytes,
    /// Its size before compression, in bytes.
    pub(crate) size: usize,
}

/// Why a message was not accepted, and whether to send it again.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct Unsent {
    /// The error.
    #[source]
    pub error: Error,
    /// Whether to send the message again.
    pub retry: Retry,
}

/// Whether to send a message again that was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// The receiver has refused it, and OTLP forbids to send it again.
    Never,
    /// After a delay of the sender's choice.
    Later,
    /// Not before this delay, which the receiver has asked for (`Retry-After`, `RetryInfo`).
    After(Duration),
}

/// Cancels attempts to send, from another thread.
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    notify: Arc<Notify>,
}

impl Cancel {
    /// Ends the attempt that is under way, or the next one: the message may have been received all the same.
    pub fn cancel(&self) {
        self.notify.notify_one();
    }

    pub(crate) async fn cancelled(&self) {
        self.notify.notified().await;
    }
}
