//! `otelctx ps` lists the processes that publish a process context.

mod row;
mod watch;

use std::io;
use std::time::Duration;

use otelctx_reader::remote::{process, stop};
use otelctx_reader::runtime::Runtimes;
use otelctx_reader::sweep::Sweep;
use otelctx_reader::{ContextState, Error as ReaderError, FileCache, Options, Process};
use serde::{Deserialize, Serialize};

use self::row::{COLUMNS, Row};
use super::retry::unless_ended;
use super::same_memory::{Place, SameMemory};
use super::seconds::seconds;
use super::worker::{self, Worker};
use crate::error::{Error, not_permitted};
use crate::output::json;
use crate::output::table::{Align, Table};
use crate::output::terminal::{self, Terminal};
use crate::output::text::own_name;
use crate::{Setup, Status, hidden};

/// List the processes that publish a context
///
/// Stops nothing, unless --threads is given.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  otelctx ps
  otelctx ps --all                         also processes without context; (shop) is from their environment
  otelctx ps --watch                       a line for each process that starts, exits or updates
  otelctx ps --watch --json | jq .service")]
pub(crate) struct Arguments {
    /// Also list the processes that publish nothing, each with its name. A service in parentheses is
    /// from the process's environment (OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES)
    #[arg(long, short, conflicts_with = "watch")]
    all: bool,
    /// Print one JSON value, with --watch one per line (fields: docs/json.md)
    #[arg(long)]
    json: bool,
    /// Count the threads that have a trace (stops each one for a few microseconds)
    #[arg(long)]
    threads: bool,
    /// Time limit for each process, in seconds, nine tenths of it for threads; what was found is shown
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds, conflicts_with = "watch")]
    deadline: Duration,
    /// Skip processes with more mappings than this
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_mappings: Option<u64>,
    /// Keep running and print a line for each process that starts, exits, publishes or updates (TIME
    /// is local time; in JSON it is UTC)
    #[arg(long, conflicts_with = "threads")]
    watch: bool,
    /// Interval between polls, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds, requires = "watch")]
    interval: Duration,
}

/// The result for the whole machine (docs/json.md).
#[derive(Debug, Default, Serialize)]
struct Listing {
    processes: Vec<Row>,
    skipped: Skipped,
}

/// Processes that are not listed although they may publish something.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Skipped {
    not_permitted: usize,
    too_many_mappings: Vec<i32>,
    failed: Vec<Failure>,
    /// Hint for getting permission; not in JSON, because it is for people.
    #[serde(skip)]
    hint: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Failure {
    pid: i32,
    error: String,
}

pub(crate) fn run(arguments: &Arguments, setup: &Setup) -> Result<Status, Error> {
    hidden::say_if_any();
    if arguments.watch {
        return watch::run(arguments);
    }
    let listing = gather(arguments, &setup.runtimes)?;
    let text = if arguments.json {
        json::render(&listing)
    } else {
        render(&listing, arguments.all, &Terminal::of_stdout())
    };
    terminal::print(&text).map_err(Error::Output)?;
    listing.skipped.report(arguments.max_mappings);
    listing.processes.iter().for_each(Row::explain);
    if listing.processes.is_empty() && !arguments.json {
        let own = own_name();
        let hint = format!("to see one, run:  {own} demo --duration 60 & sleep 1; {own} ps");
        terminal::complain(listing.skipped.nothing_found(), Some(&hint));
    }
    Ok(Status::Done)
}

fn gather(arguments: &Arguments, runtimes: &Runtimes) -> Result<Listing, Error> {
    let mut pids = process::processes()?;
    pids.sort_unstable();
    let mut listing = Listing::default();
    let mut same = SameMemory::default();
    let inspect_all =
        |worker: &Worker, pids: &[i32]| inspect_all(worker, pids, arguments, runtimes);
    let deadline = arguments.deadline;
    worker::each(&pids, deadline, inspect_all, |received| match received {
        Ok(Inspected::Row(row, place)) => {
            let known = place.and_then(|place| same.find_or_add(row.pid, place));
            let mut rows = listing.processes.iter_mut();
            match known.and_then(|known| rows.find(|row| row.pid == known)) {
                Some(known) => known.shares_memory_with.push(row.pid),
                None => listing.processes.push(*row),
            }
        }
        Ok(Inspected::Skipped(skipped, hint)) => listing.skipped.merge(skipped, hint),
        Err((pid, error)) => {
            let error = error.to_string();
            listing.skipped.failed.push(Failure { pid, error });
        }
    })?;
    Ok(listing)
}

/// The result for one process. Processes that publish nothing have none.
#[derive(Debug, Serialize, Deserialize)]
enum Inspected {
    /// Its row, and the location of its context if it could be read.
    Row(Box<Row>, Option<Place>),
    /// The reason for skipping it, and the hint for getting permission.
    Skipped(Skipped, Option<String>),
}

