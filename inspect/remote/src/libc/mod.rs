//! Differences between C libraries, and their data about threads.

pub(crate) mod glibc;
mod keys;
mod lists;
pub(crate) mod musl;
mod thread_db;

pub use keys::{KeyLayout, PthreadKeys};
pub(crate) use lists::ThreadLayout;
pub use thread_db::{Field, ThreadDb};

use self::lists::ThreadFacts;
use crate::Memory;
use crate::elf::{Elf, ElfError};
use crate::machine::Machine;
use crate::memory::MemoryError;

/// The C library of a process, whose dynamic linker manages its thread-local storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CLibrary {
    /// The GNU C library.
    Glibc,
    /// musl.
    Musl,
}

/// A file's facts about the C library of its process; empty for most files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct FileFacts {
    /// The C library that this module is.
    pub(crate) library: Option<CLibrary>,
    /// Address of `_rtld_global` in glibc's ld.so.
    pub(crate) rtld_global: Option<u64>,
    /// From glibc's libc.so, or from libpthread.so before 2.34.
    pub(crate) tls: Option<glibc::Layout>,
    pub(crate) threads: ThreadFacts,
}

impl FileFacts {
    /// Reads the facts of a file with this SONAME, or of a program without a dynamic linker.
    pub(crate) fn read(
        elf: &Elf<'_>,
        soname: Option<&[u8]>,
        is_static: bool,
    ) -> Result<Self, ElfError> {
        let mut facts = Self {
            library: CLibrary::recognize(elf, soname)?,
            ..Self::default()
        };
        match soname {
            Some(glibc::SONAME) => {
                let names = [
                    &glibc::Layout::NAMES[..],
                    &ThreadLayout::NAMES,
                    &ThreadFacts::NAMES,
                ];
                let table = ThreadDb::read(elf, &names.concat())?;
                facts.tls = glibc::Layout::of(&table);
                facts.threads = ThreadFacts::of_glibc(&table);
            }
            Some(glibc::THREADS_SONAME) => {
                let table = ThreadDb::read(elf, &glibc::Layout::NAMES)?;
                facts.tls = glibc::Layout::of(&table);
            }
            Some(soname) if soname.starts_with(glibc::LOADER_PREFIX) => {
                let symbol = elf.dynamic_symbol(b"_rtld_global")?;
                facts.rtld_global = symbol.map(|symbol| symbol.value);
            }
            None if is_static => facts.threads = ThreadFacts::of_static_program(elf)?,
            _ => {}
        }
        Ok(facts)
    }

    /// The C library that manages the thread-local storage of a process with these modules: glibc
    /// if its dynamic linker is loaded, whatever else is.
    pub(crate) fn c_library<'a>(
        modules: impl Iterator<Item = &'a Self> + Clone,
    ) -> Option<CLibrary> {
        if modules.clone().any(|facts| facts.rtld_global.is_some()) {
            return Some(CLibrary::Glibc);
        }
        modules.clone().find_map(|facts| facts.library)
    }
}

impl CLibrary {
    /// Recognizes glibc by its SONAME, and musl by a function that its dynamic linker looks up in
    /// itself: its SONAME, if it has one, is that of other C libraries, too (bionic).
    pub(crate) fn recognize(
        elf: &Elf<'_>,
        soname: Option<&[u8]>,
    ) -> Result<Option<Self>, ElfError> {
        match soname {
            Some(glibc::SONAME) => Ok(Some(CLibrary::Glibc)),
            Some(soname) if !musl::is_name(soname) => Ok(None),
            _ => Ok(elf
                .dynamic_symbol(musl::DYNAMIC_LINKER)?
                .is_some_and(|symbol| symbol.defined)
                .then_some(CLibrary::Musl)),
        }
    }

    /// Returns whether static storage may start at the thread pointer itself, so that an offset of
    /// 0 is no empty slot (musl's ldso/dynlink.c, `GAP_ABOVE_TP`).
    pub(crate) fn has_offset_zero(self, machine: Machine) -> bool {
        (self, machine) == (CLibrary::Musl, Machine::Aarch64)
    }

    /// The address of a module's block for the thread with this thread pointer; `None` if the
    /// thread has not allocated it. `generation` is the module's, if known.
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

/// Returns whether a mapping with this name may be of a C library: itself, its library of threads,
/// or its dynamic linker (`ld-linux-x86-64.so.2`, `ld-2.31.so`).
pub fn is_c_library(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    let names: [&[u8]; 5] = [b"libc.so", b"libc-", b"libc.musl-", b"ld-", b"libpthread"];
    names.iter().any(|start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use otelctx_fixtures::Compiler;

    use super::*;
    use crate::memory::Image;
    use crate::module::Module;

    /// bionic's libc.so can have the same name as musl's.
    #[test]
    fn a_name_alone_is_no_musl() {
        for name in ["libc.so", "libc.musl-x86_64.so.1"] {
            let soname = format!("-Wl,-soname,{name}");
            let flags = ["-mtls-dialect=gnu2", &soname];
            let Some(library) = Compiler::gcc().library(&["variable.c"], &flags) else {
                return;
            };
            let module = Module::open(&library, "x").unwrap();
            assert_eq!(module.soname.as_deref(), Some(name.as_bytes()));
            assert_eq!(module.libc.library, None);
        }
    }

    const THREAD: u64 = 0x7f22_0000_0000;
    const VECTOR: u64 = 0x7f22_0000_1000;

    /// The vector is at *(tp + A), the block at *(vector + module × B).
    #[test]
    fn where_each_library_keeps_the_vector_on_each_machine() {
        use {CLibrary::*, Machine::*};
        for (library, machine, a, b) in [
            (Glibc, X86_64, 8, 16),
            (Glibc, Aarch64, 0, 16),
            (Musl, X86_64, 8, 8),
            (Musl, Aarch64, -8, 8),
        ] {
            let mut memory = Image::new();
            memory.map_u64(THREAD.wrapping_add_signed(a), &[VECTOR]);
            // The number of entries and the generation: before the vector, and at its start; musl's
            // vector starts with the number of entries.
            memory.map_u64(VECTOR - 16, &[3, 0, 3]);
            memory.map_u64(VECTOR + 3 * b, &[0x5000]);
            let block = |module| library.block(&memory, machine, THREAD, module, Some(3));
            assert_eq!(block(3), Ok(Some(0x5000)), "{library:?} {machine:?}");
            // The length is checked before the entry, which is not mapped.
            assert_eq!(block(4), Ok(None), "{library:?} {machine:?}");
        }
    }

    /// A block that musl has not allocated is null.
    #[test]
    fn a_block_that_musl_has_not_allocated() {
        let mut memory = Image::new();
        memory.map_u64(THREAD + 8, &[VECTOR]);
        memory.map_u64(VECTOR, &[2, 0x5000, 0]);
        let block = |module| {
            let machine = Machine::X86_64;
            CLibrary::Musl.block(&memory, machine, THREAD, module, None)
        };
        assert_eq!(block(1), Ok(Some(0x5000)));
        assert_eq!(block(2), Ok(None));
        // The length is not a block.
        assert_eq!(block(0), Ok(None));
    }
}
