//! Samples whose stacks are walked by unwind tables.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use otelctx_fixtures::kernel::Feature;
use otelctx_sampler::sample::{Catalog, Sample};
use otelctx_sampler::{Error, INTERVAL, Options, Sampler, Targets};

/// Long enough for everything to happen, even on a slow machine.
const TIMEOUT: Duration = otelctx_fixtures::HANG_TIMEOUT;

/// Samples a process at this frequency, in Hz, and passes on the samples of each drain until `add` breaks. `None`, with a
/// line, where the kernel does not permit it.
///
/// # Panics
///
/// If there is no complete stack for [`TIMEOUT`].
pub(crate) fn sample_by_tables(
    pid: i32,
    frequency: u32,
    add: impl FnMut(&Catalog, &[Sample]) -> ControlFlow<()>,
) -> Option<()> {
    let mut options = Options::new(Targets::Processes(vec![pid]));
    options.frequency = frequency;
    options.without_second_walk = true;
    sample(&options, |it| it.counts().complete_stacks > 0, add)
}

/// Scans a process's waits, as often as possible, likewise.
#[allow(dead_code, reason = "not all tests do")]
pub(crate) fn sample_waits(
    pid: i32,
    add: impl FnMut(&Catalog, &[Sample]) -> ControlFlow<()>,
) -> Option<()> {
    let mut options = Options::new(Targets::Processes(vec![pid]));
    options.on_cpu = false;
    options.wall_frequency = Some(10_000);
    options.kernel_stacks = false;
    sample(&options, |_| true, add)
}

fn sample(
    options: &Options,
    is_ready: impl Fn(&Sampler) -> bool,
    mut add: impl FnMut(&Catalog, &[Sample]) -> ControlFlow<()>,
) -> Option<()> {
    let mut sampler = match Sampler::start(options) {
        Err(Error::Waits(refusal)) => return Feature::Ebpf.or_skip(Err(refusal)),
        started => started.unwrap(),
    };
    Feature::Ebpf.or_skip(sampler.method().require_ebpf())?;
    Feature::Tables.or_skip(sampler.without_tables().map_or(Ok(()), Err))?;
    let mut catalog = Catalog::new();
    let mut last = Instant::now();
    loop {
        assert!(last.elapsed() < TIMEOUT, "no complete stacks");
        std::thread::sleep(INTERVAL);
        let mut new = Vec::new();
        sampler.drain(&mut catalog, &mut |sample| new.push(sample));
        // Before that, stacks are walked by frame pointers.
        if !is_ready(&sampler) {
            continue;
        }
        if !new.is_empty() {
            last = Instant::now();
        }
        if add(&catalog, &new).is_break() {
            return Some(());
        }
    }
}
