use super::*;
use crate::instructions::{CodeRules, Tails};
use crate::rule::{Cfa, FrameRule, ReturnAddress, Rule, Saved};

const RSP: u8 = 7;
const RBP: u8 = 6;
const START: u64 = 0x1000;

fn function_code(bytes: &[u8]) -> FunctionCode<'_> {
    FunctionCode {
        bytes,
        address: START,
        start: START,
        end: START + bytes.len() as u64,
        // Of a function that others call.
        starts: &[START + 0x200],
        tails: Tails::NONE,
        is_function: false,
    }
}

fn read(code: &[u8]) -> Option<CodeRules> {
    (READER.function)(&function_code(code), &mut CodeWork::default())
}

/// The rules of a function's code at [`START`], by their offsets.
fn rules(code: &[u8]) -> Option<Vec<(u64, Rule)>> {
    let rules = read(code)?.rules.into_iter();
    Some(rules.map(|(at, rule)| (at - START, rule)).collect())
}

/// The rule at an offset in a function.
fn rule_at(code: &[u8], offset: u64) -> Rule {
    let rules = rules(code).unwrap();
    let behind = rules.partition_point(|rule| rule.0 <= offset);
    rules[behind - 1].1
}

fn frame(cfa: Cfa, frame_pointer: Saved) -> Rule {
    Rule::Frame(FrameRule {
        cfa,
        frame_pointer,
        base: Saved::Unknown,
        return_address: ReturnAddress::AtCfa(-8),
    })
}

/// The rule while the CFA is `offset` bytes above the stack pointer.
fn above(offset: i32, frame_pointer: Saved) -> Rule {
    let register = RSP;
    frame(Cfa::Register { register, offset }, frame_pointer)
}

#[test]
fn a_leaf_needs_no_frame() {
    // dec %rdi; jnz; ret
    let code = [0x48, 0xff, 0xcf, 0x75, 0xfb, 0xc3];
    let expected = [(0, above(8, Saved::Same)), (6, Rule::Gap)];
    assert_eq!(rules(&code).unwrap(), expected);
}

#[test]
fn pushed_registers_and_the_saved_frame_pointer_are_known() {
    // push %rbx; push %rbp; sub $128, %rsp; mov $77, %rbp; add $128, %rsp; pop %rbp; pop %rbx; ret
    let code = [
        &[0x53, 0x55][..],
        &[0x48, 0x81, 0xec, 128, 0, 0, 0],
        &[0x48, 0xc7, 0xc5, 77, 0, 0, 0],
        &[0x48, 0x81, 0xc4, 128, 0, 0, 0],
        &[0x5d, 0x5b, 0xc3],
    ];
    let saved = Saved::AtCfa(-24);
    let expected = [
        (0, above(8, Saved::Same)),
        (1, above(16, Saved::Same)),
        (2, above(24, saved)),
        (9, above(152, saved)),
        (23, above(24, saved)),
        (24, above(16, Saved::Same)),
        (25, above(8, Saved::Same)),
        (26, Rule::Gap),
    ];
    assert_eq!(rules(&code.concat()).unwrap(), expected);
}

#[test]
fn an_aligned_stack_is_left_by_what_was_kept_of_it() {
    // mov %rsp, %rax; push %rbp; sub $64, %rsp; and $-64, %rsp; mov %rax, 8(%rsp); call; mov 8(%rsp), %rsi;
    // mov -8(%rsi), %rbp; mov %rsi, %rsp; ret
    let code = [
        &[0x48, 0x89, 0xe0, 0x55][..],
        &[0x48, 0x83, 0xec, 64],
        &[0x48, 0x83, 0xe4, 0xc0],
        &[0x48, 0x89, 0x44, 0x24, 8],
        &[0xe8, 0, 1, 0, 0],
        &[0x48, 0x8b, 0x74, 0x24, 8],
        &[0x48, 0x8b, 0x6e, 0xf8],
        &[0x48, 0x89, 0xf4, 0xc3],
    ];
    let saved = Saved::AtCfa(-16);
    // *(%rsp + 8) is the stack pointer at the start, 8 bytes below the CFA.
    let kept = Cfa::Memory {
        register: RSP,
        offset: 8,
        addend: 8,
    };
    let by_rax = Cfa::Register {
        register: 0,
        offset: 8,
    };
    let expected = [
        (0, above(8, Saved::Same)),
        (4, above(16, saved)),
        (8, above(80, saved)),
        (12, frame(by_rax, saved)),
        (17, frame(kept, saved)),
        (31, frame(kept, Saved::Same)),
        (34, above(8, Saved::Same)),
        (35, Rule::Gap),
    ];
    assert_eq!(rules(&code.concat()).unwrap(), expected);
}

