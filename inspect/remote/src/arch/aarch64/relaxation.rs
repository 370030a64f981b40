//! Recognizes the code that a linker puts in place of a TLS descriptor (ELF for the Arm 64-bit
//! Architecture, "Relaxation of TLS descriptors").
//!
//! `adrp; ldr; add; blr` becomes `movz x0, #high, lsl #16; movk x0, #low; nop; nop` (local exec) or
//! `adrp x0, slot; ldr x0, [x0, slot]; nop; nop` (initial exec). Other accesses leave no trace.

use crate::arch::Relaxed;

/// Length of the longest code sequence, in bytes.
pub(crate) const MAX_SEQUENCE: usize = 16;

const NOP: u32 = 0xd503_201f;
/// `movz x0, #0, lsl #16`, `movk x0, #0`: the immediate's 16 bits begin at bit 5.
const MOVE_HIGH: u32 = 0xd2a0_0000;
const MOVE_LOW: u32 = 0xf280_0000;
/// `adrp x0, 0`: bits 29 and 30 are the page's lowest two, bits 5 to 23 the others.
const PAGE: u32 = 0x9000_0000;
const PAGE_BITS: u32 = 0x60ff_ffe0;
/// `ldr x0, [x0, #0]`: bits 10 to 21 are the offset in words of 8 bytes.
const LOAD: u32 = 0xf940_0000;
const LOAD_BITS: u32 = 0x003f_fc00;

/// Counts the traces that begin in `code`, which lies at `address`: of accesses to the variable at
/// `offset` from the thread pointer, or through one of the `slots`.
pub(crate) fn find(code: &[u8], address: u64, offset: Option<i64>, slots: &[u64]) -> Relaxed {
    let mut found = Relaxed::default();
    let words: Vec<u32> = code
        .as_chunks::<4>()
        .0
        .iter()
        .map(|bytes| u32::from_le_bytes(*bytes))
        .collect();
    for (index, window) in words.windows(MAX_SEQUENCE / 4).enumerate() {
        let &[first, second, NOP, NOP] = window else {
            continue;
        };
        let here = address.wrapping_add(4 * index as u64);
        if let Some(offset) = offset.and_then(|offset| u32::try_from(offset).ok()) {
            let high = MOVE_HIGH | (offset >> 16) << 5;
            let low = MOVE_LOW | (offset & 0xffff) << 5;
            found.to_local_exec += usize::from((first, second) == (high, low));
        }
        if first & !PAGE_BITS == PAGE && second & !LOAD_BITS == LOAD {
            let pages = (first & 0x00ff_ffe0) >> 3 | first >> 29 & 3;
            // 21 bits with a sign.
            let pages = i64::from((pages << 11).cast_signed() >> 11);
            let page = (here & !0xfff).wrapping_add_signed(pages << 12);
            let slot = page.wrapping_add(u64::from((second & LOAD_BITS) >> 10) * 8);
            found.to_initial_exec += usize::from(slots.contains(&slot));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(code: [u32; 4], offset: i64, slots: &[u64]) -> (usize, usize) {
        let bytes: Vec<u8> = code.into_iter().flat_map(u32::to_le_bytes).collect();
        let found = find(&bytes, 0x7a0, Some(offset), slots);
        (found.to_local_exec, found.to_initial_exec)
    }

    #[test]
    fn only_accesses_to_the_variable_itself_count() {
        let local = [0xd2a0_0000, 0xf280_0200, NOP, NOP];
        assert_eq!(counts(local, 16, &[]), (1, 0));
        assert_eq!(counts(local, 24, &[]), (0, 0));
        assert_eq!(
            counts([0xd2a0_0020, 0xf280_0200, NOP, NOP], 0x1_0010, &[]),
            (1, 0)
        );
        // adrp x0, 0x1f000; ldr x0, [x0, #0xfd8]
        let initial = [0xf000_00e0, 0xf947_ec00, NOP, NOP];
        assert_eq!(counts(initial, 16, &[0x1_ffd8]), (0, 1));
        assert_eq!(counts(initial, 16, &[0x1_ffe0]), (0, 0));
        // adrp x0, -0x1000
        assert_eq!(
            counts(
                [0xf0ff_ffe0, 0xf940_0000, NOP, NOP],
                16,
                &[0u64.wrapping_sub(0x1000)]
            ),
            (0, 1)
        );
    }
}
