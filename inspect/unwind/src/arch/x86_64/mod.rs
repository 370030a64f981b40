//! x86-64.

mod code;
mod stubs;

use super::{Architecture, ContextLayout, MAX_FIRST_RETURNS, ReadBefore};
use crate::rule::{Cfa, FrameRule, ReturnAddress, Rule, Saved};

/// System V ABI, AMD64 supplement, figure 3.36 "DWARF Register Number Mapping".
pub(super) static ARCHITECTURE: Architecture = Architecture {
    stack_pointer: 7,
    frame_pointer: 6,
    base: Some(3),
    link: None,
    // The handler's `ret` has taken the return address, which is all that precedes it
    // (arch/x86/include/asm/sigframe.h, `struct rt_sigframe`).
    signal_context: 0,
    // <sys/ucontext.h>, `gregs`: r8 to r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip.
    context: ContextLayout {
        offset: 40,
        registers: &[8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2, 7, 16],
        instruction_pointer: 16,
    },
    sigreturn: &[
        // mov $15, %rax; syscall: glibc, musl, Go
        &[0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05],
        // mov $15, %eax; syscall
        &[0xb8, 15, 0, 0, 0, 0x0f, 0x05],
    ],
    starts: &[
        // glibc's __start_context: mov %rbx, %rsp; mov (%rsp), %rdi; test %rdi, %rdi
        &[0x48, 0x89, 0xdc, 0x48, 0x8b, 0x3c, 0x24, 0x48, 0x85, 0xff],
    ],
    // add $8, %rsp; ret
    trampoline: &[0x48, 0x83, 0xc4, 8, 0xc3],
    without_frame,
    has_left,
    // sub %rbp, %rbp: the scheduler of Erlang (`emit_process_main` in erts/emulator/beam/jit/x86/process_main.cpp).
    // Compilers use xor.
    clears_frame_pointer: &[0x48, 0x29, 0xed],
    is_behind_call,
    address_mask: !0,
    vendor: gimli::Vendor::Default,
    stubs: stubs::rules,
    entry,
    first_returns,
    go,
    code: code::READER,
};

/// glibc's `_start` (sysdeps/x86_64/start.S) clears the frame pointer, and has `hlt` behind its
/// call. musl's (arch/x86_64/crt_arch.h) aligns the stack before its call.
fn entry(code: &[u8]) -> usize {
    // endbr64
    let behind_mark = code.strip_prefix(&[0xf3, 0x0f, 0x1e, 0xfa]).unwrap_or(code);
    let size = if behind_mark.starts_with(&[0x31, 0xed]) {
        // call of an address, or of a pointer in the GOT; hlt
        let calls = |it: &[u8]| it[1] == 0xe8 || it[..2] == [0xff, 0x15];
        let is_end = |it: &[u8]| it[6] == 0xf4 && calls(it);
        let place = behind_mark.windows(7).position(is_end);
        place.map(|place| place + 7)
    } else if behind_mark.starts_with(&[0x48, 0x31, 0xed]) {
        // and $-16, %rsp; call
        let end = [0x48, 0x83, 0xe4, 0xf0, 0xe8];
        let place = behind_mark.windows(9).position(|it| it.starts_with(&end));
        place.map(|place| place + 9)
    } else {
        None
    };
    size.map_or(0, |size| code.len() - behind_mark.len() + size)
}

fn first_returns(code: &[u8], start: u64, ends: &[u64], found: &mut Vec<u64>) {
    for (index, _) in code.iter().enumerate().filter(|(_, byte)| **byte == 0xe8) {
        let (before, call) = code.split_at(index);
        let distance = call.get(1..5).and_then(|it| it.first_chunk());
        let Some(distance) = distance.filter(|_| found.len() < MAX_FIRST_RETURNS) else {
            break;
        };
        let behind = start.wrapping_add(index as u64 + 5);
        let target = behind.wrapping_add_signed(i32::from_le_bytes(*distance).into());
        if !ends.contains(&target) {
            continue;
        }
        // mov %rax, %rdi; movslq %eax, %rdi; mov %eax, %edi
        let moves: [&[u8]; 3] = [&[0x48, 0x89, 0xc7], &[0x48, 0x63, 0xf8], &[0x89, 0xc7]];
        let called = moves.iter().find_map(|it| before.strip_suffix(*it));
        // call *%REGISTER; call *(%REGISTER); call *OFFSET(%REGISTER)
        let is_call = called.is_some_and(|it| {
            matches!(it, [.., 0xff, 0x10..=0x13 | 0x16..=0x17 | 0xd0..=0xd7])
                || matches!(it, [.., 0xff, 0x50..=0x53 | 0x55..=0x57, _])
        });
        let called = called.filter(|_| is_call);
        found.extend(called.map(|it| start.wrapping_add(it.len() as u64)));
    }
}

