//! `top` without a terminal: prints a table or a line of JSON every interval.

use std::time::{Duration, Instant, SystemTime};

use otelctx_profile::sample::Counts;
use otelctx_sampler::{INTERVAL, WaitFacts, monotonic};
use serde::Serialize;

use super::columns::{columns, fit, line};
use super::feed::Feed;
use super::names::Names;
use super::rows::{By, Key, Row, attached, attribute_keys, rows, sum};
use super::time::{Present, Time};
use super::view::off_cpu;
use super::window::NameKind;
use super::{Plan, attribute};
use crate::command::record::gil::GilSamples;
use crate::command::without_symbols::{FileJson, WithoutSymbols};
use crate::error::Error;
use crate::interrupt;
use crate::output::counts::CountsJson;
use crate::output::terminal::{self, Style, Terminal};
use crate::output::text::{count, grouped};
use crate::output::{clock, json};

/// Time that a table waits for names.
const NAMES_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn run(
    feed: &mut Feed<'_>,
    plan: &Plan,
    json: bool,
    iterations: Option<u64>,
) -> Result<(), Error> {
    let mut printer = Printer {
        terminal: Terminal::of_stdout(),
        names: Names::new(feed.sampler.files(), &plan.languages),
        json,
        left: iterations.unwrap_or(u64::MAX),
    };
    let mut end = Instant::now() + plan.interval;
    feed.renew();
    while printer.left > 0 {
        let have_targets_ended = plan.have_targets_ended(feed);
        let ended = interrupt::is_caught() || plan.is_over() || have_targets_ended;
        let left = end.saturating_duration_since(Instant::now());
        if !ended && left > Duration::ZERO {
            std::thread::sleep(left.min(INTERVAL));
            feed.drain();
            printer.print_settled(feed, plan, monotonic())?;
            continue;
        }
        feed.close();
        if !plan.kinds.waits {
            printer.print(feed, plan)?;
        } else if ended {
            if !have_targets_ended {
                await_waits(feed);
            }
            printer.print_settled(feed, plan, u64::MAX)?;
        }
        if ended {
            break;
        }
        // Tables of waits are printed later than their interval ends.
        let begin = if plan.kinds.waits {
            end
        } else {
            Instant::now()
        };
        end = Instant::now().max(begin + plan.interval);
        feed.renew();
    }
    Ok(())
}

/// Takes over the waits of the last interval, unless the user interrupts that.
fn await_waits(feed: &mut Feed<'_>) {
    let end = monotonic().saturating_add(feed.window.settling);
    while monotonic() < end && !interrupt::is_caught() && feed.sampler.has_targets() {
        std::thread::sleep(INTERVAL);
        feed.drain();
    }
}

/// Prints tables, or lines of JSON.
struct Printer {
    terminal: Terminal,
    names: Names,
    json: bool,
    /// How many are still to be printed.
    left: u64,
}

impl Printer {
    /// Prints the intervals of which all waits are known at `now`.
    fn print_settled(&mut self, feed: &mut Feed<'_>, plan: &Plan, now: u64) -> Result<(), Error> {
        while self.left > 0 && feed.window.reveal(now) {
            self.print(feed, plan)?;
        }
        Ok(())
    }

    /// Prints the last interval that is shown.
    fn print(&mut self, feed: &mut Feed<'_>, plan: &Plan) -> Result<(), Error> {
        let shown = with_names(feed, &mut self.names, plan);
        let without_symbols = self.names.without_symbols(&feed.catalog, &feed.window);
        let text = if self.json {
            line_of_json(feed, plan, &shown, &without_symbols)?
        } else {
            let line = without_symbols.line(feed.window.samples() as usize);
            let lines = line.into_iter().chain(feed.node_contexts());
            let lines: String = lines.map(|line| line + "\n").collect();
            lines + &table(feed, plan, &shown, &self.terminal)
        };
        self.left -= 1;
        if !terminal::pass_on(text.as_bytes()).map_err(Error::Output)? {
            // Nobody reads on.
            self.left = 0;
        }
        Ok(())
    }
}

/// The rows of an interval.
struct Rows {
    by: By,
    attribute: String,
    rows: Vec<Row>,
    /// The time in them, and that of hidden waits in nanoseconds.
    time: Time,
    idle: u64,
    /// How many of their samples have a context.
    attached: u64,
    gil: GilSamples,
}

