//! `--watch`: prints one event per line as processes start, exit, publish and update.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::{Duration, Instant, SystemTime};

use otelctx_reader::{Error as ReaderError, Options, ProcessContext};
use otelctx_track::{Change, Event, Watch};
use serde::Serialize;

use super::row::{COLUMNS, Row};
use super::{Arguments, Skipped};
use crate::error::Error;
use crate::output::clock;
use crate::output::json::write_line;
use crate::output::table::{Align, Table};
use crate::output::terminal::{self, Terminal, escape};
use crate::{Status, interrupt, open_files};

/// A line of output (docs/json.md).
#[derive(Debug, Serialize)]
struct Line<'a> {
    time: String,
    event: &'static str,
    #[serde(flatten)]
    entry: &'a Entry,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Entry {
    /// The process as it is, or was when last read.
    Row(Row),
    /// A process that cannot be inspected.
    Failed { pid: i32, error: String },
}

/// Runs until it is interrupted, or standard output is closed.
pub(super) fn run(arguments: &Arguments) -> Result<Status, Error> {
    interrupt::catch().map_err(Error::Interrupt)?;
    // Each watched process takes some.
    open_files::allow_many();
    let mut options = Options::default();
    options.max_mappings = arguments.max_mappings;
    let mut watching = Watching {
        watch: Watch::new(options),
        shown: BTreeMap::new(),
        skipped: Skipped::default(),
        is_first: true,
        terminal: Terminal::of_stdout(),
        table: table(),
        json: arguments.json,
        max_mappings: arguments.max_mappings,
    };
    let mut ended = Ok(());
    terminal::write(|out| {
        // An error of the reader ends it like an error of writing does, but is reported
        // differently.
        ended = watching.run(arguments.interval, out)?;
        Ok(())
    })
    .map_err(Error::Output)?;
    watching.skipped.report(arguments.max_mappings);
    ended?;
    Ok(Status::Done)
}

fn table() -> Table<{ COLUMNS.len() + 2 }> {
    let [pid, service, language, schema, keys, threads] = COLUMNS;
    let (time, event) = (("TIME", Align::Left), ("EVENT", Align::Left));
    let columns = [time, event, pid, service, language, schema, keys, threads];
    // Room for what is likely to follow: `withdrawn`, IDs up to 4194304, `tlsdesc_v1_dev`.
    Table::new(columns).at_least([8, 9, 7, 16, 0, 14, 0, 0])
}

struct Watching {
    watch: Watch,
    /// The processes that were printed, as printed last.
    shown: BTreeMap<i32, Row>,
    skipped: Skipped,
    is_first: bool,
    terminal: Terminal,
    table: Table<{ COLUMNS.len() + 2 }>,
    json: bool,
    max_mappings: Option<u64>,
}

impl Watching {
    fn run(&mut self, interval: Duration, out: &mut dyn Write) -> io::Result<Result<(), Error>> {
        let mut next = Instant::now();
        loop {
            let events = match self.watch.poll() {
                Ok(events) => events,
                Err(error) => return Ok(Err(error.into())),
            };
            let lines = events.into_iter().filter_map(|event| self.entry(event));
            let lines: Vec<_> = lines.collect();
            self.write(&lines, out)?;
            out.flush()?;
            if self.is_first {
                // Processes that are skipped later are reported at the end.
                std::mem::take(&mut self.skipped).report(self.max_mappings);
                self.is_first = false;
            }
            // Polls start at a fixed rate, however long they take; missed polls are skipped.
            next = (next + interval).max(Instant::now());
            if !interrupt::wait(next - Instant::now())? {
                return Ok(Ok(()));
            }
        }
    }

    /// Returns the line for an event, if there is one.
    fn entry(&mut self, Event { pid, change, .. }: Event) -> Option<(&'static str, Entry)> {
        let first = self.is_first;
        let row = match change {
            Change::Ended => return Some(("ended", Entry::Row(self.shown.remove(&pid)?))),
            Change::Withdrawn => return Some(("withdrawn", Entry::Row(self.shown.remove(&pid)?))),
            Change::Failed(error) => return self.failed(pid, &error),
            Change::Published(context) => {
                let event = if first { "present" } else { "published" };
                (event, self.published(pid, &context))
            }
            Change::Updated(context) => ("updated", self.published(pid, &context)),
            Change::Broken(why) => ("broken", Row::broken(self.watch.process(pid)?, &why)),
            // Nothing was found yet.
            _ => return None,
        };
        match row {
            (event, Ok(row)) => {
                self.shown.insert(pid, row.clone());
                Some((event, Entry::Row(row)))
            }
            (_, Err(error)) => self.failed(pid, &error),
        }
    }

    /// Builds a row; for a process that has ended since, from its context alone.
    fn published(&mut self, pid: i32, context: &ProcessContext) -> Result<Row, ReaderError> {
        let row = match self.watch.process(pid) {
            Some(process) => Row::published(process, context),
            None => Ok(Row::of_context(pid, context)),
        };
        match row {
            Err(error) if error.is_gone() => Ok(Row::of_context(pid, context)),
            row => row,
        }
    }

    /// Processes that may not be inspected are only counted, because there are many.
    fn failed(&mut self, pid: i32, error: &ReaderError) -> Option<(&'static str, Entry)> {
        if error.is_gone() {
            // It has ended since. If it was printed, the next poll reports that.
            return None;
        }
        let error = self.skipped.counted(pid, error)?;
        let error = error.to_string();
        Some(("failed", Entry::Failed { pid, error }))
    }

    fn write(&mut self, lines: &[(&'static str, Entry)], out: &mut dyn Write) -> io::Result<()> {
        let now = SystemTime::now();
        if self.json {
            for (event, entry) in lines {
                let (time, event) = (clock::utc(now), *event);
                write_line(&Line { time, event, entry }, out)?;
            }
            return Ok(());
        }
        let time = clock::local(now);
        let rows = lines.iter().map(|(event, entry)| entry.cells(&time, event));
        rows.clone().for_each(|cells| self.table.fit(&cells));
        if self.is_first {
            out.write_all(self.table.head(&self.terminal).as_bytes())?;
        }
        for cells in rows {
            out.write_all(self.table.row(&cells, &self.terminal).as_bytes())?;
        }
        Ok(())
    }
}

impl Entry {
    fn cells(&self, time: &str, event: &str) -> [String; COLUMNS.len() + 2] {
        let cells = match self {
            // There is nothing left to check.
            Self::Row(row) if ["ended", "withdrawn"].contains(&event) => row.cells(false),
            Self::Row(row) => row.cells(true),
            Self::Failed { pid, error } => {
                let mut cells = [(); COLUMNS.len()].map(|()| "-".to_owned());
                (cells[0], cells[5]) = (pid.to_string(), escape(error));
                cells
            }
        };
        let [pid, service, language, schema, keys, threads] = cells;
        let (time, event) = (time.to_owned(), event.to_owned());
        [time, event, pid, service, language, schema, keys, threads]
    }
}
