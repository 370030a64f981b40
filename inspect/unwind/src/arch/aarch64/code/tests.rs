use super::*;
use crate::instructions::{CodeRules, Tails};
use crate::rule::{Cfa, FrameRule, ReturnAddress, Rule, Saved};

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

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn read(words: &[u32]) -> Option<CodeRules> {
    (READER.function)(&function_code(&bytes(words)), &mut CodeWork::default())
}

/// The rules of a function's code, by the numbers of their instructions.
fn rules(words: &[u32]) -> Option<Vec<(u64, Rule)>> {
    let rules = read(words)?.rules.into_iter();
    Some(
        rules
            .map(|(at, rule)| ((at - START) / SIZE, rule))
            .collect(),
    )
}

fn frame(register: u8, size: i32, frame_pointer: Saved, return_address: ReturnAddress) -> Rule {
    Rule::Frame(FrameRule {
        cfa: Cfa::Register {
            register,
            offset: size,
        },
        frame_pointer,
        base: Saved::Unknown,
        return_address,
    })
}

/// The rule while the frame has `size` bytes, and nothing is saved.
fn plain(size: i32) -> Rule {
    frame(31, size, Saved::Same, ReturnAddress::Register(30))
}

/// The rule of a frame of `size` bytes that starts with a record of a frame.
fn record(register: u8, size: i32) -> Rule {
    let return_address = ReturnAddress::AtCfa(8 - size);
    frame(register, size, Saved::AtCfa(-size), return_address)
}

const RET: u32 = 0xd65f_03c0;
/// stp x29, x30, [sp, #-32]!
const PUSH: u32 = 0xa9be_7bfd;
/// ldp x29, x30, [sp], #32
const POP: u32 = 0xa8c2_7bfd;
/// mov x29, sp
const SET_FRAME: u32 = 0x9100_03fd;
/// bl START + 0x200, from anywhere near
const CALL: u32 = 0x9400_0070;
/// sub sp, sp, #16
const RESERVE: u32 = 0xd100_43ff;
/// add sp, sp, #16
const RELEASE: u32 = 0x9100_43ff;

#[test]
fn a_leaf_keeps_its_return_address_in_the_register() {
    // sub sp, sp, #16; str x0, [sp, #8]; subs x0, x0, #1; b.ne -4; add sp, sp, #16; ret
    let code = [RESERVE, 0xf900_07e0, 0xf100_0400, 0x54ff_ffe1, RELEASE, RET];
    let expected = [(0, plain(0)), (1, plain(16)), (5, plain(0)), (6, Rule::Gap)];
    assert_eq!(rules(&code).unwrap(), expected);
}

#[test]
fn signed_return_addresses_are_return_addresses() {
    // paciasp; …; autiasp; ret, and retaa
    for end in [&[0xd503_23bf, RET][..], &[0xd65f_0bff]] {
        let code = [&[0xd503_233f, PUSH, SET_FRAME, CALL, POP][..], end].concat();
        let expected = [
            (0, plain(0)),
            (2, record(31, 32)),
            (5, plain(0)),
            (code.len() as u64, Rule::Gap),
        ];
        assert_eq!(rules(&code).unwrap(), expected);
    }
}

/// Assembly of OpenSSL saves both, and restores the frame pointer alone, because it calls nothing.
#[test]
fn a_saved_return_address_may_still_be_in_the_register() {
    // ldr x29, [sp], #32
    let restore = 0xf842_07fd;
    let expected = [
        (0, plain(0)),
        (1, record(31, 32)),
        (3, plain(0)),
        (4, Rule::Gap),
    ];
    assert_eq!(rules(&[PUSH, SET_FRAME, restore, RET]).unwrap(), expected);
    // With a call that returns, that is no function.
    let found = rules(&[PUSH, CALL, restore, RET]).unwrap();
    assert_eq!(found, [(0, plain(0)), (1, record(31, 32)), (2, Rule::Gap)]);
}

/// Room of a size that is in a register, as for arrays of variable size.
#[test]
fn where_the_stack_pointer_is_unknown_the_frame_pointer_leads_to_the_caller() {
    // sub sp, sp, x0; mov sp, x29
    let code = [PUSH, SET_FRAME, 0xcb20_63ff, CALL, 0x9100_03bf, POP, RET];
    let expected = [
        (0, plain(0)),
        (1, record(31, 32)),
        (3, record(29, 32)),
        (5, record(31, 32)),
        (6, plain(0)),
        (7, Rule::Gap),
    ];
    assert_eq!(rules(&code).unwrap(), expected);
}

