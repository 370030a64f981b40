//! `otelctx ps`: every process that publishes a process context.

mod row;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use otelctx_reader::remote::{process, stop};
use otelctx_reader::{
    ContextState, Error as ReaderError, Options, Process, ProcessContext, SharedModules,
};
use serde::Serialize;

use self::row::{COLUMNS, Row};
use super::same_memory::SameMemory;
use super::seconds::seconds;
use crate::Status;
use crate::error::{Error, is_gone, not_permitted};
use crate::output::json;
use crate::output::table::Table;
use crate::output::terminal::{self, Terminal};

/// List the processes that publish a context
///
/// Stops nothing, unless --threads is given.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  otelctx ps
  otelctx ps --watch                       a line whenever a process comes, goes or updates
  otelctx ps --watch --json | jq .service")]
pub(crate) struct Arguments {
    /// Print one JSON value (docs/json.md tells its fields)
    #[arg(long)]
    json: bool,
    /// Count the threads that work on a trace (stops each for some microseconds)
    #[arg(long)]
    threads: bool,
    /// Skip processes with more mappings than this
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_mappings: Option<u64>,
    /// Go on, and print a line whenever a process comes, goes, publishes or updates, until Ctrl-C
    #[arg(long, conflicts_with = "threads")]
    watch: bool,
    /// How often to look
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds, requires = "watch")]
    interval: Duration,
}

/// The machine's answer (docs/json.md).
#[derive(Debug, Default, Serialize)]
struct Listing {
    processes: Vec<Row>,
    skipped: Skipped,
}

/// Processes that are not in the list though they might publish something.
#[derive(Debug, Default, Serialize)]
struct Skipped {
    not_permitted: usize,
    too_many_mappings: Vec<i32>,
    failed: Vec<Failure>,
    #[serde(skip)]
    mend: Option<String>,
}

#[derive(Debug, Serialize)]
struct Failure {
    pid: i32,
    error: String,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> Result<Status, Error> {
    if arguments.watch {
        return watch::run(arguments);
    }
    let listing = stop::on_own_thread(|| gather(arguments))??;
    let text = if arguments.json {
        json::render(&listing)
    } else {
        render(&listing, &Terminal::of_stdout())
    };
    terminal::print(&text).map_err(Error::Output)?;
    listing.skipped.report(arguments.max_mappings);
    if listing.processes.is_empty() && !arguments.json {
        terminal::complain(
            "no process publishes a context here",
            Some("to see one that does, run:  otelctx demo --duration 60 & sleep 1; otelctx ps"),
        );
    }
    Ok(Status::Done)
}

fn gather(arguments: &Arguments) -> Result<Listing, Error> {
    let mut pids = process::processes()?;
    pids.sort_unstable();
    let mut listing = Listing::default();
    let mut same = SameMemory::default();
    let modules = SharedModules::default();
    for pid in pids {
        match look(pid, arguments, modules.clone()) {
            Ok(Some((row, context))) => {
                let known = context.and_then(|context| same.known(pid, &context));
                let known = known
                    .and_then(|known| listing.processes.iter_mut().find(|row| row.pid == known));
                match known {
                    Some(known) => known.shares_memory_with.push(pid),
                    None => listing.processes.push(row),
                }
            }
            Ok(None) => {}
            // It ended while the list was being made.
            Err(error) if is_gone(&error) => {}
            Err(error) => listing.skipped.add(pid, &error),
        }
    }
    Ok(listing)
}

/// A row, and the context that it was made from if that could be read.
type Look = (Row, Option<Arc<ProcessContext>>);

/// `None` when the process publishes nothing.
fn look(
    pid: i32,
    arguments: &Arguments,
    modules: SharedModules,
) -> Result<Option<Look>, ReaderError> {
    let mut options = Options::default();
    options.max_mappings = arguments.max_mappings;
    let mut process = Process::with_modules(pid, options, modules)?;
    Ok(match process.context()? {
        ContextState::Absent => None,
        ContextState::Broken(why) => Some((Row::broken(&process, &why)?, None)),
        ContextState::Published(context) => {
            let mut row = Row::published(&mut process, &context)?;
            if arguments.threads {
                row.count_traces(&mut process)?;
            }
            Some((row, Some(context)))
        }
    })
}

fn render(listing: &Listing, terminal: &Terminal) -> String {
    if listing.processes.is_empty() {
        return String::new();
    }
    let rows = listing.processes.iter().map(Row::cells);
    Table::new(COLUMNS).render(rows, terminal)
}

impl Skipped {
    fn add(&mut self, pid: i32, error: &ReaderError) {
        if let Some(error) = self.counted(pid, error) {
            let error = error.to_string();
            self.failed.push(Failure { pid, error });
        }
    }

    /// Counts an error that there may be many of; gives any other back.
    fn counted<'e>(&mut self, pid: i32, error: &'e ReaderError) -> Option<&'e ReaderError> {
        if let Some(mend) = not_permitted(error) {
            self.not_permitted += 1;
            self.mend.get_or_insert_with(|| mend.into());
        } else if matches!(error, ReaderError::TooManyMappings { .. }) {
            self.too_many_mappings.push(pid);
        } else {
            return Some(error);
        }
        None
    }

    /// Tells on standard error what is missing from the list.
    fn report(&self, max_mappings: Option<u64>) {
        let processes = |number| crate::output::words::count(number, "process", "processes");
        if self.not_permitted > 0 {
            let message = format!("not permitted to look at {}", processes(self.not_permitted));
            terminal::complain(&message, self.mend.as_deref());
        }
        if let (Some(limit), false) = (max_mappings, self.too_many_mappings.is_empty()) {
            let pids: Vec<_> = self.too_many_mappings.iter().map(i32::to_string).collect();
            let message = format!(
                "skipped {} with more than {limit} mappings: {}",
                processes(pids.len()),
                pids.join(", ")
            );
            terminal::complain(&message, None);
        }
        for failure in &self.failed {
            terminal::complain(&failure.error, None);
        }
    }
}
