//! A target with replaced memory.

use std::ffi::OsString;
use std::fs::File;
use std::ops::ControlFlow;
use std::time::Instant;

use super::{CodeLayout, Target, ThreadInfo};
use crate::machine::Machine;
use crate::mappings::{Mapping, Visit, VisitExecutable, Walk};
use crate::memory::MemoryError;
use crate::{Device, Error, Memory};

/// A target with other memory than its own, such as pages of it that were read before.
pub struct Through<'t> {
    target: &'t dyn Target,
    memory: &'t dyn Memory,
}

impl<'t> Through<'t> {
    /// Replaces the memory of `target`.
    pub fn new(target: &'t dyn Target, memory: &'t dyn Memory) -> Self {
        Self { target, memory }
    }
}

impl Memory for Through<'_> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        self.memory.read(address, buffer)
    }

    fn forget(&self) {
        self.memory.forget();
    }
}

impl Target for Through<'_> {
    fn mappings(&self, visit: Visit<'_>) -> Result<Walk, Error> {
        self.target.mappings(visit)
    }

    fn file_mappings(&self, visit: &mut dyn FnMut(&Mapping<'_>)) -> Result<(), Error> {
        self.target.file_mappings(visit)
    }

    fn executable_mappings(&self, visit: VisitExecutable<'_>) -> Result<(), Error> {
        self.target.executable_mappings(visit)
    }

    fn code_layout(&self) -> Result<CodeLayout, Error> {
        self.target.code_layout()
    }

    fn unlisted(&self) -> Option<String> {
        self.target.unlisted()
    }

    fn deadline(&self) -> Option<Instant> {
        self.target.deadline()
    }

    fn mapped_file(
        &self,
        range: (u64, u64),
        name: &[u8],
        device: Device,
        inode: u64,
    ) -> Result<File, Option<String>> {
        self.target.mapped_file(range, name, device, inode)
    }

    fn machine(&self) -> Machine {
        self.target.machine()
    }

    fn name(&self) -> OsString {
        self.target.name()
    }

    fn pid(&self) -> Option<i32> {
        self.target.pid()
    }

    fn comm(&self) -> Result<OsString, Error> {
        self.target.comm()
    }

    fn is_running(&self) -> bool {
        self.target.is_running()
    }

    fn thread_ids(&self, visit: &mut dyn FnMut(i32) -> ControlFlow<()>) -> Result<(), Error> {
        self.target.thread_ids(visit)
    }

    fn thread(&self, tid: i32) -> Result<ThreadInfo, Error> {
        self.target.thread(tid)
    }
}
