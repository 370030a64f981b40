//! The result of inspecting one process.

use std::ffi::OsString;
use std::sync::Arc;

use otelctx_reader::format::record::Context;
use otelctx_reader::runtime::RuntimeReading;
use otelctx_reader::{
    Broken, ContextState, Detected, Error, Found, StopReason, ThreadSupport, ThreadVariables,
    Unreadable,
};

use super::core::CoreReport;
use super::runtimes::{self, Runtimes};
use crate::command::partial::Partial;

/// The most that contexts of threads may take here, in bytes. 30,000 threads with three attributes
/// each take half of it; larger records must not fill this machine's memory.
pub(super) const MOST_CONTEXTS: usize = 24 << 20;

/// Everything that was found.
#[derive(Debug)]
pub(super) struct Report {
    /// Known of every process, but not of every core file.
    pub(super) pid: Option<i32>,
    pub(super) comm: OsString,
    /// The thread that was asked for, where that is not the process's first.
    pub(super) asked_thread: Option<i32>,
    /// A process whose line came before, and in whose memory this one runs.
    pub(super) shares_memory_with: Option<i32>,
    /// The process is no more: this is its core file.
    pub(super) core: Option<CoreReport>,
    /// `--force` was given.
    pub(super) forced: bool,
    /// `--no-stop` was given: the threads ran while they were read.
    pub(super) running: bool,
    pub(super) context: ContextState,
    /// Attributes that were detected because the process publishes nothing readable.
    pub(super) detected: Option<Detected>,
    /// An error if there was no time to find out.
    pub(super) support: Result<Arc<ThreadSupport>, Error>,
    pub(super) looks: Vec<Look>,
    pub(super) runtimes: Runtimes,
    /// Threads that were skipped: workers of the kernel's io_uring, which have no context.
    pub(super) kernel_workers: usize,
    /// Not all threads are in `looks`.
    pub(super) partial: Option<Partial>,
}

/// One thread.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) tid: i32,
    /// Core files do not tell it.
    pub(super) name: Option<OsString>,
    /// `None` where no thread has a context that could be read.
    pub(super) outcome: Option<Result<Found<Context>, String>>,
    /// Whether it was stopped to be read, and why.
    pub(super) stop: Option<StopReason>,
    /// Another source has a context with other ids.
    pub(super) is_conflict: bool,
    /// What language runtimes say of it.
    pub(super) runtimes: Vec<RuntimeReading>,
}

impl Look {
    /// Whether a record is attached whose `valid` field is not 1.
    pub(super) fn is_invalid(&self) -> bool {
        matches!(self.outcome, Some(Ok(Found::Invalid)))
    }

    /// A thread with its native context, and what was read of that.
    pub(super) fn new(
        tid: i32,
        name: Option<OsString>,
        outcome: Option<Result<Found<Context>, Error>>,
    ) -> Self {
        Self {
            tid,
            name,
            outcome: outcome.map(|outcome| outcome.map_err(|error| error.to_string())),
            stop: None,
            is_conflict: false,
            runtimes: Vec::new(),
        }
    }

    /// About how many bytes it takes: more than nothing if there was something to read.
    pub(super) fn size(&self) -> usize {
        let runtimes = runtimes::size(&self.runtimes);
        let Some(outcome) = &self.outcome else {
            return runtimes;
        };
        let more = match outcome {
            Ok(Found::Attached(context)) => {
                let attributes = &context.attributes[..];
                let texts = attributes
                    .iter()
                    .map(|(key, value)| key.len() + value.len());
                size_of_val(attributes) + texts.sum::<usize>()
            }
            Ok(_) => 0,
            // The target's own names are in it.
            Err(error) => error.len(),
        };
        size_of::<Look>() + more + runtimes
    }
}

impl Report {
    /// Whether something is published that can't be read, or was not. That nothing is published is
    /// no problem.
    pub(super) fn has_problem(&self) -> bool {
        let missing = self.core.as_ref().map_or(0, |core| core.missing.len());
        missing > 0
            || self.partial.is_some()
            || matches!(self.context, ContextState::Broken(_))
            || match self.support() {
                Support::Readable(_) => self
                    .looks
                    .iter()
                    .any(|look| matches!(look.outcome, Some(Err(_)))),
                Support::Unpublished => false,
                // A library with the variable may be loaded later: nothing that there is was missed.
                Support::Unreadable(Unreadable::NotFound { unreadable }) => {
                    self.forced || !unreadable.is_empty()
                }
                Support::Unreadable(_) | Support::Unknown(_) => true,
            }
    }

    /// How many threads were stopped to be read, and how many of them were running; `None` for a core
    /// file.
    pub(super) fn stopped_threads(&self) -> Option<(usize, usize)> {
        let stops = || self.looks.iter().filter_map(|look| look.stop);
        let running = stops().filter(|stop| *stop == StopReason::Running).count();
        self.core.is_none().then(|| (stops().count(), running))
    }

    /// Modules of a process that may have a variable, too, and could not be looked into. Those of a
    /// core file are among what it says to be missing.
    pub(super) fn unreadable_modules(&self) -> &[(OsString, String)] {
        match (self.support(), &self.core) {
            (Support::Readable(variables), None) => &variables.resolution.unreadable,
            _ => &[],
        }
    }

    /// What is known of the threads' contexts.
    pub(super) fn support(&self) -> Support<'_> {
        match self.support.as_deref() {
            Ok(ThreadSupport::Readable(variables)) => Support::Readable(variables),
            Ok(ThreadSupport::Unreadable(Unreadable::NoProcessContext | Unreadable::NoSchema)) => {
                Support::Unpublished
            }
            Ok(ThreadSupport::Unreadable(why)) => Support::Unreadable(why),
            Err(error) => Support::Unknown(error),
        }
    }

    /// What reads a process context that is too large.
    pub(super) fn larger_payload(&self) -> Option<String> {
        match self.context {
            ContextState::Broken(Broken::TooLarge { size, .. }) => {
                Some(format!("--max-payload {size} reads it"))
            }
            _ => None,
        }
    }
}

/// What is known of the threads' contexts.
#[derive(Debug)]
pub(super) enum Support<'r> {
    /// How they are reached.
    Readable(&'r ThreadVariables),
    /// The process does not say that they have any.
    Unpublished,
    /// The process says so, and they can't be read.
    Unreadable(&'r Unreadable),
    /// There was no time to find out.
    Unknown(&'r Error),
}