#[test]
fn a_stack_of_unknown_size_is_left_by_the_frame_pointer() {
    // push %rbp; mov %rsp, %rbp; sub %rdi, %rsp; leave; ret
    let code = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x29, 0xfc, 0xc9, 0xc3];
    let saved = Saved::AtCfa(-16);
    let by_frame_pointer = Cfa::Register {
        register: RBP,
        offset: 16,
    };
    let expected = [
        (0, above(8, Saved::Same)),
        (1, above(16, saved)),
        (4, frame(by_frame_pointer, saved)),
        (8, above(8, Saved::Same)),
        (9, Rule::Gap),
    ];
    assert_eq!(rules(&code).unwrap(), expected);
}

/// The function has a frame when it is called, and none where it jumps to.
#[test]
fn what_only_a_table_of_jumps_reaches_has_the_frame_of_the_jump() {
    // push %rbx; jmp *%rax; nop; pop %rbx; ret
    let rules = rules(&[0x53, 0xff, 0xe0, 0x48, 0x31, 0xc0, 0x5b, 0xc3]).unwrap();
    let expected = [
        (0, above(8, Saved::Same)),
        (1, above(16, Saved::Same)),
        (7, above(8, Saved::Same)),
        (8, Rule::Gap),
    ];
    assert_eq!(rules, expected);
}

/// GMP's assembly jumps so at the start of functions; others only leave so.
#[test]
fn what_a_table_of_jumps_reaches_without_a_frame_has_none() {
    // test %edi, %edi; jz to the last ret; add %rcx, %rax; jmp *%rax; push %rbx; xor %eax, %eax; pop %rbx; ret; ret
    let code = [
        0x85, 0xff, 0x74, 10, 0x48, 0x01, 0xc8, 0xff, 0xe0, 0x53, 0x31, 0xc0, 0x5b, 0xc3, 0xc3,
    ];
    let expected = [
        (0, above(8, Saved::Same)),
        (10, above(16, Saved::Same)),
        (13, above(8, Saved::Same)),
        (15, Rule::Gap),
    ];
    assert_eq!(rules(&code).unwrap(), expected);
    // Without the sum, it leaves the function: a nop in its place.
    let leaves = [&code[..4], &[0x0f, 0x1f, 0], &code[7..]].concat();
    let expected = [
        (0, above(8, Saved::Same)),
        (9, Rule::Gap),
        (14, above(8, Saved::Same)),
        (15, Rule::Gap),
    ];
    assert_eq!(rules(&leaves).unwrap(), expected);
    // Code behind it that takes what it has not pushed is of another function: pop %rbx; ret
    let code = [&code[..2], &[0x74, 1, 0xc3], &code[4..9], &[0x5b, 0xc3]].concat();
    let last = rules(&code).unwrap().pop();
    assert_eq!(last, Some((10, Rule::Gap)));
}

/// GMP's multiplication goes from one loop to the next by their addresses.
#[test]
fn a_loop_whose_address_is_taken_has_the_frame_of_the_jumps() {
    // push %rbx; lea loop(%rip), %rax; jmp *%rax; loop: dec %edi; jnz loop; jmp *%rax; pop %rbx; ret
    let code = [
        0x53, 0x48, 0x8d, 0x05, 2, 0, 0, 0, 0xff, 0xe0, 0xff, 0xcf, 0x75, 0xfc, 0xff, 0xe0, 0x5b,
        0xc3,
    ];
    let expected = [
        (0, above(8, Saved::Same)),
        (1, above(16, Saved::Same)),
        (17, above(8, Saved::Same)),
        (18, Rule::Gap),
    ];
    assert_eq!(rules(&code).unwrap(), expected);
    // Otherwise, what jumps on may be another function: push %rbx; jmp *%rax; mov (%rdi), %rax; jmp *%rax
    for jump in [[0xff, 0xe0], [0xff, 0x20]] {
        let code = [&[0x53, 0xff, 0xe0, 0x48, 0x8b, 0x07][..], &jump].concat();
        let last = rules(&code).unwrap().pop();
        assert_eq!(last, Some((3, Rule::Gap)));
    }
}