/// `runtime.systemstack` of Go, whose functions have the record of their frame below the stack pointer: calls keep it.
#[test]
fn a_function_of_go_that_goes_to_another_stack_leads_to_its_caller() {
    // str x30, [sp, #-16]!; stur x29, [sp, #-8]; sub x29, sp, #8
    let prologue = [0xf81f_0ffe, 0xf81f_83fd, 0xd100_23fd];
    // nop; bl; mov sp, x3; blr x3; mov sp, x0; ldur x29, [sp, #-8]; ldr x30, [sp], #16
    let others = [
        NOP,
        CALL,
        0x9100_007f,
        0xd63f_0060,
        0x9100_001f,
        0xf85f_83fd,
        0xf841_07fe,
        RET,
    ];
    let found = rules(&[&prologue[..], &others].concat()).unwrap();
    let pushed = frame(31, 16, Saved::Same, ReturnAddress::AtCfa(-16));
    let of_stack =
        |register, size| frame(register, size, Saved::AtCfa(-24), ReturnAddress::AtCfa(-16));
    let expected = [
        (0, plain(0)),
        (1, pushed),
        (2, of_stack(31, 16)),
        (6, of_stack(29, 24)),
        (9, Rule::Unsupported),
        (11, Rule::Gap),
    ];
    assert_eq!(found, expected);
    // Of others, the function that is called writes there: stur x29, [sp, #-8]; mov x29, #1; sub sp, sp, #16
    let red = [0xf81f_83fd, 0xd280_003d, PUSH, CALL, POP, 0xf85f_83fd, RET];
    let found = rules(&red).unwrap();
    let at_return = found.iter().rev().find(|it| it.1 != Rule::Gap);
    let lost = frame(31, 0, Saved::Unknown, ReturnAddress::Register(30));
    assert_eq!(at_return.map(|it| it.1), Some(lost));
}

/// Subtractions have room for 12 bits.
#[test]
fn the_size_of_a_large_frame_is_in_a_register() {
    // mov x12, #4672; sub sp, sp, x12; str x30, [sp]; bl; mov x12, #4672; ldr x30, [sp]; add sp, sp, x12; ret
    let code = [
        0xd282_480c,
        0xcb2c_63ff,
        0xf900_03fe,
        CALL,
        0xd282_480c,
        0xf940_03fe,
        0x8b2c_63ff,
        RET,
    ];
    let saved = frame(31, 4672, Saved::Same, ReturnAddress::AtCfa(-4672));
    let found = rules(&code).unwrap();
    assert_eq!(found[..3], [(0, plain(0)), (2, plain(4672)), (3, saved)]);
    assert_eq!(found[found.len() - 2..], [(7, plain(0)), (8, Rule::Gap)]);
}

#[test]
fn what_is_written_over_is_not_known() {
    // str x1, [sp]; str x1, [sp, #8]; stp q0, q1, [sp]
    for (store, frame_pointer, return_address) in [
        (0xf900_03e1, Saved::Same, Some(24)),
        (0xf900_07e1, Saved::AtCfa(-32), None),
        (0xad00_07e0, Saved::Same, None),
    ] {
        // mov x29, #1 (so that only memory has the caller's), and a call
        let with_other_frame_pointer = [PUSH, 0xd280_003d, CALL, store, 0xd503_201f, POP, RET];
        let rules = read(&with_other_frame_pointer).unwrap_or_default().rules;
        let at = START + 4 * SIZE;
        let behind = rules.partition_point(|it| it.0 <= at);
        let rule = behind.checked_sub(1).map(|it| rules[it].1);
        match (rule, return_address) {
            (Some(Rule::Frame(rule)), Some(below)) => {
                assert_eq!(rule.return_address, ReturnAddress::AtCfa(-below));
                assert_eq!(rule.frame_pointer, Saved::Unknown, "{frame_pointer:?}");
            }
            (None | Some(Rule::Unsupported | Rule::Gap), None) => {}
            other => panic!("{store:#x}: {other:?}"),
        }
    }
}

/// A callee that never returns, in code without symbols: gcc does not align functions that it considers unlikely.
#[test]
fn a_function_behind_a_call_that_never_returns_is_another_one() {
    let first = [PUSH, SET_FRAME, CALL];
    for next in [
        &[PUSH, SET_FRAME, CALL, POP, RET][..],
        &[RESERVE, 0xf900_07e0, RELEASE, RET],
        // mov x12, #4672; sub sp, sp, x12
        &[0xd282_480c, 0xcb2c_63ff, 0xd282_480c, 0x8b2c_63ff, RET],
    ] {
        let code = [&first[..], next].concat();
        let expected = [(0, plain(0)), (1, record(31, 32)), (3, Rule::Gap)];
        assert_eq!(rules(&code).unwrap(), expected);
    }
}

