//! How long it takes to read the context of a thread of Node.js: while the thread is stopped, and in eBPF.

mod kernel;

use std::sync::Arc;
use std::time::{Duration, Instant};

use otelctx_fixtures::{Node, Target};
use otelctx_reader::runtime::{Present, Runtimes};
use otelctx_reader::{Options, Process, Thread};
use otelctx_remote::stop::{Stopped, on_own_thread};

use crate::row::Report;

const VERSIONS: [&str; 3] = ["22", "24", "26"];
/// Stops of a thread.
const STOPS: usize = 10_000;
/// How long a thread may take to stop.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Limit on the median, in µs.
const BOUND: f64 = 12.0;

pub(crate) fn run(report: &mut Report) {
    report.group("node");
    for version in VERSIONS {
        let name = format!("Node.js {version}");
        let node = Node::installed(version);
        let Some(mut command) = node.and_then(|node| node.publishing(&[], "otelctx")) else {
            report.skipped(&name, "it is not installed, or the package is not built");
            continue;
        };
        let target = Target::spawn(command.arg("hold"));
        // A thread that computes, with this attribute.
        let mut lines = target.lines.iter();
        let line = lines.find(|it| it.ends_with("http.route=/route/0"));
        let Some(tid) = line.and_then(|line| line.split(' ').nth(1)?.parse().ok()) else {
            report.failed(&name, "the thread is not there");
            continue;
        };
        let pid = target.pid();
        // If it fails in the middle, no thread stays traced.
        let measured = on_own_thread(|| measure(report, pid, tid, &name));
        if let Err(why) = measured.unwrap_or_else(|error| Err(error.to_string())) {
            report.failed(&name, &why);
        }
    }
    kernel::run(report);
}

fn runtimes() -> Runtimes {
    Runtimes::new(vec![Arc::new(otelctx_node::Node::default())])
}

fn measure(report: &mut Report, pid: i32, tid: i32, name: &str) -> Result<(), String> {
    let error = |error: otelctx_reader::Error| error.to_string();
    let mut options = Options::default();
    options.runtimes = runtimes();
    let mut process = Process::with_options(pid, options).map_err(error)?;
    process.context().map_err(error)?;
    let present = process.runtimes().map_err(error)?;
    let threads = process.threads().map_err(error)?;
    let thread = threads.iter().find(|thread| thread.tid() == tid);
    let thread = thread.ok_or("the thread is not there")?;
    let mut times = Vec::new();
    let mut failures = 0;
    while times.len() < STOPS {
        match stop(thread, &present) {
            Ok(time) => times.push(time),
            // Another process may be tracing it.
            Err(_) if failures < STOPS / 100 => failures += 1,
            Err(why) => return Err(why),
        }
    }
    times.sort_by(f64::total_cmp);
    let median = times[STOPS / 2];
    report.alone(
        format!("{name}: a record, while stopped"),
        median,
        "µs",
        BOUND,
    );
    let late = times[STOPS * 99 / 100];
    report.alone(format!("{name}: the same, p99"), late, "µs", None);
    Ok(())
}

/// Stops a thread, and reads it; returns how long that took, in µs.
fn stop(thread: &Thread<'_>, present: &[Present]) -> Result<f64, String> {
    let process = thread
        .process()
        .running()
        .map_err(|error| error.to_string())?;
    let stopped =
        Stopped::stop(process, thread.tid(), TIMEOUT).map_err(|error| error.to_string())?;
    let start = Instant::now();
    let state = thread.state(present, Some(&stopped));
    let time = start.elapsed();
    drop(stopped);
    let state = state.map_err(|error| error.to_string())?;
    let chosen = state.choose().ok();
    let context = chosen.as_ref().and_then(|chosen| chosen.context.attached());
    match context.map(|context| context.attributes.len()) {
        Some(1) => Ok(time.as_nanos() as f64 / 1e3),
        _ => Err(format!("the thread is {state:?}")),
    }
}
