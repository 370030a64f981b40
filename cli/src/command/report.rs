//! `otelctx report`: the contents of a recording, as tables.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use otelctx_profile::GIL_ATTRIBUTE;
use otelctx_profile::report::{Cost, FunctionCost, Report, Trace};
use serde::Serialize;

use crate::Status;
use crate::command::filter::{NONE, ROUTE};
use crate::command::ids;
use crate::command::record::empty_recording;
use crate::command::record::gil::GilSamples;
use crate::error::Error;
use crate::output::json;
use crate::output::table::{Align, Table};
use crate::output::terminal::{self, Style, Terminal, escape};
use crate::output::text::{argument, count, grouped, own_name};

/// Maximum size of standard input, in bytes, as of a file.
const MAX_FILE: u64 = 1 << 30;

/// Smallest share, as a part of this many, for which functions without names have a line.
const MIN_UNNAMED: u64 = 20;

/// Show CPU time by route, trace and function from a recording
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  otelctx record -p 4711 -d 10 -o profile.otlp
  otelctx report profile.otlp --by tenant")]
pub(crate) struct Arguments {
    /// File written by `otelctx record`, or another OTLP profile; - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Attribute to group by; `none` for none [default: http.route, otherwise the first attribute with
    /// several values]
    #[arg(long, value_name = "ATTRIBUTE", value_parser = ids::attribute)]
    by: Option<String>,
    /// Maximum rows per table; 0 for all
    #[arg(short = 'n', long, value_name = "ROWS", default_value = "15")]
    rows: usize,
    /// Print one JSON value (fields: docs/json.md)
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<Status, Error> {
    let mut by = arguments.by.as_deref().unwrap_or(ROUTE).to_owned();
    let mut input = Vec::new();
    let is_input = arguments.file.to_str() == Some("-");
    if is_input {
        // One byte more than what is refused.
        let limit = MAX_FILE + 1;
        let read = io::stdin().take(limit).read_to_end(&mut input);
        read.map_err(Error::Input)?;
    }
    let read = |by: &str| match is_input {
        true => Report::read_from(&input[..], Path::new("standard input"), by),
        false => Report::read(&arguments.file, by),
    };
    let mut report = read(&by)?;
    if arguments.by.is_none() && !report.attributes.contains(ROUTE) {
        let mut varying = report.varying.iter();
        let first = varying.find(|it| *it != GIL_ATTRIBUTE).cloned();
        by = first.unwrap_or_else(|| NONE.to_owned());
        if by != NONE {
            report = read(&by)?;
        }
    }
    let by = by.as_str();
    let text = if arguments.json {
        json::render(&answer(&report, by))
    } else {
        let terminal = Terminal::of_stdout();
        tables(&report, &arguments.file, by, arguments.rows, &terminal)
    };
    terminal::print(&text).map_err(Error::Output)?;
    let asked = arguments.by.as_deref();
    let asked = asked.filter(|_| report.total.samples > 0);
    if let Some(lacking) = empty_recording::lacking(asked, &report.attributes) {
        terminal::complain(&lacking.message, Some(&lacking.hint));
    }
    Ok(Status::Done)
}

fn tables(report: &Report, file: &Path, by: &str, rows: usize, terminal: &Terminal) -> String {
    if report.total.samples == 0 {
        return "the recording has no samples\n".to_owned();
    }
    let seconds = report.duration as f64 / 1e9;
    let mut text = format!(
        "{} in {seconds:.1} s, {} of CPU time, {} with a trace\n",
        count(report.total.samples as usize, "sample", "samples"),
        time(report.total),
        share(report.with_trace, report.total),
    );
    if let Some(line) = GilSamples::of_report(report).line() {
        text += &format!("{line}\n");
    }
    if let Some(line) = unnamed(report, file) {
        text += &format!("{line}\n");
    }
    let most = if rows == 0 { usize::MAX } else { rows };
    let mut section = |head: &str, all: usize, table: String| {
        text.push_str(&format!("\n{}\n", terminal.paint(Style::Bold, head)));
        text.push_str(&table);
        if all > most {
            let more = grouped(all - most);
            text.push_str(&format!("  and {more} more; -n 0 shows all\n"));
        }
    };
    let number = |name| (name, Align::Right);
    let of_all = |cost: &Cost| share(*cost, report.total);
    let named = |head: &'static str, rows: &[(String, Cost)]| {
        let row = |(name, cost): &(String, Cost)| [time(*cost), of_all(cost), escape(name)];
        Table::new([number("CPU"), number("SHARE"), (head, Align::Left)])
            .render(rows.iter().take(most).map(row), terminal)
    };
    if by != NONE {
        let rows = &report.by_attribute;
        let head = escape(&format!("By {by}"));
        section(&head, rows.len(), named("VALUE", rows));
    }
    let rows = &report.by_trace;
    if !rows.is_empty() {
        let row = |(trace, cost): &(Trace, Cost)| {
            let value = escape(&trace.attribute);
            [time(*cost), of_all(cost), trace.id.clone(), value]
        };
        let (trace, value) = (("TRACE", Align::Left), ("VALUE", Align::Left));
        let table = Table::new([number("CPU"), number("SHARE"), trace, value]);
        let table = table.render(rows.iter().take(most).map(row), terminal);
        section("By trace", rows.len(), table);
    }
    let rows = &report.by_function;
    if !rows.is_empty() {
        let row = |(name, cost): &(String, FunctionCost)| {
            let own = of_all(&cost.own);
            [time(cost.own), own, time(cost.total), escape(name)]
        };
        let function = ("FUNCTION", Align::Left);
        let table = Table::new([number("SELF"), number("SHARE"), number("TOTAL"), function]);
        let table = table.render(rows.iter().take(most).map(row), terminal);
        section("By function", rows.len(), table);
    }
    let rows = &report.by_process;
    if rows.len() > 1 {
        section("By process", rows.len(), named("PROCESS", rows));
    }
    text
}

