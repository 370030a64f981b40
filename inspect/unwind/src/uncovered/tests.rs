mod tables;

use std::cell::Cell;

use otelctx_fixtures::Random;
use otelctx_remote::elf::Source;
use otelctx_remote::{Machine, Memory, MemoryError};

use super::*;
use crate::arch::Architecture;
use crate::functions;
use crate::instructions::{MAX_FUNCTION, MAX_WORK};

const START: u64 = 0x1000;
const UD2: [u8; 2] = [0x0f, 0x0b];

fn x86_64() -> (&'static Architecture, &'static CodeReader) {
    let architecture = Architecture::of(Machine::X86_64).unwrap();
    (architecture, &architecture.code)
}

/// Code of which nothing names functions.
fn unnamed(bytes: Vec<u8>) -> Uncovered {
    Uncovered {
        pieces: vec![Piece {
            start: START,
            bytes,
        }],
        starts: Vec::new(),
        listed: Vec::new(),
    }
}

/// Counts the bytes that are decoded to find calls.
fn counting(reader: &CodeReader) -> CodeReader {
    CodeReader {
        next_instruction: |code, start, at| {
            let next = (x86_64().1.next_instruction)(code, start, at);
            DECODED.set(DECODED.get() + (next - start));
            next
        },
        ..*reader
    }
}

thread_local! {
    static DECODED: Cell<u64> = const { Cell::new(0) };
}

/// A file in memory: its executable segments, at their addresses and of the sizes that their headers have.
struct Program {
    bytes: Vec<u8>,
}

impl Program {
    fn new(segments: &[(u64, &[u8], u64)]) -> Self {
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(64, 0);
        // A library for x86-64.
        bytes[16..24].copy_from_slice(&[3, 0, 62, 0, 1, 0, 0, 0]);
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = segments.len() as u8;
        let mut at = 64 + 56 * segments.len() as u64;
        for (address, code, size) in segments {
            bytes.extend([1, 0, 0, 0, 5, 0, 0, 0]);
            let words = [at, *address, *address, *size, *size, 1];
            bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
            at += code.len() as u64;
        }
        for (_, code, _) in segments {
            bytes.extend(*code);
        }
        Self { bytes }
    }
}

impl Memory for Program {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        let length = buffer.len();
        let end = usize::try_from(address)
            .ok()
            .and_then(|it| it.checked_add(length));
        let bytes = end.and_then(|end| self.bytes.get(address as usize..end));
        let bytes = bytes.ok_or(MemoryError::Unmapped { address, length })?;
        buffer.copy_from_slice(bytes);
        Ok(())
    }
}

/// What is found of a program whose tables have these functions.
fn uncovered(program: &Program, described: &[Range<u64>], reader: &CodeReader) -> Uncovered {
    let elf = Elf::read(Source::File(program)).unwrap().unwrap();
    let described: Vec<Function> = described
        .iter()
        .map(|range| Function {
            start: range.start,
            source: functions::Source::EhFrame,
            offset: 0,
            end: range.end,
        })
        .collect();
    Uncovered::read(
        &elf,
        elf.loads(),
        &described,
        Vec::new(),
        Vec::new(),
        reader,
    )
}

/// Code of functions with tables that is full of calls is decoded once, however many there are.
#[test]
fn code_is_decoded_once_to_find_calls() {
    let reader = counting(x86_64().1);
    // ret before each address of code without tables.
    let target = START + 0x10_0000;
    let mut code = Vec::new();
    while code.len() < 0x10_0000 {
        let behind = START + code.len() as u64 + 5;
        let distance = (target + 1 + code.len() as u64 % 0x1000 - behind) as u32;
        code.push(0xe8);
        code.extend(distance.to_le_bytes());
    }
    code.truncate(0x10_0000);
    code.extend([0xc3; 0x2000]);
    let size = code.len() as u64;
    let program = Program::new(&[(START, &code, size)]);
    DECODED.set(0);
    let one = START..target;
    let found = uncovered(&program, std::slice::from_ref(&one), &reader);
    assert!(DECODED.get() <= size, "{} of {size}", DECODED.get());
    assert!(found.starts.len() > 0x300, "{}", found.starts.len());
    // Each call's own bytes look like another function's.
    let many: Vec<_> = (0..0x1_0000).map(|it| START + it..target).collect();
    DECODED.set(0);
    uncovered(&program, &many, &reader);
    assert!(DECODED.get() <= 2 * size, "{} of {size}", DECODED.get());
}

