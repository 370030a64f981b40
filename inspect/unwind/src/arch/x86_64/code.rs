//! Rules of a function that no table describes, from its instructions.
//!
//! Each path from the function's first instruction is followed, and what is known of the stack pointer, the frame
//! pointer and other registers relative to the canonical frame address (CFA) is kept for each instruction. Where paths
//! meet, only what all of them agree on is known.

use std::collections::{BTreeMap, BTreeSet};

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    OpAccess, OpKind, Register,
};

use crate::instructions::{Call, CodeRules, CodeWork, FunctionCode};
use crate::rule::{Cfa, FrameRule, ReturnAddress, Rule, Saved};

/// Paths into one instruction that are followed at most: each can only make less known.
const MAX_VISITS: u32 = 64;
/// Largest distance from the CFA that is followed, in bytes; stacks are smaller.
const MAX_OFFSET: i32 = 1 << 24;
/// Blocks behind a function's last known one that are tried.
const MAX_ATTEMPTS: usize = 64;
const RSP: usize = 4;
const RBP: usize = 5;
/// Where the stack pointer is at a function's start: below the return address.
const START: Place = Place::Cfa(-8);
/// Where the frame pointer leads, and its former value is, in a usual frame.
const FRAME: Place = Place::Cfa(-16);
/// DWARF's numbers of the general registers, in the order of their encoding.
const DWARF: [u8; 16] = [0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15];
/// Registers that a callee may change (System V ABI, AMD64 supplement, figure 3.4): rax, rcx, rdx, rsi, rdi, r8 to r11.
const CALLER_SAVED: [usize; 9] = [0, 1, 2, 6, 7, 8, 9, 10, 11];

/// An address on the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Relative to the CFA.
    Cfa(i32),
    /// Relative to the address that the stack pointer was aligned down to.
    Aligned(i32),
}

impl Place {
    /// `None` if it is farther away than any stack goes.
    fn moved(self, by: i64) -> Option<Self> {
        let moved = |value: i32| {
            let moved = i64::from(value).checked_add(by)?;
            let moved = i32::try_from(moved).ok()?;
            (moved.abs() <= MAX_OFFSET).then_some(moved)
        };
        Some(match self {
            Place::Cfa(value) => Place::Cfa(moved(value)?),
            Place::Aligned(value) => Place::Aligned(moved(value)?),
        })
    }
}

/// The location of the caller's frame pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FramePointer {
    Same,
    At(Place),
    Unknown,
}

/// A straight run of instructions.
#[derive(Debug, Clone)]
struct Block {
    /// What is known at its start.
    state: State,
    /// The address behind it, as far as it was followed.
    end: u64,
    changes: u32,
}

/// What is known before an instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
struct State {
    /// The values of registers that lead to the stack.
    registers: [Option<Place>; 16],
    frame_pointer: FramePointer,
    /// A slot of an aligned stack, and the value in it relative to the CFA.
    kept: Option<(i32, i32)>,
}

impl State {
    fn at_start() -> Self {
        let mut registers = [None; 16];
        registers[RSP] = Some(START);
        State {
            registers,
            frame_pointer: FramePointer::Same,
            kept: None,
        }
    }

    fn stack(&self) -> Option<Place> {
        self.registers[RSP]
    }

    /// Forgets what the other state does not agree on. Returns whether anything was forgotten.
    fn meet(&mut self, other: &State) -> bool {
        let before = self.clone();
        for (mine, theirs) in self.registers.iter_mut().zip(other.registers) {
            *mine = mine.filter(|_| *mine == theirs);
        }
        if self.frame_pointer != other.frame_pointer {
            self.frame_pointer = FramePointer::Unknown;
        }
        self.kept = self.kept.filter(|_| self.kept == other.kept);
        *self != before
    }

