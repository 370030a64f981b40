//! The `otelctx` command.

use std::process::ExitCode;

use otelctx_cli::Setup;

fn main() -> ExitCode {
    otelctx_cli::run(&Setup::default())
}
