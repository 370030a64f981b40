//! `otelctx record`: samples processes, and writes what they did and for which trace.

pub(super) mod cached_symbols;
pub(super) mod empty_recording;
pub(super) mod gil;
mod held;
mod keep;
pub(super) mod output;
mod progress;
mod send;
pub(super) mod session;
mod summary;
mod unsent;
pub(super) mod waits;
mod writer;

use std::ffi::OsString;
use std::io::{self, Write};
use std::mem;
use std::path::PathBuf;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use clap::builder::ArgPredicate;
use otelctx_profile::sample::ModuleFiles;
use otelctx_profile::{Format, Parts, Spool};
use otelctx_sampler::{Sampler, Targets};
use otelctx_symbolize::{SharedServer, Symbols};

use crate::command::child::{self, Waiting};
use crate::command::debug_files::DebugFiles;
use crate::command::filter::{Filter, Select, Selected};
use crate::command::go_labels::GoLabels;
use crate::command::help;
use crate::command::selection::{GivenOption, TimeRange};
use crate::command::wall::Wall;
use crate::command::without_symbols::WithoutSymbols;
use crate::command::{ids, needed, seconds, standard_output};
use crate::error::Error;
use crate::output::terminal::{self, escape};
use crate::output::text::own_name;
use crate::{Setup, Status, hidden, interrupt};

use cached_symbols::CachedSymbols;
use keep::{KeepOptions, Keeper, Report};
pub(super) use output::Written;
use send::Collector;
use session::{Plan, Recorded, Session};
use summary::Summary;
use waits::Waits;
use writer::{KeptWriter, Writer};

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
    #[command(flatten)]
    pub(crate) go_labels: GoLabels,
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
    #[command(flatten)]
    keep: KeepOptions,
    /// What flame graphs, pages and folded stacks group by, several with commas between: attributes of
    /// contexts or resources, process, thread (in flame graphs and pages, worker-* for all threads of a pool)
    /// and trace; `none` for none [default: http.route, if any sample has it]
    #[arg(help_heading = help::OUTPUT, long, value_name = "ATTRIBUTE,…", value_delimiter = ',', value_parser = ids::attribute)]
    by: Vec<String>,
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
  otelctx record -p 4711 --keep 60s --trigger 'http.route=/cart and seen > 2s' -o slow.html
                                                     the minute before a request becomes slow
  otelctx report profile.otlp                        show the recording as tables";

pub(crate) fn run(mut arguments: Arguments, setup: &Setup) -> Result<Status, Error> {
    let bare = ids::without_option(&arguments.bare, "record")?;
    arguments.pid.extend(bare);
    arguments.wall = arguments.wall.of_kinds(&arguments.filter.kinds);
    let arguments = &arguments;
    let standard_output = arguments.standard_output()?;
    output::check(&arguments.output)?;
    output::say_what_does_not_divide(&arguments.by, &arguments.output, standard_output);
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
    if arguments.keep.is_given() {
        interrupt::catch_write_requests().map_err(Error::Interrupt)?;
    }
    let ended = record(
        arguments,
        targets,
        selected.older_children,
        setup,
        collector,
        server.clone(),
    )?;
    let (stacks, steps) = (
        ended.recorded.incomplete_stacks,
        ended.recorded.incomplete_steps,
    );
    let mut summary = Summary::new(ended.method, arguments.conditions(), stacks, steps);
    summary.without_symbols = WithoutSymbols::new(arguments.debug_files.debuginfod.as_ref());
    let samples_cpu = arguments.wall.samples_cpu();
    let scans = ended.recorded.scans;
    summary.waits = scans.map(|scans| Waits::new(scans, samples_cpu, &arguments.filter.kinds));
    let mut symbols = CachedSymbols::new(arguments.symbols(server, ended.recorded.files));
    let clock = ended.parts.clock();
    let may_write = ended.kept.as_ref().is_none_or(Report::may_write);
    let paths = match &ended.kept {
        _ if !may_write => Vec::new(),
        None => arguments.output.clone(),
        Some(_) => keep::with_time(&arguments.output, clock.unix(clock.end)),
    };
    let mut writer = Writer::new(arguments, paths, summary);
    writer.targets = selected.pids;
    writer.standard_output = standard_output;
    writer.collector = ended.collector.filter(|_| may_write);
    let failure = ended.recorded.failure;
    writer.failed.extend(failure.map(Error::SpoolFull));
    let failed_before = ended.kept.as_ref().is_some_and(Report::has_failures);
    writer.kept = ended.kept;
    writer.add_all(ended.parts, &mut symbols);
    for failure in symbols.symbols().failures() {
        let failure = failure.to_string();
        // Standard error may be closed.
        let _ = writeln!(io::stderr(), "otelctx: {}", escape(&failure));
    }
    let child = ended.child;
    let printed = writer.finish(child.is_some());
    // Last, so that nothing is lost if the user interrupts a command that does not end.
    let status = child.map_or(Status::Done, |child| Status::Ended(child::status(child)));
    printed?;
    Ok(if writer.failed.is_empty() && !failed_before {
        status
    } else {
        Status::CouldNotRun
    })
}

