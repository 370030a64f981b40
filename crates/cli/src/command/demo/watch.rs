//! Looks at the service's threads, one after the other, and keeps what was seen.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use otelctx_reader::format::record::Context;
use otelctx_reader::format::{SpanId, TraceId};
use otelctx_reader::{Outcome, Process, Thread, ThreadSupport};

use super::super::patience::patiently;
use super::cpu::Cpu;
use crate::error::{Error, not_permitted};
use crate::interrupt;

/// The mean time from one look to the next. A processor can spare it, and a request of 10 ms is
/// seen a few times.
const BETWEEN_LOOKS: Duration = Duration::from_micros(800);

/// The attribute that tells requests apart.
const ROUTE: &str = "http.route";

/// Everything seen.
#[derive(Debug, Default)]
pub(super) struct Watched {
    pub(super) pid: i32,
    pub(super) duration: Duration,
    pub(super) looks: usize,
    /// Looks that ended without an answer.
    pub(super) unreadable: usize,
    /// Why the first of them did.
    pub(super) first_error: Option<String>,
    /// How long each look kept its thread stopped.
    pub(super) stops: Vec<Duration>,
    pub(super) traces: HashMap<TraceId, TraceSeen>,
    pub(super) threads: Vec<ThreadSeen>,
}

/// One trace.
#[derive(Debug)]
pub(super) struct TraceSeen {
    pub(super) route: String,
    /// The threads it was met on.
    pub(super) tids: BTreeSet<i32>,
    /// What it used of the processors. Of what a thread used between two looks, each look's trace
    /// gets one half.
    pub(super) cpu: Duration,
}

/// One thread.
#[derive(Debug)]
pub(super) struct ThreadSeen {
    pub(super) tid: i32,
    pub(super) name: String,
    pub(super) looks: usize,
    /// What it used of the processors while it was watched.
    pub(super) cpu: Duration,
    /// Looks that met it running, by route; an empty one when none was attached.
    pub(super) running: BTreeMap<String, usize>,
    /// What it worked on when it was last seen at work.
    pub(super) last: Option<(String, TraceId, SpanId)>,
}

/// A thread to look at.
struct Eye<'p> {
    thread: Thread<'p>,
    cpu: Cpu,
    /// What the thread had used at the first look, and at the last.
    first: Duration,
    last: Duration,
    /// The trace that was attached at the last look.
    trace: Option<TraceId>,
    seen: ThreadSeen,
}

/// Watches process `pid` for `duration`. To be called on a thread of its own, because it stops
/// threads.
pub(super) fn watch(pid: i32, duration: Duration) -> Result<Watched, Error> {
    let mut process = Process::open(pid)?;
    if let ThreadSupport::Unreadable(why) = process.thread_support()? {
        return Err(otelctx_reader::Error::Unreadable { pid, why }.into());
    }
    let mut eyes = Vec::new();
    for thread in process.threads()? {
        let cpu = Cpu::open(pid, thread.tid()).map_err(Error::Watch)?;
        let first = cpu.used().map_err(Error::Watch)?;
        eyes.push(Eye {
            cpu,
            first,
            last: first,
            trace: None,
            seen: ThreadSeen::new(&thread),
            thread,
        });
    }
    let mut watched = Watched {
        pid,
        ..Watched::default()
    };
    let start = Instant::now();
    'watching: loop {
        for eye in &mut eyes {
            // At irregular times, so as not to keep step with what the service does regularly.
            std::thread::sleep(BETWEEN_LOOKS.mul_f64(0.5 + fastrand::f64()));
            if start.elapsed() >= duration || interrupt::is_caught() {
                break 'watching;
            }
            watched.look(eye)?;
        }
    }
    watched.duration = start.elapsed();
    for mut eye in eyes {
        let last = eye.cpu.used().map_err(Error::Watch)?;
        eye.seen.cpu = last.saturating_sub(eye.first);
        watched.threads.push(eye.seen);
    }
    Ok(watched)
}

impl Watched {
    fn look(&mut self, eye: &mut Eye<'_>) -> Result<(), Error> {
        // Asked before the stop, because afterwards every thread is stopped.
        let runs = eye.cpu.runs().map_err(Error::Watch)?;
        self.looks += 1;
        eye.seen.looks += 1;
        let outcome = self.read(&eye.thread);
        // Asked after the stop, for which the thread left its processor.
        let used = eye.cpu.used().map_err(Error::Watch)?;
        let half = used.saturating_sub(eye.last) / 2;
        eye.last = used;
        self.share_out(eye.trace.take(), half);
        match outcome {
            Ok(Outcome::Attached(context)) => {
                self.attached(&context, runs, &mut eye.seen);
                eye.trace = Some(context.trace_id);
                self.share_out(eye.trace, half);
            }
            // A record that is being rewritten belongs to no request.
            Ok(_) if runs => *eye.seen.running.entry(String::new()).or_default() += 1,
            Ok(_) => {}
            // No other look would fare better.
            Err(error) if not_permitted(&error).is_some() => return Err(error.into()),
            Err(error) => {
                self.unreadable += 1;
                self.first_error.get_or_insert_with(|| error.to_string());
            }
        }
        Ok(())
    }

    fn read(&mut self, thread: &Thread<'_>) -> Result<Outcome, otelctx_reader::Error> {
        let mut stopped = patiently(|| thread.stop(), |_| false)?;
        let start = Instant::now();
        let outcome = stopped.context();
        drop(stopped);
        self.stops.push(start.elapsed());
        outcome
    }

    fn share_out(&mut self, trace: Option<TraceId>, cpu: Duration) {
        if let Some(seen) = trace.and_then(|trace| self.traces.get_mut(&trace)) {
            seen.cpu += cpu;
        }
    }

    fn attached(&mut self, context: &Context, runs: bool, thread: &mut ThreadSeen) {
        let route = context.attributes.iter().find(|(key, _)| key == ROUTE);
        let route = route.map(|(_, value)| value.clone()).unwrap_or_default();
        let trace = self
            .traces
            .entry(context.trace_id)
            .or_insert_with(|| TraceSeen {
                route: route.clone(),
                tids: BTreeSet::new(),
                cpu: Duration::ZERO,
            });
        trace.tids.insert(thread.tid);
        thread.last = Some((route.clone(), context.trace_id, context.span_id));
        if runs {
            *thread.running.entry(route).or_default() += 1;
        }
    }
}

impl ThreadSeen {
    fn new(thread: &Thread<'_>) -> Self {
        Self {
            tid: thread.tid(),
            name: thread.name().unwrap_or_default().to_string_lossy().into(),
            looks: 0,
            cpu: Duration::ZERO,
            running: BTreeMap::new(),
            last: None,
        }
    }
}