/// A closure of libffi (src/x86/ffi64.c) has its target behind it, and no frame.
fn without_frame(next: [u8; 8], before: &ReadBefore<'_>) -> Option<Rule> {
    // push %rbp
    const PUSH: u8 = 0x55;
    // mov %rsp, %rbp, in both of its forms
    let moves = |code: &[u8]| code == [0x48, 0x89, 0xe5] || code == [0x48, 0x8b, 0xec];
    if moves(&next[..3]) {
        let mut pushed = [0];
        let is_pushed = before(&mut pushed) && pushed == [PUSH];
        return is_pushed.then(|| above_stack_pointer(8));
    }
    let starts: [&[u8]; 7] = [
        // ret
        &[0xc3],
        // endbr64; push %rbp, or the next instruction: endbr64 is at the targets of jumps, too
        &[0xf3, 0x0f, 0x1e, 0xfa, PUSH],
        &[0xf3, 0x0f, 0x1e, 0xfa, 0x4c, 0x8d, 0x15],
        // lea CLOSURE(%rip), %r10, behind endbr64; and before libffi 3.4, without it
        &[0x4c, 0x8d, 0x15, 0xf5, 0xff, 0xff, 0xff],
        &[0x4c, 0x8d, 0x15, 0xf9, 0xff, 0xff, 0xff],
        // jmp *TARGET(%rip), of both
        &[0xff, 0x25, 7, 0, 0, 0],
        &[0xff, 0x25, 3, 0, 0, 0],
    ];
    // jmp over a call at the start of a function of Erlang, where its debugger can set a breakpoint
    let is_start_of_erlang = matches!(next, [0xeb, 6, 0..=3, 0xe8, ..]);
    let is_start = is_start_of_erlang
        || next[0] == PUSH && moves(&next[1..4])
        || starts.iter().any(|it| next.starts_with(it))
        || has_left(next, before);
    is_start.then(|| above_stack_pointer(0))
}

/// Returns whether a function seems to have removed its frame by `leave`, and jumps to another one. Erlang counts its returns
/// before that: `dec %r14`, and `jl` to its scheduler.
fn has_left(next: [u8; 8], before: &ReadBefore<'_>) -> bool {
    const LEAVE: u8 = 0xc9;
    const COUNT: [u8; 3] = [0x49, 0xff, 0xce];
    let is_less = next.starts_with(&[0x0f, 0x8c]);
    if !is_less && next[0] != 0xe9 && !next.starts_with(&COUNT) {
        return false;
    }
    let mut former = [0; 4];
    before(&mut former)
        && match is_less {
            true => former[0] == LEAVE && former[1..] == COUNT,
            false => former[3] == LEAVE,
        }
}

/// A direct call, and indirect ones behind their prefixes, by the forms of their operands (Intel's Software Developer's
/// Manual, table 2-2).
fn is_behind_call(before: [u8; 8]) -> bool {
    matches!(
        before,
        [.., 0xe8, _, _, _, _]
            | [.., 0xff, 0x10..=0x17 | 0xd0..=0xd7]
            | [.., 0xff, 0x14 | 0x50..=0x57, _]
            | [.., 0xff, 0x54, _, _]
            | [.., 0xff, 0x15 | 0x90..=0x97, _, _, _, _]
            | [.., 0xff, 0x14 | 0x94, _, _, _, _, _]
    )
}

/// Go's functions save the frame pointer first (`preprocess` in Go's src/cmd/internal/obj/x86/obj6.go), but those in
/// assembly may push what they like.
fn go(size: i32, is_assembly: bool) -> Rule {
    if !(0..=i32::MAX - 8).contains(&size) {
        return Rule::Unsupported;
    }
    let Rule::Frame(mut frame) = above_stack_pointer(size) else {
        return Rule::Unsupported;
    };
    if is_assembly && size > 0 {
        frame.frame_pointer = Saved::Unknown;
    } else if size >= 8 {
        frame.frame_pointer = Saved::AtCfa(-16);
    }
    Rule::Frame(frame)
}

