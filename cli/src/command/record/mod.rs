//! `otelctx record`: samples processes, and writes what they did and for which trace.

pub(super) mod empty_recording;
pub(super) mod gil;
mod held;
pub(super) mod output;
mod progress;
mod send;
pub(super) mod session;
mod summary;
mod unsent;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

use clap::builder::ArgPredicate;
use otelctx_profile::{Clock, Format, Options, Parts, Profile, Recording, Spans};
use otelctx_sampler::Targets;
use otelctx_symbolize::Symbols;

use crate::command::child::{self, Waiting};
use crate::command::debug_files::DebugFiles;
use crate::command::filter::{Filter, Select, Selected};
use crate::command::help;
use crate::command::selection::{GivenOption, TimeRange};
use crate::command::wall::Wall;
use crate::command::without_symbols::WithoutSymbols;
use crate::command::{ids, needed, seconds, standard_output};
use crate::error::Error;
use crate::output::json;
use crate::output::terminal::{self, escape};
use crate::output::text::{argument, own_name};
use crate::{Setup, Status, hidden, interrupt};

use empty_recording::{Before, Contexts};
use gil::GilSamples;
use output::Outputs;
pub(super) use output::Written;
use send::{Collector, Delivery};
use session::{Plan, Recorded, Session};
use summary::{Removed, Summary};

/// Sample processes and write a profile with the trace on every sample
///
/// Records until the processes have exited, for --duration, or until Ctrl-C or SIGTERM; then writes
/// the files. A second Ctrl-C ends it without writing them.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[command(
    override_usage = "otelctx record [OPTIONS] <--pid <PID>|--name <NAME>|--container <ID>|--cgroup <PATH>|--all|-- COMMAND...>"
)]
#[command(group(clap::ArgGroup::new("targets").required(true).multiple(true)
    .args(["pid", "bare", "name", "container", "cgroup", "all", "command", "conditions", "traces"])))]
pub(crate) struct Arguments {
    /// Process IDs to sample, with their child processes, including those started later
    #[arg(help_heading = help::PROCESSES, short, long, value_name = "PID", value_delimiter = ',', value_parser = ids::pid)]
    pid: Vec<i32>,
    /// Process IDs without the option
    #[arg(value_name = "PID", hide = true, conflicts_with_all = ["all", "command"])]
    bare: Vec<String>,
    #[command(flatten)]
    select: Select,
    /// Sample every process on this machine
    #[arg(help_heading = help::PROCESSES, short, long, conflicts_with_all = ["pid", "name", "container", "cgroup"])]
    all: bool,
    /// Run this command and sample it from its first instruction
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["pid", "name", "container", "cgroup", "all"])]
    command: Vec<OsString>,
    /// Output file; its extension selects the format: .otlp, .pb.gz (pprof), .json.gz (Firefox
    /// Profiler), .html (a page for a browser), .svg (flame graph), .speedscope.json, .folded or .parquet;
    /// FOLDER/ gets Parquet files by hour and service; - for standard output, with --format. Can be given
    /// more than once
    #[arg(help_heading = help::OUTPUT,
        short,
        long,
        value_name = "FILE",
        default_value = "profile.otlp",
        default_value_if("otlp", ArgPredicate::IsPresent, None)
    )]
    output: Vec<PathBuf>,
    #[command(flatten)]
    standard_output: standard_output::StandardOutput,
    #[command(flatten)]
    send: send::To,
    /// How long to record, in seconds or as 1m30s; then, a command that was started gets SIGTERM
    #[arg(help_heading = help::SAMPLING, short, long, value_name = "SECONDS", value_parser = seconds::seconds)]
    duration: Option<Duration>,
    /// Sampling frequency per CPU, in Hz
    #[arg(help_heading = help::SAMPLING, short = 'F', long, value_name = "HZ", default_value = "99",
        value_parser = clap::value_parser!(u32).range(1..=20_000))]
    frequency: u32,
    #[command(flatten)]
    wall: Wall,
    /// Attribute at the root of flame graphs and folded stacks; `none` for none [default: http.route,
    /// if any sample has it]
    #[arg(help_heading = help::OUTPUT, long, value_name = "ATTRIBUTE", value_parser = ids::attribute)]
    by: Option<String>,
    #[command(flatten)]
    filter: Filter,
    /// Keep only samples of this time: +10s..+20s after the recording's start, or 14:03:00..14:04 (in
    /// local time); either side may be left out
    #[arg(help_heading = help::SAMPLES, long, value_name = "FROM..TO", value_parser = TimeRange::parse, allow_hyphen_values = true)]
    time: Option<TimeRange>,
    /// Keep only samples of threads that hold the global interpreter lock (the GIL of Python)
    #[arg(help_heading = help::SAMPLES, long)]
    gil: bool,
    /// Show the spans of traces in a page (.html), too: a file in OTLP, as a Collector's file exporter
    /// writes it, JSON or protobuf; it is read when the recording has ended
    #[arg(help_heading = help::OUTPUT, long, value_name = "FILE")]
    spans: Option<PathBuf>,
    /// Prefix for context attribute names in OTLP output
    #[arg(help_heading = help::OUTPUT, long, value_name = "PREFIX", default_value = "")]
    attribute_prefix: String,
    #[command(flatten)]
    debug_files: DebugFiles,
    /// Write addresses in files without function names
    #[arg(help_heading = help::NAMES, long, conflicts_with_all = ["debug_dir", "debuginfod"])]
    no_symbols: bool,
    /// Sample by stopping threads, even if eBPF is permitted
    #[arg(help_heading = help::SAMPLING, long)]
    ptrace: bool,
    /// Print one JSON value (fields: docs/json.md)
    #[arg(help_heading = help::OUTPUT, long)]
    json: bool,
}

