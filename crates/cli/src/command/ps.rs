//! `otelctx ps`: every process that publishes a process context.

use std::sync::Arc;

use otelctx_reader::remote::{process, stop};
use otelctx_reader::{
    ContextState, Error as ReaderError, Options, Process, ProcessContext, SharedModules,
    ThreadSupport,
};
use serde::Serialize;

use super::patience::patiently;
use super::same_memory::SameMemory;
use crate::Status;
use crate::error::{Error, is_gone, not_permitted};
use crate::output::attributes::{language, string};
use crate::output::json;
use crate::output::table::{Align, Table};
use crate::output::terminal::{self, Terminal, escape};

/// List the processes that publish a context
///
/// Stops nothing, unless --threads is given.
#[derive(Debug, clap::Args)]
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
}

/// The machine's answer (docs/json.md).
#[derive(Debug, Default, Serialize)]
struct Listing {
    processes: Vec<Row>,
    skipped: Skipped,
}

/// A process that publishes something.
#[derive(Debug, Serialize)]
struct Row {
    pid: i32,
    comm: String,
    service: Option<String>,
    language: Option<String>,
    schema: Option<String>,
    /// How many names the key map has.
    keys: Option<usize>,
    /// How many threads there are.
    threads: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    threads_with_trace: Option<usize>,
    /// Why the process context, or the threads' contexts, can't be read.
    unreadable: Option<String>,
    /// The threads' contexts were found without the help of `.dynsym`: other readers may fail.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    not_exported: bool,
    /// Processes that run in the memory of this one, and so show the same context.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    shares_memory_with: Vec<i32>,
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
    let mut row = Row {
        pid,
        comm: String::new(),
        service: None,
        language: None,
        schema: None,
        keys: None,
        threads: 0,
        threads_with_trace: None,
        unreadable: None,
        not_exported: false,
        shares_memory_with: Vec::new(),
    };
    let mut published = None;
    match process.context()? {
        ContextState::Absent => return Ok(None),
        ContextState::Broken(why) => {
            let detected = process.detected()?;
            row.service = string(&detected.resource, "service.name").map(Into::into);
            row.unreadable = Some(format!("broken process context: {why}"));
        }
        ContextState::Published(context) => {
            let resource = &context.payload.resource;
            row.service = string(resource, "service.name").map(Into::into);
            row.language = language(resource).map(Into::into);
            row.schema = context.schema.as_ref().map(ToString::to_string);
            row.keys = match &context.keys {
                Ok(Some(keys)) => Some(keys.names().len()),
                _ => None,
            };
            match process.thread_support()? {
                ThreadSupport::Readable(threads) => {
                    let mut variables = threads.resolution.variables.iter();
                    row.not_exported = !variables.any(|variable| variable.exported);
                }
                ThreadSupport::Unreadable(why) => row.unreadable = Some(why.to_string()),
            }
            published = Some(context);
        }
    }
    row.comm = process.target().comm()?.to_string_lossy().into_owned();
    row.threads = process.target().status()?.threads;
    if arguments.threads && row.unreadable.is_none() {
        let works = |thread: &otelctx_reader::Thread<'_>| {
            let outcome = patiently(|| thread.context(), |_| false);
            outcome.is_ok_and(|outcome| {
                outcome
                    .attached()
                    .is_some_and(|context| !context.trace_id.is_zero())
            })
        };
        row.threads_with_trace = Some(process.threads()?.iter().filter(|t| works(t)).count());
    }
    Ok(Some((row, published)))
}

fn render(listing: &Listing, terminal: &Terminal) -> String {
    if listing.processes.is_empty() {
        return String::new();
    }
    let table = Table::new([
        ("PID", Align::Right),
        ("SERVICE", Align::Left),
        ("LANGUAGE", Align::Left),
        ("SCHEMA", Align::Left),
        ("KEYS", Align::Right),
        ("THREADS", Align::Left),
    ]);
    let rows = listing.processes.iter().map(|row| {
        let or_none = |text: &Option<String>| text.as_deref().map_or("-".into(), escape);
        let keys = row.keys.map_or("-".into(), |keys| keys.to_string());
        let mut threads = row.threads.to_string();
        let hint = format!("`otelctx check {}` tells how", row.pid);
        if let Some(why) = &row.unreadable {
            threads = format!("unreadable: {}; {hint}", escape(why));
        } else {
            if let Some(with_trace) = row.threads_with_trace {
                threads += &format!(", {with_trace} with a trace");
            }
            if row.not_exported {
                threads += &format!("; not exported, so that other readers fail; {hint}");
            }
        }
        [
            row.pid.to_string(),
            or_none(&row.service),
            or_none(&row.language),
            or_none(&row.schema),
            keys,
            threads,
        ]
    });
    table.render(rows, terminal)
}

impl Skipped {
    fn add(&mut self, pid: i32, error: &ReaderError) {
        if let Some(mend) = not_permitted(error) {
            self.not_permitted += 1;
            self.mend.get_or_insert_with(|| mend.into());
        } else if matches!(error, ReaderError::TooManyMappings { .. }) {
            self.too_many_mappings.push(pid);
        } else {
            let error = error.to_string();
            self.failed.push(Failure { pid, error });
        }
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
