use std::fs::File;
use std::sync::Arc;

use otelctx_remote::Machine;
use otelctx_remote::elf::{FileBytes, Source};

use super::*;
use crate::arch::Architecture;
use crate::file::FileRows;
use crate::instructions::{MAX_FUNCTION, MAX_WORK};
use crate::rule::{Cfa, Dictionary, FrameRule, ReturnAddress, Saved};
use crate::tables::Tables;
use crate::{functions, maker};

const RSP: u8 = 7;
const RBP: u8 = 6;
const START: u64 = 0x1000;
const UD2: [u8; 2] = [0x0f, 0x0b];

fn x86_64() -> (&'static Architecture, &'static CodeReader) {
    let architecture = Architecture::of(Machine::X86_64).unwrap();
    (architecture, architecture.code.as_ref().unwrap())
}

/// The rules of a function's code at [`START`], by their offsets.
fn rules(code: &[u8]) -> Option<Vec<(u64, Rule)>> {
    let code = FunctionCode {
        bytes: code,
        address: START,
        start: START,
        end: START + code.len() as u64,
    };
    let mut work = CodeWork::default();
    let rules = (x86_64().1.function)(&code, work.of_function())?;
    let rules = rules.rules.into_iter();
    Some(rules.map(|(at, rule)| (at - START, rule)).collect())
}

fn frame(cfa: Cfa, frame_pointer: Saved) -> Rule {
    Rule::Frame(FrameRule {
        cfa,
        frame_pointer,
        base: Saved::Unknown,
        return_address: ReturnAddress::AtCfa(-8),
    })
}

/// The rule while the CFA is so many bytes above the stack pointer.
fn above(offset: i32, frame_pointer: Saved) -> Rule {
    let register = RSP;
    frame(Cfa::Register { register, offset }, frame_pointer)
}

#[test]
fn a_leaf_needs_no_frame() {
    // dec %rdi; jnz; ret
    let code = [0x48, 0xff, 0xcf, 0x75, 0xfb, 0xc3];
    let leaf = above(8, Saved::Same);
    let expected = [(0, leaf), (3, leaf), (5, leaf), (6, Rule::Gap)];
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
        (16, above(152, saved)),
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
        (3, above(8, Saved::Same)),
        (4, above(16, saved)),
        (8, above(80, saved)),
        (12, frame(by_rax, saved)),
        (17, frame(kept, saved)),
        (22, frame(kept, saved)),
        (27, frame(kept, saved)),
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
        (7, frame(by_frame_pointer, saved)),
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
        (3, above(16, Saved::Same)),
        (6, above(16, Saved::Same)),
        (7, above(8, Saved::Same)),
        (8, Rule::Gap),
    ];
    assert_eq!(rules, expected);
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

/// Code of which nothing names functions.
fn unnamed(bytes: Vec<u8>) -> Uncovered {
    Uncovered {
        pieces: vec![Piece {
            start: START,
            bytes,
        }],
        starts: Vec::new(),
    }
}

/// Code that a hostile file is full of: jumps that meet with another stack each time.
#[test]
fn work_is_limited() {
    // jz over the next one; push %rax
    let bytes = [0x74, 1, 0x50].repeat(1 << 20);
    let uncovered = unnamed(bytes);
    let mut work = CodeWork::default();
    assert_eq!(uncovered.rules(x86_64().1, &mut work), []);
    assert_eq!(MAX_WORK - work.left, MAX_FUNCTION);
    // As many functions as there is room for, each of which takes its share: ret before each.
    let function = [
        &[0x74, 1, 0x50].repeat(MAX_FUNCTION as usize)[..],
        &[0xc3; 16],
    ]
    .concat();
    let bytes = function.repeat(MAX_CODE as usize / function.len());
    let uncovered = unnamed(bytes);
    uncovered.rules(x86_64().1, &mut work);
    assert!(work.left < MAX_WORK - 10 * MAX_FUNCTION, "{work:?}");
}

/// The rules of instructions, compared with those that a compiler wrote into the tables for the same code.
#[test]
fn rules_of_instructions_are_those_of_the_tables() {
    let (architecture, reader) = x86_64();
    // Not the C library, whose assembly has pushes that its tables leave out.
    for path in ["/proc/self/exe", "/bin/bash", "/usr/bin/perl"] {
        let Ok(file) = File::open(path) else {
            continue;
        };
        let bytes = FileBytes(&file);
        let elf = Elf::read(Source::File(&bytes)).unwrap().unwrap();
        let rows = FileRows::of(&elf, &Arc::new(Dictionary::new())).unwrap();
        let tables = Tables::read(&elf, architecture).unwrap();
        let segments = elf.loads().iter().filter(|it| it.executable);
        let segments: Vec<Segment> = segments.copied().collect();
        let (mut equal, mut undecided, mut others) = (0, 0, 0);
        for function in maker::functions(&tables, architecture, &segments).unwrap() {
            if function.source != functions::Source::EhFrame {
                continue;
            }
            let mut bytes = vec![0; (function.end - function.start) as usize];
            elf.read_at(function.start, &mut bytes).unwrap();
            let code = FunctionCode {
                bytes: &bytes,
                address: function.start,
                start: function.start,
                end: function.end,
            };
            let rules = (reader.function)(&code, CodeWork::default().of_function());
            for (at, found) in rules.unwrap_or_default().rules {
                // LLVM's tables can have the rule of a function's start there, after a jump through a table.
                if code.from(at).is_some_and(|it| it.starts_with(&UD2)) {
                    continue;
                }
                match (found, rows.rule_at(at)) {
                    (Rule::Gap, _) => {}
                    (Rule::Unsupported, _) => undecided += 1,
                    (found, known) if found == known => equal += 1,
                    (Rule::Frame(found), Rule::Frame(known)) if counts_alike(&found, &known) => {
                        panic!("{path} {at:#x}: {found:?}, not {known:?}");
                    }
                    // Tables that count from another register can mean the same.
                    _ => others += 1,
                }
            }
        }
        println!("{path}: {equal} equal, {undecided} undecided, {others} of another kind");
        assert!(equal > 100_000, "{path}: {equal}");
        assert!(undecided * 20 < equal, "{path}: {undecided} of {equal}");
        assert!(others * 1000 < equal, "{path}: {others} of {equal}");
    }
}

/// Whether both count from the stack pointer.
fn counts_alike(found: &FrameRule, known: &FrameRule) -> bool {
    let counts = |rule: &FrameRule| matches!(rule.cfa, Cfa::Register { register: RSP, .. });
    counts(found) && counts(known)
}
