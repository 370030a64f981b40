//! A process that has only memory, and counts its reads.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs::File;
use std::ops::ControlFlow;

use otelctx_remote::memory::Image;
use otelctx_remote::{Device, Error, Machine, Mapping, Memory, MemoryError, Target, mappings};

/// A process that has only memory, and counts its reads.
pub struct Counting {
    memory: Image,
    reads: Cell<u64>,
}

impl Counting {
    /// A process with this memory.
    pub fn new(memory: Image) -> Self {
        let reads = Cell::new(0);
        Self { memory, reads }
    }

    /// The number of reads since the last call.
    pub fn take_reads(&self) -> u64 {
        self.reads.take()
    }
}

impl Memory for Counting {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        self.reads.set(self.reads.get() + 1);
        self.memory.read(address, buffer)
    }
}

impl Target for Counting {
    fn mappings(
        &self,
        _: &mut dyn FnMut(&Mapping<'_>) -> ControlFlow<()>,
    ) -> Result<mappings::Walk, Error> {
        Ok(mappings::Walk::default())
    }

    fn mapped_file(
        &self,
        _: (u64, u64),
        _: &[u8],
        _: Device,
        _: u64,
    ) -> Result<File, Option<String>> {
        Err(None)
    }

    fn machine(&self) -> Machine {
        Machine::X86_64
    }

    fn name(&self) -> OsString {
        "the process".into()
    }
}