fn inspect_all(
    worker: &Worker,
    pids: &[i32],
    arguments: &Arguments,
    runtimes: &Runtimes,
) -> io::Result<()> {
    let modules = FileCache::default();
    let inspected = stop::on_own_thread(|| {
        for &pid in pids {
            worker.begin(pid);
            match unless_ended(pid, || inspect(pid, arguments, runtimes, modules.clone())) {
                Ok(Some(Some((row, place)))) => {
                    worker.send(&Inspected::Row(Box::new(row), place))?
                }
                Ok(_) => {}
                Err(error) => {
                    let mut skipped = Skipped::one(pid, &error);
                    let hint = skipped.hint.take();
                    worker.send(&Inspected::Skipped(skipped, hint))?;
                }
            }
        }
        Ok(())
    });
    inspected.map_err(io::Error::other)?
}

/// Inspects one process. Returns `None` if it publishes nothing.
fn inspect(
    pid: i32,
    arguments: &Arguments,
    runtimes: &Runtimes,
    modules: FileCache,
) -> Result<Option<(Row, Option<Place>)>, ReaderError> {
    let sweep = Sweep::within(arguments.deadline).with_max_bytes(usize::MAX);
    let mut options = Options::default();
    options.max_mappings = arguments.max_mappings;
    options.deadline = Some(sweep.deadline());
    options.runtimes = runtimes.clone();
    let mut process = Process::with_files(pid, options, modules)?;
    Ok(match process.context()? {
        ContextState::Absent if arguments.all && !process.running()?.status()?.kernel_thread => {
            Some((Row::detected(&process)?, None))
        }
        ContextState::Absent => None,
        ContextState::Broken(why) => Some((Row::broken(&process, &why)?, None)),
        ContextState::Published(context) => {
            let mut row = Row::published(&mut process, &context)?;
            if arguments.threads {
                row.count_traces(&mut process, sweep)?;
            }
            Some((row, Some(Place::of(&context))))
        }
    })
}

/// Formats the table. `all`: with the processes' names, as most of them have no service.
fn render(listing: &Listing, all: bool, terminal: &Terminal) -> String {
    if listing.processes.is_empty() {
        return String::new();
    }
    let rows = listing.processes.iter();
    if !all {
        return Table::new(COLUMNS).render(rows.map(|row| row.cells(true)), terminal);
    }
    let [pid, service, language, schema, keys, threads] = COLUMNS;
    let name = ("NAME", Align::Left);
    let columns = [pid, name, service, language, schema, keys, threads];
    let rows = rows.map(|row| {
        let [pid, service, language, schema, keys, threads] = row.cells(true);
        let name = terminal::escape(&row.comm);
        [pid, name, service, language, schema, keys, threads]
    });
    Table::new(columns).render(rows, terminal)
}

impl Skipped {
    /// Returns the reason for skipping a single process.
    fn one(pid: i32, error: &ReaderError) -> Self {
        let mut skipped = Self::default();
        if let Some(error) = skipped.counted(pid, error) {
            let error = error.to_string();
            skipped.failed.push(Failure { pid, error });
        }
        skipped
    }

    fn merge(&mut self, more: Self, hint: Option<String>) {
        self.not_permitted += more.not_permitted;
        self.too_many_mappings.extend(more.too_many_mappings);
        self.failed.extend(more.failed);
        self.hint = self.hint.take().or(hint);
    }

    /// Counts an error of a kind that may occur often; returns any other error.
    fn counted<'e>(&mut self, pid: i32, error: &'e ReaderError) -> Option<&'e ReaderError> {
        if let Some(hint) = not_permitted(error) {
            self.not_permitted += 1;
            self.hint.get_or_insert_with(|| hint.into());
        } else if matches!(error, ReaderError::TooManyMappings { .. }) {
            self.too_many_mappings.push(pid);
        } else {
            return Some(error);
        }
        None
    }

    fn nothing_found(&self) -> &'static str {
        if self.not_permitted == 0 && self.too_many_mappings.is_empty() && self.failed.is_empty() {
            "no process on this machine publishes a context"
        } else {
            "no process that could be inspected publishes a context"
        }
    }

    /// Reports on standard error what is missing from the list.
    fn report(&self, max_mappings: Option<u64>) {
        let processes = |number| crate::output::text::count(number, "process", "processes");
        if self.not_permitted > 0 {
            let processes = processes(self.not_permitted);
            let message = format!("{processes} could not be inspected: permission denied");
            terminal::complain(&message, self.hint.as_deref());
        }
        if let (Some(limit), false) = (max_mappings, self.too_many_mappings.is_empty()) {
            let pids: Vec<_> = self.too_many_mappings.iter().map(i32::to_string).collect();
            let (processes, pids) = (processes(pids.len()), pids.join(", "));
            let message = format!("skipped {processes} with more than {limit} mappings: {pids}");
            terminal::complain(&message, None);
        }
        for failure in &self.failed {
            terminal::complain(&failure.error, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Skipped;

    #[test]
    fn an_empty_list_says_no_more_than_what_was_inspected() {
        let mut skipped = Skipped::default();
        assert!(skipped.nothing_found().contains("on this machine"));
        skipped.not_permitted = 1;
        assert!(skipped.nothing_found().contains("that could be inspected"));
    }
}
