//! Recognizes the samples on which a flight recorder writes what it keeps.

mod expression;
mod recent;

use otelctx_sample::format::TraceId;
use otelctx_sample::format::record::DecodedContext;
use otelctx_sample::{Catalog, Event, OffCpu, OffCpuState, ProcessFacts, Sample};

use crate::attributes::{attribute, text_of};
use crate::report::AttributeFilter;
pub use expression::{Expression, ExpressionError};
use expression::{Measure, Term};
use recent::Recent;

/// Number of traces, sampled last, whose first sample is known. Up to twice as many are kept.
const MAX_TRACES: usize = 8192;
/// The same of traces and waits that have fired.
const MAX_FIRED: usize = 8192;

/// The call of a [`Reason`](otelctx_sample::Reason) of a thread that waits for a lock, and the start of its text.
const LOCK: (&str, &str) = ("futex", "lock");

/// Finds the samples for which an [`Expression`] holds, once for each trace, or each wait.
///
/// Samples are checked as they are taken, in the order of their times.
#[derive(Clone, Debug)]
pub struct Trigger {
    expression: Expression,
    has_seen: bool,
    has_wait: bool,
    /// The time of the first sample of each trace in each process.
    first: Recent<TraceKey, u64>,
    fired: Recent<Cause, bool>,
}

/// A process of the recording: its ID, and its start time.
type ProcessKey = (i32, u64);
/// A trace in a process.
type TraceKey = (ProcessKey, [u8; 16]);

/// What fires once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Cause {
    /// A wait of a thread, with the time of its start.
    Wait(ProcessKey, i32, u64),
    Trace(TraceKey),
    /// A process, by samples without a trace.
    Process(ProcessKey),
}

/// A sample for which the expression of a trigger holds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Match {
    /// The sample's time.
    pub time: u64,
    /// The process ID.
    pub pid: i32,
    /// The name of the process's program, as the kernel has it.
    pub comm: String,
    /// The thread ID.
    pub tid: i32,
    /// The trace, if the thread has one.
    pub trace: Option<TraceId>,
    /// The time since the first sample of the trace in this process, in nanoseconds, if the expression asks for it.
    pub seen: Option<u64>,
    /// The time for which the thread has been waiting, in nanoseconds, if the expression asks for it.
    pub wait: Option<u64>,
    /// The reason why it waits, in words, if that is known.
    pub reason: Option<String>,
}

impl Trigger {
    /// Creates a trigger that has seen no sample.
    #[must_use]
    pub fn new(expression: Expression) -> Self {
        let has = |measures: &[Measure]| {
            let mut terms = expression.conditions.iter();
            terms.any(|it| matches!(it, Term::Longer(measure, _) if measures.contains(measure)))
        };
        Self {
            has_seen: has(&[Measure::Seen]),
            has_wait: has(&[Measure::Wait, Measure::LockWait]),
            expression,
            first: Recent::new(MAX_TRACES),
            fired: Recent::new(MAX_FIRED),
        }
    }

    /// Returns the expression.
    #[must_use]
    pub fn expression(&self) -> &Expression {
        &self.expression
    }

    /// Checks a sample of a recording with this catalog. Returns a match if the expression holds, and did for no earlier
    /// sample of the same wait (if it has a condition on waits), of the same trace, or of a process without one.
    pub fn check(&mut self, sample: &Sample, catalog: &Catalog) -> Option<Match> {
        let thread = catalog.thread_facts(sample.thread);
        let facts = catalog.process(thread.process);
        let context = sample.found.attached();
        let context = context.map(|id| catalog.context_facts(*id));
        let process = (facts.pid, facts.start_ticks);
        let trace = context.map(|it| it.trace_id).filter(|it| !it.is_zero());
        let of_trace = trace.map(|it| (process, it.to_bytes()));
        let seen = match of_trace.filter(|_| self.has_seen) {
            Some(key) => {
                let first = self.first.entry(key, sample.time);
                *first = sample.time.min(*first);
                Some(sample.time - *first)
            }
            None => None,
        };
        let waiting = waiting(sample).filter(|_| self.has_wait);
        let wait = waiting.map(|it| sample.time.saturating_sub(it.since));
        let reason = waiting.and_then(|it| it.reason);
        let reason = reason.map(|id| catalog.reason_facts(id));
        let is_lock = reason.is_some_and(|it| it.call == LOCK.0 && it.text.starts_with(LOCK.1));
        let holds = |term: &Term| match term {
            Term::Attribute(attribute) => holds(attribute, context, facts),
            Term::Longer(Measure::Seen, time) => seen.is_some_and(|it| it > *time),
            Term::Longer(Measure::Wait, time) => wait.is_some_and(|it| it > *time),
            Term::Longer(Measure::LockWait, time) => is_lock && wait.is_some_and(|it| it > *time),
        };
        if !self.expression.conditions.iter().all(holds) {
            return None;
        }
        let cause = match (waiting, of_trace) {
            (Some(off), _) => Cause::Wait(process, thread.tid, off.since),
            (None, Some(trace)) => Cause::Trace(trace),
            (None, None) => Cause::Process(process),
        };
        if std::mem::replace(self.fired.entry(cause, false), true) {
            return None;
        }
        Some(Match {
            time: sample.time,
            pid: facts.pid,
            comm: facts.comm.clone(),
            tid: thread.tid,
            trace,
            seen,
            wait,
            reason: reason.map(|it| it.text.clone()),
        })
    }
}

/// Returns what keeps a thread off the CPU, if it waits, and it is known since when.
fn waiting(sample: &Sample) -> Option<OffCpu> {
    match sample.event {
        Event::OffCpu(off) => {
            let waits = matches!(off.state, OffCpuState::Asleep | OffCpuState::Disk);
            (waits && off.since > 0).then_some(off)
        }
        _ => None,
    }
}

/// Returns true if a condition holds for an attribute of the context or, without one of that name, of the resource.
fn holds(
    condition: &AttributeFilter,
    context: Option<&DecodedContext>,
    facts: &ProcessFacts,
) -> bool {
    let name = &condition.name[..];
    if let Some(value) = context.and_then(|it| attribute(it, name)) {
        return condition.condition.accepts(Some(value));
    }
    let found = facts.resource.iter().find(|(key, _)| key == name);
    let value = found.and_then(|(_, value)| text_of(value));
    condition.condition.accepts(value.as_deref())
}

#[cfg(test)]
mod tests;
