//! Short functions of the interpreter, decoded to find the variables that they use. They are
//! exported where the variables are not.
//!
//! A function is followed in a straight line, as if no conditional jump were taken, with the values
//! that are known from the code and from the process's memory, such as addresses in a global offset
//! table. x86-64 only.

use std::collections::HashMap;
use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use otelctx_reader::remote::{Memory, MemoryError};

/// Maximum size of a function that is decoded, in bytes. These take less than 100.
const MAX_CODE: u64 = 512;

/// A value in a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) number: u64,
    /// The address that it was read from.
    pub(crate) read_from: Option<u64>,
}

/// What a function returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Returned {
    /// A value that is the same for all threads.
    Value(Value),
    /// A thread-local variable, at this offset from the thread pointer.
    ThreadLocal(i64),
}

/// What a function does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Getter {
    /// The first argument of the first function that it calls, or jumps to at its end.
    pub(crate) argument: Option<Value>,
    /// What it returns, if it calls none.
    pub(crate) result: Option<Returned>,
    /// The addresses and numbers that it uses.
    pub(crate) constants: Vec<u64>,
}

impl Getter {
    /// Decodes the function of `size` bytes at `address`.
    ///
    /// # Errors
    /// If its code cannot be read.
    pub(crate) fn read(memory: &dyn Memory, address: u64, size: u64) -> Result<Self, MemoryError> {
        let code = memory.read_vec(address, size.min(MAX_CODE), MAX_CODE as usize)?;
        let mut getter = Self::default();
        let mut registers = Registers::default();
        let (mut has_called, mut thread_local) = (false, None);
        for instruction in Decoder::with_ip(64, &code, address, DecoderOptions::NONE) {
            getter.constants.extend(constants(&instruction));
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
                    return Ok(getter);
                }
                FlowControl::Return => {
                    if !has_called {
                        let value = registers.get(Register::RAX).map(Returned::Value);
                        getter.result = value.or(thread_local.map(Returned::ThreadLocal));
                    }
                    return Ok(getter);
                }
                _ => {
                    if instruction.op0_register().full_register() == Register::RAX {
                        thread_local = thread_local_offset(&instruction);
                    }
                    registers.execute(memory, &instruction);
                }
            }
        }
        Ok(getter)
    }
}

/// Where the code in a range jumps to outside of it, and the addresses and numbers that it uses.
///
/// # Errors
/// If it cannot be read, or is larger than 64 KiB.
pub(crate) fn references(
    memory: &dyn Memory,
    code: &Range<u64>,
) -> Result<(Vec<u64>, Vec<u64>), MemoryError> {
    const MAX_SIZE: usize = 64 << 10;
    let bytes = memory.read_vec(code.start, code.end.saturating_sub(code.start), MAX_SIZE)?;
    let (mut jumps, mut used) = (Vec::new(), Vec::new());
    for instruction in Decoder::with_ip(64, &bytes, code.start, DecoderOptions::NONE) {
        used.extend(constants(&instruction));
        let is_jump = matches!(
            instruction.flow_control(),
            FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch
        );
        if is_jump && !code.contains(&instruction.near_branch_target()) {
            jumps.push(instruction.near_branch_target());
        }
    }
    Ok((jumps, used))
}

/// Addresses and numbers in an instruction.
fn constants(instruction: &Instruction) -> impl Iterator<Item = u64> {
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
mod tests {
    use otelctx_reader::remote::memory::Image;

    use super::*;

    const CODE: u64 = 0x1000;
    const TABLE: u64 = 0x9000;

    fn getter(code: &[u8]) -> Getter {
        let mut image = Image::new();
        image
            .map(CODE, code)
            .map_u64(TABLE, &[0x5000])
            .map_u64(0x5248, &[7, 9]);
        Getter::read(&image, CODE, code.len() as u64).unwrap()
    }

    /// Instructions of `PyGILState_GetThisThreadState` of several versions, with other displacements.
    #[test]
    fn the_argument_of_the_first_call_is_found() {
        let argument = |number, read_from| Some(Value { number, read_from });
        // mov rax,[rip+…]; cmp qword [rax+0x240],0; je; lea rdi,[rax+0x248]; jmp
        let through_table = b"\x48\x8b\x05\xf9\x7f\0\0\x48\x83\xb8\x40\x02\0\0\0\x74\x0f\
            \x48\x8d\xb8\x48\x02\0\0\xe9\0\0\0\0";
        assert_eq!(getter(through_table).argument, argument(0x5248, None));
        // The same, through rbx, to two functions.
        let saved = b"\x48\x8b\x05\xf9\x7f\0\0\x53\x48\x8d\x98\x48\x02\0\0\x48\x89\xdf\
            \xe8\0\0\0\0\x85\xc0\x74\0\x48\x89\xc7\x5b\xe9\0\0\0\0";
        assert_eq!(getter(saved).argument, argument(0x5248, None));
        // mov edi,[rip+…]; jmp: the key itself.
        let key = b"\x8b\x3d\x42\x42\0\0\xe9\0\0\0\0";
        assert_eq!(getter(key).argument, argument(7, Some(0x5248)));
        // An absolute address, and an unknown one.
        let absolute = b"\x8b\x3c\x25\x48\x52\0\0\xe9\0\0\0\0";
        assert_eq!(getter(absolute).argument, argument(7, Some(0x5248)));
        assert_eq!(getter(b"\x48\x8b\x3e\xe9\0\0\0\0").argument, None);
        // mov edi,fs:[…]
        assert_eq!(
            getter(b"\x64\x8b\x3c\x25\x48\x52\0\0\xe9\0\0\0\0").argument,
            None
        );
    }

    #[test]
    fn the_result_and_constants_are_found() {
        // mov rax,[rip+…]; ret
        let head = getter(b"\x48\x8b\x05\x41\x42\0\0\xc3");
        let result = Value {
            number: 7,
            read_from: Some(0x5248),
        };
        assert_eq!(head.result, Some(Returned::Value(result)));
        // endbr64; mov rax,fs:[-0x28]; ret
        let local = getter(b"\xf3\x0f\x1e\xfa\x64\x48\x8b\x04\x25\xd8\xff\xff\xff\xc3");
        assert_eq!(local.result, Some(Returned::ThreadLocal(-0x28)));
        assert_eq!(head.constants, [0x5248]);
        // lea rdx,[rip+1]; mov esi,250; a byte that is no instruction
        let others = getter(b"\x48\x8d\x15\x01\0\0\0\xbe\xfa\0\0\0\x06");
        assert_eq!(others.constants, [0x1008, 250]);
        assert_eq!(others.result, None);
    }
}
