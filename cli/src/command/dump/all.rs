//! Dumps every process that publishes, or one process with its children, one by one.

use std::io::{self, Write};
use std::time::Duration;

use otelctx_reader::remote::{process, stop};
use otelctx_reader::{ContextState, FileCache, Options, Process};
use otelctx_sampler::Snapshots;
use serde::{Deserialize, Serialize};

use super::inspection::Inspection;
use super::names::Names;
use super::stacks::StackOptions;
use super::{explain, json, source, text};
use crate::command::retry::unless_ended;
use crate::command::same_memory::{Place, SameMemory};
use crate::command::worker::{self, Received, Worker};
use crate::error::{Error, not_permitted};
use crate::output::json::write_line;
use crate::output::terminal::{self, Terminal};
use crate::output::text::count;
use crate::{Status, hidden};

/// A process that could not be dumped, and may publish.
#[derive(Debug, Serialize)]
struct Failed {
    pid: i32,
    error: String,
}

/// The message of a worker about a process, in addition to its line.
#[derive(Debug, Serialize, Deserialize)]
enum Message {
    /// It could not be inspected; the hint says how to get permission.
    NotPermitted(String),
    /// Part of it could not be read.
    Problem,
}

#[derive(Debug, Default)]
struct Tally {
    not_permitted: usize,
    hint: Option<String>,
    problem: bool,
    as_json: bool,
    not_written: Option<io::Error>,
}

pub(super) struct Tools {
    /// With `--no-stop`.
    pub(super) snapshots: Option<Snapshots>,
    /// With `--stacks`.
    pub(super) stacks: Option<StackOptions>,
    pub(super) names: Names,
    /// As one JSON object per line.
    pub(super) as_json: bool,
    pub(super) is_verbose: bool,
    /// Omit processes that publish nothing.
    pub(super) publishing_only: bool,
}

/// Dumps these processes, or every process that publishes.
pub(super) fn run(
    pids: Option<Vec<i32>>,
    options: &Options,
    timeout: Duration,
    mut tools: Tools,
) -> Result<Status, Error> {
    let pids = match pids {
        Some(pids) => pids,
        None => {
            hidden::say_if_any();
            let mut pids = process::processes()?;
            pids.sort_unstable();
            pids
        }
    };
    let mut tally = Tally {
        as_json: tools.as_json,
        ..Tally::default()
    };
    worker::each(
        &pids,
        timeout,
        |worker, pids| {
            terminal::write(|out| write_all(worker, pids, options, timeout, &mut tools, out))
        },
        |received| tally.receive(received),
    )?;
    if let Some(error) = tally.not_written {
        return Err(Error::Output(error));
    }
    if tally.not_permitted > 0 {
        let processes = count(tally.not_permitted, "process", "processes");
        let message = format!("{processes} could not be inspected: permission denied");
        terminal::complain(&message, tally.hint.as_deref());
    }
    Ok(if tally.problem {
        Status::FoundProblem
    } else {
        Status::Done
    })
}

impl Tally {
    fn receive(&mut self, received: Received<Message>) {
        match received {
            Ok(Message::NotPermitted(hint)) => {
                self.not_permitted += 1;
                self.hint.get_or_insert(hint);
            }
            Ok(Message::Problem) => self.problem = true,
            Err((pid, error)) => {
                self.problem = true;
                let failed = |out: &mut dyn Write| write_failed(pid, &error, self.as_json, out);
                if let Err(error) = terminal::write(failed) {
                    self.not_written.get_or_insert(error);
                }
            }
        }
    }
}

fn write_all(
    worker: &Worker,
    pids: &[i32],
    options: &Options,
    timeout: Duration,
    tools: &mut Tools,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut same = SameMemory::default();
    let modules = FileCache::default();
    for &pid in pids {
        worker.begin(pid);
        let dumped = unless_ended(pid, || {
            let open = |options| Process::with_files(pid, options, modules.clone());
            let inspection = Inspection::begin(options.clone(), timeout, open)?;
            if tools.publishing_only && matches!(inspection.context, ContextState::Absent) {
                return Ok(None);
            }
            let inspection = inspection.with_stacks(tools.stacks.as_ref());
            let inspection = inspection.with_snapshots(source(&mut tools.snapshots));
            stop::on_own_thread(|| inspection.finish())?.map(Some)
        });
        worker.end();
        match dumped {
            // It publishes nothing, or has ended.
            Ok(None | Some(None)) => continue,
            Ok(Some(Some(mut report))) => {
                tools.names.resolve(&mut report);
                if let ContextState::Published(context) = &report.context {
                    report.shares_memory_with = same.find_or_add(pid, Place::of(context));
                }
                if report.has_problem() {
                    worker.send(&Message::Problem)?;
                }
                if tools.as_json {
                    write_line(&json::of(&report), out)?;
                } else {
                    text::write(&report, tools.is_verbose, &Terminal::of_stdout(), out)?;
                }
                explain(&report);
            }
            Err(error) => match not_permitted(&error) {
                Some(hint) => worker.send(&Message::NotPermitted(hint.into()))?,
                None => {
                    worker.send(&Message::Problem)?;
                    write_failed(pid, &error, tools.as_json, out)?;
                }
            },
        }
        // Lines are written one by one, so that they can be read immediately.
        out.flush()?;
    }
    Ok(())
}

/// Writes why a process could not be dumped: as a line of JSON, or on standard error.
fn write_failed(
    pid: i32,
    why: &impl ToString,
    as_json: bool,
    out: &mut dyn Write,
) -> io::Result<()> {
    let error = why.to_string();
    if as_json {
        return write_line(&Failed { pid, error }, out);
    }
    terminal::complain(&error, None);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a later success hid an earlier write error.
    #[test]
    fn a_line_that_could_not_be_written_is_not_forgotten() {
        let mut tally = Tally {
            as_json: true,
            not_written: Some(io::ErrorKind::StorageFull.into()),
            ..Tally::default()
        };
        tally.receive(Err((7, Error::KernelThread(7))));
        let kind = tally.not_written.map(|error| error.kind());
        assert_eq!(kind, Some(io::ErrorKind::StorageFull));
    }
}
