//! `cargo xtask check`: the inner loop of development.

use crate::report::{self, Done, Report};
use crate::workspace::cargo;
use crate::{api, circles, words};

/// Runs format, vocabulary, circles of files, lists of the public API, lints and unit tests, without anything that `setup` installs.
pub(crate) fn run() -> Done {
    const LINTS: &str = "clippy --workspace --all-targets --locked --quiet -- -D warnings";
    const TESTS: &str = "test --workspace --lib --bins --locked --quiet";
    let mut report = Report::default();
    report.step("format", || cargo_step("fmt --all --check"));
    report.step("words", words::run);
    report.step("circles", circles::run);
    report.step("public API", || api::run(false));
    report.step("lints", || cargo_step(LINTS));
    report.step("unit tests", || cargo_step(TESTS));
    report.finish()
}

fn cargo_step(arguments: &str) -> Done {
    report::run(&mut cargo(arguments))?;
    report::passed(format!("cargo {arguments}"))
}