impl Arguments {
    /// Returns a symbolizer for these files of sampled code.
    fn symbols(&self, server: Option<SharedServer>, files: ModuleFiles) -> Symbols {
        let symbols = self.debug_files.symbols(server);
        let symbols = symbols.search_processes().files(files);
        if self.no_symbols {
            symbols.without_functions()
        } else {
            symbols
        }
    }

    /// Creates the file for samples, unless they are kept in memory.
    fn spool(&self) -> Result<Option<Spool>, Error> {
        if self.keep.is_given() {
            return Ok(None);
        }
        let beside = self.output.first().cloned().unwrap_or_default();
        Spool::beside(&beside).map(Some).map_err(Error::Spool)
    }

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

/// A recording that has ended.
struct Ended {
    recorded: Recorded,
    parts: Parts,
    /// `ebpf` or `ptrace`.
    method: &'static str,
    /// The command, if one was started.
    child: Option<Child>,
    collector: Option<Collector>,
    /// What was written before, with `--keep`.
    kept: Option<Report>,
}

/// Samples until the recording ends.
fn record(
    arguments: &Arguments,
    targets: Targets,
    older_children: Vec<i32>,
    setup: &Setup,
    collector: Option<Collector>,
    server: Option<SharedServer>,
) -> Result<Ended, Error> {
    let cannot_start = child::cannot_start(&arguments.command);
    let program = child::program(&arguments.command);
    let waiting = program.map(Waiting::start).transpose();
    let waiting = waiting.map_err(&cannot_start)?;
    let spool = arguments.spool()?;
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
        duration: arguments.duration,
        shows_progress: true,
    })?;
    let method = session.method;
    let child = waiting.map(Waiting::go).transpose().map_err(cannot_start)?;
    let has_ended = |sampler: &Sampler| match &child {
        Some(child) => child::has_ended(child),
        None => !sampler.has_targets(),
    };
    let end_command = || child.iter().for_each(child::end);
    let (recorded, parts, kept, collector) = if let Some(mut spool) = spool {
        let mut recorded = session.run(&mut spool, has_ended);
        end_command();
        let (now, catalog) = (recorded.now, mem::take(&mut recorded.catalog));
        let parts = spool.finish(catalog, now.clock, now.period, now.counts);
        (recorded, parts, None, collector)
    } else {
        let hurry = Arc::new(AtomicBool::new(false));
        let files = session.files();
        let symbols = arguments.symbols(server.clone(), files.clone());
        let work = KeptWriter {
            symbols: CachedSymbols::remembering(symbols, files.clone(), Arc::clone(&hurry)),
            arguments,
            method,
            server,
            files,
            collector,
        };
        thread::scope(|scope| {
            let mut keeper = Keeper::start(&arguments.keep, &session, scope, work, hurry);
            let recorded = session.run(&mut keeper, has_ended);
            end_command();
            let (parts, kept, work) = keeper.finish(&recorded);
            (recorded, parts, Some(kept), work.collector)
        })
    };
    Ok(Ended {
        recorded,
        parts,
        method,
        child,
        collector,
        kept,
    })
}
