//! The thread that writes what is kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Instant;

use otelctx_profile::Parts;

use super::super::output::Written;

/// Pause after resolving functions, as a multiple of the time that it took: at most 2 % of a CPU.
const RESOLVE_PAUSE: u32 = 50;

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

/// The work of the thread.
pub(in crate::command::record) trait Work: Send {
    /// Writes a recording.
    fn write(&mut self, parts: Parts) -> Done;

    /// Resolves the functions of a recording, for the files that are written later. Returns soon once a file is to be
    /// written.
    fn resolve(&mut self, parts: Parts);
}

enum Job {
    Write(Parts),
    Resolve(Parts),
}

/// The thread, which ends with its scope.
pub(super) struct Jobs<'scope, W> {
    jobs: SyncSender<Job>,
    done: Receiver<Done>,
    /// True while a file is to be written.
    hurry: Arc<AtomicBool>,
    thread: ScopedJoinHandle<'scope, W>,
}

impl<'scope, W: Work + 'scope> Jobs<'scope, W> {
    /// Starts the thread. `work` reads `hurry` while it resolves.
    pub(super) fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        mut work: W,
        hurry: Arc<AtomicBool>,
    ) -> Self {
        // One of each kind: sampling never waits for a slot.
        let (jobs, receiver) = sync_channel(2);
        let (sender, done) = sync_channel(1);
        let hurries = Arc::clone(&hurry);
        let thread = scope.spawn(move || {
            let mut rests_until = Instant::now();
            for job in receiver {
                match job {
                    Job::Write(parts) => {
                        hurries.store(false, Ordering::Relaxed);
                        // Received before the next one is sent.
                        let _ = sender.send(work.write(parts));
                    }
                    Job::Resolve(parts) => {
                        let begun = Instant::now();
                        if begun >= rests_until {
                            work.resolve(parts);
                            rests_until = Instant::now() + RESOLVE_PAUSE * begun.elapsed();
                        }
                    }
                }
            }
            work
        });
        Self {
            jobs,
            done,
            hurry,
            thread,
        }
    }

    /// Starts to write. The job before must be done.
    pub(super) fn write(&self, parts: Parts) {
        self.hurry.store(true, Ordering::Relaxed);
        // If the thread has panicked, `end` passes that on.
        let _ = self.jobs.send(Job::Write(parts));
    }

    /// Resolves functions, unless there is other work.
    pub(super) fn resolve(&self, parts: Parts) {
        // The next ones will do.
        let _ = self.jobs.try_send(Job::Resolve(parts));
    }

    /// Returns what the current job has written, if it is done.
    pub(super) fn done(&self) -> Result<Done, TryRecvError> {
        self.done.try_recv()
    }

    /// Waits for the current job.
    pub(super) fn wait(&self) -> Option<Done> {
        self.done.recv().ok()
    }

    /// Ends the thread, and returns what does the work.
    pub(super) fn end(self) -> W {
        self.hurry.store(true, Ordering::Relaxed);
        drop(self.jobs);
        let ended = self.thread.join();
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
