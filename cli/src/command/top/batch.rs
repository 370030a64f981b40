//! `top` without a terminal: prints a table or a line of JSON every interval.

use std::time::{Duration, Instant, SystemTime};

use otelctx_profile::sample::Counts;
use otelctx_sampler::INTERVAL;
use serde::Serialize;

use super::columns::{columns, fit, line};
use super::feed::Feed;
use super::names::Names;
use super::rows::{By, Key, Row, Samples, attached, attribute_keys, rows};
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
    let terminal = Terminal::of_stdout();
    let mut names = Names::new(feed.sampler.files(), &plan.languages);
    let mut done = 0;
    let mut ended = false;
    while !ended && iterations.is_none_or(|all| done < all) {
        let end = Instant::now() + plan.interval;
        feed.renew();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            ended = interrupt::is_caught() || plan.is_over() || plan.have_targets_ended(feed);
            if ended || left == Duration::ZERO {
                break;
            }
            std::thread::sleep(left.min(INTERVAL));
            feed.drain();
        }
        feed.close();
        let shown = with_names(feed, &mut names, plan);
        let without_symbols = names.without_symbols(&feed.catalog, &feed.window);
        let text = if json {
            line_of_json(feed, plan, &shown, &without_symbols)?
        } else {
            let line = without_symbols.line(feed.window.samples() as usize);
            let lines = line.into_iter().chain(feed.node_contexts());
            let lines: String = lines.map(|line| line + "\n").collect();
            lines + &table(feed, plan, &shown, &terminal)
        };
        if !terminal::pass_on(text.as_bytes()).map_err(Error::Output)? {
            return Ok(());
        }
        done += 1;
    }
    Ok(())
}

/// The rows of an interval.
struct Rows {
    by: By,
    attribute: String,
    rows: Vec<Row>,
    /// The samples in them, and how many have a context.
    samples: u64,
    attached: u64,
    gil: GilSamples,
}

/// Returns the rows, with the names of functions that are resolved in time.
fn with_names(feed: &mut Feed<'_>, names: &mut Names, plan: &Plan) -> Rows {
    let end = Instant::now() + NAMES_TIMEOUT;
    loop {
        let samples = names.selected(&feed.catalog, &feed.window, &plan.functions);
        let shown = rows_of(feed, names, plan, &samples);
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

fn rows_of(feed: &Feed<'_>, names: &mut Names, plan: &Plan, samples: &Samples<'_>) -> Rows {
    let attribute = attribute(plan, &attribute_keys(samples));
    let by = match &plan.by {
        By::Attribute(_) => By::Attribute(attribute.clone()),
        by => by.clone(),
    };
    let mut function = |by: &By, stacks: &_| names.key(by, &feed.catalog, stacks);
    let mut gil = GilSamples::default();
    for (cell, samples) in samples {
        gil.add(cell.gil, *samples);
    }
    Rows {
        rows: rows(samples, &by, &attribute, &mut function),
        samples: samples.iter().map(|(_, samples)| samples).sum(),
        attached: attached(samples),
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
        feed.incomplete_stacks(),
        feed.incomplete_steps(),
        feed.contested_keys(),
    ];
    let incomplete = incomplete.into_iter().flatten();
    let incomplete = incomplete.map(|text| format!(" · {text}"));
    let mut text = format!(
        "{}  CPU {} % of {} % · {} in {:.1} s{}{}\n",
        clock::local(SystemTime::now()),
        share.percent(shown.samples),
        plan.cpus * 100,
        count(shown.samples as usize, "sample", "samples"),
        window.wall() as f64 / 1e9,
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
    lost: u64,
    #[serde(with = "CountsJson")]
    counts: Counts,
    by: String,
    attribute: Option<&'r str>,
    rows: Vec<ReportRow<'r>>,
    without_symbols: Vec<FileJson<'r>>,
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
    let rows = rows.map(|row| row_of(row, share.of(row.samples)));
    let report = Report {
        time: clock::utc(SystemTime::now()),
        wall_ns: window.wall(),
        period_ns: share.period,
        cpus: plan.cpus,
        method: if plan.is_stopping { "ptrace" } else { "ebpf" },
        samples: shown.samples,
        with_context: shown.attached,
        gil: shown.gil,
        lost: window.counts().lost,
        counts: window.counts(),
        by: match &shown.by {
            By::Attribute(_) => "attribute".to_owned(),
            by => by.words(),
        },
        attribute: Some(&shown.attribute[..]).filter(|name| !name.is_empty()),
        rows: rows.collect(),
        without_symbols: without_symbols.json(),
    };
    let mut line = Vec::new();
    json::write_line(&report, &mut line).map_err(Error::Output)?;
    Ok(String::from_utf8_lossy(&line).into_owned())
}

fn row_of(row: &Row, cpu: f64) -> ReportRow<'_> {
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
        samples: row.samples,
        cpu,
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
