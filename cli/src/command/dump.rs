//! `otelctx dump`: the process context, and the context of every thread, of a process or of its
//! core file.

mod all;
mod core;
mod inspection;
mod json;
mod last;
mod model;
mod names;
mod stack;
mod stacks;
mod text;
mod waits;

use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use otelctx_reader::remote::stop;
use otelctx_reader::sweep::SnapshotSource;
use otelctx_reader::{ContextState, Options, Process};
use otelctx_sampler::Snapshots;
use otelctx_unwind::Dictionary;

use self::inspection::Inspection;
use self::model::Report;
use self::names::Names;
use self::stacks::StackOptions;
use self::waits::Waits;
use super::debug_files::DebugFiles;
use super::descendants;
use super::ids::{self, process_of};
use super::partial;
use super::seconds::seconds;
use super::worker;
use crate::command::go_labels::GoLabels;
use crate::error::Error;
use crate::output::json::write;
use crate::output::terminal::{self, Terminal};
use crate::{Setup, Status};

/// Show the context of a process and of each of its threads
///
/// Sleeping threads are not stopped. Running threads are stopped for a few microseconds (longer with
/// --stacks), unless --no-stop is given. Also reads core files (docs/core-files.md).
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("target").required(true).args(["pid", "all", "core", "last"]),
    group = clap::ArgGroup::new("names").args(["debug_dir", "debuginfod"]).multiple(true).requires("stacks"),
    after_help = "\
Examples:
  otelctx dump 4711
  otelctx dump 4711 --children           with its workers, if it is a server's first process
  otelctx dump 4711 --json | jq '.threads[].context.trace_id'
  otelctx dump 4711 --no-stop            read the threads while they run
  otelctx dump 4711 --stacks             also show the stack of each thread
  otelctx dump 4711 --waits              also show what each sleeping thread waits for
  otelctx dump 4711 --tasks              also show the tasks that no thread executes
  otelctx dump --all | jq -r '.pid, .threads[]?.context.trace_id'
  otelctx dump --last 30s                have a running `record --keep` write its last 30 s
  otelctx dump --core core.4711          the trace of each thread when the process crashed
  otelctx dump --core core.4711 --sysroot ./files-of-that-machine")]
pub(crate) struct Arguments {
    /// ID of the process, or of one of its threads
    #[arg(value_parser = ids::pid)]
    pid: Option<i32>,
    #[command(flatten)]
    pub(crate) go_labels: GoLabels,
    /// Dump every process that publishes a context, as one JSON object per line
    #[arg(long)]
    all: bool,
    /// Also dump the processes that this one has started, and theirs
    #[arg(long, conflicts_with_all = ["all", "core"])]
    children: bool,
    /// Read a core file instead of a process
    #[arg(long, value_name = "FILE")]
    core: Option<PathBuf>,
    /// Have a running `otelctx record --keep` of this user write the samples of the last SECONDS to its files, and
    /// print their paths
    #[arg(long, value_name = "SECONDS", value_parser = seconds,
        conflicts_with_all = ["children", "tasks", "stacks", "verbose", "deadline", "no_stop", "force", "record_size", "max_payload"])]
    last: Option<Duration>,
    /// Process ID of the recorder, if several run
    #[arg(long, value_name = "PID", requires = "last", value_parser = ids::pid)]
    recorder: Option<i32>,
    /// Also show suspended tasks, such as those of Python's asyncio: what each awaits, and its context.
    /// Stops the whole process, but for threads that sleep in a system call whose timeout a stop would
    /// restart
    #[arg(long)]
    tasks: bool,
    /// Directory with the files that the process had mapped, if they are not on this machine: at their
    /// paths or by build ID
    #[arg(
        long,
        value_name = "DIR",
        requires = "core",
        default_value = "/",
        hide_default_value = true
    )]
    sysroot: PathBuf,
    /// Also show what each sleeping thread waits for: the call, the file or peer, and the holder of the
    /// lock (docs/waiting.md)
    #[arg(long, conflicts_with = "core")]
    waits: bool,
    /// Also show each thread's native stack, with function names
    #[arg(long)]
    stacks: bool,
    /// Also show source lines and inlined calls from compressed debug files, such as Debian's: decompressing
    /// the C library's takes longer than the rest of the dump. Without this option, functions have
    /// their names alone there, unless --core, --debug-dir or --debuginfod is given
    #[arg(long, requires = "stacks")]
    lines: bool,
    /// Also stop sleeping threads, briefly, where their stacks are incomplete otherwise: code that
    /// keeps a frame pointer is unwound from a register that the kernel only shows of stopped
    /// threads. No thread is stopped if that would restart the timeout of its system call
    #[arg(long, requires = "stacks", conflicts_with_all = ["no_stop", "core"])]
    stop_sleeping: bool,
    #[command(flatten)]
    debug_files: DebugFiles,
    /// Also show the addresses of a runtime's structures, and how they were found
    #[arg(short, long, conflicts_with = "json")]
    verbose: bool,
    /// Print one JSON value, with --all and --children one per line (fields: docs/json.md)
    #[arg(long)]
    json: bool,
    /// Time limit for each process, in seconds; threads read in nine tenths of it are shown
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds, conflicts_with = "core")]
    deadline: Duration,
    /// Do not stop threads: read their records with eBPF while they run. Each record is read twice and
    /// shown if both reads agree. Needs Linux 5.18 and root, or CAP_BPF and CAP_PERFMON
    #[arg(long, conflicts_with = "core")]
    no_stop: bool,
    /// Read thread contexts even if the announced schema is missing or unknown
    #[arg(long)]
    force: bool,
    /// Maximum size of a thread's record, in bytes
    #[arg(long, value_name = "N", default_value_t = 640,
        value_parser = clap::value_parser!(u32).range(28..=65_563))]
    record_size: u32,
    /// Maximum size of a process context, in bytes
    #[arg(long, value_name = "N", default_value_t = 1 << 20)]
    max_payload: u32,
}