#[test]
fn starts_of_functions_are_limited_in_all_segments_together() {
    let (_, reader) = x86_64();
    let size = MAX_FUNCTION_STARTS as u64;
    let target = START + 8 * size;
    // Each segment calls as many functions as are kept, and both are described.
    let calls = |from: u64, target: u64| {
        let call = |index: u64| {
            let distance = (target + index).wrapping_sub(from + 5 * index + 5);
            [&[0xe8][..], &(distance as u32).to_le_bytes()].concat()
        };
        (0..size).flat_map(call).collect::<Vec<u8>>()
    };
    let second = target + 4 * size;
    let first_code = calls(START, target + 1);
    let second_code = calls(second, target + 1 + size);
    let called = vec![0xc3; 3 * size as usize];
    let segments = [
        (START, &first_code[..], 5 * size),
        (target, &called[..], 3 * size),
        (second, &second_code[..], 5 * size),
    ];
    let described = [START..START + 5 * size, second..second + 5 * size];
    let found = uncovered(&Program::new(&segments), &described, reader);
    assert_eq!(found.starts.len(), MAX_FUNCTION_STARTS);
    // Less than all of one, and all of the other one.
    let segments = [(target, &called[..], 3 * size), segments[2]];
    let found = uncovered(&Program::new(&segments), &described[1..], reader);
    assert_eq!(found.starts.first(), Some(&(target + 1 + size)));
}

/// Sizes that together are no number of 64 bits, and the same bytes in each segment.
#[test]
fn sizes_of_segments_beyond_all_reason_are_no_error() {
    let (_, reader) = x86_64();
    let code = [0xc3; 0x1000];
    let huge = u64::MAX - 0x1_0000;
    let program = Program::new(&[
        (START, &code, 0x1000),
        (0x9000, &[], huge),
        (0xa000, &[], huge),
    ]);
    let found = uncovered(&program, &[], reader);
    assert_eq!(found.pieces.len(), 1);
    let all = vec![(START, &code[..], 0x1000); 200];
    let found = uncovered(&Program::new(&all), &[], reader);
    let size: usize = found.pieces.iter().map(|piece| piece.bytes.len()).sum();
    assert!(size as u64 <= MAX_CODE);
    found.rules(reader, &mut CodeWork::default());
}

/// Code that a hostile file is full of: jumps that meet with another stack each time.
#[test]
fn work_is_limited() {
    // jz over the next one; push %rax
    let conflict = [0x74, 1, 0x50];
    let (_, reader) = x86_64();
    let mut work = CodeWork::default();
    let one = unnamed(conflict.repeat(1 << 20));
    assert_eq!(one.rules(reader, &mut work), []);
    let taken = MAX_WORK - work.left;
    assert!((MAX_FUNCTION..2 * MAX_FUNCTION).contains(&taken), "{taken}");
    // More functions than there is work for, each of which takes its share. The first one is sound: push %rbx; pop %rbx;
    // ret, and padding.
    let sound = [&[0x53, 0x5b, 0xc3][..], &[0xcc; 13]].concat();
    let shares = MAX_WORK / MAX_FUNCTION + 2;
    let hostile = [&conflict.repeat(MAX_FUNCTION as usize)[..], &[0xc3; 16]].concat();
    let code = [sound, hostile.repeat(shares as usize)].concat();
    let mut work = CodeWork::default();
    let rules = unnamed(code).rules(reader, &mut work);
    assert!(work.is_spent(), "{work:?}");
    assert_eq!(rules.first().map(|rule| rule.0), Some(START));
}

/// Trying another block as a jump's target costs what copying everything that is known does.
#[test]
fn work_of_attempts_is_limited() {
    let is_decided = |blocks: usize| {
        // push %rbx; jmp to the next instruction, many times; jmp *%rax; then targets: pop %rbx; ret
        let (jumps, targets) = ([0xeb, 0].repeat(blocks), [0x5b, 0xc3].repeat(50));
        let code = [&[0x53][..], &jumps, &[0xff, 0xe0], &targets].concat();
        let code = FunctionCode {
            bytes: &code,
            address: START,
            start: START,
            end: START + code.len() as u64,
            starts: &[],
            tails: Tails::NONE,
            is_function: false,
        };
        (x86_64().1.function)(&code, &mut CodeWork::default()).is_some()
    };
    assert!(is_decided(1000));
    assert!(!is_decided(10_000));
}