    fn rule(&self) -> Rule {
        let by = |number: usize| match self.registers[number]? {
            Place::Cfa(value) => Some(Cfa::Register {
                register: DWARF[number],
                offset: -value,
            }),
            Place::Aligned(place) => {
                let (slot, value) = self.kept?;
                Some(Cfa::Memory {
                    register: DWARF[number],
                    offset: slot - place,
                    addend: -value,
                })
            }
        };
        // Calls keep the first two. Compilers count from a frame pointer that is set up, whatever they push later.
        let is_set_up =
            self.registers[RBP] == Some(FRAME) && self.frame_pointer == FramePointer::At(FRAME);
        let first = if is_set_up { [RBP, RSP] } else { [RSP, RBP] };
        let mut registers = first.into_iter().chain(0..16);
        let frame_pointer = match (self.frame_pointer, self.registers[RBP]) {
            (FramePointer::Same, _) => Saved::Same,
            (FramePointer::At(Place::Cfa(slot)), _) => Saved::AtCfa(slot),
            (FramePointer::At(Place::Aligned(slot)), Some(Place::Aligned(place))) => {
                Saved::AtFramePointer(slot - place)
            }
            _ => Saved::Unknown,
        };
        registers.find_map(by).map_or(Rule::Unsupported, |cfa| {
            Rule::Frame(FrameRule {
                cfa,
                frame_pointer,
                base: Saved::Unknown,
                return_address: ReturnAddress::AtCfa(-8),
            })
        })
    }

    /// The address of a memory operand.
    fn place(&self, instruction: &Instruction) -> Option<Place> {
        if instruction.memory_index() != Register::None
            || instruction.segment_prefix() != Register::None
        {
            return None;
        }
        let base = number(instruction.memory_base())?;
        let distance = instruction.memory_displacement64() as i64;
        self.registers[base]?.moved(distance)
    }

    fn set(&mut self, register: usize, value: Option<Place>) {
        if register == RBP && self.frame_pointer == FramePointer::Same {
            self.frame_pointer = FramePointer::Unknown;
        }
        self.registers[register] = value;
    }

    fn move_stack(&mut self, up: i64) {
        self.registers[RSP] = self.stack().and_then(|stack| stack.moved(up));
    }

    /// Aligns the stack pointer. Nothing is known any more relative to where it was aligned to before.
    fn align_stack(&mut self) {
        let is_known = |place: &Place| matches!(place, Place::Cfa(_));
        for register in &mut self.registers {
            *register = register.filter(is_known);
        }
        if matches!(self.frame_pointer, FramePointer::At(Place::Aligned(_))) {
            self.frame_pointer = FramePointer::Unknown;
        }
        self.registers[RSP] = Some(Place::Aligned(0));
        self.kept = None;
    }

    fn push(&mut self, register: Option<usize>, size: i64) {
        let value = register.and_then(|register| self.registers[register]);
        self.move_stack(-size);
        self.store(register, value, self.stack());
    }

    /// Stores a register's value to the stack, or anything else.
    fn store(&mut self, register: Option<usize>, value: Option<Place>, to: Option<Place>) {
        let Some(to) = to else {
            return;
        };
        if register == Some(RBP) && self.frame_pointer == FramePointer::Same {
            self.frame_pointer = FramePointer::At(to);
        }
        if let Place::Aligned(slot) = to {
            match value {
                Some(Place::Cfa(value)) => self.kept = Some((slot, value)),
                _ => self.kept = self.kept.filter(|kept| kept.0 != slot),
            }
        }
    }

    /// Loads a register from the stack.
    fn load(&mut self, register: usize, from: Option<Place>) {
        if register == RBP && from.is_some_and(|from| self.frame_pointer == FramePointer::At(from))
        {
            self.registers[RBP] = None;
            self.frame_pointer = FramePointer::Same;
            return;
        }
        let kept = self
            .kept
            .filter(|kept| from == Some(Place::Aligned(kept.0)));
        self.set(register, kept.map(|kept| Place::Cfa(kept.1)));
    }

    fn pop(&mut self, register: Option<usize>, size: i64) {
        let from = self.stack();
        self.move_stack(size);
        if let Some(register) = register {
            self.load(register, from);
        }
    }

    /// Goes to the next instruction. Returns whether there is one.
    fn advance(&mut self, instruction: &Instruction, info: &mut InstructionInfoFactory) -> bool {
        match instruction.flow_control() {
            FlowControl::Next => self.execute(instruction, info),
            FlowControl::ConditionalBranch | FlowControl::XbeginXabortXend => {}
            // It finds its own address so.
            FlowControl::Call if instruction.near_branch_target() == instruction.next_ip() => {
                self.push(None, 8);
            }
            FlowControl::Call | FlowControl::IndirectCall => {
                for register in CALLER_SAVED {
                    self.registers[register] = None;
                }
            }
            // A system call.
            FlowControl::Interrupt if instruction.mnemonic() != Mnemonic::Int3 => {
                self.registers[0] = None;
            }
            _ => return false,
        }
        true
    }