pub(crate) fn run(arguments: &Arguments, setup: &Setup) -> Result<Status, Error> {
    if let Some(time) = arguments.last {
        return last::run(time, arguments.recorder, arguments.json);
    }
    let mut options = Options::default();
    options.runtimes = setup.runtimes.clone();
    options.max_payload = arguments.max_payload as usize;
    options.max_record = arguments.record_size as usize;
    options.any_schema = arguments.force;
    options.tasks = arguments.tasks;
    options.native_stacks = arguments.stacks;
    // Before anything else: without eBPF, --no-stop must fail and not fall back to stopping threads.
    let snapshots = arguments.no_stop.then(|| {
        let loaded = Snapshots::load(options.max_record);
        loaded.map_err(otelctx_sampler::Error::Snapshot)
    });
    let mut snapshots = snapshots.transpose()?;
    // A lock's holder is only named if the stack is in a function that takes a lock.
    let stacks = (arguments.stacks || arguments.waits).then(|| StackOptions {
        dictionary: Arc::new(Dictionary::new()),
        stop_sleeping: arguments.stop_sleeping,
        are_shown: arguments.stacks,
        waits: arguments.waits.then(Waits::default),
    });
    let debug_files = &arguments.debug_files;
    let symbols = debug_files.symbols(debug_files.server()?);
    let with_lines =
        arguments.lines || arguments.core.is_some() || arguments.debug_files.are_given();
    let symbols = if with_lines {
        symbols
    } else {
        symbols.without_compressed_lines()
    };
    let mut names = Names::new(symbols);
    if arguments.all || arguments.children {
        let tools = all::Tools {
            snapshots,
            stacks,
            names,
            as_json: arguments.all || arguments.json,
            is_verbose: arguments.verbose,
            publishing_only: arguments.all,
        };
        let family = arguments.pid.map(family).transpose()?;
        return all::run(family, &options, arguments.deadline, tools);
    }
    let terminal = Terminal::of_stdout();
    match (&arguments.core, arguments.pid) {
        (Some(core), _) => {
            let stacks = stacks.as_ref();
            let mut report = core::dump(core, &arguments.sysroot, options, stacks)?;
            names.resolve(&mut report);
            write_report(&report, arguments, &terminal)
        }
        // One of them is required.
        (None, pid) => {
            let pid = pid.unwrap_or_default();
            worker::one(pid, arguments.deadline, |worker| {
                let (timeout, stacks) = (arguments.deadline, stacks.as_ref());
                let report = one(pid, options, timeout, source(&mut snapshots), stacks)?;
                // The worker process ends with this command, which frees it faster.
                let mut report = ManuallyDrop::new(report);
                let publishing = match report.context {
                    ContextState::Absent => {
                        descendants::publishing(report.pid.unwrap_or(pid), Instant::now() + timeout)
                    }
                    _ => Vec::new(),
                };
                worker.end();
                names.resolve(&mut report);
                let status = write_report(&report, arguments, &terminal)?;
                if let Some((children, command)) = descendants::sentences(&publishing, "dump") {
                    let message = format!("process {pid} publishes no context; {children}");
                    terminal::complain(&message, Some(&format!("{command} shows it")));
                }
                Ok(status)
            })
        }
    }
}

/// Returns the process with this ID, or with a thread of this ID, and its descendants.
fn family(id: i32) -> Result<Vec<i32>, Error> {
    let pid = process_of(id)?;
    let mut family = vec![pid];
    family.extend(descendants::of(&[pid]));
    Ok(family)
}

/// Returns the source of contexts that are read without stops, if `--no-stop` was given.
fn source(snapshots: &mut Option<Snapshots>) -> Option<&mut dyn SnapshotSource> {
    snapshots.as_mut().map(|it| it as &mut dyn SnapshotSource)
}

fn write_report(
    report: &Report,
    arguments: &Arguments,
    terminal: &Terminal,
) -> Result<Status, Error> {
    terminal::write(|out| {
        if arguments.json {
            write(&json::of(report), out)
        } else {
            text::write(report, arguments.verbose, terminal, out)
        }
    })
    .map_err(Error::Output)?;
    explain(report);
    Ok(if report.has_problem() {
        Status::FoundProblem
    } else {
        Status::Done
    })
}

/// Reports on standard error what is missing, and how to get it.
fn explain(report: &Report) {
    let pid = report.pid.unwrap_or_default();
    if let Some(partial) = &report.swept.partial {
        let message = format!("process {pid}: {}", partial::sentence(partial));
        terminal::complain(&message, partial::hint(partial));
    }
    if let Some(hint) = report.larger_payload() {
        let message = format!("process {pid}: its process context is larger than what is read");
        terminal::complain(&message, Some(&hint));
    }
    for failure in &report.named.failures {
        terminal::complain(&failure.to_string(), None);
    }
}

/// Dumps the process with this id, or with a thread of this id.
fn one(
    id: i32,
    options: Options,
    timeout: Duration,
    snapshots: Option<&mut dyn SnapshotSource>,
    stacks: Option<&StackOptions>,
) -> Result<Report, Error> {
    let pid = process_of(id)?;
    let open = |options| Process::with_options(pid, options);
    let inspection = Inspection::begin(options, timeout, open)?
        .with_stacks(stacks)
        .with_snapshots(snapshots);
    let mut report = stop::on_own_thread(|| inspection.finish())??;
    report.asked_thread = (pid != id).then_some(id);
    Ok(report)
}
