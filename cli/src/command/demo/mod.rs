//! `otelctx demo`: a small service, recorded from outside as another process would.

mod child;
mod files;
mod report;
pub(crate) mod service;
mod text;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use otelctx_profile::{Options, Profile, Spool};
use otelctx_sampler::Targets;
use otelctx_symbolize::Symbols;

use super::record::output;
use super::record::session::{Now, Plan, Session};
use super::seconds::seconds;
use crate::command::filter::levels;
use crate::command::wall::Wall;
use crate::error::Error;
use crate::interrupt;
use crate::output::json;
use crate::output::terminal::{self, Terminal};
use crate::{Setup, Status};

use report::Report;

/// Samples per second on each CPU: a request of 10 ms gets a few.
const FREQUENCY: u32 = 999;
/// Sampling frequency where each sample stops a thread, so that the service has time to work.
const FREQUENCY_STOPPING: u32 = 249;

/// Start a small service that publishes its contexts, and record it from outside
///
/// The service is a separate process and ends with the command. Shows its CPU time by route, trace and
/// thread, and writes the recording in several formats. Does not need root; without root, threads are
/// stopped briefly to sample them. Ctrl-C ends the recording early and shows what was recorded so far.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  otelctx demo                     write files to a new directory, otelctx-demo
  otelctx demo --duration 60 &     run other commands on the service meanwhile
  otelctx ps")]
pub(crate) struct Arguments {
    /// How long to record, in seconds
    #[arg(
        short,
        long,
        value_name = "SECONDS",
        default_value = "5",
        value_parser = seconds
    )]
    duration: Duration,
    /// Directory to write to, created if missing [default: a new one in the current directory, or in
    /// the directory for temporary files if the current one is not writable]
    #[arg(short, long, value_name = "DIRECTORY")]
    output: Option<PathBuf>,
    /// Print one JSON value (fields: docs/json.md)
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<Status, Error> {
    if let Some(directory) = &arguments.output {
        files::prepare(directory)?;
    }
    // Started here and not on a thread: the service ends when the thread that started it does.
    let service = child::Service::start()?;
    interrupt::catch().map_err(Error::Interrupt)?;
    if !arguments.json {
        let head = text::head(service.pid(), arguments.duration);
        terminal::print(&head).map_err(Error::Output)?;
    }
    let mut spool = Spool::beside(Path::new("")).map_err(Error::Spool)?;
    let session = Session::start(Plan {
        older_children: None,
        targets: Targets::Processes(vec![service.pid()]),
        given: vec![service.pid()],
        is_command: false,
        code_files: Vec::new(),
        frequency: FREQUENCY,
        wall: Wall::default(),
        ptrace_frequency: FREQUENCY_STOPPING,
        without_ebpf: false,
        setup: Setup::default(),
        duration: Some(arguments.duration),
        shows_progress: true,
    })?;
    let method = session.method;
    let recorded = session.run(&mut spool, |sampler| !sampler.has_targets());
    let sampled = recorded.files;
    if let Some(error) = recorded.failure {
        return Err(Error::SpoolFull(error));
    }
    // A recording this short has one part.
    let Now {
        clock,
        period,
        counts,
    } = recorded.now;
    let mut parts = spool.finish(recorded.catalog, clock, period, counts);
    let recorded = match parts.next() {
        Some(Ok(recorded)) => recorded,
        Some(Err(error)) => return Err(Error::Spool(error)),
        None => return Err(Error::Spool(io::ErrorKind::UnexpectedEof.into())),
    };
    let mut report = Report::of(service.pid(), method, &recorded);
    // While the service is there: it may have been started from a file that is gone.
    let profile = Profile::new(recorded, &mut Symbols::new().files(sampled));
    drop(service);
    let mut options = Options::default();
    options.by = levels(&[]);
    let (directory, written, failed) = match files::choose(arguments.output.clone()) {
        Ok((directory, paths)) => {
            let finished = output::write(&profile, &options, &paths);
            (Some(directory), finished.written, finished.failed)
        }
        Err(error) => (None, Vec::new(), vec![error]),
    };
    (report.directory, report.files) = (directory, written);
    let text = if arguments.json {
        json::render(&report)
    } else {
        text::render(&report, &Terminal::of_stdout())
    };
    terminal::print(&text).map_err(Error::Output)?;
    for error in &failed {
        terminal::complain(&error.to_string(), error.hint().as_deref());
    }
    Ok(match report.unreadable {
        _ if !failed.is_empty() => Status::CouldNotRun,
        0 => Status::Done,
        _ => Status::FoundProblem,
    })
}
