//! musl: the dynamic thread vector is an array of pointers, preceded by its length
//! (`src/internal/pthread_impl.h`, `src/thread/__tls_get_addr.c`).

use crate::Memory;
use crate::machine::Machine;
use crate::memory::MemoryError;

/// The last stage of its dynamic linker (`ldso/dynlink.c`), which it looks up by name.
pub(crate) const DYNAMIC_LINKER: &[u8] = b"__dls3";
/// The SONAME of musl's `libc.so`, if it has one.
const SONAME: &[u8] = b"libc.so";
/// Prefix of the name on Alpine Linux.
const SONAME_PREFIX: &[u8] = b"libc.musl-";

/// Returns whether musl may have this name. Other libraries may, too.
pub(crate) fn is_name(soname: &[u8]) -> bool {
    soname == SONAME || soname.starts_with(SONAME_PREFIX)
}

/// The result of `pthread_self`, as an offset from the thread pointer: the address of `struct
/// pthread`, which has 200 bytes on aarch64. `None` on an unknown architecture.
pub(crate) fn pthread_self(machine: Machine) -> Option<i64> {
    match machine {
        Machine::X86_64 => Some(0),
        Machine::Aarch64 => Some(-200),
        Machine::Other(_) => None,
    }
}

/// The offset of the vector from the thread pointer: `struct pthread` starts at the thread pointer
/// on x86-64 and ends at it on aarch64 (`TLS_ABOVE_TP`).
fn vector_offset(machine: Machine) -> u64 {
    match machine {
        Machine::Aarch64 => (-8_i64) as u64,
        _ => 8,
    }
}

pub(crate) fn block(
    memory: &dyn Memory,
    machine: Machine,
    thread_pointer: u64,
    module: u64,
) -> Result<Option<u64>, MemoryError> {
    let vector = memory.read_u64(thread_pointer.wrapping_add(vector_offset(machine)))?;
    if vector == 0 || module == 0 || module > memory.read_u64(vector)? {
        return Ok(None);
    }
    let block = memory.read_u64(vector.wrapping_add(module.wrapping_mul(8)))?;
    Ok((block != 0).then_some(block))
}

/// Returns whether the dynamic thread vector of this control block on x86-64 has entries.
pub(crate) fn has_variables(memory: &dyn Memory, block: u64) -> bool {
    let at = block.wrapping_add(vector_offset(Machine::X86_64));
    let vector = memory.read_u64(at).ok();
    vector.is_some_and(|vector| memory.read_u64(vector).is_ok_and(|length| length != 0))
}

/// Offset of the thread's ID in a control block on x86-64, in bytes.
pub(crate) const TID: u64 = 48;

/// A control block, musl's `struct pthread` on x86-64 (`src/internal/pthread_impl.h`): self, dtv,
/// prev, next, sysinfo, canary, tid. All threads form one ring.
pub(crate) struct Block {
    pub(crate) previous: u64,
    pub(crate) next: u64,
    pub(crate) tid: u32,
}

impl Block {
    /// `None` if it is not a control block, whose first word is its own address.
    pub(crate) fn read(memory: &dyn Memory, address: u64) -> Option<Self> {
        let mut bytes = [0; TID as usize + 4];
        memory.read(address, &mut bytes).ok()?;
        let word = |at: usize| Some(u64::from_ne_bytes(bytes[at..at + 8].try_into().ok()?));
        (word(0)? == address).then_some(())?;
        Some(Self {
            previous: word(16)?,
            next: word(24)?,
            tid: u32::from_ne_bytes(bytes[TID as usize..].try_into().ok()?),
        })
    }
}
