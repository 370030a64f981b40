//! The instructions by which HotSpot's code makes and removes its frames, on x86-64.

/// Bytes of code that are read where a frame is being removed.
pub(super) const MAX_EPILOGUE: usize = 24;
/// Bytes of code that are read behind the instruction where a frame is being made.
pub(super) const MAX_PROLOGUE: usize = 16;
/// Maximum number of bytes from the entry of code to its complete frame.
pub(super) const MAX_ENTERED: usize = 512;

/// What code has done of its frame when it is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entered {
    Nothing,
    /// The frame pointer is saved, and nothing else is pushed.
    Pushed,
    /// The stack pointer is moved, but the frame pointer is not saved.
    Unsaved,
    Complete,
    /// The frame pointer is saved, and what follows may have pushed more; or registers were pushed, and may have been popped.
    Unknown,
    /// This number of registers is pushed, and the frame pointer is the caller's.
    Registers(u64),
}

/// What is left of the frame of code that removes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// The saved frame pointer.
    FramePointer,
    /// This number of other registers, which are popped.
    Registers(u64),
    /// The return address alone.
    Everything,
}

pub(super) fn pushes_frame_pointer(code: &[u8]) -> bool {
    code.first() == Some(&0x55)
}

/// mov %rsp, %rbp
pub(super) fn sets_frame_pointer(code: &[u8]) -> bool {
    code.starts_with(&[0x48, 0x8b, 0xec]) || code.starts_with(&[0x48, 0x89, 0xe5])
}

/// Returns the size of `sub $N, %rsp`.
fn moved_stack_pointer(code: &[u8]) -> Option<usize> {
    match code {
        [0x48, 0x81, 0xec, ..] => Some(7),
        [0x48, 0x83, 0xec, ..] => Some(4),
        _ => None,
    }
}

/// Returns what code has done of its frame before the instruction at `at`, where `code` begins at its entry.
pub(super) fn entered(code: &[u8], at: usize) -> Entered {
    if let Some(pushed) = pushed_registers(code, at) {
        let before = code.get(..at).unwrap_or_default();
        return match (0..before.len()).any(|at| leaves(&before[at..])) {
            true => Entered::Unknown,
            false => Entered::Registers(pushed),
        };
    }
    let mut index = 0;
    while index < at {
        let rest = code.get(index..).unwrap_or_default();
        index += match rest {
            // mov %eax, -N(%rsp): touches the stack's end
            [0x89, 0x84, 0x24, ..] => 7,
            // push %rdx: the address that the code for exceptions passes on
            [0x52, ..] => 1,
            [0x0f, 0x1f, 0x40, ..] => 4,
            [0x0f, 0x1f, 0x44, 0, 0, ..] => 5,
            [0xf3, 0x0f, 0x1e, 0xfa, ..] => 4,
            // push %rbp; [mov %rsp, %rbp]; sub $N, %rsp
            [0x55, ..] => {
                let mut next = index + 1;
                if sets_frame_pointer(&code[next..]) {
                    next += 3;
                }
                let moved = moved_stack_pointer(&code[next..]);
                return match moved {
                    _ if at <= next => Entered::Pushed,
                    Some(moved) if at < next + moved => Entered::Pushed,
                    Some(_) => Entered::Complete,
                    None => Entered::Unknown,
                };
            }
            // sub $N, %rsp; mov %rbp, M(%rsp)
            _ => {
                let Some(moved) = moved_stack_pointer(rest) else {
                    return Entered::Nothing;
                };
                let next = index + moved;
                if at < next {
                    return Entered::Nothing;
                }
                let save = code.get(next..).unwrap_or_default();
                let size = match save {
                    [0x48, 0x89, 0x6c, 0x24, ..] => 5,
                    _ => 8,
                };
                return match at < next + size {
                    true => Entered::Unsaved,
                    false => Entered::Complete,
                };
            }
        };
    }
    Entered::Nothing
}

/// Returns how many registers code has pushed before the instruction at `at`, if it begins with pushes of several ones and does
/// not save the frame pointer.
fn pushed_registers(code: &[u8], at: usize) -> Option<u64> {
    let (mut index, mut pushed, mut all) = (0, 0, 0);
    loop {
        index += match code.get(index..).unwrap_or_default() {
            [0x55, ..] => return None,
            [0x50..=0x57, ..] => 1,
            [0x41, 0x50..=0x57, ..] => 2,
            _ => break,
        };
        all += 1;
        pushed += u64::from(index <= at);
    }
    (all > 1).then_some(pushed)
}

/// Returns whether code pops a register, and returns or jumps then: what is behind that may be reached with nothing pushed.
fn leaves(code: &[u8]) -> bool {
    match code {
        [0x58..=0x5f, rest @ ..] => {
            matches!(rest, [0xc3 | 0xe9 | 0xeb, ..] | [0xff, 0xe0..=0xe7, ..])
        }
        _ => false,
    }
}

