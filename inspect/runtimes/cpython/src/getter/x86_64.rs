//! The instructions of x86-64.

use std::collections::HashMap;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use otelctx_reader::remote::Memory;

use super::{Getter, Jump, Leaving, RegisterContents, Returned, Value};

fn all(code: &[u8], address: u64) -> Decoder<'_> {
    Decoder::with_ip(64, code, address, DecoderOptions::NONE)
}

/// See [`Getter::read`].
pub(super) fn read(memory: &dyn Memory, code: &[u8], address: u64) -> Getter {
    let mut getter = Getter::default();
    let mut registers = Registers::default();
    let mut has_called = false;
    for instruction in all(code, address) {
        getter.constants.extend(of_instruction(&instruction));
        match instruction.flow_control() {
            FlowControl::Call | FlowControl::IndirectCall => {
                let argument = registers.value(Register::RDI);
                registers = Registers::default();
                if !has_called {
                    getter.argument = argument;
                    let result = RegisterContents::Called(0);
                    registers.0.insert(Register::RAX, result);
                }
                has_called = true;
            }
            FlowControl::UnconditionalBranch | FlowControl::IndirectBranch => {
                if !has_called {
                    getter.argument = registers.value(Register::RDI);
                }
                return getter;
            }
            FlowControl::Return => {
                let result = registers.get(Register::RAX);
                let result = result.and_then(RegisterContents::returned);
                let is_of_call = matches!(result, Some(Returned::AtCalled(_)));
                getter.result = result.filter(|_| is_of_call || !has_called);
                return getter;
            }
            _ => registers.execute(memory, &instruction),
        }
    }
    getter
}

/// See [`Code::jumps`](super::Code::jumps).
pub(super) fn jumps(code: &[u8], address: u64) -> Vec<Jump> {
    let jumps = all(code, address).into_iter().filter_map(|instruction| {
        let leaving = match instruction.flow_control() {
            FlowControl::Call => Leaving::Call,
            FlowControl::UnconditionalBranch => Leaving::Jump,
            FlowControl::ConditionalBranch => Leaving::Condition,
            _ => return None,
        };
        let target = instruction.near_branch_target();
        Some(Jump { leaving, target })
    });
    jumps.collect()
}

/// See [`Code::constants`](super::Code::constants).
pub(super) fn constants(code: &[u8], address: u64) -> Vec<u64> {
    let instructions = all(code, address).into_iter();
    instructions.flat_map(|it| of_instruction(&it)).collect()
}

/// Addresses and numbers in an instruction.
fn of_instruction(instruction: &Instruction) -> impl Iterator<Item = u64> + use<> {
    let memory = instruction.is_ip_rel_memory_operand();
    let memory = memory.then(|| instruction.ip_rel_memory_address());
    let is_number = instruction.op_count() == 2 && is_immediate(instruction.op1_kind());
    let number = is_number.then(|| instruction.immediate(1));
    memory.into_iter().chain(number)
}

fn is_immediate(kind: OpKind) -> bool {
    use OpKind::{Immediate32, Immediate32to64, Immediate64};
    matches!(kind, Immediate32 | Immediate64 | Immediate32to64)
}

/// The contents of the registers, by their 64-bit names.
#[derive(Default)]
struct Registers(HashMap<Register, RegisterContents>);

impl Registers {
    fn get(&self, register: Register) -> Option<RegisterContents> {
        self.0.get(&register.full_register()).copied()
    }

    fn value(&self, register: Register) -> Option<Value> {
        self.get(register)?.value()
    }

    fn execute(&mut self, memory: &dyn Memory, instruction: &Instruction) {
        if instruction.op_count() == 0 || instruction.op0_kind() != OpKind::Register {
            return;
        }
        let target = instruction.op0_register();
        let contents = match instruction.mnemonic() {
            Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push => return,
            Mnemonic::Lea => self.address(instruction),
            Mnemonic::Mov => self.source(memory, instruction, target),
            Mnemonic::Add => self.sum(memory, instruction, target),
            _ => None,
        };
        match contents {
            Some(contents) => self.0.insert(target.full_register(), contents),
            None => self.0.remove(&target.full_register()),
        };
    }

    fn source(
        &self,
        memory: &dyn Memory,
        instruction: &Instruction,
        target: Register,
    ) -> Option<RegisterContents> {
        match instruction.op1_kind() {
            OpKind::Register => self.get(instruction.op1_register()),
            OpKind::Memory => match (self.address(instruction)?, target.size()) {
                // The first word at the thread pointer is its own address (ELF Handling for
                // Thread-Local Storage, variant II).
                (own @ RegisterContents::ThreadPointer(0), 8) => Some(own),
                (address, size) => address.load(memory, size),
            },
            kind => {
                is_immediate(kind).then(|| RegisterContents::constant(instruction.immediate(1)))
            }
        }
    }

    /// Adds an offset to the thread pointer; other sums are unknown.
    fn sum(
        &self,
        memory: &dyn Memory,
        instruction: &Instruction,
        target: Register,
    ) -> Option<RegisterContents> {
        let RegisterContents::ThreadPointer(base) = self.get(target)? else {
            return None;
        };
        let number = match instruction.op1_kind() {
            OpKind::Immediate8to64 => instruction.immediate(1),
            _ => self.source(memory, instruction, target)?.value()?.number,
        };
        let offset = base.wrapping_add(number.cast_signed());
        Some(RegisterContents::ThreadPointer(offset))
    }

    /// The address of the memory operand.
    fn address(&self, instruction: &Instruction) -> Option<RegisterContents> {
        let segment = instruction.memory_segment();
        if instruction.is_ip_rel_memory_operand() {
            let is_thread_local = matches!(segment, Register::FS | Register::GS);
            let address = instruction.ip_rel_memory_address();
            return (!is_thread_local).then(|| RegisterContents::constant(address));
        }
        if instruction.memory_index() != Register::None {
            return None;
        }
        let base = match instruction.memory_base() {
            Register::None => RegisterContents::constant(0),
            base => self.get(base)?,
        };
        match (base.plus(instruction.memory_displacement64())?, segment) {
            (RegisterContents::Value(address), Register::FS) => {
                let offset = address.number.cast_signed();
                Some(RegisterContents::ThreadPointer(offset))
            }
            (_, Register::FS | Register::GS) => None,
            (address, _) => Some(address),
        }
    }
}

#[cfg(test)]
mod tests;
