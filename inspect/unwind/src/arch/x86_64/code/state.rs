//! The known values of registers and of the stack before an instruction.

use iced_x86::{
    Code, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};

use crate::instruction_set::{self, State as _};
use crate::rule::{Cfa, FrameRule, ReturnAddress, Rule, Saved};

/// Largest distance from the CFA that is followed, in bytes; stacks are smaller.
const MAX_OFFSET: i32 = 1 << 24;
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
/// Registers that a callee keeps, or saves and restores, beside the stack pointer: rbp, rbx, r12 to r15.
const CALLEE_SAVED: [usize; 6] = [RBP, 3, 12, 13, 14, 15];
/// The place of rbp in [`CALLEE_SAVED`].
const FRAME_POINTER: usize = 0;

/// An address on the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
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

    /// Returns the distance to another place in bytes, if both count from the same address.
    fn distance(self, to: Self) -> Option<i64> {
        match (self, to) {
            (Place::Cfa(from), Place::Cfa(to)) | (Place::Aligned(from), Place::Aligned(to)) => {
                Some(i64::from(to) - i64::from(from))
            }
            _ => None,
        }
    }
}

/// The location of the caller's value of a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallersValue {
    /// The register has it.
    Same,
    At(Place),
    Unknown,
}

/// A second frame record that a function makes for what it calls: the frame pointer, and above it an empty place into which
/// the callee moves its return address. Code of SBCL is called so (src/runtime/x86-64-assem.S there, `call_into_lisp`): it returns
/// with the frame pointer of the function's own frame, and without the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Record {
    None,
    /// The frame pointer was pushed this many times at last.
    Pushed(u8),
    /// The frame pointer leads to it.
    Set,
}

/// The known values before an instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct State {
    /// The values of registers that lead to the stack.
    registers: [Option<Place>; 16],
    /// The locations of the caller's values of [`CALLEE_SAVED`].
    callers: [CallersValue; 6],
    /// A slot of an aligned stack, and the value in it relative to the CFA.
    kept: Option<(i32, i32)>,
    /// True if each path to here has saved a register of the caller, and restored it.
    has_restored: bool,
    /// True if a path to here has written over the return address: the code is no function's, or goes elsewhere.
    has_lost_return: bool,
    record: Record,
    /// The last address behind a call and padding that each path to here passes: if the callee never returns, the code may
    /// be another function's. The lowest of several.
    doubt: Option<u64>,
}

impl instruction_set::State for State {
    type Instruction = Instruction;
    type Place = Place;
    type Scratch = Option<InstructionInfoFactory>;

    fn at_start() -> Self {
        let mut registers = [None; 16];
        registers[RSP] = Some(START);
        State {
            registers,
            callers: [CallersValue::Same; 6],
            kept: None,
            has_restored: false,
            has_lost_return: false,
            record: Record::None,
            doubt: None,
        }
    }

    fn stack(&self) -> Option<Place> {
        self.registers[RSP]
    }

    fn is_stack_of_start(&self) -> bool {
        self.stack() == Some(START)
    }

    fn returns(&self, _: &Instruction) -> bool {
        self.is_stack_of_start() && !self.has_lost_return
    }

    fn is_balanced(&self) -> bool {
        let is_other = matches!(self.stack(), Some(place @ Place::Cfa(_)) if place != START);
        !is_other && !self.has_lost_return
    }

    fn has_restored(&self) -> bool {
        self.has_restored
    }

    fn doubt(&self) -> Option<u64> {
        self.doubt
    }

    fn set_doubt(&mut self, doubt: u64) {
        self.doubt = Some(doubt);
    }