/// Returns what is left of a frame that the next instructions remove. `None` if they do not.
pub(super) fn left(code: &[u8]) -> Option<Left> {
    // pop %rbp
    if let [0x5d, rest @ ..] = code
        && returns(rest)
    {
        return Some(Left::FramePointer);
    }
    let (mut rest, mut popped) = (code, 0);
    loop {
        rest = match rest {
            [0x5d, ..] => return None,
            [0x58..=0x5f, rest @ ..] | [0x41, 0x58..=0x5f, rest @ ..] => rest,
            _ => break,
        };
        popped += 1;
    }
    if popped > 0 {
        return returns(rest).then_some(Left::Registers(popped));
    }
    returns(code).then_some(Left::Everything)
}

/// Returns whether code returns, perhaps behind the check of a safepoint.
fn returns(code: &[u8]) -> bool {
    // vzeroupper
    let code = code.strip_prefix(&[0xc5, 0xf8, 0x77]).unwrap_or(code);
    let rest = match code {
        [0xc3, ..] => return true,
        // cmp N(%r15), %rsp
        [0x49, 0x3b, 0xa7, _, _, _, _, rest @ ..] => rest,
        [0x49, 0x3b, 0x67, _, rest @ ..] => rest,
        // test %eax, N(%rip): JDK 8 and 11 poll so, or by a register
        [0x85, 0x05, _, _, _, _, rest @ ..] => rest,
        [0x41, 0x85, 0x02, rest @ ..] | [0x85, 0x00, rest @ ..] => rest,
        // mov N(%r15), %r10; test %eax, (%r10)
        [0x4d, 0x8b, 0x97, _, _, _, _, 0x41, 0x85, 0x02, rest @ ..] => rest,
        [0x4d, 0x8b, 0x57, _, 0x41, 0x85, 0x02, rest @ ..] => rest,
        rest => rest,
    };
    // ja to the poll's stub; ret
    matches!(
        rest,
        [0x0f, 0x87, _, _, _, _, 0xc3, ..] | [0x77, _, 0xc3, ..] | [0xc3, ..]
    )
}

/// What is left to do of code that returns to an address which it takes from the stack into a register: the interpreter's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Return {
    /// The address is still on the stack.
    pub(super) is_on_stack: bool,
    /// The register that the address is in, or will be.
    pub(super) address: u8,
    /// The register with the caller's stack pointer, if that is not set yet.
    pub(super) stack_pointer: Option<u8>,
}

/// Recognizes `pop REGISTER; mov REGISTER, %rsp; jmp REGISTER`, from any of the three on. `None` for other code.
pub(super) fn interpreter_returns(code: &[u8]) -> Option<Return> {
    let (popped, rest) = match code {
        [0x41, pop @ 0x58..=0x5f, rest @ ..] => (Some(8 + (pop & 7)), rest),
        [pop @ 0x58..=0x5f, rest @ ..] => (Some(pop & 7), rest),
        rest => (None, rest),
    };
    // Both encodings.
    let (moved, rest) = match rest {
        [0x48, 0x8b, mode @ 0xe0..=0xe7, rest @ ..] => (Some(mode & 7), rest),
        [0x49, 0x8b, mode @ 0xe0..=0xe7, rest @ ..] => (Some(8 + (mode & 7)), rest),
        [0x48, 0x89, mode, rest @ ..] if mode & 0xc7 == 0xc4 => (Some(mode >> 3 & 7), rest),
        [0x4c, 0x89, mode, rest @ ..] if mode & 0xc7 == 0xc4 => (Some(8 + (mode >> 3 & 7)), rest),
        rest => (None, rest),
    };
    let target = match rest {
        [0x41, 0xff, mode @ 0xe0..=0xe7, ..] => Some(8 + (mode & 7)),
        [0xff, mode @ 0xe0..=0xe7, ..] => Some(mode & 7),
        _ => None,
    };
    let address = match (popped, moved, target) {
        (Some(popped), Some(_), Some(target)) if popped == target => target,
        // Code may do something else before it jumps.
        (Some(popped), Some(_), None) => popped,
        (None, _, Some(target)) => target,
        _ => return None,
    };
    Some(Return {
        is_on_stack: popped.is_some(),
        address: dwarf(address),
        stack_pointer: moved.map(dwarf),
    })
}

/// DWARF's number of a register with this number in instructions (System V ABI, AMD64 supplement, figure 3.36).
fn dwarf(register: u8) -> u8 {
    const NUMBERS: [u8; 8] = [0, 2, 1, 3, 7, 6, 4, 5];
    let number = NUMBERS.get(usize::from(register));
    number.copied().unwrap_or(register)
}

