//! The result of inspecting one process.

use std::ffi::OsString;
use std::sync::Arc;

use otelctx_reader::format::Schema;
use otelctx_reader::format::record::Context;
use otelctx_reader::runtime::RuntimeReading;
use otelctx_reader::{
    Broken, ContextState, Detected, Error, Found, StopReason, ThreadSupport, ThreadVariables,
    Unreadable,
};

use super::core::CoreReport;
use super::runtimes::{self, Runtimes};
use super::stacks::{Code, Named, Names, Stack, ThreadStack};
use crate::command::partial::Partial;

/// Maximum memory of all threads' contexts, in bytes. 30,000 threads with three attributes each
/// take half of it; larger records must not exhaust this machine's memory.
pub(super) const MAX_CONTEXTS: usize = 24 << 20;

/// Everything that was read.
#[derive(Debug)]
pub(super) struct Report {
    /// `None` if a core file does not contain it.
    pub(super) pid: Option<i32>,
    pub(super) comm: OsString,
    /// The thread whose ID was given, if it is not the process's first.
    pub(super) asked_thread: Option<i32>,
    /// A process that was shown before, and whose memory this one shares.
    pub(super) shares_memory_with: Option<i32>,
    /// For a process that has ended: its core file.
    pub(super) core: Option<CoreReport>,
    /// Whether `--force` was given.
    pub(super) forced: bool,
    /// Whether `--no-stop` was given: the threads were running while they were read.
    pub(super) running: bool,
    pub(super) context: ContextState,
    /// Attributes that were detected because the process publishes nothing readable.
    pub(super) detected: Option<Detected>,
    /// An error if there was not enough time.
    pub(super) support: Result<Arc<ThreadSupport>, Error>,
    pub(super) reports: Vec<ThreadReport>,
    pub(super) runtimes: Runtimes,
    /// Number of skipped threads: the kernel's io_uring workers, which have no context.
    pub(super) kernel_workers: usize,
    /// The code that the threads' stacks are in, with `--stacks`.
    pub(super) code: Option<Code>,
    /// The functions of the stacks.
    pub(super) named: Named,
    /// Not all threads are in `reports`.
    pub(super) partial: Option<Partial>,
}

/// The result of reading one thread.
#[derive(Debug)]
pub(super) struct ThreadReport {
    pub(super) tid: i32,
    /// `None` if a core file does not contain it.
    pub(super) name: Option<OsString>,
    /// `None` if no thread has a readable context.
    pub(super) outcome: Option<Result<Found<Context>, String>>,
    /// Why it was stopped, if it was.
    pub(super) stop: Option<StopReason>,
    /// Whether another source has a context with different IDs.
    pub(super) is_conflict: bool,
    /// The readings of language runtimes.
    pub(super) runtimes: Vec<RuntimeReading>,
    /// Its native stack, with `--stacks`.
    pub(super) stack: Option<ThreadStack>,
}

impl ThreadReport {
    /// Its native stack, if it was read.
    pub(super) fn stack(&self) -> Option<&Stack> {
        self.stack.as_ref()?.as_ref().ok()
    }

    /// Whether a record is attached whose `valid` field is not 1.
    pub(super) fn is_invalid(&self) -> bool {
        matches!(self.outcome, Some(Ok(Found::Invalid)))
    }

    /// Creates the result of reading a thread's native context.
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
            stack: None,
        }
    }

    /// Estimated memory, in bytes; 0 if there was nothing to read.
    pub(super) fn size(&self) -> usize {
        let stack = self.stack().map_or(0, Stack::size);
        let beside = stack + runtimes::size(&self.runtimes);
        let Some(outcome) = &self.outcome else {
            return beside;
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
            // It contains names from the target.
            Err(error) => error.len(),
        };
        size_of::<ThreadReport>() + more + beside
    }
}

impl Report {
    /// Whether something is published that is unreadable, or was not read. Publishing nothing is
    /// not a problem.
    pub(super) fn has_problem(&self) -> bool {
        let missing = self.core.as_ref().map_or(0, |core| core.missing.len());
        missing > 0
            || self.partial.is_some()
            || matches!(self.context, ContextState::Broken(_))
            || match self.support() {
                Support::Readable(_) => self
                    .reports
                    .iter()
                    .any(|thread| matches!(thread.outcome, Some(Err(_)))),
                Support::Unpublished | Support::ByRuntime(..) => false,
                // A library with the variable may be loaded later: nothing was missed.
                Support::Unreadable(Unreadable::NotFound { unreadable }) => {
                    self.forced || !unreadable.is_empty()
                }
                Support::Unreadable(_) | Support::Unknown(_) => true,
            }
    }

    /// Resolves the functions of the stacks.
    pub(super) fn resolve(&mut self, names: &mut Names) {
        if let Some(code) = self.code.take() {
            self.named = names.resolve(self.pid, &code);
        }
    }

    /// Number of threads that were stopped to be read, and how many of them were running; `None`
    /// for a core file.
    pub(super) fn stopped_threads(&self) -> Option<(usize, usize)> {
        let stops = || self.reports.iter().filter_map(|thread| thread.stop);
        let running = stops().filter(|stop| *stop == StopReason::Running).count();
        self.core.is_none().then(|| (stops().count(), running))
    }

    /// Modules that could not be read, and may define the variable. For a core file, they are
    /// listed as missing instead.
    pub(super) fn unreadable_modules(&self) -> &[(OsString, String)] {
        match (self.support(), &self.core) {
            (Support::Readable(variables), None) => &variables.resolution.unreadable,
            _ => &[],
        }
    }

    /// Whether the threads' contexts can be read.
    pub(super) fn support(&self) -> Support<'_> {
        match self.support.as_deref() {
            Ok(ThreadSupport::Readable(variables)) => Support::Readable(variables),
            Ok(ThreadSupport::Unreadable(Unreadable::NoProcessContext | Unreadable::NoSchema)) => {
                Support::Unpublished
            }
            Ok(ThreadSupport::Unreadable(why)) => match why {
                Unreadable::UnsupportedSchema(schema) => match self.runtime_of(schema) {
                    Some(runtime) => Support::ByRuntime(schema, runtime),
                    None => Support::Unreadable(why),
                },
                _ => Support::Unreadable(why),
            },
            Err(error) => Support::Unknown(error),
        }
    }

    /// The runtime that reads the threads' contexts of this schema.
    fn runtime_of(&self, schema: &Schema) -> Option<&'static str> {
        let mut present = self.runtimes.present.iter();
        Some(present.find(|it| it.reads_schema(schema))?.name)
    }

    /// The command that reads a process context that is too large.
    pub(super) fn larger_payload(&self) -> Option<String> {
        match self.context {
            ContextState::Broken(Broken::TooLarge { size, .. }) => {
                Some(format!("--max-payload {size} reads it"))
            }
            _ => None,
        }
    }
}

/// Whether the threads' contexts can be read.
#[derive(Debug)]
pub(super) enum Support<'r> {
    /// They can, from these variables.
    Readable(&'r ThreadVariables),
    /// The process announces them with this schema, which the runtime with this name reads.
    ByRuntime(&'r Schema, &'static str),
    /// The process does not announce any.
    Unpublished,
    /// The process announces them, but they cannot be read.
    Unreadable(&'r Unreadable),
    /// There was not enough time to find out.
    Unknown(&'r Error),
}