/// Rules that an early round has made are kept if there is no work left for all of a later one.
#[test]
fn what_an_early_round_has_found_is_kept() {
    let (_, reader) = x86_64();
    // push %rbx; call of the function behind; pop %rbx; ret; a function that is not aligned: mov %edi, %eax; ret
    let code = [
        &[0x53, 0xe8, 4, 0, 0, 0, 0x5b, 0xc3][..],
        &[0xc3, 0xc3, 0x89, 0xf8, 0xc3],
        &[0xcc; 3],
        &[0x53, 0x5b, 0xc3],
    ]
    .concat();
    let code = unnamed(code);
    let mut work = CodeWork::default();
    let all = code.rules(reader, &mut work);
    let needed = MAX_WORK - work.left;
    let mut has_found = false;
    for left in 1..needed {
        let mut work = CodeWork::default();
        work.left = left;
        let rules = code.rules(reader, &mut work);
        // In the second round no less than in the first one.
        let is_last = rules.last().map(|rule| rule.0) == all.last().map(|rule| rule.0);
        assert!(is_last || !has_found, "{left} of {needed}: {rules:?}");
        has_found |= is_last;
    }
    assert!(has_found);
}

#[test]
fn rules_of_neighbours_are_merged() {
    let rule = Rule::End;
    let found = vec![
        vec![(8, rule), (12, Rule::Gap)],
        vec![(0, rule), (4, rule), (8, Rule::Gap)],
        vec![(10, Rule::Unsupported), (16, Rule::Gap)],
    ];
    // The last one begins before the end of another one.
    assert_eq!(merged(found), [(0, rule), (12, Rule::Gap)]);
}

#[test]
fn instructions_that_do_not_start_at_aligned_addresses_are_no_functions() {
    let (_, reader) = x86_64();
    // pop %rax; ret: no function. mov with a constant over the aligned address that looks like a function: ret; push %rbx;
    // pop %rbx; ret
    let code = [
        &[0x58, 0xc3][..],
        &[0x90; 12],
        &[0x48, 0xb8, 0x53, 0x5b, 0xc3, 0, 0, 0, 0, 0],
        &[0xc3],
    ];
    let mut code = code.concat();
    code[15] = 0xc3;
    code[14] = 0xb8;
    assert_eq!(unnamed(code).rules(reader, &mut CodeWork::default()), []);
}

/// Hand-written functions share the code before their return: x264's do.
#[test]
fn functions_that_end_in_another_ones_code_are_functions_if_their_stacks_agree() {
    let (_, reader) = x86_64();
    let padded = |code: &[u8]| [code, &[0x90; 16][code.len()..]].concat();
    let jump = |from: u8, to: u8| to.wrapping_sub(from + 2);
    let code = [
        // call of the last function; jmp to the shared code
        padded(&[0xe8, 0x6b, 0, 0, 0, 0xeb, jump(5, 0x20)]),
        padded(&[0xe8, 0x5b, 0, 0, 0, 0xeb, jump(0x15, 0x20)]),
        // mov %edi, %eax; push %rbx; pop %rbx; ret
        padded(&[0x89, 0xf8, 0x53, 0x5b, 0xc3]),
        // push %rax; jmp to the shared code
        padded(&[0x50, 0xeb, jump(0x31, 0x20)]),
        // mov %edi, %eax; jmp to the pop of the shared code
        padded(&[0x89, 0xf8, 0xeb, jump(0x42, 0x23)]),
        // mov %edi, %eax; jmp behind the code
        padded(&[0x89, 0xf8, 0xeb, 0x7f]),
        padded(&[0x90; 16]),
        padded(&[0x89, 0xf8, 0xc3]),
    ];
    let rules = unnamed(code.concat()).rules(reader, &mut CodeWork::default());
    let ranges = rules.split_inclusive(|it| it.1 == Rule::Gap);
    let ranges: Vec<_> = ranges
        .map(|it| (it[0].0 - START, it[it.len() - 1].0 - START))
        .collect();
    assert_eq!(ranges, [(0, 7), (0x10, 0x17), (0x20, 0x25), (0x70, 0x73)]);
}

