//! What was seen, added up (docs/json.md).

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::watch::{ThreadSeen, Watched};

/// The whole answer.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) pid: i32,
    pub(super) seconds: f64,
    pub(super) looks: usize,
    pub(super) unreadable: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) first_error: Option<String>,
    /// The median time that a look kept its thread stopped, in microseconds.
    pub(super) stopped_us: f64,
    /// What the service used of the processors, in milliseconds.
    pub(super) cpu_ms: f64,
    /// Traces that were met on more than one thread.
    pub(super) traces_that_moved: usize,
    pub(super) routes: Vec<Route>,
    pub(super) threads: Vec<Thread>,
}

/// One route; the one without a name is work outside of all requests.
#[derive(Debug, Serialize)]
pub(super) struct Route {
    pub(super) route: Option<String>,
    pub(super) cpu_ms: f64,
    /// Of the service's CPU time, from 0 to 1.
    pub(super) share: f64,
    /// How many different ones were met.
    pub(super) traces: usize,
    pub(super) costliest_trace: Option<Trace>,
}

#[derive(Debug, Serialize)]
pub(super) struct Trace {
    pub(super) trace_id: String,
    pub(super) cpu_ms: f64,
}

/// One thread of the service.
#[derive(Debug, Serialize)]
pub(super) struct Thread {
    pub(super) tid: i32,
    pub(super) name: String,
    pub(super) looks: usize,
    /// The part of the time that it was running, from 0 to 1.
    pub(super) busy: f64,
    /// What it was running for, as parts of its CPU time, most first.
    pub(super) routes: Vec<(String, f64)>,
    pub(super) last: Option<Last>,
}

/// What a thread worked on when it was last seen at work.
#[derive(Debug, Serialize)]
pub(super) struct Last {
    pub(super) route: Option<String>,
    pub(super) trace_id: String,
    pub(super) span_id: String,
}

impl Report {
    /// Adds up.
    ///
    /// How much of the processors the service used is known from the kernel; what for, from the
    /// looks that met a thread running. Each such look stands for an equal part of that time.
    pub(super) fn of(mut watched: Watched) -> Self {
        let cpu = watched.threads.iter().map(|thread| thread.cpu).sum();
        let running: BTreeMap<&str, usize> = add_up(&watched.threads);
        let all: usize = running.values().sum();
        let milliseconds = |looks| milliseconds(cpu) * part(looks, all);
        let mut routes: Vec<Route> = running
            .iter()
            .map(|(route, looks)| {
                let traces = watched
                    .traces
                    .iter()
                    .filter(|(_, seen)| seen.route == **route);
                let costliest = traces.clone().max_by_key(|(id, seen)| (seen.running, **id));
                Route {
                    route: named(route),
                    cpu_ms: milliseconds(*looks),
                    share: part(*looks, all),
                    traces: traces.count(),
                    costliest_trace: costliest.map(|(id, seen)| Trace {
                        trace_id: id.to_string(),
                        cpu_ms: milliseconds(seen.running),
                    }),
                }
            })
            .collect();
        routes.sort_by(|a, b| b.cpu_ms.total_cmp(&a.cpu_ms));
        let moved = watched.traces.values().filter(|seen| seen.tids.len() > 1);
        Self {
            pid: watched.pid,
            seconds: watched.duration.as_secs_f64(),
            looks: watched.looks,
            unreadable: watched.unreadable,
            first_error: watched.first_error.take(),
            stopped_us: median(&mut watched.stops).as_secs_f64() * 1e6,
            cpu_ms: self::milliseconds(cpu),
            traces_that_moved: moved.count(),
            routes,
            threads: watched
                .threads
                .iter()
                .map(|thread| Thread::of(thread, watched.duration))
                .collect(),
        }
    }
}

impl Thread {
    fn of(seen: &ThreadSeen, duration: Duration) -> Self {
        let all = seen.running.values().sum();
        let mut routes: Vec<(String, f64)> = seen
            .running
            .iter()
            .map(|(route, looks)| (route.clone(), part(*looks, all)))
            .collect();
        routes.sort_by(|a, b| b.1.total_cmp(&a.1));
        Self {
            tid: seen.tid,
            name: seen.name.clone(),
            looks: seen.looks,
            busy: seen.cpu.as_secs_f64() / duration.as_secs_f64().max(f64::MIN_POSITIVE),
            routes,
            last: seen.last.as_ref().map(|(route, trace, span)| Last {
                route: named(route),
                trace_id: trace.to_string(),
                span_id: span.to_string(),
            }),
        }
    }
}

fn add_up(threads: &[ThreadSeen]) -> BTreeMap<&str, usize> {
    let mut sum = BTreeMap::new();
    for (route, looks) in threads.iter().flat_map(|thread| &thread.running) {
        *sum.entry(route.as_str()).or_default() += looks;
    }
    sum
}

fn named(route: &str) -> Option<String> {
    (!route.is_empty()).then(|| route.to_owned())
}

fn part(looks: usize, all: usize) -> f64 {
    looks as f64 / all.max(1) as f64
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn median(durations: &mut [Duration]) -> Duration {
    durations.sort_unstable();
    durations
        .get(durations.len() / 2)
        .copied()
        .unwrap_or_default()
}