/// Returns whether code is that of a return's safepoint, which is apart: the frame has been removed.
pub(super) fn is_poll(code: &[u8]) -> bool {
    // lea N(%rip), %r10; mov %r10, N(%r15); jmp
    let code = match code {
        [0x4c, 0x8d, 0x15, _, _, _, _, rest @ ..] => rest,
        rest => rest,
    };
    matches!(code, [0x4d, 0x89, 0x97, _, _, _, _, 0xe9, ..])
}

/// Returns the size of the state of the processor that code restores: `fxrstor (%rsp); add $N, %rsp`.
pub(super) fn restored_state(code: &[u8]) -> Option<u32> {
    let code = code.strip_prefix(&[0xc5, 0xf8, 0x77]).unwrap_or(code);
    let code = code.strip_prefix(&[0x48, 0x0f, 0xae, 0x0c, 0x24])?;
    let size = code.strip_prefix(&[0x48, 0x81, 0xc4])?.first_chunk()?;
    Some(u32::from_le_bytes(*size))
}

/// Returns whether an instruction is one of `mov $METHOD, %rbx; jmp`.
pub(super) fn passes_on_method(before: &[u8], code: &[u8]) -> bool {
    let is_jump = |code: &[u8]| matches!(code, [0xe9, ..]);
    let moves = |code: &[u8]| matches!(code, [0x48, 0xbb, ..]);
    // mov is preceded by bytes that align its value.
    let code = code.strip_prefix(&[0x0f, 0x1f, 0x44, 0, 0]).unwrap_or(code);
    let rest = code.get(10..).unwrap_or_default();
    moves(code) && is_jump(rest) || moves(before) && is_jump(code)
}