/// Assembly whose callers expect another frame pointer (x264's trellis quantization).
#[test]
fn functions_end_in_code_that_uses_the_frame_pointer_for_other_data() {
    let (_, reader) = x86_64();
    // xor %ebp, %ebp; add %edi, %eax; ret, and padding; mov %edi, %eax; jmp to the add
    let code = [
        &[0x31, 0xed, 0x01, 0xf8, 0xc3][..],
        &[0xcc; 11],
        &[0x89, 0xf8, 0xeb, 0xee],
    ];
    let mut code = unnamed(code.concat());
    code.starts = vec![START, START + 16];
    let rules = code.rules(reader, &mut CodeWork::default());
    let second = rules.iter().find(|rule| rule.0 == START + 16);
    assert!(matches!(second, Some((_, Rule::Frame(_)))), "{rules:x?}");
}

/// Assembly may have a second start for callers that need an instruction more (x264's trellis quantization).
#[test]
fn a_named_function_goes_on_in_the_next_one() {
    let (_, reader) = x86_64();
    // mov %edi, %eax; then the next one: add %edi, %eax; ret
    let is_decided = |starts: &[u64]| {
        let mut code = unnamed(vec![0x89, 0xf8, 0x01, 0xf8, 0xc3]);
        code.starts = starts.to_vec();
        let rules = code.rules(reader, &mut CodeWork::default());
        rules.first().is_some_and(|first| first.0 == START)
    };
    assert!(is_decided(&[START, START + 2]));
    // Data, perhaps.
    assert!(!is_decided(&[START + 2]));
}

/// Free Pascal aligns functions so.
#[test]
fn functions_start_behind_zeros_that_align_them() {
    let (_, reader) = x86_64();
    // push %rbx; pop %rbx; ret, twice
    let function = [0x53, 0x5b, 0xc3];
    let code = |zeros: usize| [&function[..], &vec![0; zeros], &function].concat();
    let starts = |zeros| {
        let rules = unnamed(code(zeros)).rules(reader, &mut CodeWork::default());
        let starts = rules.split_inclusive(|it| it.1 == Rule::Gap);
        starts.map(|it| it[0].0 - START).collect::<Vec<_>>()
    };
    assert_eq!(starts(13), [0, 16]);
    // Not aligned.
    assert_eq!(starts(11), [0]);
    // More than alignment takes.
    assert_eq!(starts(29), [0]);
}

/// Code of real programs with a few other bytes, at any address: rules are the same each time, and in order.
#[test]
fn damaged_code_has_rules_in_order() {
    let mut random = Random::new(1);
    let programs = [
        (Machine::X86_64, "/proc/self/exe"),
        (Machine::Aarch64, "/usr/aarch64-linux-gnu/lib/libm.so.6"),
    ];
    for (machine, path) in programs {
        let Ok(program) = std::fs::read(path) else {
            continue;
        };
        let reader = &Architecture::of(machine).unwrap().code;
        for _ in 0..10_000 {
            let mut number = |below: usize| random.below(below as u64) as usize;
            let size = number(100) * 4;
            let from = number(program.len() - size) & !3;
            let mut bytes = program[from..from + size].to_vec();
            for _ in 0..number(8).min(size) {
                bytes[number(size)] = number(256) as u8;
            }
            let highest = u64::MAX - size as u64;
            let start = [START, 0, highest, highest - 3][number(4)];
            let mut starts: Vec<u64> = (0..number(4))
                .map(|_| start + number(size + 1) as u64)
                .collect();
            starts.sort_unstable();
            starts.dedup();
            let pieces = vec![Piece { start, bytes }];
            let listed = Vec::new();
            let code = Uncovered {
                pieces,
                starts,
                listed,
            };
            let rules = code.rules(reader, &mut CodeWork::default());
            assert_eq!(rules, code.rules(reader, &mut CodeWork::default()));
            assert!(rules.is_sorted_by(|first, second| first.0 < second.0));
            let bytes = &code.pieces[0].bytes;
            let function = FunctionCode {
                bytes,
                address: start,
                start,
                end: start + size as u64,
                starts: &[],
                tails: Tails::NONE,
                is_function: false,
            };
            let extent = (reader.extent)(&function, &mut CodeWork::default());
            assert!(extent <= size as u64);
        }
    }
}
