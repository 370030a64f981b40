//! The `otelctx` command.

use std::process::ExitCode;
use std::sync::Arc;

use otelctx_cli::{KernelObject, Setup};
use otelctx_reader::runtime::Runtimes;
use otelctx_sampler::kernel_object;

/// The sampler's eBPF programs with the steps of these runtimes; built by `cargo xtask bpf`.
#[cfg(target_arch = "x86_64")]
static PROGRAMS: KernelObject = kernel_object!("../bpf/sampler.x86_64.o");
#[cfg(target_arch = "aarch64")]
static PROGRAMS: KernelObject = kernel_object!("../bpf/sampler.aarch64.o");

fn main() -> ExitCode {
    otelctx_cli::run(&Setup {
        runtimes: Runtimes::new(vec![
            Arc::new(otelctx_python::Python::default()),
            Arc::new(otelctx_node::Node::default()),
            Arc::new(otelctx_go::Go::default()),
            Arc::new(otelctx_hotspot::HotSpot),
            Arc::new(otelctx_v8::V8),
        ]),
        kernel_object: Some(PROGRAMS),
    })
}
