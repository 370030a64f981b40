//! What the bench program does in processes of its own: `otelctx-bench child ROLE …`.

use std::process::ExitCode;

/// Plays a role.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    eprintln!("no such role: {arguments:?}");
    ExitCode::from(2)
}
