//! `cargo xtask bench [GROUP] [--json]`: runs the benchmarks in release mode.

use std::process::Command;

use crate::report::{self, Done, Words};
use crate::workspace::{cargo, have, root, target_dir};

/// Runs the bench program with these arguments; its exit status says whether every bound holds.
pub(crate) fn run(arguments: &[String]) -> Done {
    let mut bench = cargo("run --quiet --locked -p otelctx-bench --release --");
    // As applications are built: without the flags of the checkout's own `.cargo/config.toml`.
    report::run(bench.args(arguments).env("RUSTFLAGS", ""))?;
    report::passed("every bound that was measured holds")
}

/// The committed instruction counts.
const COUNTS: &str = "testing/bench/instructions.json";

/// Compares instruction counts (callgrind, fixed inputs) with the committed ones. Unlike times,
/// they are the same in every run, so they can fail CI.
pub(crate) fn instructions() -> Done {
    if !have("valgrind") {
        return report::skipped("no valgrind");
    }
    if !root().join(COUNTS).is_file() {
        return report::skipped(format!("there is no {COUNTS}"));
    }
    // What is counted is built in release mode; the program that compares takes minutes to build that way. With the
    // features that the tests have, nothing of it is compiled twice.
    let build = "build --quiet --locked --workspace --bin otelctx-bench --example copy";
    report::run(&mut cargo(build))?;
    let mut check = Command::new(target_dir().join("debug/otelctx-bench"));
    report::run(check.current_dir(root()).words("instructions --check"))?;
    report::passed(format!("within 1 % of {COUNTS}"))
}