/// Returns the rows, with the names of functions that are resolved in time.
fn with_names(feed: &mut Feed<'_>, names: &mut Names, plan: &Plan) -> Rows {
    let end = Instant::now() + NAMES_TIMEOUT;
    loop {
        let shown = rows_of(feed, names, plan);
        names.hurry();
        names.update(&feed.catalog, feed.generation);
        if !names.is_waiting || interrupt::is_caught() {
            return shown;
        }
        while names.is_waiting && Instant::now() < end {
            std::thread::sleep(INTERVAL);
            // Samples that arrive meanwhile count in the next interval.
            feed.drain();
            names.update(&feed.catalog, feed.generation);
        }
        if names.is_waiting {
            return shown;
        }
    }
}

fn rows_of(feed: &Feed<'_>, names: &mut Names, plan: &Plan) -> Rows {
    let window = &feed.window;
    let mut samples = names.selected(&feed.catalog, window, &plan.functions);
    let idle = plan.hide_idle(&mut samples, &plan.by);
    let attribute = attribute(plan, &attribute_keys(&samples));
    let by = match &plan.by {
        By::Attribute(_) => By::Attribute(attribute.clone()),
        by => by.clone(),
    };
    let mut function = |by: &By, stacks: &_| names.key(by, &feed.catalog, stacks);
    let mut gil = GilSamples::default();
    for (cell, time) in &samples {
        gil.add(cell.gil, time.samples);
    }
    let mut rows = rows(&samples, &by, &attribute, &mut function);
    rows.iter_mut()
        .for_each(|row| row.present = window.waiting(&row.thread));
    Rows {
        rows,
        time: sum(&samples),
        idle,
        attached: attached(&samples),
        gil,
        by,
        attribute,
    }
}

fn table(feed: &Feed<'_>, plan: &Plan, shown: &Rows, terminal: &Terminal) -> String {
    let (window, share) = (&feed.window, plan.share(&feed.window));
    let counts = window.counts();
    let missing = [
        (counts.lost, "lost"),
        (counts.not_traceable, "not traceable"),
    ];
    let missing = missing.into_iter().filter(|(number, _)| *number > 0);
    let missing = missing.map(|(number, what)| format!(" · {} {what}", grouped(number as usize)));
    let incomplete = [
        feed.fewer_scans(),
        feed.incomplete_stacks(),
        feed.incomplete_steps(),
        feed.contested_keys(),
    ];
    let incomplete = incomplete.into_iter().flatten();
    let incomplete = incomplete.map(|text| format!(" · {text}"));
    let samples = shown.time.samples;
    let running = plan.kinds.running.then(|| {
        let cpu = share.percent(samples);
        format!("CPU {cpu} % of {} %", plan.cpus * 100)
    });
    let number = match plan.kinds.running {
        true => count(samples as usize, "sample", "samples") + " ",
        false => String::new(),
    };
    let wall = window.wall() as f64 / 1e9;
    let off = off_cpu(shown.time, shown.idle, share);
    let parts = running.into_iter().chain(off);
    let parts: Vec<String> = parts.chain([format!("{number}in {wall:.1} s")]).collect();
    let mut text = format!(
        "{}  {}{}{}\n",
        clock::local(SystemTime::now()),
        parts.join(" · "),
        missing.collect::<String>(),
        incomplete.collect::<String>(),
    );
    let mut columns = columns(&shown.rows, &shown.by, &shown.attribute, share);
    // Bars are for terminals; this output may be searched.
    columns.retain(|column| !column.head.is_empty());
    if let Some(width) = terminal.width {
        columns = fit(columns, width);
    }
    let may_cut = terminal.width.is_some();
    text += &(terminal.paint(Style::Bold, &line(&columns, None, may_cut)) + "\n");
    for row in 0..shown.rows.len() {
        text += &(line(&columns, Some(row), may_cut) + "\n");
    }
    text + "\n"
}

/// The JSON object of one interval (docs/json.md).
#[derive(Serialize)]
struct Report<'r> {
    time: String,
    wall_ns: u64,
    period_ns: u64,
    cpus: usize,
    method: &'static str,
    samples: u64,
    with_context: u64,
    gil: GilSamples,
    #[serde(skip_serializing_if = "Option::is_none")]
    waits: Option<Waits>,
    lost: u64,
    #[serde(with = "CountsJson")]
    counts: Counts,
    by: String,
    attribute: Option<&'r str>,
    rows: Vec<ReportRow<'r>>,
    without_symbols: Vec<FileJson<'r>>,
}

#[derive(Serialize)]
struct Waits {
    queued_ns: u64,
    waiting_ns: u64,
    /// Of waits without a context, which are in no row; null if they are in rows.
    hidden_ns: Option<u64>,
    frequency: u32,
    frequency_asked: u32,
    threads: u64,
    lost: u64,
}