/// The jump at the start has no frame, the one behind the save of a register has one.
#[test]
fn what_follows_a_jump_through_a_table_has_its_frame() {
    // test %edi, %edi; jz to push; add %rcx, %rax; jmp *%rax; xor %eax, %eax; ret; push %rbx; jmp *%rcx; pop %rbx; ret
    let code = [
        0x85, 0xff, 0x74, 8, 0x48, 0x01, 0xc8, 0xff, 0xe0, 0x31, 0xc0, 0xc3, 0x53, 0xff, 0xe1,
        0x5b, 0xc3,
    ];
    let expected = [
        (0, above(8, Saved::Same)),
        (13, above(16, Saved::Same)),
        (16, above(8, Saved::Same)),
        (17, Rule::Gap),
    ];
    assert_eq!(rules(&code).unwrap(), expected);
}

/// A call that never returns is followed by what another path jumps to.
#[test]
fn code_behind_a_call_that_never_returns_has_the_frame_of_the_jump_to_it() {
    // push %rbx; test %edi, %edi; jz over; push $1; call; over: pop %rbx; ret
    let code = [
        0x53, 0x85, 0xff, 0x74, 7, 0x6a, 1, 0xe8, 0, 1, 0, 0, 0x5b, 0xc3,
    ];
    let rules = rules(&code).unwrap();
    assert_eq!(rules[rules.len() - 3], (12, above(16, Saved::Same)));
    assert_eq!(rules[rules.len() - 2], (13, above(8, Saved::Same)));
}

#[test]
fn what_cannot_be_decided_has_no_rule() {
    // pop %rax; ret: it takes what it has not pushed. And code that never returns: GHC's, for one, has no calls.
    assert_eq!(rules(&[0x58, 0xc3]), None);
    assert_eq!(rules(&[0x48, 0xff, 0xcf, 0xff, 0x65, 0]), None);
    assert_eq!(rules(&[]), None);
    // mov %rdi, %rsp; ret: another stack.
    let switched = rules(&[0x48, 0x85, 0xff, 0x74, 4, 0x48, 0x89, 0xfc, 0xc3, 0xc3]).unwrap();
    assert!(switched.contains(&(8, Rule::Unsupported)), "{switched:?}");
}

/// A function whose CFA counts from the stack pointer or the frame pointer at the start of a usual frame.
const PROLOGUE: [u8; 4] = [0x55, 0x48, 0x89, 0xe5];

#[test]
fn a_path_ends_where_the_processor_stops() {
    // push %rbx; test %edi, %edi; jz over; hlt; pop %rax; ret; over: pop %rbx; ret. Behind hlt is another stack.
    let code = [0x53, 0x85, 0xff, 0x74, 3, 0xf4, 0x58, 0xc3, 0x5b, 0xc3];
    let rules = rules(&code).unwrap();
    assert!(rules.contains(&(6, Rule::Gap)), "{rules:?}");
    assert!(rules.contains(&(8, above(16, Saved::Same))), "{rules:?}");
}

/// The first function ends with a call that never returns. The second one returns, calls itself, or jumps elsewhere.
#[test]
fn padding_behind_a_call_ends_a_function_unless_it_goes_on_behind_it() {
    // push %rbx; test %edi, %edi; jz +7; pop %rbx; ret; nops; call; nop to 16 bytes
    let first = [
        &[0x53, 0x85, 0xff, 0x74, 2, 0x5b, 0xc3][..],
        &[0xe8, 0, 1, 0, 0],
        &[0x0f, 0x1f, 0x40, 0],
    ]
    .concat();
    // push %rbp; pop %rbp; ret. push %rbx; call; ud2. push %rbx; jmp elsewhere
    let others: [&[u8]; 3] = [
        &[0x55, 0x5d, 0xc3],
        &[0x53, 0xe8, 0, 1, 0, 0, 0x0f, 0x0b],
        &[0x53, 0xe9, 0, 1, 0, 0],
    ];
    for other in others {
        let rules = rules(&[&first[..], other].concat()).unwrap();
        assert_eq!(rules.last(), Some(&(12, Rule::Gap)), "{rules:?}");
    }
    // pop %rbx; ret: the end of the function that has pushed it. And nop; jmp, which leads back before.
    let own = rules(&[&first[..], &[0x5b, 0xc3]].concat()).unwrap();
    assert!(own.contains(&(16 + 1, above(8, Saved::Same))), "{own:?}");
    let own = rules(&[&first[..], &[0x90, 0xeb, 0xf2]].concat()).unwrap();
    assert_eq!(own.last(), Some(&(19, Rule::Gap)), "{own:?}");
}

