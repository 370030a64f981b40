//! `cargo xtask miri`: the format crate's own tests under Miri.

use crate::report::{self, Outcome};
use crate::workspace::nightly;

/// Runs where rustup's nightly has Miri. The publisher's TLS access is assembly and the readers
/// are system calls, which Miri cannot run: only `format` is left for it.
pub(crate) fn run() -> Outcome {
    if report::output(nightly("cargo").args(["miri", "--version"])).is_err() {
        return Outcome::Skipped("rustup's nightly has no miri component".into());
    }
    let test = ["miri", "test", "--lib", "-p", "otelctx-format"];
    match report::run(nightly("cargo").args(test)) {
        Ok(()) => Outcome::Passed("format's unit tests".into()),
        Err(error) => Outcome::Failed(error),
    }
}
