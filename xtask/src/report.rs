//! The outcome of a task, and the summary of several.

use std::fmt;
use std::io::Write;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The outcome of a task, with a line to print.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It passed.
    Passed(String),
    /// It could not run on this machine, and why. Not a failure.
    Skipped(String),
    /// It failed, or could not run although it should have.
    Failed(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed(line) => write!(f, "ok: {line}"),
            Self::Skipped(line) => write!(f, "skipped: {line}"),
            Self::Failed(line) => write!(f, "FAILED: {line}"),
        }
    }
}

/// `Err` is a failed task: lets a task use `?` and return a one-line outcome.
impl From<Result<Self, String>> for Outcome {
    fn from(result: Result<Self, String>) -> Self {
        result.unwrap_or_else(Self::Failed)
    }
}

/// Runs named tasks, sequentially or concurrently; a failed task does not keep the others from
/// running.
#[derive(Default)]
pub(crate) struct Report {
    steps: Vec<Step>,
}

/// A task's name, how long it took, and its outcome.
type Step = (&'static str, Duration, Outcome);

fn timed(name: &'static str, task: impl FnOnce() -> Outcome) -> Step {
    println!("==> {name}");
    let start = Instant::now();
    let outcome = task();
    let took = start.elapsed();
    println!("<== {name}: {outcome} ({} s)", took.as_secs());
    (name, took, outcome)
}

impl Report {
    /// Runs a task and prints its result.
    pub(crate) fn step(&mut self, name: &'static str, task: impl FnOnce() -> Outcome) {
        self.steps.push(timed(name, task));
    }

    /// Runs a task while others run, which are steps of their own.
    pub(crate) fn step_beside(
        &mut self,
        name: &'static str,
        task: impl FnOnce() -> Outcome + Send,
        others: impl FnOnce(&mut Self),
    ) {
        let step = std::thread::scope(|scope| {
            let step = scope.spawn(|| timed(name, task));
            others(self);
            step.join()
        });
        match step {
            Ok(step) => self.steps.push(step),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Prints every step's line and folds them into one outcome.
    pub(crate) fn finish(self) -> Outcome {
        println!("\nsummary");
        let (mut passed, mut skipped, mut failed) = (0, 0, Vec::new());
        for (name, took, outcome) in &self.steps {
            println!("  {name:<14} {:>4} s  {outcome}", took.as_secs());
            match outcome {
                Outcome::Passed(_) => passed += 1,
                Outcome::Skipped(_) => skipped += 1,
                Outcome::Failed(_) => failed.push(*name),
            }
        }
        if failed.is_empty() {
            Outcome::Passed(format!("{passed} steps, {skipped} skipped"))
        } else {
            Outcome::Failed(failed.join(", "))
        }
    }
}

/// Calls `task` for each item, for two at a time, and returns what it returns in the items' order.
pub(crate) fn in_pairs<T: Sync, R: Send>(items: &[T], task: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let run = || {
        let taken = || next.fetch_add(1, Ordering::Relaxed);
        let indices = std::iter::repeat_with(taken).take_while(|index| *index < items.len());
        let results = indices.map(|index| (index, task(&items[index])));
        results.collect::<Vec<_>>()
    };
    let mut results = std::thread::scope(|scope| {
        let other = scope.spawn(run);
        let mut results = run();
        match other.join() {
            Ok(others) => results.extend(others),
            Err(panic) => std::panic::resume_unwind(panic),
        }
        results
    });
    results.sort_unstable_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Prints the output of a command that has ended.
pub(crate) fn print(output: &[u8]) {
    // A closed terminal is not the command's fault.
    let _ = std::io::stdout().write_all(output);
}

/// Runs a command with the terminal's own input and output; `Err` names it if it fails.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    let status = command
        .status()
        .map_err(|error| format!("{}: {error}", shown(command)))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{}: {status}", shown(command)))
    }
}

/// Runs a command and returns what it printed; `Err` names it and carries its standard error.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let output = command
        .output()
        .map_err(|error| format!("{}: {error}", shown(command)))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let stderr = String::from_utf8_lossy(&output.stderr);
        Err(format!(
            "{}: {}\n{}",
            shown(command),
            output.status,
            stderr.trim_end()
        ))
    }
}

/// A command as a person would type it, without its environment.
pub(crate) fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}
