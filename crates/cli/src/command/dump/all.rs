//! Every process that publishes, a line of JSON for each.

use std::io::{self, Write};
use std::time::Duration;

use otelctx_reader::remote::{process, stop};
use otelctx_reader::{ContextState, Error as ReaderError, Options, SharedModules};
use serde::Serialize;

use super::live::Looking;
use super::{explain, json};
use crate::Status;
use crate::command::same_memory::SameMemory;
use crate::error::{Error, is_gone, not_permitted};
use crate::output::json::write_line;
use crate::output::terminal;
use crate::output::words::count;

/// A process that could not be dumped, and may publish.
#[derive(Debug, Serialize)]
struct Failed {
    pid: i32,
    error: String,
}

/// What came of all processes.
#[derive(Debug, Default)]
struct Tally {
    not_permitted: usize,
    mend: Option<String>,
    problem: bool,
}

/// Runs the command.
pub(super) fn run(options: &Options, patience: Duration) -> Result<Status, Error> {
    let mut pids = process::processes()?;
    pids.sort_unstable();
    let mut tally = Tally::default();
    terminal::write(|out| write_all(&pids, options, patience, &mut tally, out))
        .map_err(Error::Output)?;
    if tally.not_permitted > 0 {
        let processes = count(tally.not_permitted, "process", "processes");
        let message = format!("not permitted to look at {processes}");
        terminal::complain(&message, tally.mend.as_deref());
    }
    Ok(if tally.problem {
        Status::FoundProblem
    } else {
        Status::Done
    })
}

fn write_all(
    pids: &[i32],
    options: &Options,
    patience: Duration,
    tally: &mut Tally,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut same = SameMemory::default();
    let modules = SharedModules::default();
    for &pid in pids {
        let looking = match Looking::begin(pid, options.clone(), patience, modules.clone()) {
            Ok(looking) if matches!(looking.context(), ContextState::Absent) => continue,
            // It ended before it could be told whether it publishes.
            Err(error) if is_gone(&error) => continue,
            looking => looking,
        };
        match looking.and_then(|looking| stop::on_own_thread(|| looking.finish())?) {
            Ok(mut report) => {
                if let ContextState::Published(context) = &report.context {
                    report.shares_memory_with = same.known(pid, context);
                }
                tally.problem |= report.has_problem();
                write_line(&json::of(&report), out)?;
                explain(&report);
            }
            Err(error) => match not_permitted(&error) {
                Some(mend) => {
                    tally.not_permitted += 1;
                    tally.mend.get_or_insert_with(|| mend.into());
                }
                None => {
                    tally.problem = true;
                    write_line(&Failed::of(pid, &error), out)?;
                }
            },
        }
        // Who reads the lines gets each as soon as it is there.
        out.flush()?;
    }
    Ok(())
}

impl Failed {
    fn of(pid: i32, error: &ReaderError) -> Self {
        Self {
            pid,
            error: error.to_string(),
        }
    }
}