    /// Executes an instruction that is no jump, call or return.
    fn execute(&mut self, instruction: &Instruction, info: &mut InstructionInfoFactory) {
        let kind = |index| match index < instruction.op_count() {
            true => Some(instruction.op_kind(index)),
            false => None,
        };
        let register = |index| match kind(index) {
            Some(OpKind::Register) => number(instruction.op_register(index)),
            _ => None,
        };
        let constant = || match kind(1) {
            Some(OpKind::Immediate8to64 | OpKind::Immediate32to64 | OpKind::Immediate64) => {
                Some(instruction.immediate(1) as i64)
            }
            _ => None,
        };
        let is_memory = |index| kind(index) == Some(OpKind::Memory);
        match (instruction.mnemonic(), register(0)) {
            (Mnemonic::Push, to) => {
                self.push(to, -i64::from(instruction.stack_pointer_increment()));
            }
            (Mnemonic::Pop, to) => self.pop(to, instruction.stack_pointer_increment().into()),
            (Mnemonic::Leave, _) if instruction.code() == Code::Leaveq => {
                self.set(RSP, self.registers[RBP]);
                self.pop(Some(RBP), 8);
            }
            (Mnemonic::Mov, Some(to)) if register(1).is_some() => {
                self.set(to, register(1).and_then(|from| self.registers[from]));
            }
            (Mnemonic::Mov, Some(to)) if is_memory(1) => self.load(to, self.place(instruction)),
            (Mnemonic::Mov, None) if is_memory(0) => {
                let value = register(1).and_then(|from| self.registers[from]);
                self.store(register(1), value, self.place(instruction));
            }
            (Mnemonic::Lea, Some(to)) => self.set(to, self.place(instruction)),
            (Mnemonic::Add | Mnemonic::Sub, Some(to)) if constant().is_some() => {
                let by = constant().unwrap_or_default();
                let is_add = instruction.mnemonic() == Mnemonic::Add;
                let by = if is_add { by } else { by.saturating_neg() };
                self.set(to, self.registers[to].and_then(|place| place.moved(by)));
            }
            (Mnemonic::And, Some(RSP)) if constant().is_some_and(|it| it < 0) => self.align_stack(),
            (Mnemonic::Pushfq | Mnemonic::Popfq, _) => {
                self.move_stack(instruction.stack_pointer_increment().into());
            }
            // Where nothing but the stack pointer is known, most instructions change nothing.
            _ if !instruction.is_stack_instruction() && !self.may_forget(instruction) => {}
            _ => self.forget(instruction, info),
        }
    }

    /// Returns whether an instruction may write a register that is known. Quicker than finding out.
    fn may_forget(&self, instruction: &Instruction) -> bool {
        let is_known = |register: usize| {
            register == RBP && self.frame_pointer == FramePointer::Same
                || self.registers[register].is_some()
        };
        let mut operands = 0..instruction.op_count();
        // Instructions write the stack and frame pointer by naming them, and others without.
        let mut others = self.registers.iter().enumerate();
        others.any(|(register, place)| ![RSP, RBP].contains(&register) && place.is_some())
            || operands.any(|index| {
                let register = instruction.op_register(index).full_register();
                instruction.op_kind(index) == OpKind::Register
                    && number(register).is_some_and(is_known)
            })
    }

    /// Forgets the registers that an instruction writes.
    fn forget(&mut self, instruction: &Instruction, info: &mut InstructionInfoFactory) {
        for used in info.info(instruction).used_registers() {
            let writes = !matches!(
                used.access(),
                OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess
            );
            if let Some(register) = number(used.register().full_register()).filter(|_| writes) {
                self.set(register, None);
            }
        }
    }
}

fn decoder<'a>(code: &FunctionCode<'a>, start: u64) -> Option<Decoder<'a>> {
    let bytes = code.from(start)?;
    Some(Decoder::with_ip(64, bytes, start, DecoderOptions::NONE))
}

