//! The `otelctx` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    otelctx_cli::run()
}
