//! The result of inspecting one process.

use std::ffi::OsString;
use std::path::PathBuf;

use otelctx_reader::format::Schema;
use otelctx_reader::format::record::DecodedContext;
use otelctx_reader::runtime::RuntimeReading;
use otelctx_reader::sweep::{Swept, ThreadReading};
use otelctx_reader::{
    Broken, ContextState, Detected, Error, Found, StopReason, ThreadSupport, ThreadVariables,
    Unreadable,
};
use otelctx_waits::Reason;
use serde::Serialize;

use super::stack::{Code, Named, ThreadStack};

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
    /// `--force` was given.
    pub(super) forced: bool,
    /// `--no-stop` was given: the threads were running while they were read.
    pub(super) running: bool,
    pub(super) context: ContextState,
    /// Attributes that were detected because the process publishes nothing readable.
    pub(super) detected: Option<Detected>,
    pub(super) threads: Vec<ThreadReport>,
    pub(super) swept: Swept,
    /// The code that the threads' stacks are in, with `--stacks`.
    pub(super) code: Option<Code>,
    pub(super) named: Named,
}

/// Facts about a core file, in addition to those about every process.
#[derive(Debug, Serialize)]
pub(super) struct CoreReport {
    pub(super) file: PathBuf,
    /// The signal that terminated the process, if any.
    pub(super) signal: Option<String>,
    /// The thread that received the signal.
    pub(super) crashed_thread: Option<i32>,
    /// One sentence for each missing part.
    pub(super) missing: Vec<String>,
}

#[derive(Debug)]
pub(super) struct ThreadReport {
    pub(super) tid: i32,
    /// `None` if a core file does not contain it.
    pub(super) name: Option<OsString>,
    pub(super) context: Result<Found<DecodedContext>, String>,
    pub(super) stop: Option<StopReason>,
    /// Another source has a context with different IDs.
    pub(super) is_conflict: bool,
    pub(super) runtimes: Vec<RuntimeReading>,
    /// Its native stack, with `--stacks`.
    pub(super) stack: Option<ThreadStack>,
    /// Why it waits, with `--waits`, if it sleeps.
    pub(super) wait: Option<Reason>,
}

impl ThreadReport {
    /// `while_running`: its native context was read while it ran.
    pub(super) fn new(
        thread: ThreadReading,
        stack: Option<ThreadStack>,
        while_running: bool,
    ) -> Self {
        let context = match thread.context {
            Ok(Found::Unreadable(step)) if while_running => Err(format!(
                "{step} while the thread ran: try without --no-stop"
            )),
            Ok(found) => Ok(found),
            Err(error) => Err(error.to_string()),
        };
        Self {
            tid: thread.tid,
            name: thread.name,
            context,
            stop: thread.stop,
            is_conflict: thread.is_conflict,
            runtimes: thread.runtimes,
            stack,
            wait: None,
        }
    }
}

impl Report {
    /// Returns whether something is published that is unreadable, or was not read. Publishing nothing
    /// is not a problem.
    pub(super) fn has_problem(&self) -> bool {
        let missing = self.core.as_ref().map_or(0, |core| core.missing.len());
        missing > 0
            || self.swept.partial.is_some()
            || matches!(self.context, ContextState::Broken(_))
            || match self.support() {
                Support::Readable(_) => self.threads.iter().any(|thread| thread.context.is_err()),
                Support::Unpublished | Support::ByRuntime(..) => false,
                // A library with the variable may be loaded later: nothing was missed.
                Support::Unreadable(Unreadable::NotFound { unreadable }) => {
                    self.forced || !unreadable.is_empty()
                }
                Support::Unreadable(_) | Support::Unknown(_) => true,
            }
    }

    /// Returns the number of threads that were stopped to be read, and how many of them were running;
    /// `None` for a core file.
    pub(super) fn stopped_threads(&self) -> Option<(usize, usize)> {
        let stops = || self.threads.iter().filter_map(|thread| thread.stop);
        let running = stops().filter(|stop| *stop == StopReason::Running).count();
        self.core.is_none().then(|| (stops().count(), running))
    }

    /// Number of threads whose sources have contradictory contexts.
    pub(super) fn conflicts(&self) -> usize {
        let threads = self.threads.iter();
        threads.filter(|thread| thread.is_conflict).count()
    }

    /// Modules that could not be read, and may define the variable. For a core file, they are
    /// listed as missing instead.
    pub(super) fn unreadable_modules(&self) -> &[(OsString, String)] {
        match (self.support(), &self.core) {
            (Support::Readable(variables), None) => &variables.resolution.unreadable,
            _ => &[],
        }
    }

    /// Returns how the threads' contexts can be read, or why not.
    pub(super) fn support(&self) -> Support<'_> {
        match self.swept.support.as_deref() {
            Ok(ThreadSupport::Readable(variables)) => Support::Readable(variables),
            Ok(ThreadSupport::Unreadable(Unreadable::NoProcessContext | Unreadable::NoSchema)) => {
                Support::Unpublished
            }
            Ok(ThreadSupport::Unreadable(why @ Unreadable::UnsupportedSchema(schema))) => {
                let mut present = self.swept.runtimes.iter();
                let runtime = present.find(|it| it.reads_schema(schema));
                runtime.map_or(Support::Unreadable(why), |it| {
                    Support::ByRuntime(schema, it.name)
                })
            }
            Ok(ThreadSupport::Unreadable(why)) => Support::Unreadable(why),
            Err(error) => Support::Unknown(error),
        }
    }

    /// Returns the option that reads a process context that is too large.
    pub(super) fn larger_payload(&self) -> Option<String> {
        match self.context {
            ContextState::Broken(Broken::TooLarge { size, .. }) => {
                Some(format!("--max-payload {size} reads it"))
            }
            _ => None,
        }
    }
}

/// The way to read the threads' contexts, or why there is none.
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
