//! Shared by the tests of sampling.

use std::collections::HashMap;
use std::sync::Arc;

use otelctx_fixtures::kernel::Feature;
use otelctx_python::Python;
use otelctx_reader::runtime::Runtimes;
use otelctx_reader::sample::Frame;
use otelctx_sampler::{Options, Sampler, Targets};

/// Samples a process. `None`, with a line, where the kernel does not permit it.
pub(crate) fn start(pid: i32, frequency: u32, without_ebpf: bool) -> Option<Sampler> {
    let mut options = Options::new(Targets::Processes(vec![pid]));
    options.frequency = frequency;
    options.without_ebpf = without_ebpf;
    options.runtimes = Runtimes::new(vec![Arc::new(Python::default())]);
    let sampler = Sampler::start(&options).unwrap();
    if !without_ebpf {
        Feature::Ebpf.or_skip(sampler.method().require_ebpf())?;
    }
    Some(sampler)
}

/// The outermost native frames of stacks, which have nothing further out: where programs and threads start.
#[derive(Debug, Default)]
#[allow(dead_code, reason = "tests use what they need")]
pub(crate) struct Starts {
    stacks: usize,
    /// By the address of the frame: the stacks, and one that has a function further out.
    by_address: HashMap<u64, (usize, Option<String>)>,
}

#[allow(dead_code, reason = "tests use what they need")]
impl Starts {
    /// Adds a stack, innermost frame first.
    pub(crate) fn add(&mut self, frames: &[&Frame]) {
        self.stacks += 1;
        let is_native = |frame: &&Frame| matches!(frame, Frame::Native { .. });
        let Some(outermost) = frames.iter().rposition(is_native) else {
            return;
        };
        let Some(address) = frames[outermost].lookup_address() else {
            return;
        };
        let (stacks, wrong) = self.by_address.entry(address).or_default();
        *stacks += 1;
        if outermost + 1 < frames.len() {
            wrong.get_or_insert_with(|| format!("{frames:x?}"));
        }
    }

    /// Checks that the stacks that reach a start have nothing further out. Truncated ones end in many places.
    pub(crate) fn check(&self, name: &str) {
        let often = |stacks: usize| stacks * 5 >= self.stacks;
        let starts = self.by_address.values().filter(|it| often(it.0));
        let starts: Vec<_> = starts.collect();
        assert!(!starts.is_empty(), "{name}: {:x?}", self.by_address);
        for (stacks, wrong) in starts {
            assert_eq!(*wrong, None, "{name}: of {stacks} stacks");
        }
    }
}