/// The end of a call at 16, where functions may start.
const ALIGNED_CALL: [u8; 9] = [0x0f, 0x1f, 0x40, 0, 0xe8, 0, 1, 0, 0];

/// Programs that serve forever, and what calls them and then exits.
#[test]
fn a_function_that_never_returns_goes_on_where_it_uses_what_it_has_saved() {
    // push %rbp; push %rbx; sub $8, %rsp; xor %eax, %eax (7 bytes in all), call; USE; call; ud2
    let prologue = [0x55, 0x53, 0x48, 0x83, 0xec, 8, 0x90];
    let goes_on = |used: &[u8]| {
        let code = [
            &prologue[..],
            &ALIGNED_CALL,
            used,
            &[0xe8, 0, 1, 0, 0, 0x0f, 0x0b],
        ];
        let rules = rules(&code.concat()).unwrap();
        let (end, last) = *rules.last().unwrap();
        assert_eq!(last, Rule::Gap);
        assert_eq!(rules[rules.len() - 2].1, above(32, Saved::AtCfa(-16)));
        // Up to the ud2, or up to the first call.
        assert!(
            end == 16 || end as usize == 16 + used.len() + 5 + 2,
            "{rules:x?}"
        );
        end != 16
    };
    let uses: [&[u8]; 8] = [
        // mov %ebp, %edi; mov %rbx, %rdi; mov $1, %ebx; mov 8(%rbp), %rax
        &[0x89, 0xef],
        &[0x48, 0x89, 0xdf],
        &[0xbb, 1, 0, 0, 0],
        &[0x48, 0x8b, 0x45, 8],
        // mov %eax, (%rsp); add $8, %rsp; sub $8, %rsp
        &[0x89, 0x04, 0x24],
        &[0x48, 0x83, 0xc4, 8, 0x48, 0x83, 0xec, 8],
        // test %edi, %edi; jz +0; call *%rbx
        &[0x85, 0xff, 0x74, 0, 0xff, 0xd3],
        // mov %edi, (%rbx)
        &[0x89, 0x3b],
    ];
    for used in uses {
        assert!(goes_on(used), "{used:x?}");
    }
    let starts: [&[u8]; 6] = [
        // push %rbx; mov %edi, %ebx. mov %rbx, %r8; cpuid. mov %rbx, (%rdi). xor %ebp, %ebp; pop %rdi. sub $8, %rsp; mov %eax, (%rsp)
        &[0x53, 0x89, 0xfb],
        &[0x49, 0x89, 0xd8, 0x0f, 0xa2],
        &[0x48, 0x89, 0x1f],
        &[0x31, 0xed, 0x5f],
        &[0x48, 0x83, 0xec, 8, 0x89, 0x04, 0x24],
        // endbr64; pop %rax
        &[0xf3, 0x0f, 0x1e, 0xfa, 0x58],
    ];
    for start in starts {
        assert!(!goes_on(start), "{start:x?}");
    }
}

/// Clang's functions with floating-point numbers, say, save no register.
#[test]
fn a_function_without_saved_registers_returns_behind_a_call_with_a_frame() {
    // sub $8, %rsp, or nops; call; xor %eax, %eax; call; add $8, %rsp; ret
    let behind = [0x31, 0xc0, 0xe8, 0, 1, 0, 0];
    let code = [
        &[0x48, 0x83, 0xec, 8, 0x66, 0x66, 0x90][..],
        &ALIGNED_CALL,
        &behind,
        &[0x48, 0x83, 0xc4, 8, 0xc3],
    ];
    let expected = [
        (0, above(8, Saved::Same)),
        (4, above(16, Saved::Same)),
        (27, above(8, Saved::Same)),
        (28, Rule::Gap),
    ];
    assert_eq!(rules(&code.concat()).unwrap(), expected);
    // The call may never return, and another function may follow it.
    let code = [
        &[0x66, 0x66, 0x90, 0x66, 0x66, 0x66, 0x90][..],
        &ALIGNED_CALL,
        &behind,
        &[0xc3],
    ];
    assert_eq!(rules(&code.concat()), None);
}

