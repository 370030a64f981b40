//! `cargo xtask soak [RUN…]`: runs that take minutes, started by hand. CI does not run them.

use std::process::Command;

use crate::bench;
use crate::report::{self, Outcome};
use crate::workspace::cargo;

/// A run, which prints its results.
struct Run {
    name: &'static str,
    minutes: u32,
    summary: &'static str,
    how: How,
}

enum How {
    /// A group of the bench program.
    Bench,
    /// A test of `integration/tests/sleepers.rs` that runs for longer than in `cargo xtask test`.
    Sleepers(&'static str),
}

const RUNS: [Run; 5] = [
    Run {
        name: "traces",
        minutes: 6,
        summary: "a million samples against the programs' own logs, of every access model",
        how: How::Bench,
    },
    Run {
        name: "methods",
        minutes: 6,
        summary: "ptrace against eBPF: the same programs, each sample against their logs",
        how: How::Bench,
    },
    Run {
        name: "memory",
        minutes: 11,
        summary: "record --all at 999 Hz on a busy machine: minute 10 against minute 2",
        how: How::Bench,
    },
    Run {
        name: "sleepers",
        minutes: 10,
        summary: "records of threads that are about to sleep, read millions of times: none torn",
        how: How::Sleepers("a_record_that_is_rewritten_between_sleeps_is_never_torn"),
    },
    Run {
        name: "timeouts",
        minutes: 5,
        summary: "loops with a 500 ms timeout under 14 dumps a second: as many rounds as without",
        how: How::Sleepers("timeouts_pass_as_without_a_reader"),
    },
];

/// Runs the named runs, or lists all runs.
pub(crate) fn run(names: &[String]) -> Outcome {
    let unknown = names
        .iter()
        .find(|name| RUNS.iter().all(|run| run.name != **name));
    if names.is_empty() || unknown.is_some() {
        println!("cargo xtask soak RUN…, as root on a machine that does nothing else:\n");
        for run in &RUNS {
            println!("  {:<10}{:>2} min  {}", run.name, run.minutes, run.summary);
        }
        return match unknown {
            Some(name) => Outcome::Failed(format!("no such run: {name}")),
            None => Outcome::Skipped("no run was named".into()),
        };
    }
    for run in RUNS
        .iter()
        .filter(|run| names.iter().any(|name| name == run.name))
    {
        let outcome = match run.how {
            How::Bench => bench::run(&[run.name.into()]),
            How::Sleepers(test) => sleepers(test, run.minutes),
        };
        if let Outcome::Failed(why) = outcome {
            return Outcome::Failed(format!("{}: {why}", run.name));
        }
    }
    Outcome::Passed(names.join(", "))
}

fn sleepers(test: &str, minutes: u32) -> Outcome {
    let mut command: Command = cargo();
    command.args([
        "test",
        "--release",
        "--quiet",
        "--locked",
        "-p",
        "otelctx-integration",
    ]);
    command.args(["--test", "sleepers", "--", "--exact", "--nocapture", test]);
    // One of them reads with two protocols, one after another.
    let seconds = minutes * 60 / 2;
    if std::env::var_os("OTELCTX_SOAK_SECONDS").is_none() {
        command.env("OTELCTX_SOAK_SECONDS", seconds.to_string());
    }
    match report::run(&mut command) {
        Ok(()) => Outcome::Passed(test.into()),
        Err(error) => Outcome::Failed(error),
    }
}