    fn is_first_save(&self, instruction: &Instruction) -> bool {
        let is_own = |place: Place| place.distance(START).is_some_and(|up| up > 0);
        let (register, is_save) = match instruction.mnemonic() {
            Mnemonic::Push => (instruction.op0_register(), self.stack() == Some(START)),
            // Hand-written functions make room for several at once.
            Mnemonic::Mov if instruction.op0_kind() == OpKind::Memory => {
                let has_room = self.stack().is_some_and(is_own);
                let is_save = has_room && self.place(instruction).is_some_and(is_own);
                (instruction.op1_register(), is_save)
            }
            _ => return false,
        };
        let saved = number(register).and_then(callee_saved);
        is_save && saved.is_some_and(|index| self.callers[index] == CallersValue::Same)
    }

    fn meet(&mut self, other: &State) -> bool {
        let before = self.clone();
        for (mine, theirs) in self.registers.iter_mut().zip(other.registers) {
            *mine = mine.filter(|_| *mine == theirs);
        }
        for (mine, theirs) in self.callers.iter_mut().zip(other.callers) {
            if *mine != theirs {
                *mine = CallersValue::Unknown;
            }
        }
        self.kept = self.kept.filter(|_| self.kept == other.kept);
        self.has_restored &= other.has_restored;
        self.has_lost_return |= other.has_lost_return;
        self.record = match self.record == other.record {
            true => self.record,
            false => Record::None,
        };
        // Not being in doubt is the lowest.
        self.doubt = self.doubt.min(other.doubt);
        *self != before
    }

