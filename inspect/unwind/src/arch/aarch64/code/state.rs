//! The known values of registers and of the stack before an instruction.

use otelctx_remote::a64::{Access, Instruction, LINK, STACK_POINTER};

use super::Decoded;
use crate::instruction_set::{self, State as _};
use crate::rule::{Cfa, FrameRule, ReturnAddress, Rule, Saved};

/// Largest distance from the CFA that is followed, in bytes; stacks are smaller.
const MAX_OFFSET: i64 = 1 << 24;
const FRAME_POINTER: u8 = 29;
/// Registers that a callee may change (Procedure Call Standard for the Arm 64-bit Architecture, "General-purpose Registers"):
/// x0 to x18, and the link register.
const CALLER_SAVED: u32 = ((1 << 19) - 1) | (1 << LINK);
/// Registers for the size of a large frame, which have no arguments or results.
const SCRATCH: std::ops::RangeInclusive<u8> = 9..=17;

/// Where a value of the caller is. Both may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CallersValue {
    /// A bit for each register that has it.
    registers: u32,
    /// The place on the stack, from the CFA.
    slot: Option<i32>,
}

impl CallersValue {
    fn in_register(register: u8) -> Self {
        CallersValue {
            registers: 1 << register,
            slot: None,
        }
    }

    fn is_in(&self, register: u8) -> bool {
        self.registers >> register & 1 != 0
    }

    /// A register that has it: its own, if that is one.
    fn register(&self, own: u8) -> Option<u8> {
        if self.is_in(own) {
            return Some(own);
        }
        (self.registers != 0).then(|| self.registers.trailing_zeros() as u8)
    }

    fn meet(&mut self, other: &Self) {
        self.registers &= other.registers;
        self.slot = self.slot.filter(|_| self.slot == other.slot);
    }

    fn copy(&mut self, to: u8, from: u8) {
        self.registers &= !(1 << to);
        self.registers |= (self.registers >> from & 1) << to;
    }

    fn forget_below(&mut self, stack: i32) {
        self.slot = self.slot.filter(|slot| *slot >= stack);
    }
}

/// The known values before an instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct State {
    /// The values of registers that lead to the stack, from the CFA; the last one is the stack pointer's.
    registers: [Option<i32>; 32],
    frame_pointer: CallersValue,
    return_address: CallersValue,
    /// The register of [`SCRATCH`] that was set to a constant last, and the constant.
    constant: Option<(u8, i64)>,
    has_restored: bool,
    doubt: Option<u64>,
}

impl instruction_set::State for State {
    type Instruction = Decoded;
    type Place = i32;
    type Scratch = ();

    fn at_start() -> Self {
        let mut registers = [None; 32];
        registers[usize::from(STACK_POINTER)] = Some(0);
        State {
            registers,
            frame_pointer: CallersValue::in_register(FRAME_POINTER),
            return_address: CallersValue::in_register(LINK),
            constant: None,
            has_restored: false,
            doubt: None,
        }
    }

    fn stack(&self) -> Option<i32> {
        self.registers[usize::from(STACK_POINTER)]
    }

    fn is_stack_of_start(&self) -> bool {
        self.stack() == Some(0) && self.return_address.is_in(LINK)
    }

    fn returns(&self, instruction: &Decoded) -> bool {
        match instruction.instruction {
            Instruction::Return { register } => {
                self.stack() == Some(0) && self.return_address.is_in(register)
            }
            _ => false,
        }
    }

    fn is_balanced(&self) -> bool {
        let is_saved = self.return_address.slot.is_some() && !self.return_address.is_in(LINK);
        self.is_stack_of_start() || self.stack().is_none() && !is_saved
    }

    fn has_restored(&self) -> bool {
        self.has_restored
    }

    fn is_first_save(&self, instruction: &Decoded) -> bool {
        let Instruction::Access(access) = instruction.instruction else {
            return false;
        };
        let saves = |register: &u8| {
            *register == FRAME_POINTER && self.frame_pointer.is_in(FRAME_POINTER)
                || *register == LINK && self.return_address.is_in(LINK)
        };
        let is_own = self.place(&access).is_some_and(|place| place < 0);
        is_own && !access.is_load && access.registers.iter().flatten().any(saves)
    }

    fn doubt(&self) -> Option<u64> {
        self.doubt
    }

