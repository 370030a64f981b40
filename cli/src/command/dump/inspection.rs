//! Inspects one process: what it publishes, then its threads.

use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::{Duration, Instant};

use otelctx_reader::{
    ContextState, Error, Found, Options, Process, Thread, ThreadSupport, ThreadVariables, Threads,
    remote::{self, Stopped},
};
use otelctx_sampler::{Snapshots, ThreadSnapshot};

use super::report::{MAX_CONTEXTS, Report, ThreadReport};
use super::runtimes::{self, Runtimes, report_of};
use super::stacks::{Code, Named, StackOptions, StackReader};
use crate::command::deadline::thread_count;
use crate::command::partial::{Partial, PartialReason};
use crate::command::retry::{Again, read_thread, settle};
use crate::error::is_gone;

/// Fraction of the time for reading threads. The rest is for checking whether libraries were
/// unloaded, and for writing.
const FOR_THREADS: f64 = 0.9;
/// Maximum number of times to read the threads if libraries are unloaded each time.
const MAX_READS: usize = 3;
/// Additional time for that check, as a fraction of the time: without it, no result is reliable.
const FOR_MODULES: f64 = 0.1;
/// Fraction of the time for reading threads that may be spent on listing them.
const FOR_LIST: f64 = 0.5;

/// A process whose context was read, but not its threads yet.
#[derive(Debug)]
pub(super) struct Inspection {
    process: Process,
    context: ContextState,
    timeout: Duration,
    until: Until,
    /// How to walk the threads' stacks, if that was asked for.
    stacks: Option<StackOptions>,
}

/// Deadlines of the steps.
#[derive(Clone, Copy, Debug)]
struct Until {
    list: Instant,
    threads: Instant,
    end: Instant,
}

impl Inspection {
    /// Opens a process with `open` and these options, and reads its context, for at most `timeout`.
    pub(super) fn begin(
        mut options: Options,
        timeout: Duration,
        open: impl FnOnce(Options) -> Result<Process, Error>,
    ) -> Result<Self, Error> {
        let start = Instant::now();
        let until = Until {
            list: start + timeout.mul_f64(FOR_THREADS * FOR_LIST),
            threads: start + timeout.mul_f64(FOR_THREADS),
            end: start + timeout.mul_f64(1.0 + FOR_MODULES),
        };
        options.deadline = Some(until.threads);
        let mut process = open(options)?;
        let context = process.context()?;
        Ok(Self {
            process,
            context,
            timeout,
            until,
            stacks: None,
        })
    }

    /// Also walks the threads' stacks.
    pub(super) fn with_stacks(mut self, stacks: Option<&StackOptions>) -> Self {
        self.stacks = stacks.cloned();
        self
    }

    /// The process context.
    pub(super) fn context(&self) -> &ContextState {
        &self.context
    }

    /// Reads the threads, with `snapshots` if no thread may be stopped. Otherwise this stops
    /// threads, so it must be called on its own OS thread.
    pub(super) fn finish(mut self, mut snapshots: Option<&mut Snapshots>) -> Result<Report, Error> {
        let detected = match (&self.context, self.process.running()) {
            (ContextState::Published(_), _) | (_, Err(_)) => None,
            _ => Some(self.process.detected()?),
        };
        let (mut kernel_workers, mut code) = (0, None);
        let (support, reports, runtimes, partial) = match self.settled(&mut snapshots) {
            Ok(seen) => {
                (kernel_workers, code) = (seen.kernel_workers, seen.code);
                (Ok(seen.support), seen.reports, seen.runtimes, seen.partial)
            }
            Err(error @ Error::Deadline { .. }) => {
                let partial = self.none_read();
                (Err(error), Vec::new(), Runtimes::default(), Some(partial))
            }
            Err(error) => return Err(error),
        };
        Ok(Report {
            pid: self.process.pid(),
            comm: self.process.comm()?,
            asked_thread: None,
            shares_memory_with: None,
            core: None,
            forced: self.process.options().any_schema,
            running: snapshots.is_some(),
            context: self.context,
            detected,
            support,
            reports,
            runtimes,
            kernel_workers,
            code,
            named: Named::default(),
            partial,
        })
    }

