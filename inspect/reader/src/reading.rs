//! The result of reading one thread.

use otelctx_format::record::DecodedContext;
use otelctx_sample::Found;

use crate::Error;

/// The result of reading a thread's context.
#[derive(Debug)]
#[non_exhaustive]
pub struct Reading {
    /// The outcome.
    pub outcome: Result<Found<DecodedContext>, Error>,
    /// The reason if the thread was stopped.
    pub stop: Option<StopReason>,
}

/// The reason for stopping a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// It was running.
    Running,
    /// It was not running, but its thread pointer cannot be found without stopping it.
    ThreadPointer,
    /// A language runtime is read with it.
    Runtime,
    /// It was asleep, but its stack cannot be walked without all of its registers.
    Stack,
}
