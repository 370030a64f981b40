//! The names of generated code in stacks that are read once.

use std::sync::Arc;
use std::time::Instant;

use otelctx_reader::remote;
use otelctx_sample::{Frame, Module, NamedFrame};

use super::GeneratedCode;
use crate::code::{self, CodeMappings, Modules};

/// The generated (JIT) code of a process at one moment: its functions as its runtime announces them
/// for perf(1), in `/tmp/perf-PID.map` or in a jitdump file that it maps.
#[derive(Debug)]
pub struct GeneratedNames {
    code: CodeMappings,
    announced: GeneratedCode,
    /// Time of the stacks, in nanoseconds of `CLOCK_MONOTONIC`.
    time: u64,
}

impl GeneratedNames {
    /// Returns true for memory that may have generated code: without a file or without a path.
    #[must_use]
    pub fn may_be_in(module: &Module) -> bool {
        code::is_generated(module)
    }

    /// Reads the announced functions until the deadline: 1 GiB takes some seconds. Keeps only those
    /// at these addresses, which must ascend, at a time in nanoseconds of `CLOCK_MONOTONIC`. A perf
    /// map has no times: of functions at the same address, its last one counts.
    #[must_use]
    pub fn read(
        process: &remote::Process,
        addresses: &[u64],
        time: u64,
        deadline: Instant,
    ) -> Self {
        let mut code = CodeMappings::default();
        code.read(process, &mut Modules::default());
        let mut announced = GeneratedCode {
            is_shared: code.shares_generated(),
            ..GeneratedCode::default()
        };
        let dump = || code.open_jit_dump(process);
        announced.read_at(process, dump, addresses, deadline);
        Self {
            code,
            announced,
            time,
        }
    }

    /// Returns the function at one of the addresses; without an announced name, the runtime, such
    /// as `[Java]`. `None` for code that was not generated, or by an unknown runtime.
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
