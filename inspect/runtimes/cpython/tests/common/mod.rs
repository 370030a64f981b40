//! Shared by the tests of sampling.

use std::collections::HashMap;
use std::sync::Arc;

use otelctx_fixtures::kernel::Feature;
use otelctx_python::Python;
use otelctx_reader::runtime::Runtimes;
use otelctx_reader::sample::{Catalog, Frame, Sample};
use otelctx_sampler::{KernelObject, Options, Sampler, Targets};

/// Samples a process. `None`, with a line, where the kernel does not permit it.
pub(crate) fn start(pid: i32, frequency: u32, without_ebpf: bool) -> Option<Sampler> {
    let mut options = Options::new(Targets::Processes(vec![pid]));
    options.frequency = frequency;
    options.without_ebpf = without_ebpf;
    options.runtimes = Runtimes::new(vec![Arc::new(Python::default())]);
    options.kernel_object = Some(KernelObject(otelctx_fixtures::kernel::PROGRAMS));
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
    by_address: HashMap<u64, Outermost>,
}

/// Stacks with the same outermost native frame.
#[derive(Debug)]
struct Outermost {
    stacks: usize,
    /// The file that it is in.
    module: String,
    /// One that has a function further out.
    wrong: Option<String>,
}

#[allow(dead_code, reason = "tests use what they need")]
impl Starts {
    /// Adds a stack.
    pub(crate) fn add(&mut self, catalog: &Catalog, sample: &Sample) {
        self.stacks += 1;
        let frames: Vec<&Frame> = catalog.frames(sample.user_stack).collect();
        let is_native = |frame: &&Frame| matches!(frame, Frame::Native { .. });
        let Some(outermost) = frames.iter().rposition(is_native) else {
            return;
        };
        let Some(address) = frames[outermost].lookup_address() else {
            return;
        };
        let entry = self.by_address.entry(address).or_insert_with(|| {
            let process = catalog.thread_facts(sample.thread).process;
            let mut mappings = catalog.process(process).mappings.iter();
            let mapping = mappings.find(|it| (it.start..it.end).contains(&address));
            let module = mapping.map(|it| catalog.module_facts(it.module).path.clone());
            Outermost {
                stacks: 0,
                module: module.unwrap_or_default(),
                wrong: None,
            }
        });
        entry.stacks += 1;
        if outermost + 1 < frames.len() {
            entry.wrong.get_or_insert_with(|| format!("{frames:x?}"));
        }
    }

    /// The outermost frames of at least a fifth of the stacks each. Truncated stacks end in many places.
    fn most(&self) -> Vec<&Outermost> {
        let starts = self.by_address.values();
        starts.filter(|it| it.stacks * 5 >= self.stacks).collect()
    }

    /// Checks that the stacks that reach a start have nothing further out.
    pub(crate) fn check(&self, name: &str) {
        let starts = self.most();
        assert!(!starts.is_empty(), "{name}: {:x?}", self.by_address);
        for start in starts {
            assert_eq!(start.wrong, None, "{name}: of {} stacks", start.stacks);
        }
    }

    /// Checks that at least 98 % of the stacks reach a start, which is in a file with one of these names.
    pub(crate) fn check_reached(&self, name: &str, files: &[&str]) {
        let starts = self.most();
        for start in &starts {
            let file = start.module.rsplit('/').next().unwrap_or_default();
            let is_known = files.iter().any(|it| file.starts_with(it));
            assert!(is_known, "{name}: {start:x?}");
        }
        let reached: usize = starts.iter().map(|it| it.stacks).sum();
        eprintln!(
            "{name}: {reached} of {} stacks reach the start",
            self.stacks
        );
        let is_enough = reached * 100 >= self.stacks * 98;
        assert!(is_enough, "{name}: {:x?}", self.by_address);
    }
}
