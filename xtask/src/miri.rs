//! `cargo xtask miri`: the format crate's own tests under Miri.

use crate::report::{self, Done};
use crate::workspace::nightly;

/// Runs where rustup's nightly has Miri. The publisher's TLS access is assembly and the readers
/// are system calls, which Miri cannot run: only `format` is left for it.
pub(crate) fn run() -> Done {
    if report::output(&mut nightly("cargo miri --version")).is_err() {
        return report::skipped("rustup's nightly has no miri component");
    }
    report::run(&mut nightly("cargo miri test --lib -p otelctx-format"))?;
    report::passed("format's unit tests")
}
