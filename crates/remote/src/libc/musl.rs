//! musl: the dynamic thread vector is an array of pointers, preceded by its length
//! (`src/internal/pthread_impl.h`, `src/thread/__tls_get_addr.c`).

use crate::Memory;
use crate::machine::Machine;
use crate::memory::MemoryError;

/// The last stage of its dynamic linker (`ldso/dynlink.c`), which the previous stage looks up by
/// name.
pub(crate) const DYNAMIC_LINKER: &[u8] = b"__dls3";
/// The SONAME of musl's `libc.so`, if it has one.
const SONAME: &[u8] = b"libc.so";
/// Prefix of the name on Alpine Linux.
const SONAME_PREFIX: &[u8] = b"libc.musl-";

/// Whether musl may have this name. Other libraries may, too.
pub(crate) fn is_name(soname: &[u8]) -> bool {
    soname == SONAME || soname.starts_with(SONAME_PREFIX)
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
