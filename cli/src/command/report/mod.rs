//! `otelctx report`: the contents of a recording, as tables.

mod answer;
mod cells;
mod compare;
pub(in crate::command) mod file;
mod kinds;
mod spans;
pub(in crate::command) mod tables;
pub(in crate::command) mod unselected;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::ValueEnum;
use otelctx_profile::report::{self, Report, ReportOptions, Selection, TimeKind};
use otelctx_profile::{
    CALL_ATTRIBUTE, Format, GIL_ATTRIBUTE, Input, REASON_ATTRIBUTE, STATE_ATTRIBUTE, Spans,
};

use crate::Status;
use crate::command::filter::{ROUTE, divided_by, levels};
use crate::command::help;
use crate::command::ids;
use crate::command::record::{Written, empty_recording};
use crate::command::selection::{self, Select};
use crate::command::standard_output;
use crate::error::Error;
use crate::output::json;
use crate::output::terminal::{self, Terminal, escape};
use crate::output::text::argument;

use kinds::Kinds;
use spans::Found;

/// Number of rows per table, unless another one is given.
const ROWS: usize = 15;
/// Number of functions below each of the costliest rows.
const FUNCTIONS_OF_ROW: usize = 3;

/// Show CPU time by route, trace and function from a recording
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  otelctx record -p 4711 -d 10 -o profile.otlp
  otelctx report                                          what is in profile.otlp
  otelctx report profile.otlp --by tenant,function        by tenant, then by function
  otelctx report profile.otlp --filter http.route=/cart   the functions of one route
  otelctx report profile.otlp --by wait.reason            what threads waited for
  otelctx report profile.otlp --traces --time 14:03..14:04
  otelctx report profile.otlp --spans spans.json          which request was slowest
  otelctx report yesterday.otlp today.otlp                what has changed
  otelctx report profile.otlp --trace ID -o request.svg   one request as a flame graph")]
pub(crate) struct Arguments {
    /// Recording: OTLP of any program, pprof, folded stacks, or the output of `perf script`; - for
    /// standard input; a second one is compared with it [default: profile.otlp, else the newest .otlp
    /// file here]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Add recordings up instead of comparing them
    #[arg(help_heading = help::VIEW, long)]
    join: bool,
    #[command(flatten)]
    select: Select,
    /// What to group by, several with commas between: attributes of contexts or resources, service,
    /// process, thread, trace, of the innermost function function, file and line, and of time off the CPU
    /// thread.state, wait.call and wait.reason; `none` for nothing [default: http.route, otherwise the first attribute with several values]
    #[arg(help_heading = help::VIEW, long, value_name = "ATTRIBUTE,…", value_delimiter = ',', value_parser = ids::attribute)]
    by: Vec<String>,
    /// Sort functions by time in themselves, or with what they call
    #[arg(help_heading = help::VIEW, long, value_enum, default_value = "self")]
    sort: Sort,
    /// Show functions as a tree of callers and callees, of at least 1 %; with --function, from there
    #[arg(help_heading = help::VIEW, long, conflicts_with = "traces")]
    tree: bool,
    /// Show each trace: when it was seen, on how many threads, and its CPU time
    #[arg(help_heading = help::VIEW, long, value_name = "ORDER", value_enum, num_args = 0..=1, default_missing_value = "cpu",
        require_equals = true)]
    traces: Option<TraceOrder>,
    /// Show how long each trace took, and how much of that was CPU time; with --trace, its spans. A file
    /// of spans in OTLP, as a Collector's file exporter writes it: JSON or protobuf
    #[arg(help_heading = help::VIEW, long, value_name = "FILE", conflicts_with = "tree")]
    spans: Option<PathBuf>,
    /// Show functions of interpreters, of the starts of threads and of system calls, too
    #[arg(help_heading = help::VIEW, long)]
    plumbing: bool,
    /// Maximum rows per table; 0 for all [default: 15]
    #[arg(help_heading = help::VIEW, short = 'n', long, value_name = "ROWS", default_value_t = ROWS, hide_default_value = true)]
    rows: usize,
    /// Write the selected samples to this file instead: .otlp, .pb.gz (pprof), .json.gz (Firefox
    /// Profiler), .html (page), .svg (flame graph), .speedscope.json, .folded or .parquet; or to FOLDER/,
    /// as Parquet by hour and service; - for standard output, with --format; can be repeated
    #[arg(help_heading = help::OUTPUT, short, long, value_name = "FILE", conflicts_with_all = ["json", "tree", "traces"])]
    output: Vec<PathBuf>,
    #[command(flatten)]
    standard_output: standard_output::StandardOutput,
    /// Print one JSON value (fields: docs/json.md)
    #[arg(help_heading = help::OUTPUT, long)]
    json: bool,
}

/// The order of functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Sort {
    /// Time in the function itself.
    #[value(name = "self")]
    Own,
    /// Time in the function and its callees.
    Total,
}

/// The order of traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum TraceOrder {
    /// CPU time.
    Cpu,
    /// Time from the first sample to the last.
    Span,
}

