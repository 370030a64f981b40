//! Instructions of x86-64.

use std::collections::HashMap;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use otelctx_reader::remote::Memory;

use super::{Getter, Jump, Leaving, Returned, Value};

fn all(code: &[u8], address: u64) -> Decoder<'_> {
    Decoder::with_ip(64, code, address, DecoderOptions::NONE)
}

/// See [`Getter::read`].
pub(super) fn read(memory: &dyn Memory, code: &[u8], address: u64) -> Getter {
    let mut getter = Getter::default();
    let mut registers = Registers::default();
    let (mut has_called, mut thread_local) = (false, None);
    for instruction in all(code, address) {
        getter.constants.extend(of_instruction(&instruction));
        match instruction.flow_control() {
            FlowControl::Call | FlowControl::IndirectCall => {
                if !has_called {
                    getter.argument = registers.get(Register::RDI);
                }
                has_called = true;
                registers = Registers::default();
            }
            FlowControl::UnconditionalBranch | FlowControl::IndirectBranch => {
                if !has_called {
                    getter.argument = registers.get(Register::RDI);
                }
                return getter;
            }
            FlowControl::Return => {
                if !has_called {
                    let value = registers.get(Register::RAX).map(Returned::Value);
                    getter.result = value.or(thread_local.map(Returned::ThreadLocal));
                }
                return getter;
            }
            _ => {
                if instruction.op0_register().full_register() == Register::RAX {
                    thread_local = thread_local_offset(&instruction);
                }
                registers.execute(memory, &instruction);
            }
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
    let is_number = |kind| {
        matches!(
            kind,
            OpKind::Immediate32 | OpKind::Immediate64 | OpKind::Immediate32to64
        )
    };
    let number = (instruction.op_count() == 2 && is_number(instruction.op1_kind()))
        .then(|| instruction.immediate(1));
    memory.into_iter().chain(number)
}

/// The offset of the thread-local variable that is read: `mov %fs:-0x28,%rax`.
fn thread_local_offset(instruction: &Instruction) -> Option<i64> {
    let is_read = instruction.mnemonic() == Mnemonic::Mov
        && instruction.op1_kind() == OpKind::Memory
        && instruction.memory_segment() == Register::FS
        && instruction.memory_base() == Register::None
        && instruction.memory_index() == Register::None;
    is_read.then(|| instruction.memory_displacement64().cast_signed())
}

/// The registers whose values are known, by their 64-bit names.
#[derive(Default)]
struct Registers(HashMap<Register, Value>);

impl Registers {
    fn get(&self, register: Register) -> Option<Value> {
        self.0.get(&register.full_register()).copied()
    }

    fn execute(&mut self, memory: &dyn Memory, instruction: &Instruction) {
        if instruction.op_count() == 0 || instruction.op0_kind() != OpKind::Register {
            return;
        }
        let target = instruction.op0_register();
        let value = match instruction.mnemonic() {
            Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push => return,
            Mnemonic::Lea => self.address(instruction).map(|number| Value {
                number,
                read_from: None,
            }),
            Mnemonic::Mov => self.source(memory, instruction, target),
            _ => None,
        };
        match value {
            Some(value) => self.0.insert(target.full_register(), value),
            None => self.0.remove(&target.full_register()),
        };
    }

    fn source(
        &self,
        memory: &dyn Memory,
        instruction: &Instruction,
        target: Register,
    ) -> Option<Value> {
        match instruction.op1_kind() {
            OpKind::Register => self.get(instruction.op1_register()),
            OpKind::Memory => {
                let address = self.address(instruction)?;
                let number = match target.size() {
                    8 => memory.read_u64(address),
                    4 => memory.read_u32(address).map(u64::from),
                    _ => return None,
                };
                Some(Value {
                    number: number.ok()?,
                    read_from: Some(address),
                })
            }
            OpKind::Immediate32 | OpKind::Immediate64 | OpKind::Immediate32to64 => Some(Value {
                number: instruction.immediate(1),
                read_from: None,
            }),
            _ => None,
        }
    }

    /// The address of the memory operand. `None` for thread-local variables.
    fn address(&self, instruction: &Instruction) -> Option<u64> {
        if matches!(instruction.memory_segment(), Register::FS | Register::GS) {
            return None;
        }
        if instruction.is_ip_rel_memory_operand() {
            return Some(instruction.ip_rel_memory_address());
        }
        if instruction.memory_index() != Register::None {
            return None;
        }
        let displacement = instruction.memory_displacement64();
        match instruction.memory_base() {
            Register::None => Some(displacement),
            base => Some(self.get(base)?.number.wrapping_add(displacement)),
        }
    }
}

#[cfg(test)]
mod tests;