/// Functions that are called where no other one can start do return, wherever else they are called.
#[test]
fn a_named_function_returns_behind_a_call_of_what_has_returned_before() {
    // BEFORE; call of CALLEE; xor %eax, %eax, twice; call of 0x110 up to 16, where functions may start; ret
    let code = |before: [u8; 2], callee: u32| {
        let call = [&before[..], &[0xe8], &(callee - 7).to_le_bytes()].concat();
        let between = [0x31, 0xc0, 0x31, 0xc0];
        [&call[..], &between, &ALIGNED_CALL[4..], &[0xc3]].concat()
    };
    let rules = |code: &[u8], starts: &[u64]| {
        let mut code = function_code(code);
        code.starts = starts;
        (READER.function)(&code, &mut CodeWork::default()).map(|found| found.rules)
    };
    let xchg = [0x66, 0x90];
    let expected = vec![(START, above(8, Saved::Same)), (START + 17, Rule::Gap)];
    assert_eq!(rules(&code(xchg, 0x110), &[START]), Some(expected));
    // It may be a part of another function, the other callee may never return, or only a jump (jz) leads behind its call.
    assert_eq!(rules(&code(xchg, 0x110), &[]), None);
    assert_eq!(rules(&code(xchg, 0x120), &[START]), None);
    assert_eq!(rules(&code([0x74, 5], 0x110), &[START]), None);
}

/// As functions that switch between coroutines do.
#[test]
fn a_function_that_saves_registers_at_once_has_rules_up_to_another_stack() {
    // lea -16(%rsp), %rsp; mov %rbx, (%rsp); mov %rbp, 8(%rsp); mov %rdi, %rsp; mov 8(%rsp), %rbp; jmp *%rsi
    let code = [
        &[0x48, 0x8d, 0x64, 0x24, 0xf0][..],
        &[0x48, 0x89, 0x1c, 0x24, 0x48, 0x89, 0x6c, 0x24, 8],
        &[0x48, 0x89, 0xfc, 0x48, 0x8b, 0x6c, 0x24, 8, 0xff, 0xe6],
    ];
    let expected = [
        (0, above(8, Saved::Same)),
        (5, above(24, Saved::Same)),
        (14, above(24, Saved::AtCfa(-16))),
        (17, Rule::Unsupported),
        (24, Rule::Gap),
    ];
    assert_eq!(rules(&code.concat()).unwrap(), expected);
    // A part of another function, with that one's frame, that writes there: mov %rbx, 8(%rsp); jmp *%rsi
    assert_eq!(rules(&[0x48, 0x89, 0x5c, 0x24, 8, 0xff, 0xe6]), None);
    assert_eq!(rules(&[0x48, 0x89, 0x5c, 0x24, 0xf8, 0xff, 0xe6]), None);
}

#[test]
fn a_named_function_may_be_a_jump_to_a_pointer() {
    // jmp *%rdx; jmp *(%rdx); jmp *8(%rdx,%rax,8), through a table
    let decided = |code: &[u8], starts: &[u64]| {
        let mut function = function_code(code);
        function.starts = starts;
        (READER.function)(&function, &mut CodeWork::default()).is_some()
    };
    for code in [&[0xff, 0xe2][..], &[0xff, 0x22]] {
        assert!(decided(code, &[START]));
        assert!(!decided(code, &[]));
    }
    assert!(!decided(&[0xff, 0x64, 0xc2, 8], &[START]));
}

/// The entry point of a program passes its main function on.
#[test]
fn addresses_that_code_takes_are_found() {
    // lea 0x100(%rip), %rdi; mov $0x401000, %rdi; mov $0x401100, %esi; mov %rdi, %rsi; lea 8(%rsp), %rsi; call
    let code = [
        &[0x48, 0x8d, 0x3d, 0, 1, 0, 0][..],
        &[0x48, 0xc7, 0xc7, 0, 0x10, 0x40, 0],
        &[0xbe, 0, 0x11, 0x40, 0],
        &[0x48, 0x89, 0xfe, 0x48, 0x8d, 0x74, 0x24, 8],
        &[0xe8, 0, 1, 0, 0],
    ];
    let found = (READER.addresses)(&code.concat(), START);
    assert_eq!(found, [START + 0x107, 0x40_1000, 0x40_1100]);
}