pub(crate) fn run(arguments: &Arguments) -> Result<Status, Error> {
    if let Some((path, option)) = arguments.misplaced_value() {
        let hint = format!("did you mean {option}?");
        return Err(Error::NoSuchRecording { path, hint });
    }
    let given = arguments.files.first();
    let file = file::chosen(given.map(PathBuf::as_path))?;
    let mut input = file::opened(&file)?;
    let rest = arguments.files.get(1..).unwrap_or_default();
    if let ([other], false) = (rest, arguments.join) {
        let one = arguments.tree
            || arguments.traces.is_some()
            || arguments.spans.is_some()
            || !arguments.output.is_empty();
        if one {
            return Err(Error::OnlyOneRecording);
        }
        return compare(arguments, &input, &file::opened(other)?);
    }
    for other in rest {
        if !arguments.join {
            return Err(Error::ManyRecordings);
        }
        input = input.and(file::opened(other)?);
    }
    let standard_output = arguments.standard_output.chosen(&arguments.output)?;
    if !arguments.output.is_empty() {
        let options = arguments.options(arguments.select.within(&input)?);
        return convert(&input, &options, arguments, standard_output);
    }
    let Reading { report, by, kinds } = read(arguments, &input)?;
    let kinds = Kinds::new(&kinds, &report);
    if report.total.samples == 0 && !arguments.select.is_all() && !arguments.json {
        unselected::explain(&input, &arguments.select)?;
        return Ok(Status::FoundProblem);
    }
    let spans = arguments.spans.as_deref().map(Spans::read).transpose()?;
    let spans = spans.map(|spans| Found::new(spans, &report, &kinds));
    let text = if arguments.json {
        json::render(&answer::of(
            &report,
            &by,
            arguments.select.described(),
            spans.as_ref(),
        ))
    } else {
        let shown = tables::Shown {
            report: &report,
            file: &file,
            by: &by,
            kinds,
            rows: arguments.most(),
            sort: arguments.sort,
            traces: arguments.traces,
            is_chosen: given.is_none(),
            files: input.paths().len(),
            wants_tree: arguments.tree,
        };
        let terminal = Terminal::of_stdout();
        match &spans {
            Some(spans) if report.total.samples > 0 => {
                let of_traces = !arguments.select.has_traces();
                shown.summary() + &spans.text(of_traces, arguments.most(), &terminal)
            }
            _ => shown.text(&terminal),
        }
    };
    terminal::print(&text).map_err(Error::Output)?;
    for (level, name) in arguments.by.iter().enumerate() {
        // It may be of the resource.
        let mut values = report.groups.iter().filter_map(|it| it.values.get(level));
        let has_value = report::is_level(name) || values.any(|it| it != report::NO_ATTRIBUTE);
        let asked = (report.total.samples > 0 && !has_value).then_some(&name[..]);
        if let Some(lacking) = empty_recording::lacking(asked, &report.attributes) {
            terminal::complain(&lacking.message, Some(&lacking.hint));
        }
    }
    Ok(Status::Done)
}

/// A report, and what it is about.
struct Reading {
    report: Report,
    by: Vec<String>,
    /// The selected kinds of time; none for time on a CPU, with other time beside it.
    kinds: Vec<TimeKind>,
}

/// Reads a recording.
fn read(arguments: &Arguments, input: &Input) -> Result<Reading, Error> {
    let mut options = arguments.options(arguments.select.within(input)?);
    let kinds = &mut options.selection.kinds;
    if kinds.is_empty() {
        *kinds = kinds_of(&options.by).to_vec();
    }
    let mut report = Report::read(input, &options)?;
    let has_kinds = !options.selection.kinds.is_empty();
    if !has_kinds && report.total.samples == 0 && report.kinds.off_cpu().samples > 0 {
        options.selection.kinds = vec![TimeKind::Queued, TimeKind::Waiting];
        report = Report::read(input, &options)?;
    }
    if arguments.by.is_empty() && !report.attributes.contains(ROUTE) {
        let mut varying = report.varying.iter();
        let first = varying.find(|it| *it != GIL_ATTRIBUTE).cloned();
        options.by = first.into_iter().collect();
        report = Report::read(input, &options)?;
    }
    Ok(Reading {
        report,
        by: options.by,
        kinds: options.selection.kinds,
    })
}

/// Returns the kinds of time that have what samples are grouped by, unless all do.
fn kinds_of(by: &[String]) -> &'static [TimeKind] {
    let has = |name: &str| by.iter().any(|it| it == name);
    if has(CALL_ATTRIBUTE) || has(REASON_ATTRIBUTE) {
        &[TimeKind::Waiting]
    } else if has(STATE_ATTRIBUTE) {
        &[TimeKind::Running, TimeKind::Queued, TimeKind::Waiting]
    } else {
        &[]
    }
}

