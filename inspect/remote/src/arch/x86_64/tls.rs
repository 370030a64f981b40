//! Addresses of thread-local storage.

use crate::machine::TlsSegment;

/// The executable's block ends at the thread pointer, moved down so that its start has the
/// alignment, and the misalignment, of `p_vaddr` (glibc `elf/dl-tls.c`,
/// `_dl_determine_tlsoffset`; lld `getTlsTpOffset`).
pub(crate) fn executable_block(tls: &TlsSegment) -> i64 {
    let alignment = tls.alignment.max(1);
    let below = tls.memory_size;
    let padding = tls.address.wrapping_neg().wrapping_sub(below) % alignment;
    (below.wrapping_add(padding) as i64).wrapping_neg()
}

/// Static storage lies below the thread pointer, so its offset is negative; a pointer to
/// {module, offset, generation} is a user address, and never is.
pub(crate) fn descriptor_is_static(argument: u64) -> bool {
    (argument as i64) < 0
}

#[cfg(test)]
mod tests {
    use super::executable_block;
    use crate::machine::TlsSegment;

    #[test]
    fn the_block_keeps_the_segments_misalignment() {
        for (address, memory_size, alignment, expected) in [
            (0, 8, 8, -8),
            (0, 12, 8, -16),
            (0x1000, 0x20, 64, -64),
            // Start at 8 modulo 64: the block starts 8 above a multiple of 64.
            (0x1008, 0x20, 64, -56),
            (0, 8, 0, -8),
        ] {
            let tls = TlsSegment {
                address,
                file_size: 0,
                memory_size,
                alignment,
            };
            assert_eq!(executable_block(&tls), expected, "{tls:x?}");
        }
    }
}
