//! What was seen, for a person.

use std::time::Duration;

use super::report::{Report, Route, Thread};
use super::service::WORKERS;
use crate::output::table::{Align, Table};
use crate::output::terminal::{Terminal, escape};
use crate::output::words::grouped;

/// Columns of a bar for the whole, where there is room.
const BAR: usize = 28;
/// Columns of everything else in the bars' table.
const BESIDE_BAR: usize = 71;
/// Parts of a column that there are characters for.
const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
/// Work outside of requests.
const NO_ROUTE: &str = "(none)";

/// The service is gone when this is read.
const TRY: &str = "Try, in another terminal while `otelctx demo --duration 60` runs:";

/// What is about to happen.
pub(super) fn head(pid: i32, duration: Duration) -> String {
    format!(
        "A shop with {WORKERS} workers and 3 routes, watched from outside for {} s (pid {pid})\n\n",
        duration.as_secs_f64()
    )
}

/// What has happened.
pub(super) fn render(report: &Report, terminal: &Terminal) -> String {
    let bar = terminal
        .width()
        .map_or(BAR, |width| width.saturating_sub(BESIDE_BAR).clamp(1, BAR));
    let mut text = routes(&report.routes, bar, terminal);
    text.push('\n');
    text += &threads(&report.threads, terminal);
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
    let looks = format!(
        "{} looks, {readable}; each stopped a thread for {:.0} µs (median).",
        grouped(report.looks),
        report.stopped_us
    );
    text += &terminal.sentence("", &looks);
    // A short look may miss it.
    if report.traces_that_moved > 0 {
        let moved = format!(
            "{} seen on several threads: async tasks move, their context with them.",
            match report.traces_that_moved {
                1 => "1 request was".to_owned(),
                many => format!("{} requests were", grouped(many)),
            }
        );
        text += &terminal.sentence("", &moved);
    }
    text += &terminal.sentence("", TRY);
    text += "  otelctx ps · otelctx dump PID · otelctx check PID\n";
    text
}

fn routes(routes: &[Route], width: usize, terminal: &Terminal) -> String {
    let table = Table::new([
        ("ROUTE", Align::Left),
        ("CPU", Align::Left),
        ("SHARE", Align::Right),
        ("TRACES", Align::Right),
        ("COSTLIEST TRACE", Align::Left),
        ("", Align::Right),
    ]);
    let most = routes.first().map_or(1.0, |route| route.share);
    let rows = routes.iter().map(|route| {
        let (trace, cpu) = match &route.costliest_trace {
            Some(trace) => (trace.trace_id.clone(), milliseconds(trace.cpu_ms)),
            None => ("-".into(), "-".into()),
        };
        [
            name(route.route.as_ref()),
            bar(route.share / most, width),
            percent(route.share),
            grouped(route.traces),
            trace,
            cpu,
        ]
    });
    table.render(rows, terminal)
}

fn threads(threads: &[Thread], terminal: &Terminal) -> String {
    let table = Table::new([
        ("THREAD", Align::Left),
        ("BUSY", Align::Right),
        ("LAST SEEN AT TRACE", Align::Left),
        ("BUSY WITH", Align::Left),
    ]);
    let rows = threads.iter().map(|thread| {
        let with: Vec<String> = thread
            .routes
            .iter()
            .map(|part| format!("{} {}", name(part.route.as_ref()), percent(part.share)))
            .collect();
        let last = thread.last.as_ref();
        [
            escape(&thread.name),
            percent(thread.busy),
            last.map_or("-".into(), |last| last.trace_id.clone()),
            with.join(", "),
        ]
    });
    table.render(rows, terminal)
}

fn name(route: Option<&String>) -> String {
    route.map_or(NO_ROUTE.into(), |route| escape(route))
}

fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

/// To a tenth where that matters.
fn milliseconds(milliseconds: f64) -> String {
    match milliseconds {
        few if few < 10.0 => format!("{few:.1} ms"),
        many => format!("{} ms", grouped(many.round() as usize)),
    }
}

/// A bar of up to `width` columns, to an eighth of a column.
fn bar(part: f64, width: usize) -> String {
    let eighths = (part.clamp(0.0, 1.0) * width as f64 * 8.0).round() as usize;
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_part() {
        assert_eq!(bar(0.0, 20), "");
        assert_eq!(bar(0.5, 20), "██████████");
        assert_eq!(bar(0.55, 20), "███████████");
        assert_eq!(bar(0.0125, 20), "▎");
        assert_eq!(bar(7.0, 20).chars().count(), 20);
    }
}
