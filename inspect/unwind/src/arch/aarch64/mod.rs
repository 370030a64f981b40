//! aarch64.

mod code;
mod stubs;

use super::{Architecture, ContextLayout, MAX_FIRST_RETURNS, ReadBefore};
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
    // <sys/ucontext.h>: `uc_mcontext` at 176: `fault_address`, `regs`, `sp`, `pc`.
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
    without_frame,
    has_left: |_, _| false,
    clears_frame_pointer: &[],
    is_behind_call,
    // Pointer authentication signs in bits 48 to 63: all that NT_ARM_PAC_MASK can have for the
    // 48-bit addresses that Linux gives by default.
    address_mask: (1 << 48) - 1,
    vendor: gimli::Vendor::AArch64,
    stubs: stubs::rules,
    // Its end is found by its instructions.
    entry: |_| 0,
    first_returns,
    go,
    code: code::READER,
};

/// Go's functions have the return address at the stack pointer, and the frame pointer below it (`preprocess` in Go's
/// src/cmd/internal/obj/arm64/obj7.go).
fn go(size: i32, is_assembly: bool) -> Rule {
    let (frame_pointer, return_address) = match size {
        0 => (Saved::Same, ReturnAddress::Register(30)),
        // Those in assembly may store what they like there.
        1..=0x3fff_ffff if is_assembly => (Saved::Unknown, ReturnAddress::AtCfa(-size)),
        1..=0x3fff_ffff => (Saved::AtCfa(-size - 8), ReturnAddress::AtCfa(-size)),
        _ => return Rule::Unsupported,
    };
    Rule::Frame(FrameRule {
        cfa: Cfa::Register {
            register: ARCHITECTURE.stack_pointer,
            offset: size,
        },
        frame_pointer,
        base: Saved::Unknown,
        return_address,
    })
}

fn first_returns(code: &[u8], start: u64, ends: &[u64], found: &mut Vec<u64>) {
    let word = |index: usize| {
        let bytes = code.get(4 * index..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes))
    };
    let address = |index: usize| start.wrapping_add(4 * index as u64);
    for (index, bytes) in code.chunks_exact(4).enumerate() {
        if found.len() >= MAX_FIRST_RETURNS {
            break;
        }
        // bl TARGET
        let call = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let distance = i64::from((call << 6).cast_signed() >> 4);
        if call >> 26 != 0b10_0101 || !ends.contains(&address(index).wrapping_add_signed(distance))
        {
            continue;
        }
        // The result is in the register of the argument; sxtw x0, w0.
        let is_extended = index > 0 && word(index - 1) == Some(0x9340_7c00);
        let returned = index - usize::from(is_extended);
        // blr REGISTER
        let called = returned.checked_sub(1).and_then(word);
        let is_call = called.is_some_and(|it| it & !(31 << 5) == 0xd63f_0000);
        found.extend(is_call.then(|| address(returned)));
    }
}

/// Most compilers, also those of language runtimes, begin functions so, and end them.
fn without_frame(next: [u8; 8], before: &ReadBefore<'_>) -> Option<Rule> {
    let [first, second, third, fourth, ..] = next;
    let next = u32::from_le_bytes([first, second, third, fourth]);
    // stp x29, x30, [sp, #-SIZE]!
    let pushed = |instruction: u32| {
        let size = 8 * (128 - (instruction >> 15 & 127)) as i32;
        (instruction & 0xffe0_7fff == 0xa9a0_7bfd).then_some(size)
    };
    // mov x29, sp
    if next == 0x9100_03fd {
        let mut instruction = [0; 4];
        let is_read = before(&mut instruction);
        let size = pushed(u32::from_le_bytes(instruction)).filter(|_| is_read)?;
        return Some(rule(size, ReturnAddress::AtCfa(8 - size)));
    }
    // bti c; paciasp; ret
    let others = [0xd503_245f, 0xd503_233f, 0xd65f_03c0];
    let is_start = pushed(next).is_some() || others.contains(&next);
    is_start.then(leaf)
}

/// `bl`, `blr`, and `blr` with pointer authentication.
fn is_behind_call(before: [u8; 8]) -> bool {
    let [.., first, second, third, fourth] = before;
    let call = u32::from_le_bytes([first, second, third, fourth]);
    call >> 26 == 0b10_0101
        || call & 0xffff_fc1f == 0xd63f_0000
        || call & 0xfeff_f800 == 0xd63f_0800
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
    use super::*;
    use crate::error::Error;

    /// crti.o's and crtn.o's, with protected branches and without; and a table of linkage.
    #[test]
    fn functions_of_the_start_files_have_frames() {
        let rules = |words: &[u32]| {
            let code: Vec<u8> = words.iter().flat_map(|it| it.to_le_bytes()).collect();
            let mut found = Vec::new();
            let mut write = |at, rule| {
                found.push((at, rule));
                Ok::<(), Error>(())
            };
            stubs::rules(&code, 0x1000, &mut write).unwrap();
            found.retain(|it| it.1 != Rule::Gap);
            found
        };
        let saved = Rule::Frame(FrameRule {
            cfa: Cfa::Register {
                register: 31,
                offset: 16,
            },
            frame_pointer: Saved::AtCfa(-16),
            base: Saved::Unknown,
            return_address: ReturnAddress::AtCfa(-8),
        });
        // stp x29, x30, [sp, #-16]!; mov x29, sp; bl; ldp x29, x30, [sp], #16
        let body = [0xa9bf_7bfd, 0x9100_03fd, 0x9400_000f, 0xa8c1_7bfd];
        let plain = [&body[..], &[0xd65f_03c0]].concat();
        let expected = [(0x1000, leaf()), (0x1004, saved), (0x1010, leaf())];
        assert_eq!(rules(&plain), expected);
        // paciasp; autiasp; ret
        let signed = [&[0xd503_233f], &body[..], &[0xd503_23bf, 0xd65f_03c0]].concat();
        let expected = [(0x1000, leaf()), (0x1008, saved), (0x1014, leaf())];
        assert_eq!(rules(&signed), expected);
        // stp x16, x30, [sp, #-16]!: the header
        let header = [&[0xa9bf_7bf0], &[0xd503_201f; 11][..]].concat();
        let pushed = rule(16, ReturnAddress::AtCfa(-8));
        let expected = [(0x1000, leaf()), (0x1004, pushed), (0x1020, leaf())];
        assert_eq!(rules(&header), expected);
    }

    #[test]
    fn a_call_whose_result_ends_the_thread_is_its_first() {
        let find = |words: &[u32]| {
            let code: Vec<u8> = words.iter().flat_map(|it| it.to_le_bytes()).collect();
            let mut found = Vec::new();
            first_returns(&code, 0x1000, &[0x1100], &mut found);
            found
        };
        // bl 0x1100 from the second and the third word
        let (second, third) = (0x9400_003f, 0x9400_003e);
        // blr x3; sxtw x0, w0
        let (call, extend) = (0xd63f_0060, 0x9340_7c00);
        assert_eq!(find(&[call, second]), [0x1004]);
        assert_eq!(find(&[call, extend, third]), [0x1004]);
        // bl elsewhere; br x3; b 0x1100
        assert_eq!(find(&[call, third]), [0; 0]);
        assert_eq!(find(&[0xd61f_0060, second]), [0; 0]);
        assert_eq!(find(&[call, 0x1400_003f]), [0; 0]);
        assert_eq!(find(&[second]), [0; 0]);
    }
}
