//! Addresses of thread-local storage.

use crate::Memory;
use crate::machine::TlsSegment;
use crate::memory::MemoryError;

/// The thread control block: two words that the thread pointer points at (ELF for the Arm 64-bit
/// Architecture, "Thread Local Storage").
const CONTROL_BLOCK: u64 = 16;

/// The executable's block follows the control block, moved up so that its start has the
/// alignment, and the misalignment, of `p_vaddr` (glibc `elf/dl-tls.c`,
/// `_dl_determine_tlsoffset`; lld `getTlsTpOffset`).
pub(crate) fn executable_block(tls: &TlsSegment) -> i64 {
    let padding = tls.address.wrapping_sub(CONTROL_BLOCK) % tls.alignment.max(1);
    CONTROL_BLOCK.wrapping_add(padding) as i64
}

/// Static offsets and pointers are both positive here, so the resolver's code tells: that of
/// static storage is `ldr x0, [x0, #8]; ret`, perhaps behind a `bti c`, which is a `nop` in a glibc
/// without branch protection, as Debian 12's (glibc `sysdeps/aarch64/dl-tlsdesc.S`,
/// `_dl_tlsdesc_return`; musl `src/ldso/aarch64/tlsdesc.s`).
pub(crate) fn descriptor_is_static(
    memory: &dyn Memory,
    resolver: u64,
) -> Result<bool, MemoryError> {
    const BTI_C: u32 = 0xd503_245f;
    const NOP: u32 = 0xd503_201f;
    const LOAD_ARGUMENT: u32 = 0xf940_0400;
    const RETURN: u32 = 0xd65f_03c0;
    let mut at = resolver;
    if matches!(memory.read_u32(at)?, BTI_C | NOP) {
        at = at.wrapping_add(4);
    }
    Ok(memory.read_u32(at)? == LOAD_ARGUMENT && memory.read_u32(at.wrapping_add(4))? == RETURN)
}

#[cfg(test)]
mod tests {
    use super::{descriptor_is_static, executable_block};
    use crate::machine::TlsSegment;
    use crate::memory::Image;

    #[test]
    fn the_resolvers_code_tells_static_from_dynamic_storage() {
        const AT: u64 = 0x1000;
        for (code, expected) in [
            ([0xf940_0400, 0xd65f_03c0, 0], true),
            // bti c, and what Debian 12 has in its place.
            ([0xd503_245f, 0xf940_0400, 0xd65f_03c0], true),
            ([0xd503_201f, 0xf940_0400, 0xd65f_03c0], true),
            // glibc's _dl_tlsdesc_dynamic there.
            ([0xd503_201f, 0xa9be_0be1, 0xa901_13e3], false),
            ([0xf940_0400, 0x8b00_0060, 0xd65f_03c0], false),
        ] {
            let mut memory = Image::new();
            let bytes: Vec<u8> = code.into_iter().flat_map(u32::to_le_bytes).collect();
            memory.map(AT, bytes);
            assert_eq!(descriptor_is_static(&memory, AT), Ok(expected), "{code:x?}");
        }
    }

    #[test]
    fn the_block_keeps_the_segments_misalignment() {
        for (address, alignment, expected) in [
            (0x1000, 8, 16),
            (0x1000, 64, 64),
            (0x1010, 64, 16),
            (0x1018, 64, 24),
        ] {
            let tls = TlsSegment {
                address,
                file_size: 0,
                memory_size: 8,
                alignment,
            };
            assert_eq!(executable_block(&tls), expected, "{tls:x?}");
        }
    }
}