/// Shows what has changed between two recordings: in time on a CPU, and if both have it in each other
/// kind of time, unless kinds were selected.
fn compare(arguments: &Arguments, before: &Input, after: &Input) -> Result<Status, Error> {
    let latter = read(arguments, after)?;
    let mut options = ReportOptions {
        by: latter.by,
        ..arguments.options(arguments.select.within(before)?)
    };
    options.selection.kinds.clone_from(&latter.kinds);
    let former = Report::read(before, &options)?;
    let mut pairs = vec![(latter.kinds, former, latter.report)];
    if pairs[0].0.is_empty() {
        for kind in [TimeKind::Queued, TimeKind::Waiting] {
            let (_, former, latter) = &pairs[0];
            if [former, latter]
                .iter()
                .all(|it| it.kinds.of(kind).samples > 0)
            {
                options.selection.kinds = vec![kind];
                let read = |input| Report::read(input, &options);
                pairs.push((vec![kind], read(before)?, read(after)?));
            }
        }
    }
    let text = if arguments.json {
        let rows = pairs
            .iter()
            .flat_map(|(kinds, before, after)| compare::rows(before, after, kinds));
        json::render(&rows.collect::<Vec<_>>())
    } else {
        let terminal = Terminal::of_stdout();
        let tables = pairs.iter().map(|(kinds, before, after)| {
            let by = &options.by;
            compare::table(before, after, kinds, by, arguments.most(), &terminal)
        });
        tables.collect::<Vec<_>>().join("\n")
    };
    terminal::print(&text).map_err(Error::Output)?;
    Ok(Status::Done)
}

/// Writes the selected samples in the format of each file's extension.
fn convert(
    input: &Input,
    options: &ReportOptions,
    arguments: &Arguments,
    of_output: Option<Format>,
) -> Result<Status, Error> {
    let outputs = &arguments.output;
    let mut write = otelctx_profile::Options::default();
    write.with_plumbing = arguments.plumbing;
    let format = |path: &PathBuf| match of_output {
        Some(format) if standard_output::is_meant(path) => Ok(format),
        _ => Format::from_path(path),
    };
    let formats: Vec<Format> = outputs.iter().map(format).collect::<Result<_, _>>()?;
    if let Some(spans) = &arguments.spans {
        if !formats.contains(&Format::Page) {
            return Err(Error::SpansWithoutPage);
        }
        write.spans = Some(Arc::new(Spans::read(spans)?));
    }
    for path in outputs {
        let is_read = |it: &Path| {
            it.canonicalize()
                .is_ok_and(|it| path.canonicalize().is_ok_and(|path| path == it))
        };
        if input.paths().any(is_read) {
            return Err(Error::OutputIsInput(path.clone()));
        }
    }
    for (path, format) in outputs.iter().zip(formats) {
        write.by = divided_by(format, &options.by);
        let mut selection = options.selection.clone();
        if selection.kinds.is_empty() && matches!(format, Format::FlameGraph | Format::Folded) {
            selection.kinds = kinds_of(&options.by).to_vec();
        }
        let is_written = if standard_output::is_meant(path) {
            let content = otelctx_profile::converted(input, &selection, format, &write)?;
            let print = |content: &Vec<u8>| terminal::write(|stdout| stdout.write_all(content));
            let printed = content.as_ref().map_or(Ok(()), print);
            printed.map_err(Error::Output)?;
            content.is_some()
        } else {
            otelctx_profile::convert(input, &selection, format, &write, path)?
        };
        if !is_written {
            unselected::explain(input, &arguments.select)?;
            return Ok(Status::FoundProblem);
        }
        if of_output.is_none() {
            let line = Written::new(path).line();
            terminal::print(&line).map_err(Error::Output)?;
        }
    }
    Ok(Status::Done)
}

impl Arguments {
    /// Returns a value that was given as a file, which does not exist, and the option that was
    /// probably meant.
    fn misplaced_value(&self) -> Option<(PathBuf, String)> {
        self.files.iter().find_map(|path| {
            let value = path.to_str().filter(|it| *it != "-" && !path.exists())?;
            let order = TraceOrder::from_str(value, false);
            let option = if self.traces.is_some() && order.is_ok() {
                format!("--traces={value}")
            } else if selection::trace(value).is_ok() {
                format!("--trace {value}")
            } else if value.contains('=') {
                format!("--filter {}", argument(value))
            } else if self.tree {
                format!("--function {} --tree", argument(value))
            } else {
                return None;
            };
            Some((path.clone(), escape(&option)))
        })
    }

    fn options(&self, selection: Selection) -> ReportOptions {
        let is_comparison = self.files.len() == 2 && !self.join;
        ReportOptions {
            by: levels(&self.by),
            selection,
            with_plumbing: self.plumbing || self.json,
            functions: if is_comparison || self.json {
                usize::MAX
            } else {
                self.most()
            },
            detailed_groups: if is_comparison {
                usize::MAX
            } else {
                self.most()
            },
            functions_of_group: match (is_comparison, self.json) {
                (true, _) => usize::MAX,
                (false, true) => 0,
                (false, false) => FUNCTIONS_OF_ROW,
            },
            by_total: self.sort == Sort::Total,
            with_tree: self.tree,
            with_spans: self.spans.is_some(),
        }
    }

    /// Returns the maximum number of rows per table.
    fn most(&self) -> usize {
        match self.rows {
            0 => usize::MAX,
            rows => rows,
        }
    }
}
