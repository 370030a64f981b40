//! The end of the code at an entry point.

use std::collections::BTreeMap;

use iced_x86::{
    FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};

use super::{decoder, padding_end};
use crate::instruction_set::Instruction as _;
use crate::instructions::{CodeWork, FunctionCode};

/// The numbers of `exit` and `exit_group` (arch/x86/entry/syscalls/syscall_64.tbl), which do not return.
const EXITS: [u64; 2] = [60, 231];

/// Finds where the code ends. See [`CodeReader::extent`](crate::instructions::CodeReader::extent).
pub(super) fn extent(code: &FunctionCode<'_>, work: &mut CodeWork) -> u64 {
    let mut extent = Extent {
        code,
        reached: BTreeMap::new(),
        pending: vec![code.start],
        first_called: code.end,
        work,
        info: InstructionInfoFactory::new(),
    };
    while let Some(start) = extent.pending.pop() {
        // Where the work is spent, only a part was reached.
        if !extent.reached.contains_key(&start) && extent.run(start).is_none() {
            break;
        }
    }
    let mut end = code.start;
    for (start, behind) in extent.reached {
        if start > end {
            break;
        }
        end = end.max(behind);
    }
    end.min(extent.first_called) - code.start
}

struct Extent<'a, 'w> {
    code: &'a FunctionCode<'a>,
    /// Starts and ends of straight runs of instructions.
    reached: BTreeMap<u64, u64>,
    pending: Vec<u64>,
    /// The first function behind the start that the code calls.
    first_called: u64,
    work: &'w mut CodeWork,
    info: InstructionInfoFactory,
}

impl Extent<'_, '_> {
    /// Follows a straight run of instructions. `None` if there is no work left.
    fn run(&mut self, start: u64) -> Option<()> {
        let mut decoder = decoder(self.code, start)?;
        // The number of the next system call, and the last constant on the stack.
        let (mut number, mut pushed) = (None, None);
        self.reached.insert(start, start);
        loop {
            let at = decoder.ip();
            if at != start && self.reached.contains_key(&at) || !decoder.can_decode() {
                break;
            }
            self.work.take()?;
            let instruction = decoder.decode();
            if instruction.is_invalid() {
                break;
            }
            self.reached.insert(start, decoder.ip());
            number = self.number(&instruction, number, pushed);
            pushed = match instruction.mnemonic() {
                Mnemonic::Push => constant(&instruction, 0),
                _ => None,
            };
            if !self.goes_on(&instruction, number)? {
                break;
            }
        }
        Some(())
    }

    /// Returns whether the next instruction is reached from one. `None` if there is no work left.
    fn goes_on(&mut self, instruction: &Instruction, number: Option<u64>) -> Option<bool> {
        let target = instruction.near_branch_target();
        let behind = instruction.next_ip();
        Some(match instruction.flow_control() {
            FlowControl::Next => instruction.mnemonic() != Mnemonic::Hlt,
            FlowControl::ConditionalBranch => {
                self.jump(target);
                true
            }
            FlowControl::UnconditionalBranch => {
                self.jump(target);
                false
            }
            FlowControl::Call | FlowControl::IndirectCall if instruction.is_call() => {
                let is_function = instruction.is_call_near() && !self.finds_address(instruction);
                if is_function && target > self.code.start {
                    self.first_called = self.first_called.min(target);
                }
                padding_end(self.code, behind, self.work)?.is_none()
            }
            FlowControl::Call => number.is_none_or(|number| !EXITS.contains(&number)),
            FlowControl::Interrupt => instruction.mnemonic() != Mnemonic::Int3,
            _ => false,
        })
    }

    /// Returns whether a call only finds the address behind it, which the next instruction pops.
    fn finds_address(&self, call: &Instruction) -> bool {
        let next = call.next_ip();
        let behind = self.code.from(next).unwrap_or_default();
        call.near_branch_target() == next
            && matches!(behind, [0x58..=0x5f, ..] | [0x41, 0x58..=0x5f, ..])
    }

    fn jump(&mut self, target: u64) {
        if self.code.contains(target) {
            self.pending.push(target);
        }
    }

    /// The constant in rax behind an instruction.
    fn number(
        &mut self,
        instruction: &Instruction,
        before: Option<u64>,
        pushed: Option<u64>,
    ) -> Option<u64> {
        let writes_rax = instruction.op0_register().full_register() == Register::RAX;
        match instruction.mnemonic() {
            Mnemonic::Mov if writes_rax => constant(instruction, 1),
            Mnemonic::Pop if writes_rax => pushed,
            // It is asked for before the kernel changes it.
            Mnemonic::Syscall => before,
            _ => {
                let info = self.info.info(instruction);
                let is_written = info.used_registers().iter().any(|used| {
                    let is_read = matches!(used.access(), OpAccess::Read | OpAccess::CondRead);
                    used.register().full_register() == Register::RAX && !is_read
                });
                before.filter(|_| !is_written && !instruction.is_call())
            }
        }
    }
}

/// A constant operand.
fn constant(instruction: &Instruction, operand: u32) -> Option<u64> {
    let is_constant = matches!(
        instruction.op_kind(operand),
        OpKind::Immediate8
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32
            | OpKind::Immediate32to64
            | OpKind::Immediate64
    );
    is_constant.then(|| instruction.immediate(operand))
}
