//! Shared by the tests of sampling.

use std::sync::Arc;

use otelctx_fixtures::kernel::Feature;
use otelctx_python::Python;
use otelctx_reader::runtime::Runtimes;
use otelctx_sampler::{Method, Options, Sampler, Targets};

/// Samples a process. `None`, with a line, where the kernel does not permit it.
pub(crate) fn start(pid: i32, frequency: u32, without_ebpf: bool) -> Option<Sampler> {
    let mut options = Options::new(Targets::Processes(vec![pid]));
    options.frequency = frequency;
    options.without_ebpf = without_ebpf;
    options.runtimes = Runtimes::new(vec![Arc::new(Python::default())]);
    let sampler = Sampler::start(&options).unwrap();
    Feature::Ebpf.or_skip(match sampler.method() {
        Method::Ptrace(why) if !without_ebpf => Err(why),
        _ => Ok(()),
    })?;
    Some(sampler)
}