#[test]
fn coroutines_start_where_their_functions_return_to_the_end_of_the_process() {
    // ret; push %rbp; jmp *%rbx; xor %rdi, %rdi; call; hlt
    let code = [
        0xc3, 0x55, 0xff, 0xe3, 0x48, 0x31, 0xff, 0xe8, 1, 2, 3, 4, 0xf4,
    ];
    let find = |code: &[u8]| (READER.starts_of_coroutines)(code, START);
    assert_eq!(find(&code), vec![START + 1..START + 4; 1]);
    assert_eq!(find(&code[..12]), []);
    for at in (1..8).chain([12]) {
        let mut other = code;
        other[at] ^= 1;
        assert_eq!(find(&other), [], "{at}");
    }
}

#[test]
fn a_function_that_jumps_elsewhere_with_a_frame_is_undecided() {
    // push %rbx; pop %rbx; jmp elsewhere; with a frame, without having restored what it saved, and with both.
    assert!(rules(&[0x53, 0x5b, 0xe9, 0, 1, 0, 0]).is_some());
    assert_eq!(rules(&[0x53, 0xe9, 0, 1, 0, 0]), None);
    assert_eq!(rules(&[0x50, 0x59, 0xe9, 0, 1, 0, 0]), None);
    // push %rax; pop %rcx; jmp to a function that is known.
    assert!(rules(&[0x50, 0x59, 0xe9, 0xf9, 1, 0, 0]).is_some());
    assert_eq!(rules(&[0x50, 0xe9, 0xfa, 1, 0, 0]), None);
    // push %rbx; test %edi, %edi; jz elsewhere; pop %rbx; ret: what is seldom executed is moved elsewhere.
    let cold = [0x53, 0x85, 0xff, 0x0f, 0x84, 0, 1, 0, 0, 0x5b, 0xc3];
    assert!(rules(&cold).is_some());
}

/// Such parts jump back with the stack as it is there.
#[test]
fn a_part_that_was_moved_out_of_a_function_is_none() {
    // mov $1, %edi; call; jmp back. The same that pushes an argument; that keeps a value in the function's frame, twice;
    // that saves what it has changed; that never returns.
    let parts: [&[u8]; 6] = [
        &[
            0xbf, 1, 0, 0, 0, 0xe8, 0, 1, 0, 0, 0xe9, 0, 0xff, 0xff, 0xff,
        ],
        &[0x6a, 1, 0xe8, 0, 1, 0, 0, 0x58, 0xe9, 0, 0xff, 0xff, 0xff],
        &[
            0x4c, 0x89, 0x24, 0x24, 0x4c, 0x8b, 0x24, 0x24, 0xe9, 0, 0xff, 0xff, 0xff,
        ],
        &[
            0x4c, 0x89, 0x64, 0x24, 24, 0x4c, 0x8b, 0x64, 0x24, 24, 0xe9, 0, 0xff, 0xff, 0xff,
        ],
        &[0x31, 0xdb, 0x53, 0x5b, 0xe9, 0, 0xff, 0xff, 0xff],
        &[0x31, 0xff, 0xe8, 0, 1, 0, 0, 0x53, 0x0f, 0x0b],
    ];
    for part in parts {
        assert_eq!(rules(part), None, "{part:x?}");
    }
    // push %rbx; xor %edi, %edi; call; ud2: a function that never returns.
    assert!(rules(&[0x53, 0x31, 0xff, 0xe8, 0, 1, 0, 0, 0x0f, 0x0b]).is_some());
}

