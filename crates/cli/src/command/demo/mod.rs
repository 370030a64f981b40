//! `otelctx demo`: a small service, watched from outside as another process would.

mod child;
mod cpu;
mod report;
pub(crate) mod service;
mod text;
mod watch;

use std::time::Duration;

use otelctx_reader::remote::stop;

use super::seconds::seconds;
use crate::Status;
use crate::error::Error;
use crate::interrupt;
use crate::output::json;
use crate::output::terminal::{self, Terminal};

/// Start a small service that publishes its contexts, and watch it from outside
///
/// The service is a process of its own and ends with the command. Needs no root. Ctrl-C ends it before
/// its time, and shows what was seen by then.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  otelctx demo --duration 60 &
  otelctx ps")]
pub(crate) struct Arguments {
    /// How long to watch
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    duration: Duration,
    /// Print one JSON value (docs/json.md tells its fields)
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> Result<Status, Error> {
    // Started here and not on a thread: the service ends when the thread that started it does.
    let service = child::Service::start()?;
    interrupt::catch().map_err(Error::Interrupt)?;
    if !arguments.json {
        let head = text::head(service.pid(), arguments.duration);
        terminal::print(&head).map_err(Error::Output)?;
    }
    let watched = stop::on_own_thread(|| watch::watch(service.pid(), arguments.duration))??;
    drop(service);
    let report = report::Report::of(watched);
    let text = if arguments.json {
        json::render(&report)
    } else {
        text::render(&report, &Terminal::of_stdout())
    };
    terminal::print(&text).map_err(Error::Output)?;
    Ok(if report.unreadable > 0 {
        Status::FoundProblem
    } else {
        Status::Done
    })
}
