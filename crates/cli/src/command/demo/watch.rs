//! Looks at the service's threads, one after the other, and keeps what was seen.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use otelctx_reader::format::record::Context;
use otelctx_reader::format::{SpanId, TraceId};
use otelctx_reader::{Outcome, Process, Thread, ThreadSupport};

use super::super::patience::patiently;
use super::cpu::{Moment, Stat};
use crate::error::Error;

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
    /// The threads it was met on, and how many looks met it there while the thread was running.
    pub(super) running: BTreeMap<i32, usize>,
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
    stat: Stat,
    first: Moment,
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
        let stat = Stat::open(pid, thread.tid()).map_err(Error::Watch)?;
        eyes.push(Eye {
            first: stat.read().map_err(Error::Watch)?,
            stat,
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
            if start.elapsed() >= duration {
                break 'watching;
            }
            watched.look(eye)?;
        }
    }
    watched.duration = start.elapsed();
    for Eye {
        stat,
        first,
        mut seen,
        ..
    } in eyes
    {
        let last = stat.read().map_err(Error::Watch)?;
        seen.cpu = last.cpu.saturating_sub(first.cpu);
        watched.threads.push(seen);
    }
    Ok(watched)
}

impl Watched {
    fn look(&mut self, eye: &mut Eye<'_>) -> Result<(), Error> {
        // Asked before the stop, because afterwards every thread is stopped.
        let runs = eye.stat.read().map_err(Error::Watch)?.runs;
        self.looks += 1;
        eye.seen.looks += 1;
        match self.read(&eye.thread) {
            Ok(Outcome::Attached(context)) => self.attached(&context, runs, &mut eye.seen),
            // A record that is being rewritten belongs to no request.
            Ok(_) if runs => *eye.seen.running.entry(String::new()).or_default() += 1,
            Ok(_) => {}
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

    fn attached(&mut self, context: &Context, runs: bool, thread: &mut ThreadSeen) {
        let route = context.attributes.iter().find(|(key, _)| key == ROUTE);
        let route = route.map(|(_, value)| value.clone()).unwrap_or_default();
        let trace = self
            .traces
            .entry(context.trace_id)
            .or_insert_with(|| TraceSeen {
                route: route.clone(),
                running: BTreeMap::new(),
            });
        let running = trace.running.entry(thread.tid).or_default();
        thread.last = Some((route.clone(), context.trace_id, context.span_id));
        if runs {
            *running += 1;
            *thread.running.entry(route).or_default() += 1;
        }
    }
}

impl ThreadSeen {
    fn new(thread: &Thread<'_>) -> Self {
        Self {
            tid: thread.tid(),
            name: thread.name().to_string_lossy().into_owned(),
            looks: 0,
            cpu: Duration::ZERO,
            running: BTreeMap::new(),
            last: None,
        }
    }
}