/// The number of a whole general register, in the order of their encoding.
fn number(register: Register) -> Option<usize> {
    register.is_gpr64().then(|| register.number())
}

/// See [`Architecture::function`](crate::instructions::CodeReader::function).
pub(super) fn function(code: &FunctionCode<'_>, work: &mut CodeWork) -> Option<CodeRules> {
    let mut first = Function::new(code, &mut *work);
    let rules = first.all();
    if !first.disagrees {
        return rules;
    }
    // Most likely, a call that never returns is followed by what only jumps reach.
    let targets = first.targets;
    let mut second = Function::new(code, work);
    second.known_targets = Some(targets);
    second.all()
}

/// See [`Architecture::extent`](crate::instructions::CodeReader::extent).
pub(super) fn extent(code: &FunctionCode<'_>, work: &mut CodeWork) -> u64 {
    let mut function = Function::new(code, work);
    let mut state = State::at_start();
    // At an entry point, no return address is on the stack.
    state.registers[RSP] = None;
    let followed = function.follow(code.start, state);
    let rules = followed.and_then(|()| function.rules());
    let first = rules.and_then(|rules| rules.ranges().next());
    first.map_or(0, |range| range.end - code.start)
}

/// What is left to follow.
#[derive(Debug, Default)]
struct Paths {
    certain: Vec<(u64, State)>,
    /// Behind calls that may never return.
    doubtful: Vec<(u64, State)>,
}

/// See [`CodeReader::calls`](crate::instructions::CodeReader::calls).
pub(super) fn calls(code: &[u8], start: u64) -> Vec<Call> {
    let call = |index: usize| {
        let distance = code.get(index + 1..)?.first_chunk()?;
        let behind = start.wrapping_add(index as u64 + 5);
        let target = behind.wrapping_add_signed(i32::from_le_bytes(*distance).into());
        let at = behind.wrapping_sub(5);
        Some(Call { at, target })
    };
    memchr::memchr_iter(0xe8, code).filter_map(call).collect()
}

/// See [`CodeReader::is_call`](crate::instructions::CodeReader::is_call).
pub(super) fn is_call(code: &[u8], start: u64, at: u64) -> bool {
    let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    while decoder.can_decode() && decoder.ip() < at {
        let _ = decoder.decode();
    }
    decoder.ip() == at
}

/// See [`CodeReader::may_start`](crate::instructions::CodeReader::may_start).
pub(super) fn may_start(before: &[u8], from: &[u8]) -> bool {
    // endbr64
    from.starts_with(&[0xf3, 0x0f, 0x1e, 0xfa])
        || match before {
            // ret, int3, nop, hlt; ud2
            [.., 0xc3 | 0xcc | 0x90 | 0xf4] | [.., 0x0f, 0x0b] => true,
            // nop of several bytes
            [.., 0x0f, 0x1f, 0x00] | [.., 0x0f, 0x1f, 0x40, 0] | [.., 0x0f, 0x1f, 0x44, 0, 0] => {
                true
            }
            [.., 0x0f, 0x1f, 0x80, 0, 0, 0, 0] | [.., 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0] => true,
            // jmp, call
            [.., 0xe9 | 0xe8, _, _, _, _] | [.., 0xeb, _] => true,
            // jmp of a register or a pointer
            [.., 0xff, 0xe0..=0xe7] | [.., 0xff, 0x25, _, _, _, _] => true,
            _ => false,
        }
}

struct Function<'a, 'w> {
    code: &'a FunctionCode<'a>,
    blocks: BTreeMap<u64, Block>,
    /// True if a path returns with the stack as it was at the start, or ends with a call that does after a frame was
    /// removed.
    returns: bool,
    /// True if the stack pointer was below where it is at the start.
    has_frame: bool,
    /// True if the function begins as those of C do that never return: it saves a register for its caller.
    saves: bool,
    /// What is known at all indirect jumps out of a frame.
    indirect: Option<State>,
    /// The targets of jumps, as far as they were found.
    targets: BTreeSet<u64>,
    /// Those of an earlier run. If a call is right before one, it may never return.
    known_targets: Option<BTreeSet<u64>>,
    /// The address of a block that may be another function's, and whether a path from there leads back, or returns with
    /// the stack as it was at the start.
    tried: u64,
    belongs: bool,
    /// True if two paths meet with different stacks, or one returns with another than that of the start.
    disagrees: bool,
    work: &'w mut CodeWork,
    info: InstructionInfoFactory,
}

