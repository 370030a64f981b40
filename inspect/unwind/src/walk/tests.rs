use std::sync::Arc;

use otelctx_remote::Machine;
use otelctx_remote::memory::Image;

use super::*;
use crate::arch::Architecture;
use crate::code::CodeMapping;
use crate::file::FileRows;

mod generated;

/// Where the code with rules is mapped, and code without.
const CODE: u64 = 0x40_0000;
const OTHER: u64 = 0x80_0000;
/// Where the stack is.
const STACK: u64 = 0x7000_0000;

fn rule(register: u8, offset: i32, frame_pointer: Saved, return_address: ReturnAddress) -> Rule {
    Rule::Frame(FrameRule {
        cfa: Cfa::Register { register, offset },
        frame_pointer,
        base: Saved::Unknown,
        return_address,
    })
}

/// x86-64: `offset` bytes are on the stack.
fn above(offset: i32) -> Rule {
    rule(7, offset, Saved::Same, ReturnAddress::AtCfa(-8))
}

/// x86-64, with a frame pointer.
fn framed() -> Rule {
    rule(6, 16, Saved::AtCfa(-16), ReturnAddress::AtCfa(-8))
}

/// The rules of functions of 0x100 bytes.
fn code(rules: &[Rule]) -> CodeMap {
    let rows = rules.iter().enumerate();
    let rows: Vec<_> = rows
        .map(|(index, rule)| (CODE + 0x100 * index as u64, *rule))
        .collect();
    let mapping = |start, rules| CodeMapping {
        start,
        end: start + 0x1000,
        bias: 0,
        rules,
    };
    CodeMap::of([
        mapping(CODE, Ok(Arc::new(FileRows::by_hand(&rows)).into())),
        mapping(OTHER, Err(None)),
    ])
}

fn registers(address: u64, frame_pointer: u64) -> Registers {
    let mut registers = Registers::new(Machine::X86_64, address, STACK).unwrap();
    registers.set(6, frame_pointer);
    registers
}

fn run(registers: &Registers, code: &CodeMap, memory: &Image) -> (Vec<Frame>, StackEnd) {
    let mut frames = Vec::new();
    let end = walk(registers, code, memory, 100, &mut frames);
    (frames, end)
}

/// Runs with the stack made of these words.
fn stack(words: &[u64], registers: &Registers, code: &CodeMap) -> (Vec<u64>, StackEnd) {
    let mut memory = Image::new();
    memory.map_u64(STACK, words);
    let (frames, end) = run(registers, code, &memory);
    (frames.iter().map(|frame| frame.address).collect(), end)
}

#[test]
fn callers_are_found_up_to_the_start() {
    let code = code(&[above(8), above(24), Rule::End]);
    let words = [CODE + 0x150, 0, 0, CODE + 0x250];
    let found = stack(&words, &registers(CODE + 5, 0), &code);
    assert_eq!(
        found,
        (vec![CODE + 5, CODE + 0x150, CODE + 0x250], StackEnd::Start)
    );
}

#[test]
fn the_rule_of_a_caller_is_that_of_its_call() {
    // The call is the last instruction of its function: the address behind it is the next one's.
    let code = code(&[above(8), above(24), Rule::End, Rule::Gap]);
    let words = [CODE + 0x200, 0, 0, CODE + 0x300];
    let found = stack(&words, &registers(CODE, 0), &code);
    assert_eq!(
        found,
        (vec![CODE, CODE + 0x200, CODE + 0x300], StackEnd::Start)
    );
}

#[test]
fn the_rule_of_an_interrupted_frame_is_that_of_its_next_instruction() {
    let signal = Rule::Context {
        register: 7,
        offset: 0,
        signal: true,
    };
    let code = code(&[signal, above(24), Rule::End]);
    // A context: r8 to r15 at 40, rsp and rip at 160 and 168.
    let mut context = [0; 24];
    (context[20], context[21]) = (STACK + 0x400, CODE + 0x200);
    let (frames, end) = {
        let mut memory = Image::new();
        memory.map_u64(STACK, &context);
        run(&registers(CODE + 1, 0), &code, &memory)
    };
    assert_eq!(end, StackEnd::Start);
    let interrupted = Frame {
        address: CODE + 0x200,
        is_caller: false,
        by_frame_pointer: false,
        generated: None,
    };
    assert_eq!(frames[1..], [interrupted]);
}

