//! Conversion of waits to samples.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use otelctx_reader::runtime::RuntimeReading;
use otelctx_sample::{
    Catalog, ContextId, Event, Found, Frame, OffCpu, OffCpuState, ReadStep, Reason, Sample,
    StackEnd,
};

use super::Processes;
use super::reasons::Reasons;
use crate::observation::{Observation, Record};
use crate::tally::Tally;
use crate::waits::{ThreadId, Times, WaitEvent, WaitSnapshot};

/// Maximum number of threads whose waits are kept: 60 MB. Further threads' waits have no context and no stack.
const MAX_KNOWN: usize = 32_768;

/// The waits that go on.
#[derive(Debug)]
pub(crate) struct KnownWaits {
    threads: HashMap<ThreadId, Known, RandomState>,
    /// Changes whenever there is a new catalog.
    generation: u64,
    /// What the usual counters count, of waits.
    tally: Tally,
    /// The last contexts of threads that ran, and when.
    running: HashMap<ThreadId, (u64, ContextId), RandomState>,
    reasons: Reasons,
}

#[derive(Debug)]
struct Known {
    snapshot: WaitSnapshot,
    frames: Arc<[Frame]>,
    end: Option<StackEnd>,
    reason: Option<Reason>,
    /// As the catalog with this generation has it.
    sample: Sample,
    generation: u64,
}

/// What a process's waits need from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    Nothing,
    /// Longer copies of its stacks: the one of the thread has this many bytes, and was walked to its end.
    LongerStacks {
        copied: usize,
    },
    /// The same once more: there was no time to walk the thread's stack.
    AnotherWalk,
}

impl KnownWaits {
    pub(super) fn new() -> Self {
        Self {
            threads: HashMap::default(),
            generation: 0,
            tally: Tally::default(),
            running: HashMap::default(),
            reasons: Reasons::new(),
        }
    }

    /// Notes the context of a thread that runs: it may hold a lock for which others wait.
    pub(crate) fn note_running(&mut self, thread: ThreadId, sample: &Sample) {
        let Found::Attached(context) = sample.found else {
            self.running.remove(&thread);
            return;
        };
        if self.running.len() >= MAX_KNOWN {
            self.running.clear();
        }
        self.running.insert(thread, (sample.time, context));
    }

    /// Returns the context that a thread has had since a time, if that is known.
    fn context_of(&self, thread: ThreadId, since: u64) -> Option<ContextId> {
        let waiting = self
            .threads
            .get(&thread)
            .filter(|it| it.generation == self.generation);
        let waiting = waiting.and_then(|it| it.sample.found.attached().copied());
        let running = self.running.get(&thread).filter(|(time, _)| *time >= since);
        running.map(|(_, context)| *context).or(waiting)
    }

    pub(super) fn reset_catalog(&mut self) {
        self.generation += 1;
        self.running.clear();
    }

    pub(super) fn remove(&mut self, pid: i32) {
        self.threads.retain(|(of, _), _| *of != pid);
        self.running.retain(|(of, _), _| *of != pid);
        self.reasons.remove(pid);
    }
}

impl Processes {
    /// Passes on what was seen of a thread off the CPU.
    pub(crate) fn wait(
        &mut self,
        event: WaitEvent,
        catalog: &mut Catalog,
        on_sample: &mut dyn FnMut(Sample),
    ) -> Needs {
        match event {
            WaitEvent::Same { thread, more, .. } => {
                self.pass_on(thread, more, catalog, on_sample);
                Needs::Nothing
            }
            WaitEvent::New { former, snapshot } => {
                let thread = (snapshot.pid, snapshot.tid);
                self.pass_on(thread, former, catalog, on_sample);
                self.begin_wait(*snapshot, catalog, on_sample)
            }
            WaitEvent::Queued(snapshot) => {
                let sample = self.sample_of(&snapshot, &[], None, catalog);
                on_sample(with_time(
                    sample,
                    snapshot.time,
                    snapshot.state,
                    snapshot.weight,
                ));
                Needs::Nothing
            }
        }
    }

    /// Passes on more time of the known wait of a thread.
    fn pass_on(
        &mut self,
        thread: ThreadId,
        more: Times,
        catalog: &mut Catalog,
        on_sample: &mut dyn FnMut(Sample),
    ) {
        if more.by_state.iter().all(|time| *time == 0) {
            return;
        }
        let known = self.waits.threads.remove(&thread);
        let known = known.filter(|it| it.snapshot.switches == more.switches);
        let Some(mut known) = known else {
            // Another program may have waited: its name is not known any more.
            return;
        };
        if known.generation != self.waits.generation {
            known.sample = self.sample_of(&known.snapshot, &known.frames, known.end, catalog);
            set_reason(&mut known.sample, known.reason.as_ref(), catalog);
            known.generation = self.waits.generation;
        }
        for (state, nanoseconds) in OffCpuState::ALL.into_iter().zip(more.by_state) {
            if nanoseconds > 0 {
                on_sample(with_time(known.sample, more.last, state, nanoseconds));
            }
        }
        self.waits.threads.insert(thread, known);
    }

