//! `cargo xtask bench [GROUP] [--json]`: the benchmarks, optimised.

use crate::report::{self, Outcome};
use crate::workspace::{cargo, have, root};

/// Passes its arguments on to the bench program, whose exit status says whether every bound held.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let bench = [
        "run",
        "--release",
        "--quiet",
        "--locked",
        "-p",
        "otelctx-bench",
        "--",
    ];
    let mut command = cargo();
    // As applications are built: without the flags of the checkout's own `.cargo/config.toml`.
    command.args(bench).args(arguments).env("RUSTFLAGS", "");
    match report::run(&mut command) {
        Ok(()) => Outcome::Passed("every bound that was looked at holds".into()),
        Err(error) => Outcome::Failed(error),
    }
}

/// The counts that a change is held against.
const COUNTS: &str = "bench/instructions.json";

/// Instruction counts (callgrind, pinned inputs) against the committed ones. Unlike times they are
/// the same on every run, so they may fail CI.
pub(crate) fn instructions() -> Outcome {
    if !have("valgrind") {
        return Outcome::Skipped("no valgrind".into());
    }
    if !root().join(COUNTS).is_file() {
        return Outcome::Skipped(format!("there is no {COUNTS}"));
    }
    match run(&["instructions".into(), "--check".into()]) {
        Outcome::Passed(_) => Outcome::Passed(format!("within 1 % of {COUNTS}")),
        other => other,
    }
}
