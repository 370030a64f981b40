//! aarch64.

mod stubs;

use super::{Architecture, ContextLayout};
use crate::rule::{Cfa, FrameRule, ReturnAddress, Rule, Saved};

/// x30
const LINK: u8 = 30;

/// DWARF for the Arm 64-bit Architecture, section 4.1 "DWARF register names".
pub(super) static ARCHITECTURE: Architecture = Architecture {
    stack_pointer: 31,
    frame_pointer: 29,
    base: None,
    link: Some(LINK),
    // `siginfo_t` comes first (arch/arm64/kernel/signal.c, `struct rt_sigframe`).
    signal_context: 128,
    // <sys/ucontext.h>: `uc_mcontext` at 176, its `regs` behind `fault_address`, then `sp` and `pc`.
    context: ContextLayout {
        offset: 184,
        registers: &[
            0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23,
            24, 25, 26, 27, 28, 29, 30, 31, 32,
        ],
        instruction_pointer: 32,
    },
    // mov x8, #139; svc #0: the vDSO
    sigreturn: &[&[0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4]],
    starts: &[],
    // That code has frame pointers.
    trampoline: &[],
    // Pointer authentication signs in bits 48 to 63: all bits that NT_ARM_PAC_MASK can have for
    // addresses of 48 bits. Linux gives programs only such addresses unless they ask for larger ones.
    address_mask: (1 << 48) - 1,
    vendor: gimli::Vendor::AArch64,
    stubs: stubs::rules,
    entry,
};

/// glibc's `_start` (sysdeps/aarch64/start.S) clears x29 and x30, and has two calls: the second one is of `abort`.
fn entry(code: &[u8]) -> usize {
    let words = code.as_chunks::<4>().0.iter();
    let words: Vec<u32> = words.map(|it| u32::from_le_bytes(*it)).collect();
    // nop, bti c
    let behind_mark = match &words[..] {
        [0xd503_201f | 0xd503_245f, rest @ ..] => rest,
        all => all,
    };
    // mov x29, #0; mov x30, #0
    if !behind_mark.starts_with(&[0xd280_001d, 0xd280_001e]) {
        return 0;
    }
    let is_call = |word: u32| word >> 26 == 0b10_0101;
    let calls = words
        .windows(2)
        .position(|it| it.iter().all(|word| is_call(*word)));
    calls.map_or(0, |place| 4 * (place + 2))
}

/// The rule before a function has moved the stack pointer.
pub(super) fn leaf() -> Rule {
    rule(0, ReturnAddress::Register(LINK))
}

pub(super) fn rule(bytes: i32, return_address: ReturnAddress) -> Rule {
    Rule::Frame(FrameRule {
        cfa: Cfa::Register {
            register: ARCHITECTURE.stack_pointer,
            offset: bytes,
        },
        frame_pointer: Saved::Same,
        base: Saved::Unknown,
        return_address,
    })
}

#[cfg(test)]
mod tests {
    use super::entry;

    #[test]
    fn the_entry_point_of_a_c_library_is_known_by_its_code() {
        // glibc 2.36, Debian's crt1.o
        let words: [u32; 13] = [
            0xd503_201f,
            0xd280_001d,
            0xd280_001e,
            0xaa00_03e5,
            0xf940_03e1,
            0x9100_23e2,
            0x9100_03e6,
            0x9000_0000,
            0x9100_0000,
            0xd280_0003,
            0xd280_0004,
            0x9400_1234,
            0x97ff_fff0,
        ];
        let code: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        let behind = [&code[..], &code[44..]].concat();
        assert_eq!((entry(&code), entry(&behind)), (52, 52));
        assert_eq!(entry(&code[..51]), 0);
        assert_eq!((entry(&code[4..]), entry(&code[8..])), (48, 0));
    }
}
