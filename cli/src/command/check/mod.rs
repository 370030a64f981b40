//! `otelctx check FILE|PID` finds out whether a reader would find the contexts of this program.

mod absent;
mod access;
mod addon;
mod context;
mod file;
mod finding;
mod fix;
mod go;
mod interpreter;
mod process;
mod subject;
mod threads;
mod unlinked;
mod variable;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use otelctx_reader::remote::stop;

use self::finding::Answer;
use super::seconds::seconds;
use super::worker;
use crate::command::go_labels::GoLabels;
use crate::error::Error;
use crate::output::json;
use crate::output::terminal::{self, Terminal};
use crate::{Setup, Status};

/// Check whether readers can find a program's contexts, and how to fix it if not
///
/// Takes a program or library in any language, or a running process. For a process, it also reads
/// what is published; running threads are stopped for a few microseconds. The exit status is 1 if
/// readers would fail.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  otelctx check target/release/shop
  otelctx check /usr/lib/libshop.so
  otelctx check 4711")]
pub(crate) struct Arguments {
    /// ELF file, or process ID if it is a number (./123 is a file)
    #[arg(value_name = "FILE|PID")]
    target: PathBuf,
    #[command(flatten)]
    pub(crate) go_labels: GoLabels,
    /// Print one JSON value (fields: docs/json.md)
    #[arg(long)]
    json: bool,
    /// Time limit for a process, in seconds, nine tenths of it for threads; what was found is shown
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    deadline: Duration,
}

pub(crate) fn run(arguments: &Arguments, setup: &Setup) -> Result<Status, Error> {
    let digits = |text: &&str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = arguments.target.to_str().filter(digits);
    let terminal = Terminal::of_stdout();
    let Some(number) = number else {
        let answer = file::check(&arguments.target)?;
        return write(&answer, arguments.json, &terminal);
    };
    let no_process = |_| Error::NoProcessId(number.into());
    let pid = number.parse().map_err(no_process)?;
    worker::one(pid, arguments.deadline, |worker| {
        let runtimes = setup.runtimes.clone();
        let answer = stop::on_own_thread(|| process::check(pid, arguments.deadline, runtimes))??;
        worker.end();
        write(&answer, arguments.json, &terminal)
    })
}

/// Returns the middle of the time that is left: the limit for work that may never end, or that is
/// optional.
fn halfway_to(deadline: Instant) -> Instant {
    let now = Instant::now();
    now + deadline.saturating_duration_since(now) / 2
}

fn write(answer: &Answer, as_json: bool, terminal: &Terminal) -> Result<Status, Error> {
    let text = if as_json {
        json::render(answer)
    } else {
        answer.render(terminal)
    };
    terminal::print(&text).map_err(Error::Output)?;
    Ok(if answer.readable {
        Status::Done
    } else {
        Status::FoundProblem
    })
}