impl Arguments {
    /// Returns the selection as it was written.
    fn conditions(&self) -> Vec<GivenOption> {
        let mut conditions = self.filter.described();
        conditions.extend(self.time.map(|time| GivenOption::new("time", time)));
        conditions
    }
}

const EXAMPLES: &str = "\
Examples:
  otelctx record -p 4711 -d 10 -o out.svg            a flame graph by service and route
  otelctx record --all -o all.otlp -o all.pb.gz      every process, until Ctrl-C
  otelctx record -- ./app --option value             a command, from its first instruction
  otelctx record --all --otlp http://localhost:4317  send to a collector over gRPC
  otelctx report profile.otlp                        show the recording as tables";

pub(crate) fn run(mut arguments: Arguments, setup: &Setup) -> Result<Status, Error> {
    let bare = ids::without_option(&arguments.bare, "record")?;
    arguments.pid.extend(bare);
    let arguments = &arguments;
    let standard_output = arguments.standard_output()?;
    output::check(&arguments.output)?;
    let is_page = |path: &PathBuf| Format::from_path(path).is_ok_and(|it| it == Format::Page);
    let has_page = arguments.output.iter().any(is_page) || standard_output == Some(Format::Page);
    if arguments.spans.is_some() && !has_page {
        return Err(Error::SpansWithoutPage);
    }
    let has_targets = !(arguments.pid.is_empty() && arguments.select.is_empty());
    let (targets, selected) = if arguments.all || !has_targets && arguments.command.is_empty() {
        hidden::say_if_any();
        (Targets::All, Selected::default())
    } else {
        let selected = arguments.select.processes(&arguments.pid)?;
        (Targets::Processes(selected.pids.clone()), selected)
    };
    if arguments.no_symbols && !output::take_names_later(&arguments.output, standard_output) {
        let own = own_name();
        let hint = format!("write .otlp, then run `{own} symbolize FILE.otlp`");
        terminal::complain(
            "--no-symbols: names can be added to .otlp files alone; the other files keep addresses",
            Some(&hint),
        );
    }
    let collector = Collector::of(&arguments.send)?;
    let server = arguments.debug_files.server()?;
    interrupt::report_loss(true);
    interrupt::catch().map_err(Error::Interrupt)?;
    interrupt::say_if_ignored();
    let (recorded, method, child) = record(arguments, targets, selected.older_children, setup)?;
    let (stacks, steps) = (recorded.incomplete_stacks, recorded.incomplete_steps);
    let mut summary = Summary::new(method, arguments.conditions(), stacks, steps);
    summary.without_symbols = WithoutSymbols::new(arguments.debug_files.debuginfod.as_ref());
    let symbols = arguments.debug_files.symbols(server).search_processes();
    let mut symbols = symbols.files(recorded.files);
    if arguments.no_symbols {
        symbols = symbols.without_functions();
    }
    let mut writer = Writer {
        arguments,
        targets: selected.pids,
        before: Before::default(),
        contexts: Contexts::default(),
        summary,
        outputs: None,
        standard_output,
        collector,
        sent: None,
        failed: recorded.failure.map(Error::SpoolFull).into_iter().collect(),
    };
    writer.add_all(recorded.parts, &mut symbols);
    for failure in symbols.failures() {
        let failure = failure.to_string();
        // Standard error may be closed.
        let _ = writeln!(io::stderr(), "otelctx: {}", escape(&failure));
    }
    let printed = writer.finish(child.is_some());
    // Last, so that nothing is lost if the user interrupts a command that does not end.
    let status = child.map_or(Status::Done, |child| Status::Ended(child::status(child)));
    printed?;
    Ok(if writer.failed.is_empty() {
        status
    } else {
        Status::CouldNotRun
    })
}

