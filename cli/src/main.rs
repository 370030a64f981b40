//! The `otelctx` command.

use std::process::ExitCode;
use std::sync::Arc;

use otelctx_cli::Setup;
use otelctx_reader::runtime::Runtimes;

fn main() -> ExitCode {
    otelctx_cli::run(&Setup {
        runtimes: Runtimes::new(vec![
            Arc::new(otelctx_python::Python::default()),
            Arc::new(otelctx_node::Node::default()),
        ]),
        kernel_object: None,
    })
}
