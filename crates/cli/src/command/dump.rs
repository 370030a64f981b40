//! `otelctx dump`: the process context, and the context of every thread, of a process or of its
//! core file.

mod core;
mod report;
mod text;

use std::path::PathBuf;

use otelctx_reader::remote::stop;
use otelctx_reader::{Error as ReaderError, Options, Outcome, Process, Thread};

use self::report::{Look, Report};
use super::patience::patiently;
use crate::Status;
use crate::error::{Error, is_gone};
use crate::output::json;
use crate::output::terminal::{self, Terminal};

/// Show the context of a process and of each of its threads
///
/// Each thread is stopped for some microseconds while its record is read. Or the same from a core
/// file (docs/core-files.md): nothing has to run then.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  otelctx dump 4711
  otelctx dump 4711 --json | jq '.threads[].context.trace_id'
  otelctx dump --core core.4711          which trace was each thread on when it crashed?
  otelctx dump --core core.4711 --sysroot ./files-of-that-machine")]
pub(crate) struct Arguments {
    /// The process
    #[arg(value_parser = clap::value_parser!(i32).range(1..), required_unless_present = "core")]
    pid: Option<i32>,
    /// A core file in place of a process
    #[arg(long, value_name = "FILE", conflicts_with = "pid")]
    core: Option<PathBuf>,
    /// Where the files are that the process had mapped, if not on this machine: at their paths, or by build-id
    #[arg(
        long,
        value_name = "DIR",
        requires = "core",
        default_value = "/",
        hide_default_value = true
    )]
    sysroot: PathBuf,
    /// Print one JSON value (docs/json.md tells its fields)
    #[arg(long)]
    json: bool,
    /// Read the threads whatever schema the process announces, if any
    #[arg(long)]
    force: bool,
    /// Read at most this much of each thread's record, in bytes
    #[arg(long, value_name = "N", default_value_t = 640,
        value_parser = clap::value_parser!(u32).range(28..=65_563))]
    record_size: u32,
    /// Read a process context up to this size, in bytes
    #[arg(long, value_name = "N", default_value_t = 1 << 20)]
    max_payload: u32,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> Result<Status, Error> {
    let mut options = Options::default();
    options.max_payload = arguments.max_payload as usize;
    options.max_record = arguments.record_size as usize;
    options.any_schema = arguments.force;
    let report = match (&arguments.core, arguments.pid) {
        (Some(core), _) => core::gather(core, &arguments.sysroot, options)?,
        // One of them is required.
        (None, pid) => stop::on_own_thread(|| gather(pid.unwrap_or_default(), options))??,
    };
    let text = if arguments.json {
        json::render(&report.to_json())
    } else {
        text::render(&report, &Terminal::of_stdout())
    };
    terminal::print(&text).map_err(Error::Output)?;
    Ok(if report.has_problem() {
        Status::FoundProblem
    } else {
        Status::Done
    })
}

/// Looks at everything once.
fn gather(pid: i32, options: Options) -> Result<Report, ReaderError> {
    let mut process = Process::with_options(pid, options)?;
    let comm = process.target().comm()?;
    let context = process.context()?;
    let detected = match context {
        otelctx_reader::ContextState::Published(_) => None,
        _ => Some(process.detected()?),
    };
    let mut support = process.thread_support()?;
    let mut looks = look_at_threads(&mut process)?;
    // A library that went meanwhile may have left others' data where its variable was. If it can't
    // be told any more, the process has ended, and what was read of it stands.
    if matches!(process.modules_unchanged(), Ok(false)) {
        support = process.thread_support()?;
        looks = look_at_threads(&mut process)?;
    }
    Ok(Report {
        pid: Some(pid),
        comm,
        core: None,
        forced: process.options().any_schema,
        context,
        detected,
        support,
        looks,
    })
}

/// What each thread works on. One that ends meanwhile is left out.
fn look_at_threads(process: &mut Process) -> Result<Vec<Look>, ReaderError> {
    let mut looks = Vec::new();
    for thread in process.threads()? {
        let (name, outcome) = match thread.name() {
            Ok(name) => (Some(name), look(&thread)),
            Err(error) => (None, Err(error)),
        };
        match outcome {
            Err(error) if is_gone(&error) => {}
            outcome => looks.push(Look {
                tid: thread.tid(),
                name,
                outcome,
            }),
        }
    }
    Ok(looks)
}

/// Reads a thread's context; again if it was being rewritten.
fn look(thread: &Thread<'_>) -> Result<Outcome, ReaderError> {
    let rewritten = |outcome: &Outcome| matches!(outcome, Outcome::NotValid);
    patiently(|| thread.context(), rewritten)
}