/// Writes and sends a recording part by part, and keeps the facts for its closing lines.
struct Writer<'a> {
    arguments: &'a Arguments,
    /// The processes that were chosen; none for the whole machine.
    targets: Vec<i32>,
    before: Before,
    contexts: Contexts,
    summary: Summary,
    /// `None` before the first part.
    outputs: Option<Outputs>,
    /// The format of standard output, if the recording is written there.
    standard_output: Option<Format>,
    collector: Option<Collector>,
    sent: Option<Delivery>,
    failed: Vec<Error>,
}

impl Writer<'_> {
    /// Filters, writes and sends the parts, until one cannot be read back.
    fn add_all(&mut self, parts: Parts, symbols: &mut Symbols) {
        let (clock, samples) = (parts.clock(), parts.samples());
        for part in parts {
            let mut part = match part {
                Ok(part) => part,
                Err(error) => return self.failed.push(Error::Spool(error)),
            };
            let (clock_of_part, removed) = (part.clock, self.select(&mut part, clock));
            let mut profile = Profile::new(part, symbols);
            self.select_by_function(&mut profile, clock_of_part, removed);
            self.summary.without_symbols.add(&profile, symbols);
            let arguments = self.arguments;
            let outputs = self.outputs.get_or_insert_with(|| {
                let mut options = Options::default();
                options.by = output::root(arguments.by.as_deref(), &profile);
                options
                    .attribute_prefix
                    .clone_from(&arguments.attribute_prefix);
                let dropped = &arguments.filter.attributes.drop;
                options.dropped_attributes.clone_from(dropped);
                options.host = output::host();
                let standard_output = self.standard_output;
                Outputs::new(options, &arguments.output, standard_output, clock, samples)
            });
            outputs.add(&profile);
            let Some(collector) = &mut self.collector else {
                continue;
            };
            match (collector.send(&profile, &outputs.options), &mut self.sent) {
                (Ok(delivery), Some(sent)) => sent.add(&delivery),
                (Ok(delivery), sent) => *sent = Some(delivery),
                (Err(error), _) => {
                    self.failed.push(error);
                    if arguments.output.is_empty() {
                        outputs.add_file(&profile, &unsent::name());
                    }
                }
            }
        }
    }

    /// Leaves out the samples and attributes of a part that were not requested. `clock` is that of the
    /// whole recording.
    fn select(&mut self, part: &mut Recording, clock: Clock) -> Removed {
        let arguments = self.arguments;
        self.before.add(part, arguments);
        let mut not_selected = arguments.filter.keep(part);
        if let Some(time) = &arguments.time {
            let all = part.samples.len();
            let selected = time.within(clock);
            part.samples
                .retain(|sample| selected.contains(&sample.time));
            not_selected += all - part.samples.len();
        }
        Removed {
            gil: GilSamples::default(),
            not_selected,
            attributes: arguments.filter.attributes.apply(part),
        }
    }

    /// Leaves out samples and frames that were not requested, and counts the others.
    fn select_by_function(&mut self, part: &mut Profile, clock: Clock, mut removed: Removed) {
        let arguments = self.arguments;
        if !arguments.filter.functions.is_empty() {
            removed.not_selected += part.keep_functions(&arguments.filter.functions);
        }
        removed.gil = GilSamples::of_part(part);
        if arguments.gil {
            self.before.add_gil(removed.gil);
            part.keep_gil_holders();
        }
        if !arguments.filter.languages.is_empty() {
            part.keep_languages(&arguments.filter.languages);
        }
        self.contexts.add(part);
        self.summary.add(part, clock, removed);
    }

    /// Writes the files of all parts, and prints the closing lines: on standard error if standard
    /// output is a command's.
    fn finish(&mut self, is_command: bool) -> Result<(), Error> {
        let arguments = self.arguments;
        let mut outputs = self.outputs.take();
        if let (Some(path), Some(outputs)) = (&arguments.spans, &mut outputs) {
            match Spans::read(path) {
                Ok(spans) => outputs.set_spans(spans),
                Err(error) => self.failed.push(error.into()),
            }
        }
        let mut finished = outputs.map(Outputs::finish).unwrap_or_default();
        interrupt::report_loss(false);
        self.failed.append(&mut finished.failed);
        let written = &finished.written;
        let lacking = || self.contexts.lacking(arguments.by.as_deref());
        let samples = self.summary.samples();
        let explanation = self.before.explanation(samples, arguments, &self.targets);
        let explanation = explanation.or_else(lacking);
        let text = if arguments.json {
            json::render(&self.summary.json(written, self.sent.as_ref()))
        } else {
            let line = Written::line;
            let files = written.iter().filter(|it| it.has_content()).map(line);
            let sent = self.sent.as_ref().map(Delivery::line).unwrap_or_default();
            self.summary.text() + &files.collect::<String>() + &sent
        };
        let printed = if (is_command || self.standard_output.is_some()) && !arguments.json {
            // Standard output may be a pipe to another program. A failure cannot be reported.
            let _ = io::stderr().write_all(text.as_bytes());
            Ok(())
        } else {
            terminal::print(&text).map_err(Error::Output)
        };
        if let [file, ..] = &written[..]
            && arguments.no_symbols
            && self.summary.samples() > 0
            && output::take_names_later(&arguments.output, self.standard_output)
        {
            let message = "functions in files have no names yet";
            let (program, file) = (own_name(), argument(&file.path));
            let hint = format!("`{program} symbolize {file}` adds them");
            terminal::complain(message, Some(&hint));
        }
        if let Some(explanation) = explanation {
            terminal::complain(&explanation.message, Some(&explanation.hint));
        }
        if let Some(line) = finished.kept_line() {
            terminal::complain(&line, None);
        }
        for error in &self.failed {
            terminal::complain(&error.to_string(), error.hint().as_deref());
        }
        printed
    }
}