impl<'a, 'w> Function<'a, 'w> {
    fn new(code: &'a FunctionCode<'a>, work: &'w mut CodeWork) -> Self {
        Function {
            code,
            blocks: BTreeMap::new(),
            returns: false,
            has_frame: false,
            saves: false,
            indirect: None,
            targets: BTreeSet::new(),
            known_targets: None,
            tried: 0,
            belongs: false,
            disagrees: false,
            work,
            info: InstructionInfoFactory::new(),
        }
    }

    /// Follows all paths. `None` if the code is no function's, or not known to be one's.
    fn all(&mut self) -> Option<CodeRules> {
        self.follow(self.code.start, State::at_start())?;
        // What only jumps through a table reach: their targets have the state of those jumps.
        let mut from = self.code.start;
        let mut attempts = MAX_ATTEMPTS;
        while let Some(state) = self.indirect.clone() {
            let Some(unreached) = self.first_unreached(from) else {
                break;
            };
            from = unreached;
            let is_inside = self.blocks.range(unreached..).next().is_some();
            if is_inside {
                self.follow(unreached, state)?;
                continue;
            }
            // It may be another function's.
            let (blocks, indirect) = (self.blocks.clone(), self.indirect.clone());
            (self.tried, self.belongs) = (unreached, false);
            let has_followed = attempts > 0 && self.follow(unreached, state).is_some();
            attempts = attempts.saturating_sub(1);
            if !has_followed || !self.belongs {
                (self.blocks, self.indirect) = (blocks, indirect);
                break;
            }
        }
        let rules = self.rules()?;
        (self.returns || self.saves).then_some(rules)
    }

    /// Follows all paths from an address. `None` if the code cannot be a function's.
    fn follow(&mut self, start: u64, state: State) -> Option<()> {
        let mut paths = Paths::default();
        paths.certain.push((start, state));
        loop {
            let path = paths.certain.pop();
            let is_certain = path.is_some();
            let Some((start, state)) = path.or_else(|| paths.doubtful.pop()) else {
                return Some(());
            };
            if let Some(known) = self.blocks.get_mut(&start) {
                self.belongs |= start < self.tried;
                self.disagrees |= is_certain && known.state.stack() != state.stack();
                if is_certain && known.changes < MAX_VISITS && known.state.meet(&state) {
                    known.changes += 1;
                    self.run(start, &mut paths)?;
                }
                continue;
            }
            let before = self.blocks.range(..start).next_back();
            let divided = before.filter(|(_, block)| block.end > start);
            let divided = divided.map(|(before, _)| *before);
            let block = Block {
                state,
                end: start,
                changes: 0,
            };
            self.blocks.insert(start, block);
            self.run(start, &mut paths)?;
            if let Some(before) = divided {
                self.run(before, &mut paths)?;
            }
        }
    }

    /// Follows a block up to a jump or the next block.
    fn run(&mut self, start: u64, paths: &mut Paths) -> Option<()> {
        let block = self.blocks.get(&start)?;
        let mut state = block.state.clone();
        let mut decoder = decoder(self.code, start)?;
        let mut is_behind_call = false;
        loop {
            let at = decoder.ip();
            let known = self.known_targets.as_ref();
            if is_behind_call && known.is_some_and(|it| it.contains(&at)) {
                paths.doubtful.push((at, state));
                break;
            }
            if at != start && self.blocks.contains_key(&at) {
                paths.certain.push((at, state));
                break;
            }
            self.work.take()?;
            if !decoder.can_decode() {
                break;
            }
            let instruction = decoder.decode();
            if state.stack() == Some(START) && instruction.mnemonic() == Mnemonic::Push {
                let saved = number(instruction.op0_register());
                self.saves |= saved.is_some_and(|it| !CALLER_SAVED.contains(&it));
            }
            self.has_frame |= matches!(state.stack(), Some(Place::Cfa(value)) if value < -8);
            if !self.step(&instruction, &mut state, paths)? {
                break;
            }
            is_behind_call = matches!(
                instruction.flow_control(),
                FlowControl::Call | FlowControl::IndirectCall
            );
        }
        self.blocks.get_mut(&start)?.end = decoder.ip();
        Some(())
    }

