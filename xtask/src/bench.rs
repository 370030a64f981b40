//! `cargo xtask bench [GROUP] [--json]`: the benchmarks, optimised.

use crate::report::{self, Outcome};
use crate::workspace::cargo;

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
    match report::run(cargo().args(bench).args(arguments)) {
        Ok(()) => Outcome::Passed("every bound that was looked at holds".into()),
        Err(error) => Outcome::Failed(error),
    }
}
