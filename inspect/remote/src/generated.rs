//! Stacks of code that a runtime generates while its program runs: no file has unwind tables for it.

use std::fmt;
use std::ops::Range;

use crate::memory::MemoryError;

/// Number of registers that are kept of a frame, by their DWARF numbers.
pub const REGISTERS: usize = 33;

/// The registers of a frame, as far as they are known, by their DWARF numbers.
#[derive(Debug, Clone, Copy)]
pub struct FrameRegisters {
    /// The address of the instruction that runs next. In a caller that is the return address.
    pub instruction_pointer: u64,
    values: [u64; REGISTERS],
    known: u64,
}

impl FrameRegisters {
    /// A frame of which only the address of the instruction is known.
    pub fn new(instruction_pointer: u64) -> Self {
        Self {
            instruction_pointer,
            values: [0; REGISTERS],
            known: 0,
        }
    }

    /// Sets a register. Numbers above 32 are ignored.
    pub fn set(&mut self, register: u8, value: u64) {
        if let Some(place) = self.values.get_mut(usize::from(register)) {
            *place = value;
            self.known |= 1 << register;
        }
    }

    /// The value of a register, if it is known.
    pub fn get(&self, register: u8) -> Option<u64> {
        let value = self.values.get(usize::from(register))?;
        (self.known & 1 << register != 0).then_some(*value)
    }
}

/// The walker of a runtime's generated code in one process. Its ranges take precedence over unwind tables.
///
/// What it reads is untrusted: each step reads a bounded amount of memory.
pub trait GeneratedCode: fmt::Debug + Send + Sync {
    /// Returns the addresses of the code that it walks, in ascending order: at most a few ranges, which may contain memory
    /// that is not mapped.
    fn ranges(&self) -> Vec<Range<u64>>;

    /// Returns whether frame pointers lead from its frames to their callers, so that stacks are whole also where its steps are
    /// not taken.
    fn has_frame_pointers(&self) -> bool {
        false
    }

    /// Returns whether it walks the code at this address.
    fn covers(&self, address: u64) -> bool;

    /// Finds the caller of a frame in its code. `is_innermost` is true for a frame that was interrupted, at any
    /// instruction, by which its thread is seen, or by a signal: then all registers may be known. Of other frames only
    /// those are known that the walk has found: the stack pointer, and usually the frame pointer.
    ///
    /// `memory` may be the process itself, or a copy of a stack beside it.
    ///
    /// # Errors
    /// If the caller is unknown: the stack ends there.
    fn step(
        &self,
        memory: &dyn crate::Memory,
        frame: &FrameRegisters,
        is_innermost: bool,
    ) -> Result<GeneratedFrame, GeneratedEnd>;
}

/// A frame in generated code.
#[derive(Debug, Clone, Copy)]
pub struct GeneratedFrame {
    /// The registers of its caller.
    pub caller: FrameRegisters,
    /// What its runtime finds its functions by. `None` for code that is part of a call, such as an adapter: its caller
    /// takes its place.
    pub record: Option<FrameRecord>,
}

/// What a runtime finds the functions of a frame by, in the runtime's own layout: it identifies them, also when
/// something else has taken the place of their code by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct FrameRecord(pub [u64; 4]);

/// Why the caller of a frame in generated code is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GeneratedEnd {
    /// Memory of the frame or of its runtime cannot be read.
    #[error("{0}")]
    Unreadable(MemoryError),
    /// The frame needs a register whose value is unknown.
    #[error("a register that the generated code needs is not known")]
    UnknownRegister,
    /// The runtime's data, or the code, is not as expected.
    #[error("generated code: {0}")]
    Unexpected(&'static str),
}

impl From<MemoryError> for GeneratedEnd {
    fn from(error: MemoryError) -> Self {
        Self::Unreadable(error)
    }
}
