//! Outcomes of tasks, the summary of several, and the commands that tasks run.

use std::io::Write;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// What a task did, as a line to print.
#[derive(Debug)]
pub(crate) enum Outcome {
    Passed(String),
    /// It could not run on this machine, and why. Not a failure.
    Skipped(String),
}

/// An error is a task that failed, or that could not run although it should have.
pub(crate) type Done = Result<Outcome>;

pub(crate) fn passed(line: impl Into<String>) -> Done {
    Ok(Outcome::Passed(line.into()))
}

pub(crate) fn skipped(why: impl Into<String>) -> Done {
    Ok(Outcome::Skipped(why.into()))
}

/// The line for an outcome.
pub(crate) fn line(done: &Done) -> String {
    match done {
        Ok(Outcome::Passed(line)) => format!("ok: {line}"),
        Ok(Outcome::Skipped(line)) => format!("skipped: {line}"),
        Err(error) => format!("FAILED: {error:#}"),
    }
}

/// One outcome of several: it has passed if one of them has and none has failed, and names what was skipped.
pub(crate) fn joined(outcomes: impl IntoIterator<Item = Done>) -> Done {
    let (mut passed, mut skipped, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    for outcome in outcomes {
        match outcome {
            Ok(Outcome::Passed(line)) => passed.push(line),
            Ok(Outcome::Skipped(line)) => skipped.push(format!("skipped: {line}")),
            Err(error) => failed.push(format!("{error:#}")),
        }
    }
    if !failed.is_empty() {
        bail!("{}", failed.join("; "));
    }
    if passed.is_empty() {
        return self::skipped(skipped.join("; "));
    }
    passed.append(&mut skipped);
    self::passed(passed.join("; "))
}

/// Runs named tasks, sequentially or concurrently; a failed task does not keep the others from
/// running.
#[derive(Default)]
pub(crate) struct Report {
    steps: Vec<Step>,
}

/// A task's name, how long it took, and its outcome.
type Step = (&'static str, Duration, Done);

fn timed(name: &'static str, task: impl FnOnce() -> Done) -> Step {
    println!("==> {name}");
    let start = Instant::now();
    let done = task();
    let took = start.elapsed();
    println!("<== {name}: {} ({} s)", line(&done), took.as_secs());
    (name, took, done)
}

impl Report {
    /// Runs a task and prints its result.
    pub(crate) fn step(&mut self, name: &'static str, task: impl FnOnce() -> Done) {
        self.steps.push(timed(name, task));
    }

    /// Runs a task while others run, which are steps of their own.
    pub(crate) fn step_beside(
        &mut self,
        name: &'static str,
        task: impl FnOnce() -> Done + Send,
        others: impl FnOnce(&mut Self),
    ) {
        let step = std::thread::scope(|scope| {
            let step = scope.spawn(|| timed(name, task));
            others(self);
            step.join()
        });
        let step = step.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        self.steps.push(step);
    }

    /// Prints every step's line and folds them into one outcome.
    pub(crate) fn finish(self) -> Done {
        println!("\nsummary");
        let (mut passed, mut skipped, mut failed) = (0, 0, Vec::new());
        for (name, took, done) in &self.steps {
            println!("  {name:<14} {:>4} s  {}", took.as_secs(), line(done));
            match done {
                Ok(Outcome::Passed(_)) => passed += 1,
                Ok(Outcome::Skipped(_)) => skipped += 1,
                Err(_) => failed.push(*name),
            }
        }
        if !failed.is_empty() {
            bail!("{}", failed.join(", "));
        }
        self::passed(format!("{passed} steps, {skipped} skipped"))
    }
}

/// Calls `task` for each item, for `width` of them at a time, and returns what it returns in the items' order.
pub(crate) fn in_parallel<T: Sync, R: Send>(
    width: usize,
    items: &[T],
    task: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let run = || {
        let taken = || next.fetch_add(1, Ordering::Relaxed);
        let indices = std::iter::repeat_with(taken).take_while(|index| *index < items.len());
        let results = indices.map(|index| (index, task(&items[index])));
        results.collect::<Vec<_>>()
    };
    let mut results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..width).map(|_| scope.spawn(run)).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        let results = joined.map(|it| it.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        results.flatten().collect()
    });
    results.sort_unstable_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// A program with arguments, none of which contains a space.
pub(crate) fn command(words: &str) -> Command {
    let (program, arguments) = words.split_once(' ').unwrap_or((words, ""));
    let mut command = Command::new(program);
    command.words(arguments);
    command
}

pub(crate) trait Words {
    /// Adds arguments, none of which contains a space.
    fn words(&mut self, words: &str) -> &mut Self;
}

impl Words for Command {
    fn words(&mut self, words: &str) -> &mut Self {
        self.args(words.split_whitespace())
    }
}

/// Prints the output of a command that has ended.
pub(crate) fn print(output: &[u8]) {
    // A closed terminal is not the command's fault.
    let _ = std::io::stdout().write_all(output);
}

/// Runs a command with the terminal's own input and output; the error names it.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| shown(command))?;
    if !status.success() {
        bail!("{}: {status}", shown(command));
    }
    Ok(())
}

/// Runs a command and returns what it printed; the error names it and has its standard error.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| shown(command))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{}: {}\n{}",
            shown(command),
            output.status,
            stderr.trim_end()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A command as a person would type it, without its environment.
pub(crate) fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}