    fn set_doubt(&mut self, doubt: u64) {
        self.doubt = Some(doubt);
    }

    fn meet(&mut self, other: &State) -> bool {
        let before = self.clone();
        for (mine, theirs) in self.registers.iter_mut().zip(other.registers) {
            *mine = mine.filter(|_| *mine == theirs);
        }
        self.frame_pointer.meet(&other.frame_pointer);
        self.return_address.meet(&other.return_address);
        self.constant = self.constant.filter(|_| self.constant == other.constant);
        self.has_restored &= other.has_restored;
        // Not being in doubt is the lowest.
        self.doubt = self.doubt.min(other.doubt);
        *self != before
    }

    fn advance(&mut self, instruction: &Decoded, (): &mut ()) -> bool {
        match instruction.instruction {
            Instruction::Call { .. } | Instruction::IndirectCall { .. } => self.call(),
            Instruction::ConditionalJump { .. } => {}
            Instruction::Jump { .. }
            | Instruction::IndirectJump { .. }
            | Instruction::Return { .. }
            | Instruction::Trap
            | Instruction::Invalid => return false,
            other => self.execute(other),
        }
        true
    }

    fn rule(&self) -> Rule {
        // Only code that is no function's moves it there.
        if self.stack().is_some_and(|stack| stack > 0) {
            return Rule::Unsupported;
        }
        // Calls keep the first two.
        let mut bases = [STACK_POINTER, FRAME_POINTER].into_iter().chain(0..LINK);
        let cfa = bases.find_map(|register| {
            let value = self.registers[usize::from(register)]?;
            let offset = -value;
            Some(Cfa::Register { register, offset })
        });
        let return_address = match self.return_address.slot {
            Some(slot) => Some(ReturnAddress::AtCfa(slot)),
            None => {
                let register = self.return_address.register(LINK);
                register.map(ReturnAddress::Register)
            }
        };
        let frame_pointer = match self.frame_pointer.slot {
            Some(slot) => Saved::AtCfa(slot),
            None => match self.frame_pointer.register(FRAME_POINTER) {
                Some(FRAME_POINTER) => Saved::Same,
                Some(register) => Saved::Register(register),
                None => Saved::Unknown,
            },
        };
        match (cfa, return_address) {
            (Some(cfa), Some(return_address)) => Rule::Frame(FrameRule {
                cfa,
                frame_pointer,
                base: Saved::Unknown,
                return_address,
            }),
            _ => Rule::Unsupported,
        }
    }
}

impl State {
    /// The place of an access on the stack.
    fn place(&self, access: &Access) -> Option<i32> {
        moved(self.registers[usize::from(access.base)], access.offset?)
    }

    fn set(&mut self, register: u8, value: Option<i32>) {
        self.registers[usize::from(register)] = value;
        self.constant = self.constant.filter(|constant| constant.0 != register);
        for callers in [&mut self.frame_pointer, &mut self.return_address] {
            callers.registers &= !(1 << register);
            // What is below the stack pointer can be overwritten at any time.
            if let Some(stack) = value.filter(|_| register == STACK_POINTER) {
                callers.forget_below(stack);
            }
        }
    }

    /// Forgets what a callee may change: registers, and the stack below its frame.
    fn call(&mut self) {
        for (register, value) in (0..).zip(&mut self.registers) {
            *value = value.filter(|_| CALLER_SAVED >> register & 1 == 0);
        }
        let stack = self.stack();
        // Functions of Go have their frame's record there, and what they call leaves it alone.
        let record = self.registers[usize::from(FRAME_POINTER)];
        let has_record = record.is_some() && self.frame_pointer.slot == record;
        for callers in [&mut self.frame_pointer, &mut self.return_address] {
            callers.registers &= !CALLER_SAVED;
            if let Some(stack) = stack.filter(|_| !has_record) {
                callers.forget_below(stack);
            }
        }
        self.constant = None;
    }