#[test]
fn a_signal_handler_returns_by_code_that_needs_no_tables() {
    let code = code(&[above(8), Rule::End]);
    let mut memory = Image::new();
    let mut words = [0; 25];
    words[0] = OTHER + 0x10;
    (words[1 + 20], words[1 + 21]) = (STACK + 0x400, CODE + 0x180);
    memory.map_u64(STACK, &words);
    memory.map(OTHER, vec![0x90; 0x10]);
    memory.map(OTHER + 0x10, [0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05]);
    memory.map(OTHER + 0x19, vec![0x90; 0x100]);
    let (frames, end) = run(&registers(CODE + 1, 0), &code, &memory);
    let addresses: Vec<_> = frames.iter().map(|frame| frame.address).collect();
    assert_eq!(addresses, [CODE + 1, OTHER + 0x10, CODE + 0x180]);
    assert_eq!(end, StackEnd::Start);
}

/// The code that signal handlers return to is found where nothing is mapped behind or before it.
#[test]
fn code_is_recognized_at_the_edges_of_its_mapping() {
    let code = code(&[above(8), Rule::End]);
    let call = [0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05];
    let end = |at: u64, mapped: std::ops::Range<u64>| {
        let mut words = [0; 25];
        words[0] = at;
        (words[1 + 20], words[1 + 21]) = (STACK + 0x400, CODE + 0x180);
        let mut memory = Image::new();
        memory.map_u64(STACK, &words);
        let mut bytes = vec![0x90; (mapped.end - mapped.start) as usize];
        let offset = (at - mapped.start) as usize;
        bytes[offset..offset + call.len()].copy_from_slice(&call);
        memory.map(mapped.start, bytes);
        let (frames, end) = run(&registers(CODE + 1, 0), &code, &memory);
        (frames.last().map(|it| it.address), end)
    };
    let found = (Some(CODE + 0x180), StackEnd::Start);
    let page = OTHER..OTHER + 0x1000;
    assert_eq!(end(OTHER + 1, page.clone()), found);
    assert_eq!(end(OTHER + 0x1000 - 9, page), found);
    // The same across two pages.
    assert_eq!(end(OTHER + 0xffc, OTHER..OTHER + 0x2000), found);
}

