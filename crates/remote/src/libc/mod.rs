//! What differs between C libraries.

pub(crate) mod glibc;
pub(crate) mod musl;

use crate::Memory;
use crate::arch::Machine;
use crate::memory::MemoryError;

/// The C library of a process, whose dynamic linker manages its thread-local storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum CLibrary {
    Glibc,
    Musl,
}

impl CLibrary {
    /// Recognises a C library by the name it gives itself.
    pub(crate) fn from_soname(soname: &[u8]) -> Option<Self> {
        if soname == glibc::SONAME {
            Some(CLibrary::Glibc)
        } else if soname == musl::SONAME || soname.starts_with(musl::SONAME_PREFIX) {
            Some(CLibrary::Musl)
        } else {
            None
        }
    }

    /// The address of a module's block for the thread with this thread pointer; `None` if the
    /// thread has not allocated it. `generation` is the module's, where known.
    pub(crate) fn block(
        self,
        memory: &dyn Memory,
        machine: Machine,
        thread_pointer: u64,
        module: u64,
        generation: Option<u64>,
    ) -> Result<Option<u64>, MemoryError> {
        match self {
            CLibrary::Glibc => glibc::block(memory, machine, thread_pointer, module, generation),
            CLibrary::Musl => musl::block(memory, machine, thread_pointer, module),
        }
    }
}
