//! The result of reading one thread.

use std::ffi::OsString;
use std::time::Duration;

use otelctx_format::record::DecodedContext;
use otelctx_remote as remote;
use otelctx_sample::{Found, NamedFrame};
use remote::Stopped;

use super::retry::while_traced;
use crate::runtime::{Present, RuntimeError, RuntimeReading, ThreadState};
use crate::{Error, StopReason, Thread, ThreadSupport};

/// The result of reading one thread.
#[derive(Debug)]
#[non_exhaustive]
pub struct ThreadReading {
    /// Its ID in the reader's PID namespace.
    pub tid: i32,
    /// Its name, see [`Thread::name`]. `None` also if it could not be read.
    pub name: Option<OsString>,
    /// Its context, chosen from all sources.
    pub context: Result<Found<DecodedContext>, Error>,
    /// Sources have contexts with different trace or span IDs.
    pub is_conflict: bool,
    /// The reading of each runtime that knows it.
    pub runtimes: Vec<RuntimeReading>,
    /// The reason if it was stopped.
    pub stop: Option<StopReason>,
    /// The deadline left no time to stop it.
    pub is_late: bool,
}

impl ThreadReading {
    /// Reads a thread, which may be `stopped` already.
    pub(super) fn read(
        thread: &Thread<'_>,
        present: &[Present],
        stopped: Option<&Stopped>,
    ) -> Self {
        let tid = thread.tid();
        let name = match thread.name() {
            Ok(name) => name,
            Err(error) => return Self::new(tid, None, Err(error)),
        };
        if let ThreadSupport::Unreadable(why) = &*thread.support
            && !present.iter().any(Present::reads_threads)
        {
            return Self::new(tid, name, Ok(why.found()));
        }
        match while_traced(|| thread.state(present, stopped)) {
            Ok(state) => Self::of_state(tid, name, state),
            Err(error) => {
                let runtimes = match &error {
                    Error::NotAsleep { .. } => failed(present, &error.to_string()),
                    _ => Vec::new(),
                };
                Self {
                    runtimes,
                    ..Self::new(tid, name, Err(error))
                }
            }
        }
    }

    pub(super) fn new(
        tid: i32,
        name: Option<OsString>,
        context: Result<Found<DecodedContext>, Error>,
    ) -> Self {
        Self {
            tid,
            name,
            context,
            is_conflict: false,
            runtimes: Vec::new(),
            stop: None,
            is_late: false,
        }
    }

    /// Chooses the context from all sources.
    pub(super) fn of_state(tid: i32, name: Option<OsString>, state: ThreadState) -> Self {
        let chosen = match &state.runtimes[..] {
            [] => None,
            _ => state.choose().ok(),
        };
        let (context, is_conflict) = match chosen {
            Some(chosen) => (Ok(chosen.context), chosen.is_conflict),
            None => (state.native, false),
        };
        Self {
            is_conflict,
            runtimes: state.runtimes,
            stop: state.stop,
            ..Self::new(tid, name, context)
        }
    }

    /// Estimated memory, in bytes; 0 if there was nothing to read.
    #[must_use]
    pub fn memory(&self) -> usize {
        let own = match &self.context {
            Ok(Found::NotPublished | Found::Unreadable(_)) => 0,
            Ok(Found::Attached(context)) => {
                let attributes = &context.attributes[..];
                let texts = attributes
                    .iter()
                    .map(|(key, value)| key.len() + value.len());
                size_of::<Self>() + size_of_val(attributes) + texts.sum::<usize>()
            }
            Ok(_) => size_of::<Self>(),
            // It contains names from the target.
            Err(error) => size_of::<Self>() + error.to_string().len(),
        };
        own + memory_of(&self.runtimes)
    }
}

/// Estimated memory of a thread's readings by runtimes, in bytes.
pub(super) fn memory_of(runtimes: &[RuntimeReading]) -> usize {
    let of = |reading: &RuntimeReading| match &reading.thread {
        Ok(thread) => thread.stack.frames().map(NamedFrame::memory).sum(),
        Err(error) => error.to_string().len(),
    };
    runtimes.iter().map(of).sum()
}

/// The readings of runtimes for a thread that was not read.
pub(super) fn failed(present: &[Present], why: &str) -> Vec<RuntimeReading> {
    let readable = present.iter().filter(|it| it.process.is_ok());
    let failed = |present: &Present| RuntimeReading {
        name: present.name,
        thread: Err(RuntimeError::new(why)),
    };
    readable.map(failed).collect()
}

/// The outcome of an attempt to read one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// A context, that there is none, or an error that is the thread's own.
    Read,
    /// A record that is being rewritten, or was detached that way.
    Invalid {
        is_asleep: bool,
    },
    Ended,
    /// The thread executes no code of the process.
    KernelWorker,
    /// There was no time left to stop it.
    Late,
}

impl Outcome {
    /// `stop_timeout` is how long a stop may take if no deadline shortens it.
    pub(super) fn of(reading: &ThreadReading, stop_timeout: Duration) -> Self {
        match &reading.context {
            Ok(Found::Invalid) => Self::Invalid {
                is_asleep: reading.stop.is_none(),
            },
            Err(Error::Deadline { .. }) => Self::Late,
            // It was given less than the usual time.
            Err(Error::Remote(remote::Error::StopTimeout { timeout, .. }))
                if *timeout < stop_timeout =>
            {
                Self::Late
            }
            Err(Error::Remote(remote::Error::KernelWorker { .. })) => Self::KernelWorker,
            Err(error) if error.is_gone() => Self::Ended,
            _ => Self::Read,
        }
    }
}