/// Formats a line about the file with most samples whose functions have no names, if these are many.
fn unnamed(report: &Report, file: &Path) -> Option<String> {
    // The kernel's names for other memory are no paths.
    let is_file = |name: &str| name.starts_with('/') && !name.starts_with("//");
    let (name, cost) = report.unnamed.iter().find(|it| is_file(&it.0))?;
    if MIN_UNNAMED * cost.nanoseconds.max(1) < report.total.nanoseconds {
        return None;
    }
    let file = match file.to_string_lossy() {
        name if name == "-" => "FILE".to_owned(),
        name => escape(&argument(&name)),
    };
    Some(format!(
        "{} of CPU time in {}, whose functions have no names: `{} symbolize {file} --debug-dir DIRECTORY` adds them",
        share(*cost, report.total),
        escape(name),
        own_name(),
    ))
}

/// CPU time, in milliseconds or seconds.
fn time(cost: Cost) -> String {
    match cost.nanoseconds as f64 / 1e6 {
        milliseconds if milliseconds >= 10_000.0 => format!("{:.1} s", milliseconds / 1e3),
        milliseconds => format!("{} ms", grouped(milliseconds.round() as usize)),
    }
}

fn share(part: Cost, all: Cost) -> String {
    let share = part.nanoseconds as f64 / (all.nanoseconds.max(1)) as f64;
    format!("{:.1} %", share * 100.0)
}

/// The JSON object of docs/json.md.
#[derive(Serialize)]
struct Answer<'r> {
    samples: u64,
    cpu_ns: u64,
    with_trace: u64,
    gil: GilSamples,
    duration_ns: u64,
    by: &'r str,
    by_attribute: Vec<Row<'r>>,
    by_trace: Vec<TraceRow<'r>>,
    by_function: Vec<FunctionRow<'r>>,
    by_process: Vec<Row<'r>>,
    unnamed: Vec<Row<'r>>,
}

#[derive(Serialize)]
struct Row<'r> {
    name: &'r str,
    samples: u64,
    cpu_ns: u64,
}

#[derive(Serialize)]
struct TraceRow<'r> {
    trace_id: &'r str,
    attribute: &'r str,
    samples: u64,
    cpu_ns: u64,
}

#[derive(Serialize)]
struct FunctionRow<'r> {
    name: &'r str,
    self_ns: u64,
    total_ns: u64,
}

fn answer<'r>(report: &'r Report, by: &'r str) -> Answer<'r> {
    let row = |(name, cost): &'r (String, Cost)| Row {
        name,
        samples: cost.samples,
        cpu_ns: cost.nanoseconds,
    };
    let trace_row = |(trace, cost): &'r (Trace, Cost)| TraceRow {
        trace_id: &trace.id,
        attribute: &trace.attribute,
        samples: cost.samples,
        cpu_ns: cost.nanoseconds,
    };
    let function_row = |(name, cost): &'r (String, FunctionCost)| FunctionRow {
        name,
        self_ns: cost.own.nanoseconds,
        total_ns: cost.total.nanoseconds,
    };
    Answer {
        samples: report.total.samples,
        cpu_ns: report.total.nanoseconds,
        with_trace: report.with_trace.samples,
        gil: GilSamples::of_report(report),
        duration_ns: report.duration,
        by,
        by_attribute: match by {
            NONE => Vec::new(),
            _ => report.by_attribute.iter().map(row).collect(),
        },
        by_trace: report.by_trace.iter().map(trace_row).collect(),
        by_function: report.by_function.iter().map(function_row).collect(),
        by_process: report.by_process.iter().map(row).collect(),
        unnamed: report.unnamed.iter().map(row).collect(),
    }
}