    fn begin_wait(
        &mut self,
        mut snapshot: WaitSnapshot,
        catalog: &mut Catalog,
        on_sample: &mut dyn FnMut(Sample),
    ) -> Needs {
        let thread = (snapshot.pid, snapshot.tid);
        let mut needs = Needs::Nothing;
        let (mut frames, mut end): (Arc<[Frame]>, _) = (Arc::default(), None);
        snapshot.is_executing = self.is_executing(snapshot.pid, snapshot.time);
        if snapshot.is_executing {
            // Its name and its registers may be those with which the next program starts.
            snapshot.stack = None;
        }
        let stack = snapshot.stack.take();
        if let Some(stack) = stack.clone() {
            let copied = stack.stack.1.len();
            let walked = self.walk_wait(snapshot.pid, snapshot.time, stack);
            if let Some(walked) = walked {
                if walked.end == StackEnd::Unreadable {
                    needs = Needs::LongerStacks { copied };
                }
                (frames, end) = (walked.frames, Some(walked.end));
            } else {
                needs = Needs::AnotherWalk;
            }
        }
        let mut sample = self.sample_of(&snapshot, &frames, end, catalog);
        let tracked = self.following.tracker.get_or_add(snapshot.pid);
        let process = tracked.process.reader().and_then(|it| it.running().ok());
        let reasons = &mut self.waits.reasons;
        let found = reasons.reason(&snapshot, process, &frames, stack.as_deref());
        let reason = found.map(|mut found| {
            if let Some(holder) = found.holder {
                let works_on = self
                    .waits
                    .context_of((snapshot.pid, holder), snapshot.since);
                found.reason.text += &works_on.map_or_else(String::new, |it| named(catalog, it));
            }
            found.reason
        });
        snapshot.call_memory = Vec::new();
        set_reason(&mut sample, reason.as_ref(), catalog);
        on_sample(with_time(
            sample,
            snapshot.time,
            snapshot.state,
            snapshot.weight,
        ));
        if snapshot.is_torn || self.waits.threads.len() >= MAX_KNOWN {
            self.waits.threads.remove(&thread);
        } else {
            let known = Known {
                snapshot,
                frames,
                end,
                reason,
                sample,
                generation: self.waits.generation,
            };
            self.waits.threads.insert(thread, known);
        }
        needs
    }

    /// Converts a snapshot as a sample of a running thread is converted.
    fn sample_of(
        &mut self,
        snapshot: &WaitSnapshot,
        frames: &[Frame],
        end: Option<StackEnd>,
        catalog: &mut Catalog,
    ) -> Sample {
        let context = if snapshot.is_torn {
            Found::Unreadable(ReadStep::Verify)
        } else {
            snapshot.context.as_ref().and_then(|bytes| {
                Found::Attached(Record {
                    serial: snapshot.serial,
                    variable: snapshot.variable,
                    bytes,
                })
            })
        };
        let seen = Observation {
            time: snapshot.time,
            cpu: 0,
            pid: snapshot.pid,
            tid: snapshot.tid,
            comm: &snapshot.comm,
            context,
            runtimes: self.decoded(snapshot),
            is_executing: snapshot.is_executing,
            is_early: false,
            user_stack: frames,
            stack_end: end,
            kernel_stack: &snapshot.kernel_stack,
        };
        std::mem::swap(&mut self.tally, &mut self.waits.tally);
        let mut sample = self.sample(&seen, catalog);
        std::mem::swap(&mut self.tally, &mut self.waits.tally);
        sample.event = Event::OffCpu(OffCpu {
            state: snapshot.state,
            nanoseconds: 0,
            since: snapshot.since,
            reason: None,
        });
        sample
    }
}

impl Processes {
    /// Returns what runtimes report of a thread. Records that they lead to are decoded here, with the keys of the process.
    fn decoded(&self, snapshot: &WaitSnapshot) -> Vec<RuntimeReading> {
        let mut readings = snapshot.runtimes.clone();
        let reader = self.process(snapshot.pid).and_then(|it| it.reader());
        if let Some(reader) = reader {
            readings.iter_mut().for_each(|it| reader.decode_record(it));
        }
        readings
    }
}

/// The route and the start of the trace of a context, as they follow a thread that is named.
fn named(catalog: &Catalog, context: ContextId) -> String {
    /// Digits of a trace ID that are shown.
    const DIGITS: usize = 6;
    let context = catalog.context_facts(context);
    let mut attributes = context.attributes.iter();
    let route = attributes.find(|(name, _)| name == "http.route");
    let route = route.map_or_else(String::new, |(_, route)| format!(", {route}"));
    let trace = context.trace_id.to_string();
    if context.trace_id.is_zero() {
        return route;
    }
    let separator = if route.is_empty() { ", trace" } else { "" };
    format!(
        "{route}{separator} {}…",
        trace.get(..DIGITS).unwrap_or_default()
    )
}

fn set_reason(sample: &mut Sample, reason: Option<&Reason>, catalog: &mut Catalog) {
    if let Event::OffCpu(off) = &mut sample.event {
        off.reason = reason.map(|it| catalog.reason(it));
    }
}

/// The sample of a wait for more time of it.
fn with_time(mut sample: Sample, time: u64, state: OffCpuState, nanoseconds: u64) -> Sample {
    sample.time = time;
    if let Event::OffCpu(off) = &mut sample.event {
        off.nanoseconds = nanoseconds;
        off.state = state;
        if state == OffCpuState::Queued {
            // It has what it waited for.
            off.reason = None;
        }
    }
    sample
}
