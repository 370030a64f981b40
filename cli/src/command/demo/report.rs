//! The summary of the recording (docs/json.md).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;

use otelctx_profile::Recording;
use otelctx_profile::sample::{Catalog, ContextId, ThreadId};
use otelctx_reader::format::TraceId;
use serde::Serialize;

use crate::command::filter::ROUTE;
use crate::command::record::output::Written;

/// The JSON object that `demo --json` prints.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) pid: i32,
    pub(super) seconds: f64,
    /// `ebpf` or `ptrace`.
    pub(super) method: &'static str,
    /// CPU time that a sample stands for, in nanoseconds.
    pub(super) period_ns: u64,
    pub(super) samples: usize,
    pub(super) with_trace: usize,
    /// Samples of threads without a record: detached, or not publishing yet.
    pub(super) detached: u64,
    /// Samples of threads whose record was being rewritten.
    pub(super) invalid: u64,
    pub(super) unreadable: u64,
    pub(super) lost: u64,
    pub(super) cpu_ms: f64,
    /// Traces that were sampled on more than one thread.
    pub(super) traces_that_moved: usize,
    pub(super) routes: Vec<Route>,
    /// The costliest first.
    pub(super) traces: Vec<Trace>,
    pub(super) threads: Vec<Thread>,
    /// The directory with the files; `None` if it could not be created.
    pub(super) directory: Option<PathBuf>,
    pub(super) files: Vec<Written>,
}

/// A route; its name is `None` for work outside of requests.
#[derive(Debug, Serialize)]
pub(super) struct Route {
    pub(super) route: Option<String>,
    pub(super) samples: usize,
    pub(super) cpu_ms: f64,
    /// Its share of the service's CPU time, from 0 to 1.
    pub(super) share: f64,
    /// Number of distinct traces that were sampled.
    pub(super) traces: usize,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Trace {
    pub(super) trace_id: String,
    pub(super) route: Option<String>,
    pub(super) samples: usize,
    pub(super) cpu_ms: f64,
    /// Number of threads that it was sampled on.
    pub(super) threads: usize,
}

#[derive(Debug, Serialize)]
pub(super) struct Thread {
    pub(super) tid: i32,
    pub(super) name: String,
    pub(super) samples: usize,
    /// Fraction of the time that it was running, from 0 to 1.
    pub(super) busy: f64,
    /// Its routes by share of its CPU time, in descending order.
    pub(super) routes: Vec<Part>,
    pub(super) last: Option<Last>,
}

/// A route's share of a thread's CPU time.
#[derive(Debug, Serialize)]
pub(super) struct Part {
    pub(super) route: Option<String>,
    pub(super) samples: usize,
    pub(super) share: f64,
}

/// The last context that a thread was sampled with.
#[derive(Debug, Serialize)]
pub(super) struct Last {
    pub(super) route: Option<String>,
    pub(super) trace_id: String,
    pub(super) span_id: String,
}

#[derive(Debug, Default)]
struct Request<'r> {
    route: Option<&'r str>,
    samples: usize,
    threads: BTreeSet<ThreadId>,
}

#[derive(Debug, Default)]
struct Work<'r> {
    samples: usize,
    routes: BTreeMap<Option<&'r str>, usize>,
    /// Time and context of its last sample with a context.
    last: Option<(u64, ContextId)>,
}

#[derive(Default)]
struct Tally<'r> {
    routes: BTreeMap<Option<&'r str>, usize>,
    traces: HashMap<TraceId, Request<'r>>,
    threads: BTreeMap<ThreadId, Work<'r>>,
}