    /// Reads the threads; again if a library was unloaded meanwhile, because other data may have
    /// taken the place of its variable.
    fn settled(&mut self, snapshots: &mut Option<&mut Snapshots>) -> Result<Readings, Error> {
        let mut seen = self.read_threads(snapshots)?;
        let mut reads = 1;
        while !self.are_modules_unchanged()? {
            if reads == MAX_READS || Instant::now() >= self.until.threads {
                return Ok(seen.forget(PartialReason::Modules(self.timeout)));
            }
            self.process.set_deadline(Some(self.until.threads));
            self.context = self.process.context()?;
            seen = self.read_threads(snapshots)?;
            reads += 1;
        }
        Ok(seen)
    }

    /// Whether the modules stayed the same while the threads were read. False if there was no time
    /// to check.
    fn are_modules_unchanged(&mut self) -> Result<bool, Error> {
        self.process.set_deadline(Some(self.until.end));
        let unchanged = match self.process.modules_unchanged() {
            Ok(false) => self.process.variables_unchanged(),
            unchanged => unchanged,
        };
        match unchanged {
            Err(Error::Deadline { .. }) => Ok(false),
            // Also if the process has ended: data that was read from it is valid.
            unchanged => Ok(unchanged.unwrap_or(true)),
        }
    }

    /// The partial result if determining how to read the threads took all the time.
    fn none_read(&self) -> Partial {
        Partial {
            read: 0,
            of: thread_count(&self.process),
            why: PartialReason::Deadline(self.timeout),
        }
    }

