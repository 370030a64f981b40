//! `otelctx dump PID`: the process context, and the context of every thread.

mod report;
mod text;

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
/// Each thread is stopped for some microseconds while its record is read.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  otelctx dump 4711
  otelctx dump 4711 --json | jq '.threads[].context.trace_id'")]
pub(crate) struct Arguments {
    /// The process
    #[arg(value_parser = clap::value_parser!(i32).range(1..))]
    pid: i32,
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
    let report = stop::on_own_thread(|| gather(arguments.pid, options))?;
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
    let support = process.thread_support()?;
    let mut looks = Vec::new();
    for thread in process.threads()? {
        let name = thread.name().to_owned();
        match look(&thread) {
            Err(error) if is_gone(&error) => {}
            outcome => looks.push(Look {
                tid: thread.tid(),
                name,
                outcome,
            }),
        }
    }
    Ok(Report {
        pid,
        comm,
        forced: process.options().any_schema,
        context,
        detected,
        support,
        looks,
    })
}

/// Reads a thread's context; again if it was being rewritten.
fn look(thread: &Thread<'_>) -> Result<Outcome, ReaderError> {
    let rewritten = |outcome: &Outcome| matches!(outcome, Outcome::NotValid);
    patiently(|| thread.context(), rewritten)
}