impl<'r> Tally<'r> {
    fn of(recorded: &'r Recording) -> Self {
        let mut tally = Self::default();
        for sample in &recorded.samples {
            let context = sample.found.attached().copied();
            let route = context.and_then(|context| route_of(&recorded.catalog, context));
            *tally.routes.entry(route).or_default() += 1;
            let thread = tally.threads.entry(sample.thread).or_default();
            thread.samples += 1;
            *thread.routes.entry(route).or_default() += 1;
            if let Some(context) = context {
                thread.last = thread.last.max(Some((sample.time, context)));
                let trace = recorded.catalog.context_facts(context).trace_id;
                let request = tally.traces.entry(trace).or_default();
                request.route = route;
                request.samples += 1;
                request.threads.insert(sample.thread);
            }
        }
        tally
    }
}

impl Report {
    /// Creates the report on process `pid`, without files.
    pub(super) fn of(pid: i32, method: &'static str, recorded: &Recording) -> Self {
        let catalog = &recorded.catalog;
        let Tally {
            routes,
            traces,
            threads,
        } = Tally::of(recorded);
        let period_ns = recorded.period.get();
        let milliseconds = |samples: usize| samples as f64 * period_ns as f64 / 1e6;
        let samples = recorded.samples.len();
        let routes = routes.into_iter().map(|(route, of_route)| Route {
            route: route.map(str::to_owned),
            samples: of_route,
            cpu_ms: milliseconds(of_route),
            share: of_route as f64 / samples as f64,
            traces: traces.values().filter(|it| it.route == route).count(),
        });
        let mut routes: Vec<Route> = routes.collect();
        routes.sort_by_key(|route| std::cmp::Reverse(route.samples));
        let moved = traces.values().filter(|it| it.threads.len() > 1).count();
        let with_trace = traces.values().map(|it| it.samples).sum();
        let traces = traces.into_iter().map(|(id, request)| Trace {
            trace_id: id.to_string(),
            route: request.route.map(str::to_owned),
            samples: request.samples,
            cpu_ms: milliseconds(request.samples),
            threads: request.threads.len(),
        });
        let mut traces: Vec<Trace> = traces.collect();
        traces.sort_by(|one, other| {
            let by_cost = other.samples.cmp(&one.samples);
            by_cost.then_with(|| one.trace_id.cmp(&other.trace_id))
        });
        let seconds = recorded.clock.duration() as f64 / 1e9;
        let last = |(_, context): (u64, ContextId)| {
            let facts = catalog.context_facts(context);
            Last {
                route: route_of(catalog, context).map(str::to_owned),
                trace_id: facts.trace_id.to_string(),
                span_id: facts.span_id.to_string(),
            }
        };
        let threads = threads.into_iter().map(|(id, work)| Thread {
            tid: catalog.thread_facts(id).tid,
            name: catalog.thread_facts(id).name.clone(),
            samples: work.samples,
            busy: milliseconds(work.samples) / 1e3 / seconds,
            routes: parts(&work),
            last: work.last.map(last),
        });
        let mut threads: Vec<Thread> = threads.collect();
        threads.sort_by_key(|thread| thread.tid);
        Self {
            pid,
            seconds,
            method,
            period_ns,
            samples,
            with_trace,
            detached: recorded.counts.detached + recorded.counts.not_published,
            invalid: recorded.counts.invalid,
            unreadable: recorded.counts.unreadable_samples(),
            lost: recorded.counts.lost,
            cpu_ms: milliseconds(samples),
            traces_that_moved: moved,
            routes,
            traces,
            threads,
            directory: None,
            files: Vec::new(),
        }
    }
}

fn route_of(catalog: &Catalog, context: ContextId) -> Option<&str> {
    let attributes = &catalog.context_facts(context).attributes;
    let route = attributes.iter().rfind(|(key, _)| key == ROUTE);
    route.map(|(_, value)| value.as_str())
}

fn parts(work: &Work<'_>) -> Vec<Part> {
    let parts = work.routes.iter().map(|(route, samples)| Part {
        route: route.map(str::to_owned),
        samples: *samples,
        share: *samples as f64 / work.samples as f64,
    });
    let mut parts: Vec<Part> = parts.collect();
    parts.sort_by_key(|part| std::cmp::Reverse(part.samples));
    parts
}
