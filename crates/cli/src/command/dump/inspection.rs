//! Inspecting one process: what it publishes, then its threads.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::{Duration, Instant};

use otelctx_reader::{
    ContextState, Error, Found, Options, Process, Thread, ThreadSupport, ThreadVariables, Threads,
    remote,
};
use otelctx_sampler::{Snapshots, ThreadSnapshot};

use super::report::{Look, MOST_CONTEXTS, Report};
use super::runtimes::{self, Runtimes};
use crate::command::deadline::thread_count;
use crate::command::partial::{Partial, PartialReason};
use crate::command::retry::{Again, read_thread, settle};
use crate::error::is_gone;

/// Of the time that is given, the part in which threads are read: 9 of 10. The rest is for finding
/// out whether libraries went meanwhile, and for writing.
const FOR_THREADS: f64 = 0.9;
/// Times that the threads are read where libraries were unloaded meanwhile each time.
const MAX_READS: usize = 3;
/// How long finding that out may take beyond it all: without an answer nothing that was read counts.
const FOR_MODULES: f64 = 0.1;
/// Of that time, the part that may be spent on listing the threads.
const FOR_LIST: f64 = 0.5;

/// A process whose process context has been read, but not its threads yet.
#[derive(Debug)]
pub(super) struct Inspection {
    process: Process,
    context: ContextState,
    timeout: Duration,
    until: Until,
}

/// Until when what is done.
#[derive(Clone, Copy, Debug)]
struct Until {
    list: Instant,
    threads: Instant,
    end: Instant,
}

impl Inspection {
    /// Reads the context of the process that `open` opens with these options, for at most `timeout`.
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
        })
    }

    /// What the process says of itself.
    pub(super) fn context(&self) -> &ContextState {
        &self.context
    }

    /// Reads the threads, through `snapshots` if no thread may be stopped. To be called on a thread of
    /// its own, because it stops threads otherwise.
    pub(super) fn finish(mut self, mut snapshots: Option<&mut Snapshots>) -> Result<Report, Error> {
        let detected = match (&self.context, self.process.running()) {
            (ContextState::Published(_), _) | (_, Err(_)) => None,
            _ => Some(self.process.detected()?),
        };
        let mut kernel_workers = 0;
        let (support, looks, runtimes, partial) = match self.settled(&mut snapshots) {
            Ok(seen) => {
                kernel_workers = seen.kernel_workers;
                (Ok(seen.support), seen.looks, seen.runtimes, seen.partial)
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
            looks,
            runtimes,
            kernel_workers,
            partial,
        })
    }

    /// The threads; again if a library went meanwhile, which may have left others' data where its
    /// variable was.
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

    /// Whether the modules stayed the same while the threads were read; not, if there was no time to
    /// find out.
    fn are_modules_unchanged(&mut self) -> Result<bool, Error> {
        self.process.set_deadline(Some(self.until.end));
        let unchanged = match self.process.modules_unchanged() {
            Ok(false) => self.process.variables_unchanged(),
            unchanged => unchanged,
        };
        match unchanged {
            Err(Error::Deadline { .. }) => Ok(false),
            // Also if the process has ended: what was read of it stands.
            unchanged => Ok(unchanged.unwrap_or(true)),
        }
    }

    /// For when it took all the time to find out how the threads are read.
    fn none_read(&self) -> Partial {
        Partial {
            read: 0,
            of: thread_count(&self.process),
            why: PartialReason::Deadline(self.timeout),
        }
    }

    /// What each thread works on. One that ends meanwhile is left out.
    fn read_threads(&mut self, snapshots: &mut Option<&mut Snapshots>) -> Result<Readings, Error> {
        let until = self.until;
        let may_change = self.process.running().is_ok();
        let present = self.process.runtimes()?;
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
                Some(runtimes::Reader::start(process, present, until.threads)?)
            }
            _ => None,
        };
        if let (ThreadSupport::Readable(variables), Some(snapshots)) =
            (&*support, snapshots.as_deref_mut())
        {
            let (names, variables) = (names(&threads), variables.clone());
            let asleep = runtimes.map(|reader| reader.asleep(&threads, until.threads));
            let mut seen = snapshot(&mut self.process, support, &variables, names, snapshots)?;
            if let Some(asleep) = asleep {
                seen.runtimes = asleep.add_to(&mut seen.looks);
            }
            return Ok(seen);
        }
        let read = |thread| match &runtimes {
            Some(runtimes) => runtimes.look(thread),
            None => look(thread, is_readable),
        };
        let mut looks: Vec<Look> = Vec::new();
        // The thread that each look is of, and which looks found an invalid record.
        let (mut read_threads, mut invalid) = (Vec::new(), Vec::new());
        let mut kept = 0;
        let (mut ended, mut kernel_workers) = (0, 0);
        let mut why = (!is_complete).then_some(late);
        for thread in &threads {
            if Instant::now() >= until.threads {
                why = Some(late);
                break;
            }
            if kept > MOST_CONTEXTS {
                why = Some(PartialReason::Memory(MOST_CONTEXTS));
                break;
            }
            match read(thread) {
                ThreadOutcome::Read(look) => {
                    kept += look.size();
                    if look.is_invalid() && may_change {
                        invalid.push(looks.len());
                    }
                    looks.push(look);
                    read_threads.push(thread);
                }
                ThreadOutcome::Ended => ended += 1,
                ThreadOutcome::KernelWorker => kernel_workers += 1,
            }
        }
        let is_settled = settle(&mut invalid, until.threads, |index| {
            let ThreadOutcome::Read(look) = read(read_threads[index]) else {
                return Again::Settled;
            };
            let (is_invalid, asleep) = (look.is_invalid(), look.stop.is_none());
            let stop = looks[index].stop.or(look.stop);
            looks[index] = Look { stop, ..look };
            match is_invalid {
                true => Again::Invalid { asleep },
                false => Again::Settled,
            }
        });
        if is_settled {
            for index in invalid {
                looks[index].outcome = Some(Ok(Found::Detached));
            }
        }
        let runtimes = runtimes.map(|reader| reader.finish(&looks));
        let mut of = threads.len() - ended - kernel_workers;
        if !is_complete {
            of = of.max(thread_count(&self.process));
        }
        let read = looks.len();
        let partial = why.map(|why| Partial { read, of, why });
        Ok(Readings {
            support,
            looks,
            runtimes: runtimes.unwrap_or_default(),
            kernel_workers,
            partial,
        })
    }
}