#[test]
fn without_tables_the_frame_pointer_has_to_do_and_is_marked() {
    let code = code(&[framed(), Rule::End]);
    let words = [
        0,
        STACK + 0x20,
        OTHER + 5,
        0,
        STACK + 0x38,
        CODE + 0x50,
        0,
        0,
        CODE + 0x150,
    ];
    let mut memory = Image::new();
    memory.map_u64(STACK, &words);
    let (frames, end) = run(&registers(OTHER, STACK + 8), &code, &memory);
    assert_eq!(end, StackEnd::Start);
    let found: Vec<_> = frames
        .iter()
        .map(|it| (it.address, it.by_frame_pointer))
        .collect();
    let expected = [
        (OTHER, false),
        (OTHER + 5, true),
        (CODE + 0x50, true),
        (CODE + 0x150, false),
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_trampoline_needs_neither_tables_nor_a_frame_pointer() {
    let code = code(&[above(8), Rule::End]);
    let words = [OTHER + 5, 0, CODE + 0x150];
    let end = |behind_the_call: &[u8]| {
        let mut memory = Image::new();
        memory.map_u64(STACK, &words);
        memory.map(OTHER + 5, behind_the_call.to_vec());
        let (frames, end) = run(&registers(CODE, 0), &code, &memory);
        let by_frame_pointer = frames.iter().any(|frame| frame.by_frame_pointer);
        (frames.len(), by_frame_pointer, end)
    };
    // add $8, %rsp; ret
    let trampoline = [0x48, 0x83, 0xc4, 8, 0xc3];
    assert_eq!(end(&trampoline), (3, false, StackEnd::Start));
    // add $16, %rsp; ret
    let other = [0x48, 0x83, 0xc4, 16, 0xc3];
    assert_eq!(end(&other), (2, false, StackEnd::NoRows));
    assert_eq!(end(&trampoline[..4]), (2, false, StackEnd::NoRows));
}

/// The frame pointer is the caller's, and would lead to the caller's caller.
#[test]
fn the_caller_of_a_function_that_has_just_started_is_not_missed() {
    let code = code(&[Rule::End]);
    let caller = CODE + 0x50;
    let run_called = |called: bool, before: &[u8], next: &[u8]| {
        let mut memory = Image::new();
        memory.map_u64(STACK, &[caller, caller + 1, STACK + 0x100, caller + 2]);
        let bytes = [before, next, &[0x90; 8]].concat();
        memory.map(OTHER + 8 - before.len() as u64, bytes);
        // A call before the address that the stack pointer leads to, or nops.
        let call = if called { 0xe8 } else { 0x90 };
        memory.map(caller - 8, [0x90, 0x90, 0x90, call, 0x90, 0x90, 0x90, 0x90]);
        let (frames, end) = run(&registers(OTHER + 8, STACK + 16), &code, &memory);
        assert_eq!((frames.len(), end), (2, StackEnd::Start));
        (frames[1].address - caller, frames[1].by_frame_pointer)
    };
    let run = |before: &[u8], next: &[u8]| run_called(true, before, next);
    let nops = [0x90; 4];
    let move_up = [0x48, 0x89, 0xe5];
    let starts: [&[u8]; 9] = [
        &[0x55, 0x48, 0x89, 0xe5],
        &[0x55, 0x48, 0x8b, 0xec],
        &[0xc3],
        &[0xf3, 0x0f, 0x1e, 0xfa, 0x55],
        &[0xf3, 0x0f, 0x1e, 0xfa, 0x4c, 0x8d, 0x15],
        &[0x4c, 0x8d, 0x15, 0xf5, 0xff, 0xff, 0xff],
        &[0x4c, 0x8d, 0x15, 0xf9, 0xff, 0xff, 0xff],
        &[0xff, 0x25, 7, 0, 0, 0],
        &[0xff, 0x25, 3, 0, 0, 0],
    ];
    for next in starts {
        assert_eq!(run(&nops, next), (0, false), "{next:x?}");
    }
    assert_eq!(run(&[0x90, 0x90, 0x90, 0x55], &move_up), (1, false));
    // Erlang's functions begin with a jump over a call, and return behind leave, dec %r14 and jl; or jump.
    assert_eq!(run(&nops, &[0xeb, 6, 0, 0xe8, 1, 2]), (0, false));
    assert_eq!(run(&nops, &[0xeb, 5, 0, 0xe8, 1, 2]), (2, true));
    let (left, count) = ([0x90, 0x90, 0x90, 0xc9], [0x49, 0xff, 0xce]);
    let less = [0x0f, 0x8c, 1, 2, 3, 4];
    assert_eq!(run(&left, &[0xe9, 1, 2, 3, 4]), (0, false));
    assert_eq!(run(&left, &count), (0, false));
    // xor %ecx, %ecx; jmp: what the stack pointer leads to is no return address.
    let jump = [0xe9, 1, 2, 3, 4];
    assert_eq!(
        run_called(false, &[0x90, 0x90, 0x31, 0xc9], &jump),
        (2, true)
    );
    assert_eq!(run(&[0xc9, 0x49, 0xff, 0xce], &less), (0, false));
    assert_eq!(run(&nops, &[0xe9, 1, 2, 3, 4]), (2, true));
    assert_eq!(run(&nops, &count), (2, true));
    assert_eq!(run(&left, &less), (2, true));
    assert_eq!(run(&[0x90, 0x49, 0xff, 0xce], &less), (2, true));
    assert_eq!(run(&left, &[0xb8, 3, 0, 0, 0]), (2, true));
    // endbr64, the target of a jump; push %rbp and push %rbx; mov $3, %eax
    assert_eq!(run(&nops, &[0xf3, 0x0f, 0x1e, 0xfa, 0x90]), (2, true));
    assert_eq!(run(&nops, &[0x55, 0x53]), (2, true));
    assert_eq!(run(&nops, &[0xb8, 3, 0, 0, 0]), (2, true));
    assert_eq!(run(&nops, &move_up), (2, true));
    // At the start of a mapping, and behind one byte of it.
    assert_eq!(run(&[], &[0xf3, 0x0f, 0x1e, 0xfa, 0x55]), (0, false));
    assert_eq!(run(&[0x55], &move_up), (1, false));
    assert_eq!(run(&[], &move_up), (2, true));
}

/// aarch64: its return address is in the register, or where it was pushed.
#[test]
fn the_caller_of_a_function_of_aarch64_that_has_just_started_is_not_missed() {
    let code = code(&[Rule::End]);
    let caller = CODE + 0x50;
    let run = |before: u32, next: u32| {
        let mut memory = Image::new();
        memory.map_u64(STACK, &[0, caller, STACK + 0x100, caller + 8]);
        let words = [before, next, 0xd503_201f, 0xd503_201f];
        memory.map(OTHER, words.map(u32::to_le_bytes).concat());
        let mut registers = Registers::new(Machine::Aarch64, OTHER + 4, STACK).unwrap();
        registers.set(29, STACK + 16);
        registers.set(30, caller + 4);
        let (frames, end) = run(&registers, &code, &memory);
        assert_eq!((frames.len(), end), (2, StackEnd::Start));
        (frames[1].address - caller, frames[1].by_frame_pointer)
    };
    // nop; stp x29, x30, [sp, #-32]!; mov x29, sp; bti c; paciasp; ret
    let (nop, push, move_up) = (0xd503_201f, 0xa9be_7bfd, 0x9100_03fd);
    for start in [push, 0xd503_245f, 0xd503_233f, 0xd65f_03c0] {
        assert_eq!(run(nop, start), (4, false), "{start:#x}");
    }
    assert_eq!(run(push, move_up), (0, false));
    // stp x29, x30, [sp, #16]; mov x29, sp alone
    assert_eq!(run(nop, 0xa901_7bfd), (8, true));
    assert_eq!(run(nop, move_up), (8, true));
}

#[test]
fn a_frame_pointer_that_is_none_ends_the_stack() {
    let code = code(&[Rule::End]);
    let ends = |words: &[u64], frame_pointer| {
        let (frames, end) = stack(words, &registers(OTHER, frame_pointer), &code);
        (frames.len(), end)
    };
    let words = [0, CODE, 0, 0x1234];
    for pointer in [0, STACK - 8, STACK + 1] {
        assert_eq!(ends(&words, pointer), (1, StackEnd::NoRows), "{pointer:#x}");
    }
    // What it points to is no frame.
    assert_eq!(
        ends(&words, STACK + 16),
        (1, StackEnd::NotExecutable(0x1234))
    );
    assert!(matches!(
        ends(&words, STACK + 32),
        (1, StackEnd::Unreadable(_))
    ));
    // A chain that does not ascend, and one that ends with the outermost frame.
    assert_eq!(
        ends(&[STACK, OTHER + 9, STACK, OTHER + 9], STACK),
        (2, StackEnd::NoRows)
    );
    assert_eq!(ends(&[0, OTHER + 9], STACK), (2, StackEnd::Start));
}

/// A call of a function on another stack, as runtimes of languages make them.
#[test]
fn a_frame_pointer_to_a_lower_stack_has_to_lead_behind_a_call() {
    const LOWER: u64 = STACK - 0x1_0000;
    let code = code(&[framed(), Rule::End]);
    let find = |before: &[u8], pointer| {
        let mut memory = Image::new();
        memory.map_u64(STACK, &[0; 16]);
        memory.map_u64(LOWER, &[STACK + 8, OTHER + 0x20, 0, CODE + 0x150, 0]);
        memory.map_u64(STACK + 8, &[0, CODE + 0x150]);
        let start = OTHER + 0x20 - before.len() as u64;
        memory.map(OTHER, vec![0x90; (start - OTHER) as usize]);
        memory.map(start, before.to_vec());
        let (frames, end) = run(&registers(OTHER, pointer), &code, &memory);
        let frames: Vec<_> = frames[1..].iter().map(|it| it.address).collect();
        (frames, end)
    };
    let found = (vec![OTHER + 0x20, CODE + 0x150], StackEnd::Start);
    let calls: [&[u8]; 8] = [
        &[0xe8, 1, 2, 3, 4],
        &[0xff, 0xd7],
        &[0x41, 0xff, 0x13],
        &[0xff, 0x50, 8],
        &[0xff, 0x14, 0xc8],
        &[0x41, 0xff, 0x54, 0xc8, 8],
        &[0xff, 0x15, 1, 2, 3, 4],
        &[0xff, 0x94, 0xc8, 1, 2, 3, 4],
    ];
    for call in calls {
        assert_eq!(find(call, LOWER), found, "{call:x?}");
    }
    let nothing = (Vec::new(), StackEnd::NoRows);
    // Jumps of both kinds, a call farther away, one of a far address, a system call, and memory that is not mapped.
    let others: [&[u8]; 6] = [
        &[0xe9, 1, 2, 3, 4],
        &[0xff, 0xe7],
        &[0xe8, 1, 2, 3, 4, 0x90],
        &[0xff, 0x1f],
        &[0x0f, 0x05],
        &[0xff, 0xd7, 0x66, 0x90],
    ];
    for other in others {
        assert_eq!(find(other, LOWER), nothing, "{other:x?}");
    }
    for pointer in [LOWER + 1, LOWER - 8, LOWER + 0x20, 0x1000] {
        assert_eq!(find(calls[0], pointer), nothing, "{pointer:#x}");
    }
    // What follows the call is no code.
    assert_eq!(
        find(calls[0], LOWER + 8),
        (Vec::new(), StackEnd::NoRows),
        "the words are not aligned to frames"
    );
}

#[test]
fn calls_of_aarch64_are_known_by_their_instructions() {
    let is_behind_call = |instruction: u32| {
        let before = [[0; 4], instruction.to_le_bytes()].concat();
        let architecture = Architecture::of(Machine::Aarch64).unwrap();
        (architecture.is_behind_call)(*before.first_chunk().unwrap())
    };
    // bl; blr x8; blraaz x1; blrab x8, x9
    for call in [
        0x9400_0010,
        0x97ff_ffff,
        0xd63f_0100,
        0xd63f_083f,
        0xd73f_0d09,
    ] {
        assert!(is_behind_call(call), "{call:#x}");
    }
    // b; br x8; ret; nop; svc
    for other in [
        0x1400_0010,
        0xd61f_0100,
        0xd65f_03c0,
        0xd503_201f,
        0xd400_0001,
    ] {
        assert!(!is_behind_call(other), "{other:#x}");
    }
}

/// Anything may lead to a lower address.
#[test]
fn few_lower_stacks_are_followed() {
    let code = code(&[framed(), Rule::End]);
    let end = |lower_stacks: u64| {
        let mut memory = Image::new();
        memory.map(OTHER, [0xff, 0xd7].repeat(0x20));
        let place = |number: u64| STACK - 0x1000 * number;
        for number in 1..=lower_stacks {
            let next = match number == lower_stacks {
                true => 0,
                false => place(number + 1),
            };
            memory.map_u64(place(number), &[next, OTHER + 0x20]);
        }
        let (frames, end) = run(&registers(OTHER, place(1)), &code, &memory);
        (frames.len() as u64 - 1, end)
    };
    let limit = MAX_LOWER_STACKS as u64;
    assert_eq!(end(limit), (limit, StackEnd::Start));
    assert_eq!(end(limit + 1), (limit, StackEnd::NoRows));
}

/// The register is 0 in many frames that are not outermost.
#[test]
fn generated_code_that_clears_the_frame_pointer_before_its_call_is_outermost() {
    let code = code(&[above(8)]);
    let end = |before: &[u8]| {
        let mut memory = Image::new();
        memory.map_u64(STACK, &[OTHER + 0x40, 0]);
        memory.map(OTHER, vec![0x90; 0x40 - before.len()]);
        memory.map(OTHER + 0x40 - before.len() as u64, before.to_vec());
        let (frames, end) = run(&registers(CODE, 0), &code, &memory);
        (frames.len(), end)
    };
    let call = [0xff, 0x15, 1, 2, 3, 4];
    let after = |before: &[u8]| [before, &call].concat();
    // sub %rbp, %rbp, as far away as it may be; xor %ebp, %ebp
    let clear = [0x48, 0x29, 0xed];
    assert_eq!(end(&after(&clear)), (2, StackEnd::Start));
    let between = |nops: usize| [&clear[..], &vec![0x90; nops]].concat();
    assert_eq!(end(&after(&between(15))), (2, StackEnd::Start));
    assert_eq!(end(&after(&between(16))), (2, StackEnd::NoRows));
    assert_eq!(end(&after(&[0x31, 0xed])), (2, StackEnd::NoRows));
    assert_eq!(end(&call), (2, StackEnd::NoRows));
}

/// Code of Haskell, whose frame pointer is the pointer of a stack at a lower address.
#[test]
fn code_with_a_stack_of_its_own_leads_to_its_callers() {
    const OWN: u64 = STACK - 0x1_0000;
    let own = |offset| rule(6, offset, Saved::Cfa, ReturnAddress::AtCfa(0));
    let code = code(&[own(8), own(16), Rule::End]);
    let mut memory = Image::new();
    memory.map_u64(STACK, &[0; 4]);
    memory.map_u64(OWN, &[0, CODE + 0x150, 0, CODE + 0x250]);
    let (frames, end) = run(&registers(CODE, OWN), &code, &memory);
    let addresses: Vec<_> = frames.iter().map(|frame| frame.address).collect();
    assert_eq!(addresses, [CODE, CODE + 0x150, CODE + 0x250]);
    assert_eq!(end, StackEnd::Start);
}

#[test]
fn a_stack_that_does_not_grow_ends() {
    let at = |offset| {
        let code = code(&[above(offset)]);
        stack(&[CODE + 1; 8], &registers(CODE, 0), &code).1
    };
    assert_eq!(at(0), StackEnd::NotGrowing);
    assert_eq!(at(-16), StackEnd::NotGrowing);
    assert!(matches!(at(16), StackEnd::Unreadable(_)));
}

#[test]
fn stacks_that_lead_to_each_other_end() {
    let code = code(&[framed()]);
    // Two frames, each the other's caller.
    let words = [STACK + 0x20, CODE + 1, 0, 0, STACK, CODE + 1];
    let (frames, end) = stack(&words, &registers(CODE, STACK + 0x20), &code);
    assert_eq!(end, StackEnd::Limit);
    assert_eq!(frames.len(), 100);
    let mut memory = Image::new();
    memory.map_u64(STACK, &words);
    let mut frames = Vec::new();
    let registers = registers(CODE, STACK + 0x20);
    let end = walk(&registers, &code, &memory, 10_000, &mut frames);
    assert_eq!(end, StackEnd::NotGrowing);
    assert!(frames.len() < 3 * MAX_SWITCHES);
}

#[test]
fn frames_beyond_the_limit_are_cut() {
    let code = code(&[above(8)]);
    let mut memory = Image::new();
    memory.map_u64(STACK, &[CODE + 1; 1000]);
    let mut frames = Vec::new();
    let end = walk(&registers(CODE, 0), &code, &memory, 7, &mut frames);
    assert_eq!((frames.len(), end), (7, StackEnd::Limit));
}

/// A stack of ten million frames, of which the innermost ones are read.
#[test]
fn endless_frames_cost_as_much_as_the_limit_allows() {
    const FRAMES: u64 = 10_000_000;
    struct Endless(std::cell::Cell<usize>);
    impl Memory for Endless {
        fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
            let length = buffer.len();
            self.0.set(self.0.get() + length);
            if !(STACK..STACK + 8 * FRAMES).contains(&address) {
                return Err(MemoryError::Unmapped { address, length });
            }
            for word in buffer.chunks_mut(8) {
                word.copy_from_slice(&(CODE + 1).to_ne_bytes()[..word.len()]);
            }
            Ok(())
        }
    }
    let memory = Endless(std::cell::Cell::new(0));
    let code = code(&[above(8)]);
    let mut frames = Vec::new();
    let end = walk(&registers(CODE, 0), &code, &memory, MAX_FRAMES, &mut frames);
    assert_eq!((frames.len(), end), (MAX_FRAMES, StackEnd::Limit));
    // By pages.
    let bytes = memory.0.get();
    assert!(bytes <= 8 * MAX_FRAMES + 2 * WINDOW as usize, "{bytes}");
}

#[test]
fn what_is_not_known_is_not_guessed() {
    let code = code(&[
        rule(10, 0, Saved::Same, ReturnAddress::AtCfa(-8)),
        above(8),
        Rule::Unsupported,
    ]);
    let end = |address| stack(&[CODE + 0x50, 0], &registers(address, STACK), &code).1;
    assert_eq!(end(CODE), StackEnd::UnknownRegister);
    assert_eq!(end(CODE + 0x100), StackEnd::UnknownRegister);
    assert_eq!(end(CODE + 0x200), StackEnd::Unsupported);
    // The innermost frame has all registers.
    let mut innermost = registers(CODE, 0);
    innermost.set(10, STACK + 8);
    let (frames, _) = stack(&[CODE + 0x50, 0], &innermost, &code);
    assert_eq!(frames, [CODE, CODE + 0x50]);
}

#[test]
fn code_that_is_not_executable_has_no_caller() {
    let code = code(&[above(8)]);
    let found = stack(&[CODE, CODE], &registers(0x1000, 0), &code);
    assert_eq!(found, (vec![0x1000], StackEnd::NotExecutable(0x1000)));
}

/// aarch64: a function that has not saved its return address, and one that has.
#[test]
fn a_link_register_is_that_of_the_innermost_frame_alone() {
    let leaf = rule(31, 0, Saved::Same, ReturnAddress::Register(30));
    let saved = rule(31, 32, Saved::AtCfa(-32), ReturnAddress::AtCfa(-24));
    let code = code(&[leaf, saved, Rule::End]);
    let mut registers = Registers::new(Machine::Aarch64, CODE, STACK).unwrap();
    // Signed: bits above 48 are no address.
    registers.set(30, (CODE + 0x150) | 0x00ab_0000_0000_0000);
    let words = [STACK + 0x100, (CODE + 0x250) | 0x1234_0000_0000_0000, 0, 0];
    let found = stack(&words, &registers, &code);
    assert_eq!(
        found,
        (vec![CODE, CODE + 0x150, CODE + 0x250], StackEnd::Start)
    );
    let words = [STACK + 0x100, CODE + 0x50, 0, 0];
    let found = stack(&words, &registers, &code);
    assert_eq!(
        found,
        (
            vec![CODE, CODE + 0x150, CODE + 0x50],
            StackEnd::UnknownRegister
        )
    );
}

/// aarch64: the kernel's frame has `siginfo_t` and `ucontext_t`.
#[test]
fn a_signal_frame_of_aarch64_has_all_registers() {
    let leaf = rule(31, 0, Saved::Same, ReturnAddress::Register(30));
    let code = code(&[leaf, Rule::End]);
    let mut registers = Registers::new(Machine::Aarch64, OTHER, STACK).unwrap();
    registers.set(29, 0);
    let mut memory = Image::new();
    let mut words = [0_u64; 80];
    // x0 at 128 + 184; x30, sp, pc
    let x0 = (128 + 184) / 8;
    (words[x0 + 30], words[x0 + 31], words[x0 + 32]) = (CODE + 0x180, STACK + 0x1000, CODE + 8);
    memory.map_u64(STACK, &words);
    memory.map(OTHER - 64, vec![0; 64]);
    memory.map(OTHER, [0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4]);
    memory.map(OTHER + 8, vec![0; 64]);
    let (frames, end) = run(&registers, &code, &memory);
    let addresses: Vec<_> = frames.iter().map(|frame| frame.address).collect();
    assert_eq!(
        (addresses, end),
        (vec![OTHER, CODE + 8, CODE + 0x180], StackEnd::Start)
    );
}
