//! Inspects one process: what it publishes, then its threads.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use otelctx_reader::remote::Stopped;
use otelctx_reader::runtime;
use otelctx_reader::sweep::{Mode, PartialReason, SnapshotSource, Sweep, ThreadReading, Visitor};
use otelctx_reader::{ContextState, Error, Options, Process, Thread};

use super::model::{Report, ThreadReport};
use super::stack::Named;
use super::stacks::{StackOptions, StackReader};

/// A process whose context was read, but not its threads yet.
pub(super) struct Inspection<'s> {
    process: Process,
    pub(super) context: ContextState,
    sweep: Sweep<'s>,
    is_unstopped: bool,
    collector: Collector,
}

impl<'s> Inspection<'s> {
    /// Opens a process with `open` and these options, and reads its context, within `timeout`.
    pub(super) fn begin(
        mut options: Options,
        timeout: Duration,
        open: impl FnOnce(Options) -> Result<Process, Error>,
    ) -> Result<Self, Error> {
        let sweep = Sweep::within(timeout);
        options.deadline = Some(sweep.deadline());
        let mut process = open(options)?;
        let context = process.context()?;
        Ok(Self {
            process,
            context,
            sweep,
            is_unstopped: false,
            collector: Collector::default(),
        })
    }

    /// Also walks the threads' stacks.
    pub(super) fn with_stacks(mut self, stacks: Option<&StackOptions>) -> Self {
        self.collector.stacks = stacks.map(StackReader::new);
        self
    }

    /// Stops no thread, and reads contexts from `snapshots`.
    pub(super) fn with_snapshots(mut self, snapshots: Option<&'s mut dyn SnapshotSource>) -> Self {
        if let Some(source) = snapshots {
            self.sweep = self.sweep.with_mode(Mode::Snapshot(source));
            self.is_unstopped = true;
        }
        self
    }

    /// Reads the threads. Without snapshots this stops threads, so it must be called on an OS thread
    /// of its own.
    pub(super) fn finish(self) -> Result<Report, Error> {
        let (mut process, mut context) = (self.process, self.context);
        let detected = match (&context, process.running()) {
            (ContextState::Published(_), _) | (_, Err(_)) => None,
            _ => Some(process.detected()?),
        };
        if self.collector.stacks.is_some() {
            // Opens its memory, also if it publishes nothing.
            drop(process.target()?);
        }
        let (sweep, mut collector) = (self.sweep, self.collector);
        let mut swept = sweep.run_of(&mut process, &mut context, &mut collector)?;
        let (threads, mut stacks) = (collector.threads, collector.stacks);
        if let Some(partial) = &mut swept.partial {
            // A thread that did not stop in time is shown, with its error.
            partial.read = threads.len();
            let is_whole = partial.read > 0 && partial.read == partial.of;
            if is_whole && matches!(partial.why, PartialReason::Deadline(_)) {
                swept.partial = None;
            }
        }
        let mut reasons = stacks.as_mut().map(|it| std::mem::take(&mut it.reasons));
        let mut stacks = stacks.filter(StackReader::are_shown);
        if let Some(stacks) = &mut stacks {
            stacks.read_generated(&process);
        }
        let (mut stacks, code) = stacks.map_or_else(Default::default, |it| (it.stacks, it.code));
        let while_running = self.is_unstopped && swept.is_readable();
        let target = process.as_target();
        let threads = threads.into_iter().map(|mut thread| {
            let name = target.as_ref().and_then(|target| {
                runtime::thread_name(&swept.runtimes, &**target, thread.tid, &thread.runtimes)
            });
            thread.name = name.map(OsString::from).or(thread.name);
            let stack = stacks.remove(&thread.tid);
            let wait = reasons.as_mut().and_then(|it| it.remove(&thread.tid));
            let report = ThreadReport::new(thread, stack, while_running);
            ThreadReport { wait, ..report }
        });
        let threads = threads.collect();
        drop(target);
        Ok(Report {
            pid: process.pid(),
            comm: process.comm()?,
            asked_thread: None,
            shares_memory_with: None,
            core: None,
            forced: process.options().any_schema,
            running: self.is_unstopped,
            context,
            detected,
            threads,
            swept,
            code,
            named: Named::default(),
        })
    }
}

/// The threads, and their stacks if they are wanted.
#[derive(Default)]
struct Collector {
    threads: Vec<ThreadReading>,
    stacks: Option<StackReader>,
}

impl Visitor for Collector {
    fn visit(&mut self, thread: ThreadReading) {
        self.threads.push(thread);
    }

    fn begin(&mut self, process: &Process, deadline: Instant) {
        if let Some(stacks) = &mut self.stacks {
            stacks.begin(process, deadline);
        }
    }

    fn read(
        &mut self,
        thread: &Thread<'_>,
        stopped: Option<&Stopped>,
        read: &mut dyn FnMut(Option<&Stopped>) -> ThreadReading,
    ) -> ThreadReading {
        match &mut self.stacks {
            Some(stacks) => stacks.read(thread, stopped, read),
            None => read(stopped),
        }
    }

    fn memory(&self) -> usize {
        self.stacks.as_ref().map_or(0, |it| it.memory)
    }

    fn end(&mut self, process: &Process) {
        if let Some(stacks) = &mut self.stacks {
            stacks.end(process);
        }
    }
}