    /// Reads each thread. Threads that end meanwhile are omitted.
    fn read_threads(&mut self, snapshots: &mut Option<&mut Snapshots>) -> Result<Readings, Error> {
        let until = self.until;
        let may_change = self.process.running().is_ok();
        let present = self.process.runtimes()?;
        if self.stacks.is_some() {
            // Also if the process publishes nothing.
            drop(self.process.target()?);
        }
        let Threads {
            support,
            threads,
            is_complete,
            ..
        } = self
            .process
            .threads_of(&self.context, || Instant::now() < until.list)?;
        let late = PartialReason::Deadline(self.timeout);
        let is_readable = matches!(*support, ThreadSupport::Readable(_));
        let runtimes = match threads.first() {
            Some(thread) if !present.is_empty() => {
                let process = thread.process();
                let support = support.clone();
                Some(runtimes::Reader::start(
                    process,
                    support,
                    present,
                    until.threads,
                )?)
            }
            _ => None,
        };
        let stacks = match (&self.stacks, threads.first()) {
            (Some(options), Some(thread)) => {
                let reader = StackReader::start(thread.process(), options, until.threads);
                Some(reader)
            }
            _ => None,
        };
        if let (ThreadSupport::Readable(variables), Some(snapshots)) =
            (&*support, snapshots.as_deref_mut())
        {
            let (names, variables) = (names(&threads), variables.clone());
            let mut walked = HashMap::new();
            let mut around = |tid, read: &mut dyn FnMut() -> InspectedThread| match &stacks {
                None => read(),
                Some(stacks) => {
                    let (inspected, stack) = stacks.read_unstopped(tid, read);
                    walked.insert(tid, stack);
                    inspected
                }
            };
            let asleep = runtimes.map(|reader| reader.asleep(&threads, until.threads, &mut around));
            let stacks = stacks.map(|reader| {
                let (stacks, mut code) = reader.all_asleep(&threads, walked);
                reader.read_generated(&mut code);
                (stacks, code)
            });
            let mut seen = snapshot(&mut self.process, support, &variables, names, snapshots)?;
            if let Some(asleep) = asleep {
                seen.runtimes = asleep.add_to(&mut seen.reports);
            }
            if let Some((stacks, code)) = stacks {
                stacks.add_to(&mut seen.reports);
                seen.code = Some(code);
            }
            return Ok(seen);
        }
        let read_context =
            |thread: &Thread<'_>, stopped: Option<&Stopped>| match (&runtimes, stopped) {
                (Some(runtimes), _) => runtimes.read(thread, stopped),
                (None, Some(stopped)) => inspect_stopped(thread, stopped, is_readable),
                (None, None) => inspect_thread(thread, is_readable),
            };
        let read = |thread: &Thread<'_>| match &stacks {
            Some(stacks) => {
                let stopped = runtimes.as_ref().and_then(|it| it.stopped(thread.tid()));
                stacks.read(thread, stopped, |stopped| read_context(thread, stopped))
            }
            None => read_context(thread, None),
        };
        let mut reports: Vec<ThreadReport> = Vec::new();
        // The thread of each result, and the results with an invalid record.
        let (mut read_threads, mut invalid) = (Vec::new(), Vec::new());
        let mut kept = 0;
        let (mut ended, mut kernel_workers) = (0, 0);
        let mut why = (!is_complete).then_some(late);
        for thread in &threads {
            if Instant::now() >= until.threads {
                why = Some(late);
                break;
            }
            if kept > MAX_CONTEXTS {
                why = Some(PartialReason::Memory(MAX_CONTEXTS));
                break;
            }
            match read(thread) {
                InspectedThread::Read(result) => {
                    kept += result.size();
                    if result.is_invalid() && may_change {
                        invalid.push(reports.len());
                    }
                    reports.push(result);
                    read_threads.push(thread);
                }
                InspectedThread::Ended => ended += 1,
                InspectedThread::KernelWorker => kernel_workers += 1,
            }
        }
        let is_settled = settle(&mut invalid, until.threads, |index| {
            let InspectedThread::Read(result) = read(read_threads[index]) else {
                return Again::Settled;
            };
            let (is_invalid, asleep) = (result.is_invalid(), result.stop.is_none());
            let stop = reports[index].stop.or(result.stop);
            reports[index] = ThreadReport { stop, ..result };
            match is_invalid {
                true => Again::Invalid { asleep },
                false => Again::Settled,
            }
        });
        if is_settled {
            for index in invalid {
                reports[index].outcome = Some(Ok(Found::Detached));
            }
        }
        let all = || reports.iter().filter_map(ThreadReport::stack);
        let mut code = stacks.as_ref().map(|stacks| stacks.code(all()));
        // The process may have been stopped as a whole until then.
        let runtimes = runtimes.map(|reader| reader.finish(&reports));
        if let (Some(stacks), Some(code)) = (&stacks, &mut code) {
            stacks.read_generated(code);
        }
        let mut of = threads.len() - ended - kernel_workers;
        if !is_complete {
            of = of.max(thread_count(&self.process));
        }
        let read = reports.len();
        let partial = why.map(|why| Partial { read, of, why });
        Ok(Readings {
            support,
            reports,
            runtimes: runtimes.unwrap_or_default(),
            kernel_workers,
            code,
            partial,
        })
    }
}

/// The readings of all threads.
struct Readings {
    support: Arc<ThreadSupport>,
    reports: Vec<ThreadReport>,
    runtimes: Runtimes,
    /// Number of skipped threads: the kernel's io_uring workers.
    kernel_workers: usize,
    /// The code that the threads' stacks are in.
    code: Option<Code>,
    partial: Option<Partial>,
}

impl Readings {
    /// Keeps only the number of threads.
    fn forget(mut self, why: PartialReason) -> Self {
        // Without contexts, nothing can be wrong.
        if matches!(*self.support, ThreadSupport::Readable(_)) {
            let of = self
                .partial
                .map_or(self.reports.len(), |partial| partial.of);
            self.reports.clear();
            self.partial = Some(Partial { read: 0, of, why });
        }
        self
    }
}

