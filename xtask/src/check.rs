//! `cargo xtask check`: the inner loop of development.

use crate::report::{self, Outcome, Report};
use crate::workspace::cargo;
use crate::{api, circles, words};

/// Runs format, vocabulary, circles of files, lists of the public API, lints and unit tests, without anything that `setup` installs.
pub(crate) fn run() -> Outcome {
    let mut report = Report::default();
    report.step("format", || cargo_step(&["fmt", "--all", "--check"]));
    report.step("words", words::run);
    report.step("circles", circles::run);
    report.step("public API", || api::run(&[]));
    report.step("lints", || {
        cargo_step(&[
            "clippy",
            "--workspace",
            "--all-targets",
            "--locked",
            "--quiet",
            "--",
            "-D",
            "warnings",
        ])
    });
    report.step("unit tests", || {
        cargo_step(&[
            "test",
            "--workspace",
            "--lib",
            "--bins",
            "--locked",
            "--quiet",
        ])
    });
    report.finish()
}

fn cargo_step(arguments: &[&str]) -> Outcome {
    match report::run(cargo().args(arguments)) {
        Ok(()) => Outcome::Passed(format!("cargo {}", arguments.join(" "))),
        Err(error) => Outcome::Failed(error),
    }
}