/// What was seen of the threads.
struct Readings {
    support: Arc<ThreadSupport>,
    looks: Vec<Look>,
    runtimes: Runtimes,
    /// Threads that were skipped: workers of the kernel's io_uring.
    kernel_workers: usize,
    partial: Option<Partial>,
}

impl Readings {
    /// Keeps nothing of the threads but their number.
    fn forget(mut self, why: PartialReason) -> Self {
        // Without contexts there is nothing that could be wrong.
        if matches!(*self.support, ThreadSupport::Readable(_)) {
            let of = self.partial.map_or(self.looks.len(), |partial| partial.of);
            self.looks.clear();
            self.partial = Some(Partial { read: 0, of, why });
        }
        self
    }
}

/// The threads that a snapshot is to tell of.
fn names(threads: &[Thread<'_>]) -> Vec<(i32, OsString)> {
    let named = |thread: &Thread<'_>| Some((thread.tid(), thread.name().ok()??));
    threads.iter().filter_map(named).collect()
}

/// What each thread works on, without stopping any.
fn snapshot(
    process: &mut Process,
    support: Arc<ThreadSupport>,
    variables: &ThreadVariables,
    names: Vec<(i32, OsString)>,
    snapshots: &mut Snapshots,
) -> Result<Readings, Error> {
    let all: Vec<Look> = match snapshots.threads(process, variables) {
        Ok(threads) => threads.into_iter().map(of_snapshot).collect(),
        Err(otelctx_sampler::Error::Reader(error)) => return Err(error),
        Err(otelctx_sampler::Error::Remote(error)) => return Err(error.into()),
        Err(refused) => {
            let refused = refused.to_string();
            let look = |(tid, name)| Look {
                outcome: Some(Err(refused.clone())),
                ..Look::new(tid, Some(name), None)
            };
            names.into_iter().map(look).collect()
        }
    };
    let of = all.len();
    let mut kept = 0;
    let mut looks = all;
    let whole = looks.iter().take_while(|look| {
        kept += look.size();
        kept <= MOST_CONTEXTS
    });
    let read = whole.count();
    looks.truncate(read);
    let why = PartialReason::Memory(MOST_CONTEXTS);
    Ok(Readings {
        support,
        looks,
        runtimes: Runtimes::default(),
        kernel_workers: 0,
        partial: (read < of).then_some(Partial { read, of, why }),
    })
}

fn of_snapshot(thread: ThreadSnapshot) -> Look {
    let outcome = match thread.context {
        Found::Unreadable(step) => Err(format!(
            "{step} while the thread ran: try without --no-stop"
        )),
        outcome => Ok(outcome),
    };
    Look {
        outcome: Some(outcome),
        ..Look::new(thread.tid, Some(thread.name.into()), None)
    }
}

/// What reading one thread came to.
pub(super) enum ThreadOutcome {
    Read(Look),
    Ended,
    KernelWorker,
}

/// Reads a thread.
fn look(thread: &Thread<'_>, is_readable: bool) -> ThreadOutcome {
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
        Some(Err(error)) if is_gone(error) => ThreadOutcome::Ended,
        Some(Err(Error::Remote(remote::Error::KernelWorker { .. }))) => ThreadOutcome::KernelWorker,
        _ => ThreadOutcome::Read(Look {
            stop,
            ..Look::new(thread.tid(), name, outcome)
        }),
    }
}

#[cfg(test)]
mod tests;