#[test]
fn an_overwritten_slot_is_not_the_frame_pointer_of_the_caller() {
    let frame_pointer = |store: &[u8]| {
        // push %rbp; push %rax; STORE; pop %rax; pop %rbp; ret
        let code = [&[0x55, 0x50][..], store, &[0x58, 0x5d, 0xc3]].concat();
        match rule_at(&code, 2 + store.len() as u64) {
            Rule::Frame(frame) => frame.frame_pointer,
            other => panic!("{other:?}"),
        }
    };
    let saved = Saved::AtCfa(-16);
    // mov %rax, 8(%rsp); mov %eax, 12(%rsp); movb $1, 15(%rsp); movups %xmm0, (%rsp); incl 8(%rsp)
    let stores: [&[u8]; 5] = [
        &[0x48, 0x89, 0x44, 0x24, 8],
        &[0x89, 0x44, 0x24, 12],
        &[0xc6, 0x44, 0x24, 15, 1],
        &[0x0f, 0x11, 0x04, 0x24],
        &[0xff, 0x44, 0x24, 8],
    ];
    for store in stores {
        assert_eq!(frame_pointer(store), Saved::Unknown, "{store:x?}");
    }
    // mov %rax, (%rsp); cmpl $1, 8(%rsp); mov 8(%rsp), %rax
    let others: [&[u8]; 3] = [
        &[0x48, 0x89, 0x04, 0x24],
        &[0x83, 0x7c, 0x24, 8, 1],
        &[0x48, 0x8b, 0x44, 0x24, 8],
    ];
    for other in others {
        assert_eq!(frame_pointer(other), saved, "{other:x?}");
    }
    // push %rbp; add $8, %rsp; call; sub $8, %rsp; pop %rbp; ret: what is called may write there.
    let popped = [
        0x55, 0x48, 0x83, 0xc4, 8, 0xe8, 0, 1, 0, 0, 0x48, 0x83, 0xec, 8, 0x5d, 0xc3,
    ];
    assert_eq!(rule_at(&popped, 10), above(8, Saved::Unknown));
    assert_eq!(rule_at(&popped, 5), above(8, Saved::AtCfa(-16)));
}

#[test]
fn a_written_return_address_is_none() {
    // sub $8, %rsp; mov %rax, 8(%rsp); add $8, %rsp; ret: a jump.
    let code = [
        0x48, 0x83, 0xec, 8, 0x48, 0x89, 0x44, 0x24, 8, 0x48, 0x83, 0xc4, 8, 0xc3,
    ];
    assert_eq!(rules(&code), None);
}

#[test]
fn a_popped_frame_pointer_leads_nowhere() {
    // push %rbp; mov %rsp, %rbp; pop %rbp; sub %rdi, %rsp; nop
    let unknown = [&PROLOGUE[..], &[0x5d, 0x48, 0x29, 0xfc, 0x90]].concat();
    // The path that returns: test %esi, %esi; jz over; ...; over: ret
    let code = [&[0x85, 0xf6, 0x74, 11][..], &unknown, &[0x0f, 0x0b, 0xc3]].concat();
    assert_eq!(rule_at(&code, 12), Rule::Unsupported);
}

/// A path behind a call counts where another one leads to the same code with the same stack: the call may return.
#[test]
fn a_doubtful_path_with_the_same_stack_counts() {
    let rule_behind_calls = |before: &[u8]| {
        let (size, call) = (before.len() as u8, [0xe8, 0, 1, 0, 0]);
        let code = [
            // push %rbp; push %rbx; test %edi, %edi; jz third; test %esi, %esi; jz second; push $1; call, never returns
            &[
                0x55,
                0x53,
                0x85,
                0xff,
                0x74,
                16 + size,
                0x85,
                0xf6,
                0x74,
                7,
                0x6a,
                1,
            ][..],
            &call,
            // second: BEFORE; call; third: mov $1, %eax; pop %rbx; pop %rbp; ret
            before,
            &call,
            &[0xb8, 1, 0, 0, 0, 0x5b, 0x5d, 0xc3],
        ]
        .concat();
        rule_at(&code, 22 + u64::from(size))
    };
    // mov %rax, 8(%rsp) writes where rbp was saved. With another stack, after push $1, the path does not count.
    let store = [0x48, 0x89, 0x44, 0x24, 8];
    let stores_below = [&[0x6a, 1][..], &[0x48, 0x89, 0x44, 0x24, 16]].concat();
    assert_eq!(rule_behind_calls(&store), above(24, Saved::Unknown));
    assert_eq!(
        rule_behind_calls(&stores_below),
        above(24, Saved::AtCfa(-16))
    );
}

