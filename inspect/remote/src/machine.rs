//! Architectures, and the terms of thread-local storage that all of them share.

use object::elf;

/// The architecture that a module was built for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Machine {
    /// 64-bit x86.
    X86_64,
    /// 64-bit Arm.
    Aarch64,
    /// Any other, by its `e_machine`.
    Other(u16),
}

/// A PT_TLS segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TlsSegment {
    /// `p_vaddr`
    pub address: u64,
    /// `p_filesz`: number of bytes with an initial value.
    pub file_size: u64,
    /// `p_memsz`: size of a block, in bytes.
    pub memory_size: u64,
    /// `p_align`
    pub alignment: u64,
}

/// The access model of code for a thread-local variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Through a TLS descriptor.
    Tlsdesc,
    /// `__tls_get_addr` with module and offset.
    GeneralDynamic,
    /// `__tls_get_addr` for the module; the offset is fixed by the linker. Not in OTEP 4947.
    LocalDynamic,
    /// The offset from the thread pointer is in the global offset table.
    InitialExec,
    /// The offset from the thread pointer is in the code.
    LocalExec,
}

impl Machine {
    pub(crate) fn from_elf(machine: elf::Machine) -> Self {
        match machine {
            elf::EM_X86_64 => Machine::X86_64,
            elf::EM_AARCH64 => Machine::Aarch64,
            other => Machine::Other(other.0),
        }
    }

    /// The architecture of this reader.
    pub fn own() -> Self {
        if cfg!(target_arch = "x86_64") {
            Machine::X86_64
        } else if cfg!(target_arch = "aarch64") {
            Machine::Aarch64
        } else {
            Machine::Other(0)
        }
    }
}
