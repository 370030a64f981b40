//! `cargo xtask conformance [--write]`: the published test vectors against the code.

use crate::report::{self, Outcome};
use crate::workspace::{cargo, has_package};

/// The package that checks the vectors against the code.
const PACKAGE: &str = "otelctx-conformance";

/// Compares the vectors with the code; `--write` regenerates them.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    match has_package(PACKAGE) {
        Ok(true) => {}
        Ok(false) => return Outcome::Skipped(format!("the workspace has no {PACKAGE}")),
        Err(error) => return Outcome::Failed(error),
    }
    let mut command = cargo();
    if arguments.iter().any(|word| word == "--write") {
        command.args([
            "run", "--quiet", "--locked", "-p", PACKAGE, "--", "generate",
        ]);
    } else {
        command.args(["test", "--quiet", "--locked", "-p", PACKAGE]);
    }
    match report::run(&mut command) {
        Ok(()) => Outcome::Passed("conformance/ matches the code".into()),
        Err(error) => Outcome::Failed(error),
    }
}
