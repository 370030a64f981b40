//! `cargo xtask bench [GROUP] [--json]`: runs the benchmarks in release mode.

use std::process::Command;

use crate::report::{self, Outcome};
use crate::workspace::{cargo, have, root, target_dir};

/// Runs the bench program with these arguments; its exit status says whether every bound holds.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let mut command = cargo();
    command.args(["run", "--quiet", "--locked", "-p", "otelctx-bench"]);
    command.args(["--release", "--"]).args(arguments);
    // As applications are built: without the flags of the checkout's own `.cargo/config.toml`.
    command.env("RUSTFLAGS", "");
    match report::run(&mut command) {
        Ok(()) => Outcome::Passed("every bound that was measured holds".into()),
        Err(error) => Outcome::Failed(error),
    }
}

/// The committed instruction counts.
const COUNTS: &str = "testing/bench/instructions.json";

/// Compares instruction counts (callgrind, fixed inputs) with the committed ones. Unlike times,
/// they are the same in every run, so they can fail CI.
pub(crate) fn instructions() -> Outcome {
    if !have("valgrind") {
        return Outcome::Skipped("no valgrind".into());
    }
    if !root().join(COUNTS).is_file() {
        return Outcome::Skipped(format!("there is no {COUNTS}"));
    }
    // What is counted is built in release mode; the program that compares takes minutes to build that way. With the
    // features that the tests have, nothing of it is compiled twice.
    let mut build = cargo();
    build.args(["build", "--quiet", "--locked", "--workspace"]);
    build.args(["--bin", "otelctx-bench", "--example", "copy"]);
    let mut check = Command::new(target_dir().join("debug/otelctx-bench"));
    check.current_dir(root()).args(["instructions", "--check"]);
    match report::run(&mut build).and_then(|()| report::run(&mut check)) {
        Ok(()) => Outcome::Passed(format!("within 1 % of {COUNTS}")),
        Err(error) => Outcome::Failed(error),
    }
}
