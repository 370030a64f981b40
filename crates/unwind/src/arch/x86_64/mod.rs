//! x86-64.

mod stubs;

use super::{Architecture, ContextLayout};
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
    // <sys/ucontext.h>, `gregs` of `uc_mcontext`: r8 to r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip.
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
        // mov %rbx, %rsp; mov (%rsp), %rdi; test %rdi, %rdi: glibc's __start_context, of makecontext
        &[0x48, 0x89, 0xdc, 0x48, 0x8b, 0x3c, 0x24, 0x48, 0x85, 0xff],
    ],
    // add $8, %rsp; ret
    trampoline: &[0x48, 0x83, 0xc4, 8, 0xc3],
    address_mask: !0,
    vendor: gimli::Vendor::Default,
    stubs: stubs::rules,
};

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