/// The IDs and names of the threads in a snapshot.
fn names(threads: &[Thread<'_>]) -> Vec<(i32, OsString)> {
    let named = |thread: &Thread<'_>| Some((thread.tid(), thread.name().ok()??));
    threads.iter().filter_map(named).collect()
}

/// Reads each thread without stopping it.
fn snapshot(
    process: &mut Process,
    support: Arc<ThreadSupport>,
    variables: &ThreadVariables,
    names: Vec<(i32, OsString)>,
    snapshots: &mut Snapshots,
) -> Result<Readings, Error> {
    let mut reports: Vec<ThreadReport> = match snapshots.threads(process, variables) {
        Ok(threads) => threads.into_iter().map(of_snapshot).collect(),
        Err(otelctx_sampler::Error::Reader(error)) => return Err(error),
        Err(otelctx_sampler::Error::Remote(error)) => return Err(error.into()),
        Err(refused) => {
            let refused = refused.to_string();
            let result = |(tid, name)| ThreadReport {
                outcome: Some(Err(refused.clone())),
                ..ThreadReport::new(tid, Some(name), None)
            };
            names.into_iter().map(result).collect()
        }
    };
    let of = reports.len();
    let mut kept = 0;
    let whole = reports.iter().take_while(|result| {
        kept += result.size();
        kept <= MAX_CONTEXTS
    });
    let read = whole.count();
    reports.truncate(read);
    let why = PartialReason::Memory(MAX_CONTEXTS);
    Ok(Readings {
        support,
        reports,
        runtimes: Runtimes::default(),
        kernel_workers: 0,
        code: None,
        partial: (read < of).then_some(Partial { read, of, why }),
    })
}

fn of_snapshot(thread: ThreadSnapshot) -> ThreadReport {
    let outcome = match thread.context {
        Found::Unreadable(step) => Err(format!(
            "{step} while the thread ran: try without --no-stop"
        )),
        outcome => Ok(outcome),
    };
    ThreadReport {
        outcome: Some(outcome),
        ..ThreadReport::new(thread.tid, Some(thread.name.into()), None)
    }
}

/// The outcome of reading one thread.
pub(super) enum InspectedThread {
    Read(ThreadReport),
    Ended,
    KernelWorker,
}

/// Reads a thread.
fn inspect_thread(thread: &Thread<'_>, is_readable: bool) -> InspectedThread {
    let mut stop = None;
    let (name, outcome) = match thread.name() {
        Ok(name) if is_readable => {
            let reading = read_thread(thread);
            stop = reading.stop;
            (name, Some(reading.outcome))
        }
        Ok(name) => (name, None),
        Err(error) => (None, Some(Err(error))),
    };
    match &outcome {
        Some(Err(error)) if is_gone(error) => InspectedThread::Ended,
        Some(Err(Error::Remote(remote::Error::KernelWorker { .. }))) => {
            InspectedThread::KernelWorker
        }
        _ => InspectedThread::Read(ThreadReport {
            stop,
            ..ThreadReport::new(thread.tid(), name, outcome)
        }),
    }
}

/// Reads a stopped thread.
fn inspect_stopped(thread: &Thread<'_>, stopped: &Stopped, is_readable: bool) -> InspectedThread {
    if !is_readable {
        return inspect_thread(thread, is_readable);
    }
    let state = thread
        .name()
        .and_then(|name| Ok((name, thread.state(&[], Some(stopped))?)));
    match state {
        Ok((name, state)) => InspectedThread::Read(report_of(thread.tid(), name, state)),
        Err(error) if is_gone(&error) => InspectedThread::Ended,
        Err(error) => {
            InspectedThread::Read(ThreadReport::new(thread.tid(), None, Some(Err(error))))
        }
    }
}

#[cfg(test)]
mod tests;