    /// Executes an instruction that is no jump, call or return.
    fn execute(&mut self, instruction: Instruction) {
        match instruction {
            Instruction::Move {
                to,
                from,
                is_whole: true,
            } if to != 31 && from != 31 => self.copy(to, from),
            // Of the stack pointer
            Instruction::Add {
                to,
                from,
                number: 0,
            } => self.copy(to, from),
            Instruction::Add { to, from, number } => {
                self.set(to, moved(self.registers[usize::from(from)], number));
            }
            Instruction::Access(access) => self.access(&access),
            // 31 is zero.
            Instruction::Move { to: 31, .. }
            | Instruction::Address { to: 31, .. }
            | Instruction::Number { to: 31, .. }
            | Instruction::ThreadPointer { to: 31 } => {}
            Instruction::Number { to, number } => {
                self.set(to, None);
                // Others have arguments, mostly.
                if SCRATCH.contains(&to) {
                    self.constant = i64::try_from(number).ok().map(|number| (to, number));
                }
            }
            Instruction::Sum {
                to,
                from,
                by: Some(by),
                is_subtraction,
            } => {
                let constant = self.constant.filter(|constant| constant.0 == by);
                let sum = constant.and_then(|(_, number)| {
                    let number = if is_subtraction { -number } else { number };
                    moved(self.registers[usize::from(from)], number)
                });
                self.set(to, sum);
            }
            Instruction::Move { to, .. }
            | Instruction::Address { to, .. }
            | Instruction::ThreadPointer { to }
            | Instruction::Sum { to, .. } => self.set(to, None),
            Instruction::SystemCall => self.set(0, None),
            Instruction::Other { changed } => {
                for register in (0..32).filter(|register| changed >> register & 1 != 0) {
                    self.set(register, None);
                }
            }
            _ => {}
        }
    }

    fn copy(&mut self, to: u8, from: u8) {
        if to == from {
            return;
        }
        let (frame_pointer, return_address) = (self.frame_pointer, self.return_address);
        self.set(to, self.registers[usize::from(from)]);
        for (callers, before) in [
            (&mut self.frame_pointer, frame_pointer),
            (&mut self.return_address, return_address),
        ] {
            callers.registers = before.registers;
            callers.copy(to, from);
        }
    }

    fn access(&mut self, access: &Access) {
        let place = self.place(access);
        let size = i32::from(access.size);
        let count = i32::from(access.count);
        if let Some(place) = place.filter(|_| !access.is_load) {
            self.overwrite(place, size * count);
        }
        for (index, register) in (0..).zip(access.registers) {
            // 31 is zero.
            let Some(register) = register.filter(|it| *it != 31) else {
                continue;
            };
            let slot = place.map(|place| place + index * size);
            let slot = slot.filter(|_| size == 8);
            match access.is_load {
                true if place.is_none() && access.base == STACK_POINTER => {
                    self.load_from_unknown_stack(register);
                }
                true => self.load(register, slot),
                false => self.store(register, slot),
            }
        }
        if let Some(by) = access.base_moves {
            self.set(
                access.base,
                moved(self.registers[usize::from(access.base)], by),
            );
        }
    }

    fn store(&mut self, register: u8, slot: Option<i32>) {
        // What is above the CFA is the caller's.
        let slot = slot.filter(|slot| *slot < 0);
        for callers in [&mut self.frame_pointer, &mut self.return_address] {
            // Functions also pass their return address on in memory: the first place is that of the frame.
            if callers.is_in(register) && callers.slot.is_none() {
                callers.slot = slot;
            }
        }
    }

    fn load(&mut self, register: u8, slot: Option<i32>) {
        self.set(register, None);
        for callers in [&mut self.frame_pointer, &mut self.return_address] {
            if slot.is_some() && callers.slot == slot {
                callers.registers |= 1 << register;
                self.has_restored = true;
            }
        }
    }

    /// Loads a register from a place that is not known. The value may be the caller's.
    fn load_from_unknown_stack(&mut self, register: u8) {
        self.set(register, None);
        match register {
            LINK => self.return_address.slot = None,
            FRAME_POINTER => self.frame_pointer.slot = None,
            _ => {}
        }
    }

    /// Forgets what is in `size` bytes of the stack.
    fn overwrite(&mut self, from: i32, size: i32) {
        for callers in [&mut self.frame_pointer, &mut self.return_address] {
            // Slots have 8 bytes.
            let is_hit = |slot: &i32| *slot > from - 8 && *slot < from + size;
            callers.slot = callers.slot.filter(|slot| !is_hit(slot));
        }
    }
}

/// `None` if it is farther away than any stack goes.
fn moved(value: Option<i32>, by: i64) -> Option<i32> {
    let moved = i64::from(value?).checked_add(by)?;
    (moved.abs() <= MAX_OFFSET).then_some(moved as i32)
}