#[test]
fn targets_of_a_table_have_the_frame_of_its_jump() {
    // adr x1, table; ldrb w0, [x1, x0]; add x0, x1, w0, sxtb #2; br x0; and two cases that jump to the end
    let code = [
        PUSH,
        SET_FRAME,
        0x1000_0061,
        0x3860_6820,
        0x8b20_8820,
        0xd61f_0000,
        CALL,
        0x1400_0003,
        CALL,
        0x1400_0001,
        POP,
        RET,
    ];
    let expected = [
        (0, plain(0)),
        (1, record(31, 32)),
        (11, plain(0)),
        (12, Rule::Gap),
    ];
    assert_eq!(rules(&code).unwrap(), expected);
}

#[test]
fn functions_that_return_by_another_register_are_known() {
    // mov x9, x30; bl; ret x9: the call may change x9.
    assert!(read(&[0xaa1e_03e9, CALL, 0xd65f_0120]).is_none());
    // mov x9, x30; mov x30, #0; ret x9
    let found = rules(&[0xaa1e_03e9, 0xd280_001e, 0xd65f_0120]).unwrap();
    let by_other = frame(31, 0, Saved::Same, ReturnAddress::Register(9));
    assert_eq!(found, [(0, plain(0)), (2, by_other), (3, Rule::Gap)]);
}

#[test]
fn code_that_is_no_functions_has_no_rules() {
    // Without a return; with another stack at the return; data
    assert!(read(&[CALL, 0x1400_0000]).is_none());
    assert!(read(&[RESERVE, RET]).is_none());
    assert!(read(&[0x0000_1234, 0x6f6c_6c65, 0x1f2e_3d4c]).is_none());
    assert!(read(&[]).is_none());
    // The processor refuses addresses between instructions.
    let bytes = bytes(&[RET, RET]);
    let code = FunctionCode {
        start: START + 2,
        ..function_code(&bytes)
    };
    assert!((READER.function)(&code, &mut CodeWork::default()).is_none());
}

#[test]
fn functions_may_start_behind_code_that_nothing_follows() {
    let may = |before: &[u32], from: u32, may_follow_call| {
        (READER.may_start)(&bytes(before), &from.to_le_bytes(), may_follow_call)
    };
    // ret; b; br x16; udf; brk; and padding
    for end in [RET, 0x1400_0010, 0xd61f_0200, 0, 0xd420_0000] {
        assert!(may(&[end], RET, false));
        assert!(may(&[end, NOP, NOP, NOP], RET, false));
    }
    assert!(!may(&[RELEASE], RET, true));
    assert!(!may(&[NOP], RET, true));
    assert_eq!([true, false].map(|it| may(&[CALL], RET, it)), [true, false]);
    assert!(may(&[RELEASE], 0xd503_233f, false));
    // More than any alignment
    assert!(!may(&[&[RET][..], &[NOP; 16]].concat(), RET, false));
}

#[test]
fn calls_and_their_ends_are_found() {
    // bl; blr x3; b
    let code = bytes(&[CALL, 0xd63f_0060, 0x1400_0070]);
    let calls: Vec<_> = (READER.calls)(&code, START).collect();
    let calls: Vec<_> = calls.iter().map(|it| (it.at, it.target)).collect();
    assert_eq!(calls, [(START, START + 0x1c0)]);
    assert_eq!((READER.call_ends)(&code, START), [START + 4, START + 8]);
    assert_eq!(
        (READER.next_instruction)(&code, START, START + 5),
        START + 8
    );
    assert_eq!((READER.next_instruction)(&code, START, START - 5), START);
}

#[test]
fn padding_is_skipped() {
    let skip = |words: &[u32]| {
        let bytes = bytes(words);
        let skipped =
            (READER.skip_padding)(&function_code(&bytes), START, &mut CodeWork::default());
        (skipped - START) / SIZE
    };
    assert_eq!(skip(&[NOP, 0, NOP, RET, NOP]), 3);
    assert_eq!(skip(&[RET]), 0);
    assert_eq!(skip(&[0; 20]), 20);
}

#[test]
fn the_code_of_an_entry_point_ends_where_nothing_follows() {
    let extent = |words: &[u32]| {
        let bytes = bytes(words);
        (READER.extent)(&function_code(&bytes), &mut CodeWork::default()) / SIZE
    };
    // musl's: mov x29, #0; mov x30, #0; mov x0, sp; b to a function elsewhere
    let musl = [
        0xd280_001d,
        0xd280_001e,
        0x9100_03e0,
        0x1400_0100,
        PUSH,
        RET,
    ];
    assert_eq!(extent(&musl), 4);
    // One that asks for its end: bl; mov x8, #93; svc #0
    assert_eq!(extent(&[CALL, 0xd280_0ba8, 0xd400_0001, PUSH, RET]), 3);
    // write does return.
    assert_eq!(extent(&[CALL, 0xd280_0808, 0xd400_0001, NOP, RET]), 5);
    // A loop around a call, and a function that is called behind it.
    assert_eq!(extent(&[0x9400_0003, 0x1400_0000, NOP, RET]), 2);
}