    fn rule(&self) -> Rule {
        if self.has_lost_return {
            return Rule::Unsupported;
        }
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
        let frame_pointer = self.callers[FRAME_POINTER];
        // Calls keep the first two. Compilers count from a frame pointer that is set up, whatever they push later.
        let first = if self.has_own_frame() {
            [RBP, RSP]
        } else {
            [RSP, RBP]
        };
        let mut registers = first.into_iter().chain(0..16);
        let frame_pointer = match (frame_pointer, self.registers[RBP]) {
            (CallersValue::Same, _) => Saved::Same,
            (CallersValue::At(Place::Cfa(slot)), _) => Saved::AtCfa(slot),
            (CallersValue::At(Place::Aligned(slot)), Some(Place::Aligned(place))) => {
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

    fn removes_record(&self, call: &Instruction) -> bool {
        self.record == Record::Set && call.flow_control() == FlowControl::IndirectCall
    }

    fn advance(
        &mut self,
        instruction: &Instruction,
        info: &mut Option<InstructionInfoFactory>,
    ) -> bool {
        match instruction.flow_control() {
            FlowControl::Next if instruction.mnemonic() == Mnemonic::Hlt => return false,
            FlowControl::Next => {
                let record = self.next_record(instruction);
                self.execute(instruction, info);
                self.record = record;
            }
            FlowControl::ConditionalBranch | FlowControl::XbeginXabortXend => {}
            // It finds its own address so.
            FlowControl::Call if instruction.near_branch_target() == instruction.next_ip() => {
                self.push(None, 8);
            }
            FlowControl::Call | FlowControl::IndirectCall => {
                let removes_record = self.removes_record(instruction);
                self.call();
                if removes_record {
                    self.remove_record();
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
}

impl State {
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

    /// Returns whether the frame pointer leads to the function's frame, in which the caller's is.
    fn has_own_frame(&self) -> bool {
        self.registers[RBP] == Some(FRAME) && self.callers[FRAME_POINTER] == CallersValue::At(FRAME)
    }

    /// What is known of a record behind an instruction.
    fn next_record(&self, instruction: &Instruction) -> Record {
        let names_frame_pointer = instruction.op0_register().full_register() == Register::RBP;
        let is_set =
            instruction.mnemonic() == Mnemonic::Mov && instruction.op1_register() == Register::RSP;
        match (self.record, instruction.mnemonic()) {
            (Record::None, Mnemonic::Push) if names_frame_pointer && self.has_own_frame() => {
                Record::Pushed(1)
            }
            (Record::Pushed(1), Mnemonic::Push) if names_frame_pointer => Record::Pushed(2),
            (Record::Pushed(2), _) if names_frame_pointer && is_set => Record::Set,
            // What is pushed later is not part of it.
            (Record::Set, _) if !names_frame_pointer => Record::Set,
            _ => Record::None,
        }
    }

    /// Goes on behind a call that has removed the record.
    fn remove_record(&mut self) {
        self.registers[RSP] = self.registers[RBP].and_then(|record| record.moved(16));
        self.registers[RBP] = Some(FRAME);
        self.record = Record::None;
    }

    fn set(&mut self, register: usize, value: Option<Place>) {
        if let Some(index) = callee_saved(register)
            && self.callers[index] == CallersValue::Same
        {
            self.callers[index] = CallersValue::Unknown;
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
        for value in &mut self.callers {
            if matches!(value, CallersValue::At(Place::Aligned(_))) {
                *value = CallersValue::Unknown;
            }
        }
        self.registers[RSP] = Some(Place::Aligned(0));
        self.kept = None;
    }

    fn push(&mut self, register: Option<usize>, size: i64) {
        let value = register.and_then(|register| self.registers[register]);
        self.move_stack(-size);
        self.store(register, value, self.stack(), size);
    }

    /// Stores a register's value to the stack, or `size` bytes of anything else.
    fn store(
        &mut self,
        register: Option<usize>,
        value: Option<Place>,
        to: Option<Place>,
        size: i64,
    ) {
        let Some(to) = to else {
            return;
        };
        self.overwrite(to, size);
        // What is above the return address is the caller's.
        let is_own = to.distance(START).is_none_or(|up| up > 0);
        if let Some(index) = register.and_then(callee_saved)
            && self.callers[index] == CallersValue::Same
            && is_own
        {
            self.callers[index] = CallersValue::At(to);
        }
        if let (Place::Aligned(slot), Some(Place::Cfa(value))) = (to, value) {
            self.kept = Some((slot, value));
        }
    }

    /// Forgets what is in `size` bytes of the stack.
    fn overwrite(&mut self, from: Place, size: i64) {
        // Slots have 8 bytes.
        let is_hit = |slot: Place| from.distance(slot).is_some_and(|it| it > -8 && it < size);
        for value in &mut self.callers {
            if matches!(value, CallersValue::At(slot) if is_hit(*slot)) {
                *value = CallersValue::Unknown;
            }
        }
        self.kept = self.kept.filter(|kept| !is_hit(Place::Aligned(kept.0)));
        self.has_lost_return |= is_hit(START);
    }

    /// Loads a register from the stack.
    fn load(&mut self, register: usize, from: Option<Place>) {
        let saved = callee_saved(register);
        let slot = saved.map(|index| self.callers[index]);
        if let (Some(index), Some(from)) = (saved, from)
            && slot == Some(CallersValue::At(from))
        {
            self.registers[register] = None;
            self.callers[index] = CallersValue::Same;
            self.has_restored = true;
            return;
        }
        let kept = self
            .kept
            .filter(|kept| from == Some(Place::Aligned(kept.0)));
        self.set(register, kept.map(|kept| Place::Cfa(kept.1)));
    }

    fn pop(&mut self, register: usize, size: i64) {
        let from = self.stack();
        self.move_stack(size);
        self.load(register, from);
    }

    /// Forgets what a callee may change: registers, and the stack below its return address.
    fn call(&mut self) {
        for register in CALLER_SAVED {
            self.registers[register] = None;
        }
        let stack = self.stack();
        let distance = |slot| stack.and_then(|it| it.distance(slot));
        let is_below = |slot| distance(slot).is_some_and(|it| it < 0);
        for value in &mut self.callers {
            if matches!(value, CallersValue::At(slot) if is_below(*slot)) {
                *value = CallersValue::Unknown;
            }
        }
    }

    /// Executes an instruction that is no jump, call or return.
    fn execute(&mut self, instruction: &Instruction, info: &mut Option<InstructionInfoFactory>) {
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
        let increment = || i64::from(instruction.stack_pointer_increment());
        match (instruction.mnemonic(), register(0)) {
            (Mnemonic::Push, from) => self.push(from, -increment()),
            (Mnemonic::Pop, Some(to)) => self.pop(to, increment()),
            (Mnemonic::Leave, _) if instruction.code() == Code::Leaveq => {
                self.set(RSP, self.registers[RBP]);
                self.pop(RBP, 8);
            }
            (Mnemonic::Mov, Some(to)) if register(1).is_some() => {
                self.set(to, register(1).and_then(|from| self.registers[from]));
            }
            (Mnemonic::Mov, Some(to)) if is_memory(1) => self.load(to, self.place(instruction)),
            (Mnemonic::Mov, None) if is_memory(0) => {
                let value = register(1).and_then(|from| self.registers[from]);
                let size = instruction.memory_size().size() as i64;
                self.store(register(1), value, self.place(instruction), size);
            }
            (Mnemonic::Lea, Some(to)) => self.set(to, self.place(instruction)),
            (Mnemonic::Add | Mnemonic::Sub, Some(to)) if constant().is_some() => {
                let by = constant().unwrap_or_default();
                let is_add = instruction.mnemonic() == Mnemonic::Add;
                let by = if is_add { by } else { by.saturating_neg() };
                self.set(to, self.registers[to].and_then(|place| place.moved(by)));
            }
            (Mnemonic::And, Some(RSP)) if constant().is_some_and(|it| it < 0) => self.align_stack(),
            (Mnemonic::Pushfq, _) => self.push(None, -increment()),
            (Mnemonic::Popfq, _) => self.move_stack(increment()),
            // Where nothing but the stack pointer is known, most instructions change nothing.
            _ if !instruction.is_stack_instruction() && !self.may_forget(instruction) => {}
            _ => self.forget(instruction, info),
        }
    }

    /// Returns whether an instruction may write a register or a slot that is known. Quicker than finding out.
    fn may_forget(&self, instruction: &Instruction) -> bool {
        let is_known = |register: usize| {
            let saved = callee_saved(register);
            saved.is_some_and(|index| self.callers[index] == CallersValue::Same)
                || self.registers[register].is_some()
        };
        let mut operands = 0..instruction.op_count();
        // Instructions write what callees keep by naming it (but for cpuid), and other registers without.
        let mut others = CALLER_SAVED.into_iter();
        let names_memory = || instruction.op0_kind() == OpKind::Memory;
        others.any(|register| self.registers[register].is_some())
            || instruction.mnemonic() == Mnemonic::Cpuid
            || names_memory() && self.place(instruction).is_some()
            || operands.any(|index| {
                let register = instruction.op_register(index).full_register();
                instruction.op_kind(index) == OpKind::Register
                    && number(register).is_some_and(is_known)
            })
    }

    /// Forgets the registers and the slots that an instruction writes.
    fn forget(&mut self, instruction: &Instruction, info: &mut Option<InstructionInfoFactory>) {
        let writes = |access: OpAccess| {
            !matches!(
                access,
                OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess
            )
        };
        let info = info.get_or_insert_with(InstructionInfoFactory::new);
        let info = info.info(instruction);
        let is_written = info.used_memory().iter().any(|used| writes(used.access()));
        if let Some(place) = self.place(instruction).filter(|_| is_written) {
            // Instructions that write more than they say (xsave) are not those of saved registers.
            self.overwrite(place, instruction.memory_size().size() as i64);
        }
        for used in info.used_registers() {
            if let Some(register) = number(used.register().full_register())
                && writes(used.access())
            {
                self.set(register, None);
            }
        }
    }
}

/// The number of a whole general register, in the order of their encoding.
pub(super) fn number(register: Register) -> Option<usize> {
    register.is_gpr64().then(|| register.number())
}

/// The place of a register in [`CALLEE_SAVED`].
fn callee_saved(register: usize) -> Option<usize> {
    CALLEE_SAVED.iter().position(|it| *it == register)
}