    /// Follows an instruction. Returns whether the next one belongs to the same block. `None` if the code cannot be a
    /// function's.
    fn step(
        &mut self,
        instruction: &Instruction,
        state: &mut State,
        paths: &mut Paths,
    ) -> Option<bool> {
        let target = instruction.near_branch_target();
        match instruction.flow_control() {
            FlowControl::ConditionalBranch | FlowControl::XbeginXabortXend
                if self.code.contains(target) =>
            {
                self.targets.insert(target);
                paths.certain.push((target, state.clone()));
            }
            FlowControl::UnconditionalBranch => {
                if self.code.contains(target) {
                    self.targets.insert(target);
                    paths.certain.push((target, state.clone()));
                } else {
                    self.returns |= self.has_frame && state.stack() == Some(START);
                }
                return Some(false);
            }
            // Without a frame, it is a call that returns to the caller, or its targets are as the start.
            FlowControl::IndirectBranch if state.stack() != Some(START) => {
                match &mut self.indirect {
                    Some(known) => {
                        known.meet(state);
                    }
                    None => self.indirect = Some(state.clone()),
                }
                return Some(false);
            }
            FlowControl::Return => {
                self.returns |= state.stack() == Some(START);
                self.belongs |= state.stack() == Some(START);
                let may_go_on = is_balanced(state) || self.known_targets.is_none();
                self.disagrees |= !is_balanced(state);
                return may_go_on.then_some(false);
            }
            FlowControl::IndirectBranch => return Some(false),
            _ => return Some(state.advance(instruction, &mut self.info)),
        }
        Some(true)
    }

    /// The rules of all instructions that were reached. `None` if there is no work left.
    fn rules(&mut self) -> Option<CodeRules> {
        let mut rules = CodeRules::default();
        let blocks: Vec<u64> = self.blocks.keys().copied().collect();
        for (index, start) in blocks.iter().enumerate() {
            let mut state = self.blocks[start].state.clone();
            let next = blocks.get(index + 1).copied().unwrap_or(u64::MAX);
            let mut decoder = decoder(self.code, *start)?;
            loop {
                let at = decoder.ip();
                self.work.take()?;
                if at >= next || !decoder.can_decode() {
                    rules.end(at);
                    break;
                }
                let instruction = decoder.decode();
                if instruction.is_invalid() {
                    rules.end(at);
                    break;
                }
                rules.add(at, state.rule());
                if instruction.flow_control() == FlowControl::Call {
                    rules.calls.push(instruction.near_branch_target());
                }
                if !state.advance(&instruction, &mut self.info) {
                    rules.end(decoder.ip());
                    break;
                }
            }
        }
        Some(rules)
    }

    /// The first instruction from a block on that none has reached, if it is no padding.
    fn first_unreached(&self, from: u64) -> Option<u64> {
        let mut reached = from;
        let blocks = self.blocks.range(from..);
        let ends = blocks.map(|(start, block)| (*start, block.end));
        for (start, end) in ends.chain([(self.code.end, self.code.end)]) {
            if start > reached {
                let unreached = skip_padding(self.code, reached);
                if unreached < start {
                    return Some(unreached);
                }
            }
            reached = reached.max(end);
        }
        None
    }
}

/// Returns whether the stack may be as the function found it.
fn is_balanced(state: &State) -> bool {
    !matches!(state.stack(), Some(place @ Place::Cfa(_)) if place != START)
}

/// See [`Architecture::skip_padding`](crate::instructions::CodeReader::skip_padding).
pub(super) fn skip_padding(code: &FunctionCode<'_>, start: u64) -> u64 {
    let Some(mut decoder) = decoder(code, start) else {
        return code.end;
    };
    while decoder.can_decode() {
        let at = decoder.ip();
        let instruction = decoder.decode();
        let is_padding = matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Int3)
            || instruction.code() == Code::Add_rm8_r8 && code.from(at).is_some_and(|it| it.starts_with(&[0, 0]))
            // xchg %ax, %ax and lea 0(%rsi), %rsi are left to functions.
            || instruction.is_invalid();
        if !is_padding {
            return at;
        }
    }
    code.end
}
