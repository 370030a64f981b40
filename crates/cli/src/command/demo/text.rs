//! What was seen, for a person.

use std::time::Duration;

use super::report::{Report, Route, Thread};
use super::service::WORKERS;
use crate::output::table::{Align, Table};
use crate::output::terminal::{Terminal, escape};
use crate::output::words::grouped;

/// Columns of a bar for the whole.
const BAR: f64 = 20.0;
/// Parts of a column that there are characters for.
const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
/// Work outside of requests.
const NO_ROUTE: &str = "(no request)";

/// What is about to happen.
pub(super) fn head(pid: i32, duration: Duration) -> String {
    format!(
        "A shop with {WORKERS} workers and 3 routes, watched from outside for {} s (pid {pid})\n\n",
        duration.as_secs_f64()
    )
}

/// What has happened.
pub(super) fn render(report: &Report, terminal: &Terminal) -> String {
    let mut text = routes(&report.routes).render(terminal);
    text.push('\n');
    text += &threads(&report.threads).render(terminal);
    text.push('\n');
    let readable = match (&report.first_error, report.unreadable) {
        (Some(why), unreadable) => {
            format!(
                "{} of them unreadable ({})",
                grouped(unreadable),
                escape(why)
            )
        }
        (None, _) => "every one readable".into(),
    };
    text += &format!(
        "{} looks, {readable}; each stopped a thread for {:.0} µs (median).\n\
         {} requests were seen on more than one thread: tasks move, and their context with them.\n\
         Try, in another terminal while `otelctx demo --duration 60` runs:\n  \
         otelctx ps · otelctx dump PID · otelctx check PID\n",
        grouped(report.looks),
        report.stopped_us,
        grouped(report.traces_that_moved),
    );
    text
}

fn routes(routes: &[Route]) -> Table {
    let mut table = Table::new(&[
        ("ROUTE", Align::Left),
        ("CPU", Align::Left),
        ("", Align::Right),
        ("SHARE", Align::Right),
        ("TRACES SEEN", Align::Right),
        ("COSTLIEST TRACE", Align::Left),
        ("ITS CPU", Align::Right),
    ]);
    for route in routes {
        let (trace, cpu) = match &route.costliest_trace {
            Some(trace) => (trace.trace_id.clone(), milliseconds(trace.cpu_ms)),
            None => ("-".into(), "-".into()),
        };
        table.push([
            name(route.route.as_ref()),
            bar(route.share),
            milliseconds(route.cpu_ms),
            percent(route.share),
            grouped(route.traces),
            trace,
            cpu,
        ]);
    }
    table
}

fn threads(threads: &[Thread]) -> Table {
    let mut table = Table::new(&[
        ("THREAD", Align::Left),
        ("BUSY", Align::Right),
        ("WITH", Align::Left),
        ("LAST TRACE", Align::Left),
        ("AND SPAN", Align::Left),
    ]);
    for thread in threads {
        let with: Vec<String> = thread
            .routes
            .iter()
            .map(|part| format!("{} {}", name(part.route.as_ref()), percent(part.share)))
            .collect();
        let (trace, span) = match &thread.last {
            Some(last) => (last.trace_id.clone(), last.span_id.clone()),
            None => ("-".into(), "-".into()),
        };
        table.push([
            escape(&thread.name),
            percent(thread.busy),
            with.join(", "),
            trace,
            span,
        ]);
    }
    table
}

fn name(route: Option<&String>) -> String {
    route.map_or(NO_ROUTE.into(), |route| escape(route))
}

fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

fn milliseconds(milliseconds: f64) -> String {
    format!("{} ms", grouped(milliseconds.round() as usize))
}

/// A bar of up to [`BAR`] columns, to an eighth of a column.
fn bar(part: f64) -> String {
    let eighths = (part.clamp(0.0, 1.0) * BAR * 8.0).round() as usize;
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_part() {
        assert_eq!(bar(0.0), "");
        assert_eq!(bar(0.5), "██████████");
        assert_eq!(bar(0.55), "███████████");
        assert_eq!(bar(0.0125), "▎");
        assert_eq!(bar(7.0).chars().count(), 20);
    }
}