/// What a row has with `--wall`.
#[derive(Serialize)]
struct RowWaits<'r> {
    queued: f64,
    waiting: f64,
    reason: Option<&'r str>,
    waiting_now: Option<Now<'r>>,
}

#[derive(Serialize)]
struct Now<'r> {
    state: &'static str,
    reason: Option<&'r str>,
    for_ns: Option<u64>,
}

impl<'r> Now<'r> {
    fn of(present: &'r Present) -> Self {
        Self {
            state: present.wait.state.name(),
            reason: present.wait.reason.as_ref().map(|it| &it.text[..]),
            for_ns: present.lasts,
        }
    }
}

#[derive(Serialize)]
struct ReportRow<'r> {
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why_no_name: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    values: Option<Vec<String>>,
    samples: u64,
    cpu: f64,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    waits: Option<RowWaits<'r>>,
    pid: Option<i32>,
    service: &'r str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    service_detected: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    service_is_command: bool,
    tid: Option<i32>,
    thread: &'r str,
    trace_id: Option<String>,
    span_id: Option<String>,
    value: Option<&'r str>,
    processes: usize,
    threads: usize,
    traces: usize,
    spans: usize,
}

fn line_of_json(
    feed: &Feed<'_>,
    plan: &Plan,
    shown: &Rows,
    without_symbols: &WithoutSymbols,
) -> Result<String, Error> {
    let (window, share) = (&feed.window, plan.share(&feed.window));
    let rows = shown.rows.iter();
    let waits = feed
        .scans()
        .map(|(asked, facts)| waits_of(shown, plan, asked, facts));
    let rows = rows.map(|row| {
        let times = RowWaits {
            queued: share.of_time(row.time.queued),
            waiting: share.of_time(row.time.waiting),
            reason: row
                .wait
                .as_ref()
                .and_then(|it| Some(&it.reason.as_ref()?.text[..])),
            waiting_now: match shown.by {
                By::Thread => row.present.as_ref().map(Now::of),
                _ => None,
            },
        };
        let waits = waits.is_some().then_some(times);
        row_of(row, share.of(row.time.samples), waits)
    });
    let rows = rows.collect();
    let report = Report {
        time: clock::utc(SystemTime::now()),
        wall_ns: window.wall(),
        period_ns: share.period,
        cpus: plan.cpus,
        method: if plan.is_stopping { "ptrace" } else { "ebpf" },
        samples: shown.time.samples,
        with_context: shown.attached,
        gil: shown.gil,
        waits,
        lost: window.counts().lost,
        counts: window.counts(),
        by: match &shown.by {
            By::Attribute(_) => "attribute".to_owned(),
            by => by.words(),
        },
        attribute: Some(&shown.attribute[..]).filter(|name| !name.is_empty()),
        rows,
        without_symbols: without_symbols.json(),
    };
    let mut line = Vec::new();
    json::write_line(&report, &mut line).map_err(Error::Output)?;
    Ok(String::from_utf8_lossy(&line).into_owned())
}

fn waits_of(shown: &Rows, plan: &Plan, asked: u32, facts: WaitFacts) -> Waits {
    let hides = !(plan.with_idle || shown.by.is_of_threads());
    Waits {
        queued_ns: shown.time.queued,
        waiting_ns: shown.time.waiting,
        hidden_ns: hides.then_some(shown.idle),
        frequency: facts.frequency,
        frequency_asked: asked,
        threads: facts.threads,
        lost: facts.lost,
    }
}

fn row_of<'r>(row: &'r Row, cpu: f64, waits: Option<RowWaits<'r>>) -> ReportRow<'r> {
    let why_no_name = match row.key {
        Key::Nothing => Some("none"),
        Key::Unreadable => Some("unreadable"),
        Key::Others => Some("others"),
        _ => None,
    };
    let (thread, context) = (&row.thread, row.context());
    ReportRow {
        name: why_no_name.is_none().then(|| row.name()),
        why_no_name,
        values: matches!(row.key, Key::Levels(_)).then(|| row.names()),
        samples: row.time.samples,
        cpu,
        waits,
        pid: (!thread.is_others()).then_some(thread.process.pid),
        service: &thread.process.name,
        service_detected: thread.process.name_kind == NameKind::Detected,
        service_is_command: thread.process.name_kind == NameKind::Command,
        tid: (!thread.is_others()).then_some(thread.tid),
        thread: &thread.name,
        trace_id: context.and_then(|it| Some(it.trace_id()?.to_string())),
        span_id: context.and_then(|it| Some(it.span_id()?.to_string())),
        value: row.value.as_deref(),
        processes: row.processes,
        threads: row.threads,
        traces: row.traces,
        spans: row.spans,
    }
}
