//! Differences between processor architectures: one folder each, with the same file names.

pub(crate) mod aarch64;
pub(crate) mod x86_64;

use std::mem::size_of;

use nix::errno::Errno;
use nix::libc::{self, c_void};
use object::elf;

#[cfg(target_arch = "aarch64")]
pub use aarch64::registers::Registers;
#[cfg(target_arch = "x86_64")]
pub use x86_64::registers::Registers;

use crate::Memory;
use crate::machine::{Access, Machine, TlsSegment};
use crate::memory::MemoryError;

/// The relocations of thread-local variables that a dynamic linker resolves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TlsRelocation {
    /// A TLS descriptor, two words.
    Descriptor,
    /// The module id, first word of what `__tls_get_addr` takes; the offset is the second.
    ModuleId,
    ThreadPointerOffset,
}

/// The numbers that an architecture gives to [`TlsRelocation`].
pub(crate) struct RelocationNumbers {
    descriptor: u32,
    module_id: u32,
    thread_pointer_offset: u32,
    /// Second word of what `__tls_get_addr` takes.
    block_offset: u32,
}

/// The number of TLS descriptors that a linker has replaced in code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Relaxed {
    /// Replaced by the offset from the thread pointer.
    pub to_local_exec: usize,
    /// Replaced by a load of that offset from the global offset table.
    pub to_initial_exec: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StatusLayout {
    /// Bytes of NT_PRSTATUS.
    pub(crate) size: u64,
    pub(crate) thread_pointer: ThreadPointerNote,
    /// Offset of the general registers in bytes, behind signals and times.
    pub(crate) registers: usize,
    /// Indexes of words among the general registers.
    pub(crate) instruction_pointer: usize,
    pub(crate) stack_pointer: usize,
    pub(crate) frame_pointer: usize,
    pub(crate) link: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ThreadPointerNote {
    /// NT_PRSTATUS has it at this offset in bytes.
    Status(usize),
    /// A note of this type has only it.
    Own(elf::NoteType),
}

/// Reads a whole register set of a stopped tracee. EINVAL if the thread has a smaller one, as
/// 32-bit code does.
///
/// # Safety
/// Any bytes must be a valid `T`.
unsafe fn read_register_set<T>(tid: i32, set: usize, registers: &mut T) -> Result<(), Errno> {
    let mut vector = libc::iovec {
        iov_base: (&raw mut *registers).cast(),
        iov_len: size_of::<T>(),
    };
    let set = set as *mut c_void;
    // SAFETY: `vector` has the address and size of `registers`, which lives through the call, and
    // the caller ensures that the kernel may write any bytes of it.
    let result = unsafe { libc::ptrace(libc::PTRACE_GETREGSET, tid, set, &raw mut vector) };
    Errno::result(result)?;
    (vector.iov_len == size_of::<T>())
        .then_some(())
        .ok_or(Errno::EINVAL)
}

impl Machine {
    pub(crate) fn status_layout(self) -> Option<StatusLayout> {
        match self {
            Machine::X86_64 => Some(x86_64::core_notes::STATUS),
            Machine::Aarch64 => Some(aarch64::core_notes::STATUS),
            Machine::Other(_) => None,
        }
    }

    fn relocation_numbers(self) -> Option<RelocationNumbers> {
        match self {
            Machine::X86_64 => Some(x86_64::relocation::NUMBERS),
            Machine::Aarch64 => Some(aarch64::relocation::NUMBERS),
            Machine::Other(_) => None,
        }
    }

    /// Returns whether a relocation is that of a variable's offset in its module's block.
    pub(crate) fn is_block_offset(self, number: u32) -> bool {
        let numbers = self.relocation_numbers();
        numbers.is_some_and(|numbers| numbers.block_offset == number)
    }

    /// The name in readelf of the relocation that an access model leaves to the dynamic linker.
    pub fn relocation_name(self, access: Access) -> Option<&'static str> {
        let names = match self {
            Machine::X86_64 => x86_64::relocation::NAMES,
            Machine::Aarch64 => aarch64::relocation::NAMES,
            Machine::Other(_) => return None,
        };
        let index = match access {
            Access::Tlsdesc => 0,
            Access::GeneralDynamic | Access::LocalDynamic => 1,
            Access::InitialExec => 2,
            Access::LocalExec => return None,
        };
        Some(names[index])
    }

    /// The access model that a relocation of an object file means.
    pub(crate) fn access_in_code(self, number: u32) -> Option<Access> {
        match self {
            Machine::X86_64 => x86_64::relocation::in_code(number),
            Machine::Aarch64 => aarch64::relocation::in_code(number),
            Machine::Other(_) => None,
        }
    }

    /// Length of the longest code sequence that [`Self::find_relaxed`] searches for, in bytes.
    pub(crate) fn max_sequence(self) -> usize {
        match self {
            Machine::Aarch64 => aarch64::relaxation::MAX_SEQUENCE,
            _ => x86_64::relaxation::MAX_SEQUENCE,
        }
    }

    /// Counts what relaxed accesses to a variable have left in `code` at `address`.
    pub(crate) fn find_relaxed(
        self,
        code: &[u8],
        address: u64,
        offset: Option<i64>,
        slots: &[u64],
    ) -> Relaxed {
        match self {
            Machine::X86_64 => x86_64::relaxation::find(code, address, offset, slots),
            Machine::Aarch64 => aarch64::relaxation::find(code, address, offset, slots),
            Machine::Other(_) => Relaxed::default(),
        }
    }

    pub(crate) fn tls_relocation(self, number: u32) -> Option<TlsRelocation> {
        let numbers = self.relocation_numbers()?;
        if number == numbers.descriptor {
            Some(TlsRelocation::Descriptor)
        } else if number == numbers.module_id {
            Some(TlsRelocation::ModuleId)
        } else {
            let is_offset = number == numbers.thread_pointer_offset;
            is_offset.then_some(TlsRelocation::ThreadPointerOffset)
        }
    }

    /// Returns whether a TLS descriptor that the dynamic linker has filled means static storage.
    /// Its argument is the offset from the thread pointer then.
    pub(crate) fn descriptor_is_static(
        self,
        memory: &dyn Memory,
        resolver: u64,
        argument: u64,
    ) -> Result<bool, MemoryError> {
        match self {
            Machine::Aarch64 => aarch64::tls::descriptor_is_static(memory, resolver),
            _ => Ok(x86_64::tls::descriptor_is_static(argument)),
        }
    }

    /// The start of the executable's TLS block, as an offset from the thread pointer.
    pub(crate) fn executable_block(self, tls: &TlsSegment) -> Option<i64> {
        match self {
            Machine::X86_64 => Some(x86_64::tls::executable_block(tls)),
            Machine::Aarch64 => Some(aarch64::tls::executable_block(tls)),
            Machine::Other(_) => None,
        }
    }

    /// [`Self::executable_block`] of any module, given glibc's `l_tls_offset`.
    pub(crate) fn glibc_block(self, l_tls_offset: u64) -> Option<i64> {
        match self {
            Machine::X86_64 => Some((l_tls_offset as i64).wrapping_neg()),
            Machine::Aarch64 => Some(l_tls_offset as i64),
            Machine::Other(_) => None,
        }
    }
}
