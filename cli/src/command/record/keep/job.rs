//! The thread that writes what is kept.

use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::{Scope, ScopedJoinHandle};

use otelctx_profile::Parts;

use super::super::output::Written;
use super::super::send::Collector;

/// What was written.
#[derive(Debug)]
pub(in crate::command::record) struct Done {
    /// The end of what was written, in nanoseconds after 1970-01-01 UTC.
    pub(in crate::command::record) end_unix: u64,
    pub(in crate::command::record) duration_ns: u64,
    pub(in crate::command::record) samples: usize,
    pub(in crate::command::record) written: Vec<Written>,
    /// True if a collector accepted it.
    pub(in crate::command::record) is_sent: bool,
    pub(in crate::command::record) failed: Vec<String>,
}

/// The thread, which ends with its scope. One job at a time.
pub(super) struct Jobs<'scope> {
    jobs: SyncSender<Parts>,
    done: Receiver<Done>,
    thread: ScopedJoinHandle<'scope, Option<Collector>>,
}

impl<'scope> Jobs<'scope> {
    /// Starts the thread. `write` writes a recording, and sends it to the collector.
    pub(super) fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        mut collector: Option<Collector>,
        write: impl Fn(Parts, &mut Option<Collector>) -> Done + Send + 'scope,
    ) -> Self {
        let (jobs, receiver) = sync_channel(1);
        let (sender, done) = sync_channel(1);
        let thread = scope.spawn(move || {
            for parts in receiver {
                // Received before the next job is sent.
                let _ = sender.send(write(parts, &mut collector));
            }
            collector
        });
        Self { jobs, done, thread }
    }

    /// Starts a job. The one before must be done.
    pub(super) fn send(&self, parts: Parts) {
        // If the thread has panicked, `end` passes that on.
        let _ = self.jobs.send(parts);
    }

    /// Returns what the current job has written, if it is done.
    pub(super) fn done(&self) -> Result<Done, TryRecvError> {
        self.done.try_recv()
    }

    /// Waits for the current job.
    pub(super) fn wait(&self) -> Option<Done> {
        self.done.recv().ok()
    }

    /// Ends the thread, and returns the collector.
    pub(super) fn end(self) -> Option<Collector> {
        drop(self.jobs);
        let ended = self.thread.join();
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
