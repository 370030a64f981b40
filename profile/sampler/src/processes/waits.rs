//! Conversion of waits to samples.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use otelctx_reader::runtime::RuntimeReading;
use otelctx_sample::{
    Catalog, Event, Found, Frame, OffCpu, OffCpuState, ReadStep, Reason, Sample, StackEnd,
};

use super::Processes;
use super::reasons::Reasons;
use crate::observation::{Observation, Record};
use crate::tally::Tally;
use crate::waits::{Look, ThreadId, Times, WaitEvent};

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
    reasons: Reasons,
}

#[derive(Debug)]
struct Known {
    look: Look,
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
    /// Longer copies of its stacks.
    LongerStacks,
}

impl KnownWaits {
    pub(super) fn new() -> Self {
        Self {
            threads: HashMap::default(),
            generation: 0,
            tally: Tally::default(),
            reasons: Reasons::new(),
        }
    }

    pub(super) fn reset_catalog(&mut self) {
        self.generation += 1;
    }

    pub(super) fn remove(&mut self, pid: i32) {
        self.threads.retain(|(of, _), _| *of != pid);
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
            WaitEvent::New { former, look } => {
                let thread = (look.pid, look.tid);
                self.pass_on(thread, former, catalog, on_sample);
                self.begin_wait(*look, catalog, on_sample)
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
        let Some(mut known) = self.waits.threads.remove(&thread) else {
            return;
        };
        if known.generation != self.waits.generation {
            known.sample = self.sample_of(&known.look, &known.frames, known.end, catalog);
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
        mut look: Look,
        catalog: &mut Catalog,
        on_sample: &mut dyn FnMut(Sample),
    ) -> Needs {
        let thread = (look.pid, look.tid);
        let mut needs = Needs::Nothing;
        let (mut frames, mut end): (Arc<[Frame]>, _) = (Arc::default(), None);
        let stack = look.stack.take();
        if let Some(stack) = stack.clone() {
            let walked = self.walk_wait(look.pid, look.time, stack);
            if let Some(walked) = walked {
                if walked.end == StackEnd::Unreadable {
                    needs = Needs::LongerStacks;
                }
                (frames, end) = (walked.frames, Some(walked.end));
            }
        }
        let mut sample = self.sample_of(&look, &frames, end, catalog);
        let tracked = self.following.tracker.get_or_add(look.pid);
        let process = tracked.process.reader().and_then(|it| it.running().ok());
        let reason = self
            .waits
            .reasons
            .reason(&look, process, &frames, stack.as_deref());
        look.call_memory = Vec::new();
        set_reason(&mut sample, reason.as_ref(), catalog);
        on_sample(with_time(sample, look.time, look.state, look.weight));
        if look.is_torn || self.waits.threads.len() >= MAX_KNOWN {
            self.waits.threads.remove(&thread);
        } else {
            let known = Known {
                look,
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

    /// Converts a look as a sample of a running thread is converted.
    fn sample_of(
        &mut self,
        look: &Look,
        frames: &[Frame],
        end: Option<StackEnd>,
        catalog: &mut Catalog,
    ) -> Sample {
        let context = if look.is_torn {
            Found::Unreadable(ReadStep::Verify)
        } else {
            look.context.as_ref().and_then(|bytes| {
                Found::Attached(Record {
                    serial: look.serial,
                    variable: look.variable,
                    bytes,
                })
            })
        };
        let runtimes: Vec<RuntimeReading> = look.runtimes.clone();
        let seen = Observation {
            time: look.time,
            cpu: 0,
            pid: look.pid,
            tid: look.tid,
            comm: &look.comm,
            context,
            runtimes,
            is_executing: false,
            is_early: false,
            user_stack: frames,
            stack_end: end,
            kernel_stack: &look.kernel_stack,
        };
        std::mem::swap(&mut self.tally, &mut self.waits.tally);
        let mut sample = self.sample(&seen, catalog);
        std::mem::swap(&mut self.tally, &mut self.waits.tally);
        sample.event = Event::OffCpu(OffCpu {
            state: look.state,
            nanoseconds: 0,
            since: look.since,
            reason: None,
        });
        sample
    }
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
