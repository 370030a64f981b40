//! The end of the code at an entry point.

use std::collections::BTreeMap;

use otelctx_remote::a64::Instruction;

use super::{A64, padding_end};
use crate::instruction_set::{Instruction as _, InstructionSet};
use crate::instructions::{CodeWork, FunctionCode};

/// The register with the number of a system call.
const NUMBER: u8 = 8;
/// The numbers of `exit` and `exit_group` (include/uapi/asm-generic/unistd.h), which do not return.
const EXITS: [u64; 2] = [93, 94];

/// Finds where the code ends. See [`CodeReader::extent`](crate::instructions::CodeReader::extent).
pub(super) fn extent(code: &FunctionCode<'_>, work: &mut CodeWork) -> u64 {
    let mut extent = Extent {
        code,
        reached: BTreeMap::new(),
        pending: vec![code.start],
        first_called: code.end,
        work,
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
}

impl Extent<'_, '_> {
    /// Follows a straight run of instructions. `None` if there is no work left.
    fn run(&mut self, start: u64) -> Option<()> {
        self.reached.insert(start, start);
        // The number of the next system call.
        let mut number = None;
        let mut is_behind_call = false;
        for decoded in A64::decode(self.code, start)? {
            let at = decoded.at;
            if at != start && self.reached.contains_key(&at) || !decoded.is_valid() {
                break;
            }
            self.work.take()?;
            self.reached.insert(start, decoded.next());
            match decoded.instruction {
                Instruction::Number {
                    to: NUMBER,
                    number: value,
                } => number = Some(value),
                Instruction::SystemCall if number.is_some_and(|it| EXITS.contains(&it)) => break,
                _ => {}
            }
            if !self.goes_on(&decoded, is_behind_call)? {
                break;
            }
            is_behind_call = decoded.is_call();
        }
        Some(())
    }

    /// Returns whether the next instruction is reached from one. `None` if there is no work left.
    fn goes_on(&mut self, decoded: &super::Decoded, is_behind_call: bool) -> Option<bool> {
        Some(match decoded.instruction {
            Instruction::ConditionalJump { target } => {
                self.jump(target);
                true
            }
            Instruction::Jump { target } => {
                self.jump(target);
                false
            }
            Instruction::Call { target } => {
                if target > self.code.start {
                    self.first_called = self.first_called.min(target);
                }
                // The call of `abort` in glibc (sysdeps/aarch64/start.S), which another function may follow.
                !is_behind_call && padding_end(self.code, decoded.next(), self.work)?.is_none()
            }
            Instruction::IndirectCall { .. } => {
                !is_behind_call && padding_end(self.code, decoded.next(), self.work)?.is_none()
            }
            Instruction::IndirectJump { .. } | Instruction::Return { .. } | Instruction::Trap => {
                false
            }
            _ => true,
        })
    }

    fn jump(&mut self, target: u64) {
        if self.code.contains(target) {
            self.pending.push(target);
        }
    }
}
