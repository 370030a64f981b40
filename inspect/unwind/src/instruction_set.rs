//! What paths through a function need to know of an architecture's instructions.

use crate::instructions::{CodeWork, FunctionCode};
use crate::rule::Rule;

/// The instructions of an architecture.
pub(crate) trait InstructionSet {
    type Instruction: Instruction;
    type State: State<Instruction = Self::Instruction>;
    /// The instructions of straight code, up to its end.
    type Decoder<'a>: Iterator<Item = Self::Instruction>;

    /// Decodes the code from an address on; `None` if it is outside of the function.
    fn decode<'a>(code: &FunctionCode<'a>, start: u64) -> Option<Self::Decoder<'a>>;

    /// Returns whether a function without padding before it may start at an address behind a call, so that the callee may
    /// never return.
    fn may_start_behind_call(code: &FunctionCode<'_>, at: u64) -> bool;

    /// Returns whether code uses what only a function's earlier code can have set up, so that no function starts there. The
    /// outer `None` if there is no work left.
    fn is_inside_function(code: &FunctionCode<'_>, at: u64, work: &mut CodeWork) -> Option<bool>;

    /// The end of the padding at an address, if it has any. The outer `None` if there is no work left.
    fn padding_end(code: &FunctionCode<'_>, at: u64, work: &mut CodeWork) -> Option<Option<u64>>;

    /// See [`CodeReader::skip_padding`](crate::instructions::CodeReader::skip_padding).
    fn skip_padding(code: &FunctionCode<'_>, start: u64, work: &mut CodeWork) -> u64;

    /// Returns whether an indirect jump goes to what the instruction before has computed: the sum of an address and an
    /// offset in a table; or to a pointer in a table. Others, such as calls of virtual functions, leave the function.
    fn is_table_jump(jump: &Self::Instruction, before: Option<&Self::Instruction>) -> bool;
}

/// A decoded instruction.
pub(crate) trait Instruction: Copy {
    /// The address behind it.
    fn next(&self) -> u64;

    /// False if no processor has it.
    fn is_valid(&self) -> bool;

    fn flow(&self) -> Flow;

    /// Returns whether it calls a function. System calls are no such calls.
    fn is_call(&self) -> bool;

    /// The function that it calls, if that is in the instruction.
    fn called(&self) -> Option<u64>;

    /// The address that it computes from its own.
    fn address(&self) -> Option<u64>;
}

/// Where the next instruction is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Behind this one, or nowhere: [`State::advance`] tells.
    Next,
    /// Behind this one, or at an address.
    Conditional(u64),
    Jump(u64),
    IndirectJump,
    Return,
}

/// The known values of registers and of the stack before an instruction.
pub(crate) trait State: Clone {
    type Instruction;
    type Place: PartialEq;
    /// What may be allocated once for many instructions.
    type Scratch: Default;

    fn at_start() -> Self;

    /// The stack pointer.
    fn stack(&self) -> Option<Self::Place>;

    /// Returns whether the stack pointer is that of the start, and the return address where it was.
    fn is_stack_of_start(&self) -> bool;

    /// Returns whether an instruction that returns leads to the caller, with the stack as the function found it.
    fn returns(&self, instruction: &Self::Instruction) -> bool;

    /// Returns whether the stack may be as the function found it.
    fn is_balanced(&self) -> bool;

    /// Returns whether each path to here has saved a register of the caller, and restored it.
    fn has_restored(&self) -> bool;

    /// Returns whether an instruction is the first one that saves a register of the caller.
    fn is_first_save(&self, instruction: &Self::Instruction) -> bool;

    /// The last address behind a call and padding that each path to here passes: if the callee never returns, the code may
    /// be another function's. The lowest of several.
    fn doubt(&self) -> Option<u64>;

    fn set_doubt(&mut self, doubt: u64);

    /// Forgets what the other state does not agree on. Returns whether anything was forgotten.
    fn meet(&mut self, other: &Self) -> bool;

    /// Returns whether what a call calls returns with other values of the stack pointer and the frame pointer than it was called
    /// with.
    fn removes_record(&self, _call: &Self::Instruction) -> bool {
        false
    }

    /// Goes to the next instruction. Returns whether there is one.
    fn advance(&mut self, instruction: &Self::Instruction, scratch: &mut Self::Scratch) -> bool;

    fn rule(&self) -> Rule;

    /// Returns whether the stack is certain to be as the function found it.
    fn is_at_start(&self) -> bool {
        self.is_stack_of_start() && self.doubt().is_none()
    }

    /// Returns whether it is, and a register of the caller was restored. Parts of a function that compilers move elsewhere
    /// (`.cold`) jump back with the stack as it is, but restore nothing before.
    fn has_removed_frame(&self) -> bool {
        self.is_at_start() && self.has_restored()
    }
}