#[test]
fn functions_start_behind_what_ends_code_and_padding() {
    let may_start =
        |before: &[u8], may_follow_call| (READER.may_start)(before, &[0x31, 0xc0], may_follow_call);
    let nops: [&[u8]; 4] = [
        &[],
        &[0x90],
        &[0x0f, 0x1f, 0x44, 0, 0],
        &[
            0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0x0f, 0x1f, 0,
        ],
    ];
    // ret; ret $8; jmp, of both lengths; jmp *%rax; hlt; ud2; int3
    let ends: [&[u8]; 8] = [
        &[0xc3],
        &[0xc2, 8, 0],
        &[0xe9, 1, 2, 3, 4],
        &[0xeb, 5],
        &[0xff, 0xe0],
        &[0xf4],
        &[0x0f, 0x0b],
        &[0xcc],
    ];
    for nop in nops {
        for end in ends {
            let code = [&[0x31, 0xc0], end, nop].concat();
            assert!(may_start(&code, false), "{code:x?}");
        }
        // xor %eax, %eax; call; call *%rax
        assert!(!may_start(&[&[0x31, 0xc0], nop].concat(), true), "{nop:x?}");
        for call in [&[0xe8, 1, 2, 3, 4][..], &[0xff, 0xd0]] {
            let code = [call, nop].concat();
            assert!(!may_start(&code, false), "{code:x?}");
            assert!(may_start(&code, true), "{code:x?}");
        }
    }
    // endbr64
    assert!((READER.may_start)(
        &[0x31, 0xc0],
        &[0xf3, 0x0f, 0x1e, 0xfa],
        false
    ));
    // As far as padding goes.
    assert!(!may_start(&[&[0xc3][..], &[0x90; 1000]].concat(), false));
}

fn extent(code: &[u8]) -> u64 {
    (READER.extent)(&function_code(code), &mut CodeWork::default())
}

#[test]
fn the_code_of_the_entry_point_ends_before_what_it_calls() {
    // xor %ebp, %ebp; call to the end; then hlt; exit by both instructions for its number; a system call that returns
    let start = |behind: &[u8]| {
        let distance = behind.len() as u8;
        let call = [0x31, 0xed, 0xe8, distance, 0, 0, 0];
        // mov %edi, %eax; ret
        [&call[..], behind, &[0x89, 0xf8, 0xc3, 0x90]].concat()
    };
    let padding = &[0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0];
    for (behind, size) in [
        (&[][..], 7),
        (&[0xf4, 0x90, 0x90], 8),
        (&[0xb8, 60, 0, 0, 0, 0x0f, 0x05, 0x90, 0x90], 14),
        (&[0xb8, 231, 0, 0, 0, 0x0f, 0x05, 0x90, 0x90], 14),
        (&[0x6a, 60, 0x58, 0x0f, 0x05, 0x90, 0x90], 12),
        (&[0x48, 0xc7, 0xc0, 60, 0, 0, 0, 0x0f, 0x05, 0x90], 16),
        (&[0xb8, 1, 0, 0, 0, 0x0f, 0x05, 0xf4], 15),
        (&[0xb8, 60, 0, 0, 0, 0x31, 0xc0, 0x0f, 0x05, 0xf4], 17),
        (padding, 7),
    ] {
        assert_eq!(extent(&start(behind)), size, "{behind:x?}");
    }
    // jmp over: without a call, it is all that is reached without a gap. A loop ends.
    assert_eq!(extent(&[0xeb, 1, 0xf4, 0x90, 0xc3]), 2);
    assert_eq!(extent(&[0x90, 0xeb, 0xfd, 0x90]), 3);
    assert_eq!(extent(&[]), 0);
    // call of the next instruction: it finds its own address.
    assert_eq!(extent(&[0xe8, 0, 0, 0, 0, 0x58, 0xf4, 0x90]), 7);
    // jz; mov $60, %eax; syscall; then the other path.
    assert_eq!(
        extent(&[0x74, 7, 0xb8, 60, 0, 0, 0, 0x0f, 0x05, 0xf4, 0x90]),
        10
    );
}

#[test]
fn padding_is_skipped_as_far_as_there_is_work() {
    let skip = |code: &[u8], work: &mut CodeWork| {
        (READER.skip_padding)(&function_code(code), START, work) - START
    };
    let code = [
        &[0; 5][..],
        &[0xcc; 3],
        &[0x90, 0x66, 0x90, 0x0f, 0x1f, 0, 0xc3],
    ]
    .concat();
    // The last zero is part of an instruction.
    assert_eq!(skip(&code, &mut CodeWork::default()), 4);
    assert_eq!(skip(&code[5..], &mut CodeWork::default()), 9);
    assert_eq!(skip(&[0x90; 9], &mut CodeWork::default()), 9);
    let mut work = CodeWork::default();
    assert_eq!(work.take_many(crate::instructions::MAX_FUNCTION), Some(()));
    assert_eq!(skip(&[0x90, 0xc3], &mut work), 2);
}
