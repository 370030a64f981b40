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
    /// A test of `testing/integration/tests/sleepers.rs` that runs for longer than in `cargo xtask test`.
    Sleepers(&'static str),
    /// A test program of `profile/sampler/tests` that compares stacks, with this many samples of each program.
    Stacks(&'static str, &'static str),
    /// Tests of `inspect/runtimes/cpython`, with more samples.
    Python(&'static str),
    /// A test of `inspect/runtimes/nodejs/tests/contexts/main.rs`, with more samples.
    Node(&'static str),
    /// A test of `integration`, with as much as this variable says.
    Integration(&'static str, (&'static str, &'static str)),
}

const RUNS: [Run; 15] = [
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
        name: "replay",
        minutes: 20,
        summary: "memory of recording 64 CPUs at 999 Hz, replayed from a recording of this machine",
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
    Run {
        name: "stacks",
        minutes: 5,
        summary: "a million samples by eBPF, frame by frame against the programs' disassembly",
        how: How::Stacks("calls", CALLS_SAMPLES),
    },
    Run {
        name: "accounts",
        minutes: 7,
        summary: "a million samples by eBPF, frame by frame against the programs' own accounts",
        how: How::Stacks("accounts", ACCOUNTS_SAMPLES),
    },
    Run {
        name: "python",
        minutes: 8,
        summary: "Python's calls and returns, 10,000 times a second: stacks against the program's own account",
        how: How::Python("chains"),
    },
    Run {
        name: "handlers",
        minutes: 7,
        summary: "requests in Python: each sample's functions and context against the program's own account",
        how: How::Python("handlers"),
    },
    Run {
        name: "recompiled",
        minutes: 6,
        summary: "functions of Python that are compiled, called and dropped: no name of another one",
        how: How::Python("recompiled"),
    },
    Run {
        name: "node",
        minutes: 11,
        summary: "contexts of Node.js while all objects move, the key, too: each sample against the program's log",
        how: How::Node("samples_have_their_contexts_while_all_objects_move"),
    },
    Run {
        name: "service",
        minutes: 2,
        summary: "an axum service by observer and layer: samples and millions of comparisons with its own log",
        how: How::Integration("service", ("OTELCTX_SAMPLES", "100000")),
    },
    Run {
        name: "spans",
        minutes: 2,
        summary: "ten million spans of OpenTelemetry on 64 tasks: contexts, and memory",
        how: How::Integration("spans", ("OTELCTX_SPANS", "10000000")),
    },
    Run {
        name: "layer",
        minutes: 3,
        summary: "a million spans of tracing on 64 tasks, by the layer: contexts, and memory",
        how: How::Integration("spans_by_layer", ("OTELCTX_SPANS", "1000000")),
    },
];

/// Samples of each of the programs of `profile/sampler/tests/calls`: five.
const CALLS_SAMPLES: &str = "200000";
/// Samples of each of the programs of `profile/sampler/tests/accounts`: four.
const ACCOUNTS_SAMPLES: &str = "250000";
/// Samples of each of the programs of `inspect/runtimes/cpython/tests` for each interpreter.
const PYTHON_SAMPLES: &str = "100000";
/// Samples in a context for each Node.js, addon, age of its key and way of collecting garbage of `inspect/runtimes/nodejs/tests`: 18 rows.
const NODE_SAMPLES: &str = "50000";

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
            How::Stacks(test, number) => samples("otelctx-sampler", test, number),
            How::Python(test) => samples("otelctx-python", test, PYTHON_SAMPLES),
            How::Integration(name, variable) => test("otelctx-integration", name, &[], variable),
            How::Node(name) => {
                let variable = ("OTELCTX_SOAK_SAMPLES", NODE_SAMPLES);
                test("otelctx-node", "contexts", &["--exact", name], variable)
            }
        };
        if let Outcome::Failed(why) = outcome {
            return Outcome::Failed(format!("{}: {why}", run.name));
        }
    }
    Outcome::Passed(names.join(", "))
}

/// Runs a test in the release profile.
fn test(package: &str, name: &str, arguments: &[&str], (key, value): (&str, &str)) -> Outcome {
    let mut command: Command = cargo();
    command.args(["test", "--release", "--quiet", "--locked", "-p", package]);
    command.args(["--test", name, "--", "--nocapture"]);
    command.args(arguments);
    if std::env::var_os(key).is_none() {
        command.env(key, value);
    }
    match report::run(&mut command) {
        Ok(()) => Outcome::Passed(name.into()),
        Err(error) => Outcome::Failed(error),
    }
}

fn sleepers(name: &str, minutes: u32) -> Outcome {
    // One of them reads with two protocols, one after another.
    let seconds = (minutes * 60 / 2).to_string();
    let variable = ("OTELCTX_SOAK_SECONDS", &seconds[..]);
    test(
        "otelctx-integration",
        "sleepers",
        &["--exact", name],
        variable,
    )
}

fn samples(package: &str, name: &str, samples: &str) -> Outcome {
    test(package, name, &[], ("OTELCTX_SOAK_SAMPLES", samples))
}
