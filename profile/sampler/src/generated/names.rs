//! The names of generated code in stacks that are read once, by the same means as those of samples.

use std::sync::Arc;
use std::time::Instant;

use otelctx_reader::remote;
use otelctx_sample::{Frame, Module, NamedFrame};

use super::GeneratedCode;
use crate::code::{self, CodeMappings, Modules};

/// The generated (JIT) code of a process at one moment: its functions as its runtime announces them for
/// perf(1), in `/tmp/perf-PID.map` or in a jitdump file that it maps.
#[derive(Debug)]
pub struct GeneratedNames {
    code: CodeMappings,
    announced: GeneratedCode,
    /// When the stacks were taken, in nanoseconds of `CLOCK_MONOTONIC`.
    time: u64,
}

impl GeneratedNames {
    /// Returns true if a runtime may generate code in memory of this kind: without a file, or in a file without a
    /// path.
    #[must_use]
    pub fn may_be_in(module: &Module) -> bool {
        code::is_generated(module)
    }

    /// Reads what the runtime has announced so far, until the deadline: 1 GiB takes some seconds. Keeps
    /// only the functions at these addresses, which must be in ascending order, at a time in nanoseconds of
    /// `CLOCK_MONOTONIC`. A perf map has no times: of functions at the same address, its last one counts.
    #[must_use]
    pub fn read(
        process: &remote::Process,
        addresses: &[u64],
        time: u64,
        deadline: Instant,
    ) -> Self {
        let mut code = CodeMappings::default();
        code.read(process, &mut Modules::default());
        let mut announced = GeneratedCode::default();
        let dump = || code.open_jit_dump(process);
        announced.read_at(process, dump, addresses, deadline);
        Self {
            code,
            announced,
            time,
        }
    }

    /// The function at one of the addresses. Where no name was announced, the runtime stands for it, such
    /// as `[Java]`. `None` for code that was not generated, or by a runtime that is not known.
    #[must_use]
    pub fn at(&self, address: u64) -> Option<Arc<NamedFrame>> {
        if !self.code.is_generated(address) {
            return None;
        }
        let runtime = self.code.runtime();
        match self.announced.name(address, self.time, runtime)? {
            Frame::Named(named) => Some(named),
            Frame::Native { .. } => None,
        }
    }
}