/// Returns whether the bytes before an address end with a call, of the forms that HotSpot writes.
pub(super) fn is_behind_call(before: [u8; 8]) -> bool {
    matches!(
        before,
        [.., 0xe8, _, _, _, _]
            | [.., 0xff, 0x10..=0x17 | 0xd0..=0xd7]
            | [.., 0xff, 0x50..=0x57, _]
            | [.., 0xff, 0x90..=0x97, _, _, _, _]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As C1 and C2 write them.
    const PUSHES: [u8; 15] = [
        0x89, 0x84, 0x24, 0, 0xc0, 0xfe, 0xff, 0x55, 0x48, 0x83, 0xec, 0x30, 0x90, 0x90, 0x90,
    ];
    const MOVES: [u8; 15] = [
        0x48, 0x81, 0xec, 0x18, 0, 0, 0, 0x48, 0x89, 0x6c, 0x24, 0x10, 0x90, 0x90, 0x90,
    ];

    #[test]
    fn a_new_frame_is_known_by_the_instructions_that_make_it() {
        use Entered::{Complete, Nothing, Pushed, Unknown, Unsaved};
        let at = |code: &[u8], places: &[usize]| -> Vec<Entered> {
            places.iter().map(|at| entered(code, *at)).collect()
        };
        let found = at(&PUSHES, &[0, 7, 8, 12, 13]);
        assert_eq!(found, [Nothing, Nothing, Pushed, Complete, Complete]);
        let found = at(&MOVES, &[0, 7, 12, 13]);
        assert_eq!(found, [Nothing, Unsaved, Complete, Complete]);
        // push %rdi; push %r8; push %rax; mov; push %rcx
        let registers = [0x57, 0x41, 0x50, 0x50, 0x90, 0x51];
        let found = at(&registers, &[0, 1, 3, 4, 6]);
        assert_eq!(found, [0, 1, 2, 3, 3].map(Entered::Registers));
        // push %rdi; push %rsi; pop %rsi; pop %rdi; then it returns, jumps near and far, or by a register
        for leave in [[0xc3, 0x90], [0xeb, 0], [0xe9, 0], [0xff, 0xe0]] {
            let code = [&[0x57, 0x56, 0x5e, 0x5f][..], &leave, &[0x90; 2]].concat();
            let found = at(&code, &[2, 4, 6]);
            assert_eq!(
                found,
                [Entered::Registers(2), Entered::Registers(2), Unknown],
                "{leave:x?}"
            );
        }
        // Right behind the return.
        assert_eq!(at(&[0x57, 0x56, 0x5e, 0x5f, 0xc3], &[5]), [Unknown]);
        // push %rbp; mov %rsp, %rbp; push %rax
        let found = at(&[0x55, 0x48, 0x8b, 0xec, 0x50], &[1, 4, 5]);
        assert_eq!(found, [Pushed, Pushed, Unknown]);
        // Something else, and code that ends in the middle.
        assert_eq!(entered(&[0x90; 8], 4), Nothing);
        for length in 0..PUSHES.len() {
            entered(&PUSHES[..length], 14);
            entered(&MOVES[..length], 14);
        }
    }

    #[test]
    fn a_removed_frame_is_known_by_the_instructions_that_return() {
        let pop_and_poll = [
            0x5d, 0x49, 0x3b, 0xa7, 0x40, 3, 0, 0, 0x0f, 0x87, 1, 0, 0, 0, 0xc3,
        ];
        assert_eq!(left(&pop_and_poll), Some(Left::FramePointer));
        assert_eq!(left(&pop_and_poll[1..]), Some(Left::Everything));
        assert_eq!(left(&[0xc3]), Some(Left::Everything));
        assert_eq!(left(&[0x5d, 0xc3]), Some(Left::FramePointer));
        assert_eq!(left(&[0xc5, 0xf8, 0x77, 0xc3]), Some(Left::Everything));
        // JDK 11: mov 0x108(%r15), %r10; test %eax, (%r10); ret
        let poll = [0x4d, 0x8b, 0x97, 8, 1, 0, 0, 0x41, 0x85, 0x02, 0xc3];
        assert_eq!(left(&poll), Some(Left::Everything));
        // pop %rax; pop %r8; ret
        let popped = [0x58, 0x41, 0x58, 0xc3];
        assert_eq!(left(&popped), Some(Left::Registers(2)));
        for code in [
            &popped[..3],
            &[0x58, 0x5d, 0xc3],
            &[0x5d, 0x90],
            &[0x90],
            &[],
            &[0x5d],
            &pop_and_poll[..8],
        ] {
            assert_eq!(left(code), None, "{code:x?}");
        }
    }

    #[test]
    fn the_size_of_saved_registers_is_known_by_the_code_that_restores_them() {
        let code = [
            0xc5, 0xf8, 0x77, 0x48, 0x0f, 0xae, 0x0c, 0x24, 0x48, 0x81, 0xc4, 0x80, 0x0a, 0, 0,
        ];
        assert_eq!(restored_state(&code), Some(0xa80));
        assert_eq!(restored_state(&code[3..]), Some(0xa80));
        assert_eq!(restored_state(&code[..14]), None);
        assert_eq!(restored_state(&code[8..]), None);
    }

    #[test]
    fn a_method_is_passed_on_in_a_register() {
        let mut code = [0x90; 20];
        code[5..7].copy_from_slice(&[0x48, 0xbb]);
        code[15] = 0xe9;
        code[..5].copy_from_slice(&[0x0f, 0x1f, 0x44, 0, 0]);
        let is = |at: usize| passes_on_method(&code[..at][at.saturating_sub(10)..], &code[at..]);
        let expected = [0, 5, 15];
        assert_eq!((0..20).filter(|at| is(*at)).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_interpreter_returns_by_a_register() {
        // pop %r13; mov %rbx, %rsp; jmp *%r13
        let code = [0x41, 0x5d, 0x48, 0x8b, 0xe3, 0x41, 0xff, 0xe5];
        let expected = |is_on_stack, stack_pointer| {
            Some(Return {
                is_on_stack,
                address: 13,
                stack_pointer,
            })
        };
        assert_eq!(interpreter_returns(&code), expected(true, Some(3)));
        assert_eq!(interpreter_returns(&code[2..]), expected(false, Some(3)));
        assert_eq!(interpreter_returns(&code[5..]), expected(false, None));
        // mov %r13, %rsp: the other encoding; then another register than the popped one.
        let other = [0x5f, 0x4c, 0x89, 0xec, 0xff, 0xe0];
        assert_eq!(interpreter_returns(&other), None);
        let rdi = [0x5f, 0x4c, 0x89, 0xec, 0xff, 0xe7];
        let found = interpreter_returns(&rdi).map(|it| (it.address, it.stack_pointer));
        assert_eq!(found, Some((5, Some(13))));
        // A jump through memory dispatches the next bytecode.
        assert_eq!(interpreter_returns(&[0x41, 0xff, 0x24, 0xda]), None);
        assert_eq!(interpreter_returns(&[0x5b, 0x90]), None);
    }

    #[test]
    fn calls_are_known_by_their_last_bytes() {
        for call in [
            [0, 0, 0, 0xe8, 1, 2, 3, 4],
            [0, 0, 0, 0, 0, 0x41, 0xff, 0xd2],
            [0, 0, 0, 0, 0, 0xff, 0x50, 8],
            [0, 0, 0xff, 0x90, 1, 2, 3, 4],
        ] {
            assert!(is_behind_call(call), "{call:x?}");
        }
        assert!(!is_behind_call([0x90; 8]));
    }
}
