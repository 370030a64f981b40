//! What shows that no function starts at an instruction.

use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::decoder;
use crate::instructions::{CodeWork, FunctionCode};

/// Number of instructions that are read. Compilers use a saved register within a few.
const MAX_INSTRUCTIONS: usize = 16;
/// Registers that a function saves before it uses them (System V ABI, AMD64 supplement, figure 3.4).
const CALLEE_SAVED: [Register; 6] = [
    Register::RBX,
    Register::RBP,
    Register::R12,
    Register::R13,
    Register::R14,
    Register::R15,
];
/// Registers of arguments: a function keeps no register of its caller there.
const ARGUMENTS: [Register; 4] = [Register::RDI, Register::RSI, Register::RDX, Register::RCX];

/// Returns whether the straight code at an address uses registers that a function must save before, or removes more of the
/// stack than it has added. The outer `None` if there is no work left.
pub(super) fn is_inside_function(
    code: &FunctionCode<'_>,
    at: u64,
    work: &mut CodeWork,
) -> Option<bool> {
    let Some(mut decoder) = decoder(code, at) else {
        return Some(false);
    };
    let mut straight = Straight::default();
    for _ in 0..MAX_INSTRUCTIONS {
        if !decoder.can_decode() {
            break;
        }
        work.take()?;
        let instruction = decoder.decode();
        if let Some(is_inside) = straight.add(&instruction) {
            return Some(is_inside);
        }
    }
    Some(false)
}

/// Straight code that may be the start of a function.
#[derive(Default)]
struct Straight {
    /// Which of [`CALLEE_SAVED`] have been saved.
    saved: [bool; CALLEE_SAVED.len()],
    /// True if it has added to the stack.
    has_frame: bool,
}

impl Straight {
    /// Reads the next instruction. `Some` if it decides.
    fn add(&mut self, instruction: &Instruction) -> Option<bool> {
        if instruction.is_invalid() || instruction.mnemonic() == Mnemonic::Endbr64 {
            return Some(false);
        }
        let is_cleared = instruction.mnemonic() == Mnemonic::Xor
            && instruction.op0_register() == instruction.op1_register()
            && instruction.op0_register().full_register() == Register::RBP;
        // The first function of a program clears it.
        if is_cleared {
            return Some(false);
        }
        let addresses = [instruction.memory_base(), instruction.memory_index()];
        if addresses.iter().any(|it| self.is_callers(*it)) {
            return Some(true);
        }
        if let Some(saved) = saved_register(instruction).and_then(callee_saved) {
            self.saved[saved] = true;
        } else if self.names_callers_register(instruction) {
            return Some(true);
        }
        match instruction.flow_control() {
            FlowControl::Next | FlowControl::ConditionalBranch => {}
            _ => return Some(false),
        }
        self.is_unbalanced(instruction).then_some(true)
    }

    /// Returns whether a register has its caller's value.
    fn is_callers(&self, register: Register) -> bool {
        let saved = callee_saved(register.full_register());
        saved.is_some_and(|index| !self.saved[index])
    }

    fn names_callers_register(&self, instruction: &Instruction) -> bool {
        let mut operands = 0..instruction.op_count();
        operands.any(|index| {
            instruction.op_kind(index) == OpKind::Register
                && self.is_callers(instruction.op_register(index))
        })
    }

    /// Returns whether an instruction removes of the stack what this code has not added, or overwrites the return address.
    fn is_unbalanced(&mut self, instruction: &Instruction) -> bool {
        if self.has_frame {
            return false;
        }
        let writes_stack_pointer = instruction.op0_register() == Register::RSP;
        match instruction.mnemonic() {
            Mnemonic::Pop | Mnemonic::Leave => true,
            Mnemonic::Add => writes_stack_pointer,
            Mnemonic::Mov => {
                instruction.op0_kind() == OpKind::Memory
                    && instruction.memory_base() == Register::RSP
                    && instruction.memory_index() == Register::None
                    && instruction.memory_displacement64() == 0
            }
            Mnemonic::Push => {
                self.has_frame = true;
                false
            }
            _ => {
                self.has_frame |= writes_stack_pointer;
                false
            }
        }
    }
}

/// The register that an instruction saves, if it may: to the stack or other memory, or to a register of no argument.
fn saved_register(instruction: &Instruction) -> Option<Register> {
    match instruction.mnemonic() {
        Mnemonic::Push => Some(instruction.op0_register()),
        Mnemonic::Mov if instruction.op0_kind() == OpKind::Memory => {
            Some(instruction.op1_register())
        }
        Mnemonic::Mov if !ARGUMENTS.contains(&instruction.op0_register()) => {
            Some(instruction.op1_register())
        }
        _ => None,
    }
}

/// The place of a whole register in [`CALLEE_SAVED`].
fn callee_saved(register: Register) -> Option<usize> {
    CALLEE_SAVED.iter().position(|it| *it == register)
}