/// The rule while nothing but the return address and `bytes` below it is on the stack.
pub(super) fn above_stack_pointer(bytes: i32) -> Rule {
    Rule::Frame(FrameRule {
        cfa: Cfa::Register {
            register: ARCHITECTURE.stack_pointer,
            offset: 8 + bytes,
        },
        frame_pointer: Saved::Same,
        base: Saved::Unknown,
        return_address: ReturnAddress::AtCfa(-8),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_go_in_assembly_may_not_save_the_frame_pointer() {
        let frame_pointer = |size, is_assembly| match go(size, is_assembly) {
            Rule::Frame(frame) => Some(frame.frame_pointer),
            _ => None,
        };
        assert_eq!(frame_pointer(16, false), Some(Saved::AtCfa(-16)));
        assert_eq!(frame_pointer(16, true), Some(Saved::Unknown));
        for is_assembly in [false, true] {
            assert_eq!(frame_pointer(0, is_assembly), Some(Saved::Same));
            assert_eq!(frame_pointer(-1, is_assembly), None);
            assert_eq!(frame_pointer(i32::MAX, is_assembly), None);
        }
    }

    #[test]
    fn the_entry_point_of_a_c_library_is_known_by_its_code() {
        // glibc 2.36, Debian's crt1.o; an older one that calls through no pointer, with endbr64
        let glibc = [
            0x31, 0xed, 0x49, 0x89, 0xd1, 0x5e, 0x48, 0x89, 0xe2, 0x48, 0x83, 0xe4, 0xf0, 0x50,
            0x54, 0x45, 0x31, 0xc0, 0x31, 0xc9, 0x48, 0x8d, 0x3d, 0xf4, 0, 0, 0, 0xff, 0x15, 0x7f,
            0x58, 8, 0, 0xf4,
        ];
        let older = [
            0xf3, 0x0f, 0x1e, 0xfa, 0x31, 0xed, 0x5e, 0x67, 0xe8, 2, 0, 0, 0, 0xf4,
        ];
        let musl = [
            0x48, 0x31, 0xed, 0x48, 0x89, 0xe7, 0x48, 0x8d, 0x35, 0, 0, 0, 0, 0x48, 0x83, 0xe4,
            0xf0, 0xe8, 1, 2, 3, 4,
        ];
        for code in [&glibc[..], &older, &musl] {
            let behind = [code, &[0xf4; 40]].concat();
            assert_eq!(entry(&behind), code.len());
            assert_eq!(entry(code), code.len());
            assert_eq!(entry(&code[..code.len() - 1]), 0);
            assert_eq!(entry(&behind[2..]), 0);
        }
        // Go's: jmp _rt0_amd64
        assert_eq!(entry(&[0xe9, 0x1b, 0xcd, 0xff, 0xff, 0xcc, 0xcc]), 0);
        assert_eq!(entry(&[]), 0);
    }

    fn found(code: &[u8], start: u64, ends: &[u64]) -> Vec<u64> {
        let mut found = Vec::new();
        first_returns(code, start, ends, &mut found);
        found
    }

    #[test]
    fn a_call_whose_result_ends_the_thread_is_its_first() {
        let find = |code: &[u8]| found(code, 0x1000, &[0x1100]);
        // From 0x1000 on: a call, a move, and call 0x1100.
        let code = |called: &[u8], moved: &[u8]| {
            let before = called.len() + moved.len();
            let distance = (0x100 - before as u32 - 5).to_le_bytes();
            [called, moved, &[0xe8], &distance].concat()
        };
        let (by_register, by_memory) = ([0xff, 0xd3], [0xff, 0x13]);
        let (whole, extended, half) = ([0x48, 0x89, 0xc7], [0x48, 0x63, 0xf8], [0x89, 0xc7]);
        assert_eq!(find(&code(&by_register, &half)), [0x1002]);
        assert_eq!(find(&code(&by_memory, &whole)), [0x1002]);
        assert_eq!(find(&code(&[0x41, 0xff, 0xd4], &extended)), [0x1003]);
        assert_eq!(find(&code(&[0xff, 0x50, 8], &extended)), [0x1003]);
        // A jump; a call of a function by its name; another register; another function; no room for
        // the distance.
        assert_eq!(find(&code(&[0xff, 0xe3], &half)), [0; 0]);
        assert_eq!(find(&code(&[0xe8, 1, 2, 3, 4], &half)), [0; 0]);
        assert_eq!(find(&code(&by_register, &[0x89, 0xef])), [0; 0]);
        let other = code(&by_register, &half);
        assert_eq!(found(&other, 0x1000, &[0x1101]), [0; 0]);
        assert_eq!(find(&other[..other.len() - 1]), [0; 0]);
        assert_eq!(found(&other, u64::MAX, &[0xff]), [1]);
    }

    /// Code that a hostile file is full of.
    #[test]
    fn no_more_first_returns_than_the_limit_are_found() {
        // call *%rax; mov %eax, %edi; call of the next instruction
        let code = [0xff, 0xd0, 0x89, 0xc7, 0xe8, 0, 0, 0, 0].repeat(1000);
        let ends: Vec<u64> = (1..=1000).map(|it| 9 * it).collect();
        assert_eq!(found(&code, 0, &ends).len(), super::MAX_FIRST_RETURNS);
    }
}