impl Arguments {
    /// Returns the format to write to standard output, if nothing else is written there.
    fn standard_output(&self) -> Result<Option<Format>, Error> {
        let format = self.standard_output.chosen(&self.output)?;
        match format {
            Some(_) if !self.command.is_empty() => Err(Error::OutputInUse("the command's")),
            Some(_) if self.json => Err(Error::OutputInUse("for --json")),
            format => Ok(format),
        }
    }
}

/// Samples until the recording ends. Returns the method's name, and the command if one was started.
fn record(
    arguments: &Arguments,
    targets: Targets,
    older_children: Vec<i32>,
    setup: &Setup,
) -> Result<(Recorded, &'static str, Option<Child>), Error> {
    let cannot_start = child::cannot_start(&arguments.command);
    let program = child::program(&arguments.command);
    let waiting = program.map(Waiting::start).transpose();
    let waiting = waiting.map_err(&cannot_start)?;
    let session = Session::start(Plan {
        targets: match &waiting {
            Some(waiting) => Targets::Processes(vec![waiting.pid]),
            None => targets,
        },
        given: arguments.pid.clone(),
        older_children: waiting.is_none().then_some(older_children),
        is_command: waiting.is_some(),
        code_files: if arguments.ptrace {
            Vec::new()
        } else {
            needed::code_files(&arguments.command)
        },
        frequency: arguments.frequency,
        ptrace_frequency: arguments.frequency,
        wall: arguments.wall,
        without_ebpf: arguments.ptrace,
        setup: setup.clone(),
        beside: arguments.output.first().cloned().unwrap_or_default(),
        duration: arguments.duration,
    })?;
    let method = session.method;
    let Some(waiting) = waiting else {
        let recorded = session.run(|sampler| !sampler.has_targets());
        return Ok((recorded, method, None));
    };
    let child = waiting.go().map_err(cannot_start)?;
    let recorded = session.run(|_| child::has_ended(&child));
    child::end(&child);
    Ok((recorded, method, Some(child)))
}
