//! The summary as text.

use std::time::Duration;

use super::report::{Report, Route, Thread, Trace};
use super::service::WORKERS;
use crate::output::table::{Align, Table};
use crate::output::terminal::{Terminal, escape};
use crate::output::text::{self, grouped, own_name};

/// Maximum length of a bar, in columns.
const BAR: usize = 28;
/// Columns of the rest of the table with bars.
const BESIDE_BAR: usize = 50;
/// Work outside of requests.
const NO_ROUTE: &str = "(none)";
/// The number of costliest traces to show, before one of each other route.
const TRACES: usize = 3;

/// The service is gone when this is read.
const TRY: [&str; 4] = ["ps", "top", "dump PID", "record -p PID -d 5 -o out.svg"];

/// Renders the lines that are printed before the recording.
pub(super) fn head(pid: i32, duration: Duration) -> String {
    format!(
        "A shop with {WORKERS} workers and 3 routes, recorded from outside for {} s (pid {pid})\n\n",
        duration.as_secs_f64()
    )
}

pub(super) fn render(report: &Report, terminal: &Terminal) -> String {
    let room = |width: usize| width.saturating_sub(BESIDE_BAR).clamp(1, BAR);
    let bar = terminal.width.map_or(BAR, room);
    let mut text = routes(&report.routes, bar, terminal);
    text.push('\n');
    text += &traces(&report.traces, terminal);
    text.push('\n');
    text += &threads(&report.threads, terminal);
    text.push('\n');
    let how = match report.method {
        "ebpf" => "Sampled with eBPF; no thread was stopped.",
        _ => "Sampled with ptrace; each sample stopped its thread briefly.",
    };
    let number = |samples: u64| grouped(samples as usize);
    let samples = format!(
        "{} samples in {:.1} s: {} with a trace, {} detached, {} being rewritten, {} unreadable; {} \
         lost. {how}",
        grouped(report.samples),
        report.seconds,
        grouped(report.with_trace),
        number(report.detached),
        number(report.invalid),
        number(report.unreadable),
        number(report.lost),
    );
    text += &terminal.sentence("", &samples);
    // A short recording may contain none.
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
    text += &files(report);
    let own = own_name();
    text += &format!("Try, in another terminal while `{own} demo -d 60` runs:\n");
    for arguments in TRY {
        text += &format!("  {own} {arguments}\n");
    }
    text
}

/// Formats the lines about the files. Nothing is cut, so that they can be copied.
fn files(report: &Report) -> String {
    let Some(directory) = &report.directory else {
        return "\n".to_owned();
    };
    let directory = escape(&directory.to_string_lossy());
    let mut text = format!("\nThe recording is in {directory}, in several formats:\n");
    for file in &report.files {
        let name = file.path.rsplit('/').next().unwrap_or(&file.path);
        text += &format!("  {name:15}  {}\n", escape(&file.open));
    }
    text.push('\n');
    text
}

fn routes(routes: &[Route], width: usize, terminal: &Terminal) -> String {
    let table = Table::new([
        ("ROUTE", Align::Left),
        ("CPU", Align::Left),
        ("SHARE", Align::Right),
        ("TIME", Align::Right),
        ("SAMPLES", Align::Right),
        ("TRACES", Align::Right),
    ]);
    let most = routes.first().map_or(1.0, |route| route.share);
    let rows = routes.iter().map(|route| {
        [
            name(route.route.as_ref()),
            bar(route.share / most, width),
            percent(route.share),
            milliseconds(route.cpu_ms),
            grouped(route.samples),
            grouped(route.traces),
        ]
    });
    table.render(rows, terminal)
}

fn traces(traces: &[Trace], terminal: &Terminal) -> String {
    let table = Table::new([
        ("COSTLIEST TRACES", Align::Left),
        ("ROUTE", Align::Left),
        ("TIME", Align::Right),
        ("SAMPLES", Align::Right),
        ("THREADS", Align::Right),
    ]);
    let is_shown = |(index, trace): &(usize, &Trace)| {
        let before = &traces[..*index];
        *index < TRACES || before.iter().all(|it| it.route != trace.route)
    };
    let rows = traces
        .iter()
        .enumerate()
        .filter(is_shown)
        .map(|(_, trace)| {
            [
                trace.trace_id.clone(),
                name(trace.route.as_ref()),
                milliseconds(trace.cpu_ms),
                grouped(trace.samples),
                trace.threads.to_string(),
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
        // Work outside of requests is the rest.
        let of_routes = thread.routes.iter().filter(|part| part.route.is_some());
        let with: Vec<String> = of_routes
            .map(|part| format!("{} {}", name(part.route.as_ref()), percent(part.share)))
            .collect();
        let last = thread.last.as_ref();
        [
            escape(&thread.name),
            percent(thread.busy),
            last.map_or("-".into(), |last| last.trace_id.clone()),
            if with.is_empty() {
                NO_ROUTE.into()
            } else {
                with.join(", ")
            },
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

/// Formats a time, with a tenth where that matters.
fn milliseconds(milliseconds: f64) -> String {
    match milliseconds {
        few if few < 10.0 => format!("{few:.1} ms"),
        many => format!("{} ms", grouped(many.round() as usize)),
    }
}

/// Returns a bar of up to `width` columns, to an eighth of a column.
fn bar(part: f64, width: usize) -> String {
    text::bar((part.clamp(0.0, 1.0) * width as f64 * 8.0).round() as usize)
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
