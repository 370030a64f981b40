//! What differs between C libraries.

pub(crate) mod glibc;
pub(crate) mod musl;

use crate::Memory;
use crate::arch::Machine;
use crate::elf::{Elf, ElfError};
use crate::memory::MemoryError;

/// The C library of a process, whose dynamic linker manages its thread-local storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum CLibrary {
    Glibc,
    Musl,
}

impl CLibrary {
    /// Recognises a C library by the name it gives itself, or, for musl, which has none unless a
    /// distribution gives it one, by a function that its dynamic linker looks up in itself.
    pub(crate) fn recognise(
        elf: &Elf<'_>,
        soname: Option<&[u8]>,
    ) -> Result<Option<Self>, ElfError> {
        match soname {
            Some(glibc::SONAME) => Ok(Some(CLibrary::Glibc)),
            Some(musl::SONAME) => Ok(Some(CLibrary::Musl)),
            Some(soname) if soname.starts_with(musl::SONAME_PREFIX) => Ok(Some(CLibrary::Musl)),
            Some(_) => Ok(None),
            None => Ok(elf
                .dynamic_symbol(musl::DYNAMIC_LINKER)?
                .is_some_and(|symbol| symbol.defined)
                .then_some(CLibrary::Musl)),
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
