//! Decodes short exported functions of the interpreter to find the variables that they use, which are
//! not exported.
//!
//! A function is executed in a straight line, as if no conditional jump were taken, with values from
//! the code and from the process's memory, such as addresses in a global offset table.

mod aarch64;
mod x86_64;

use std::ops::Range;

use otelctx_reader::remote::{Machine, Memory, MemoryError, Target};

/// Maximum size of a function that is decoded, in bytes. These take less than 100.
const MAX_CODE: u64 = 512;

/// A value in a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) number: u64,
    /// The address that it was read from.
    pub(crate) read_from: Option<u64>,
}

/// The result of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Returned {
    /// A value that is the same for all threads.
    Value(Value),
    /// A thread-local variable, at this offset from the thread pointer.
    ThreadLocal(i64),
    /// The variable at this offset from the result of its only call: a thread-local variable in the
    /// local-dynamic model.
    AtCalled(i64),
}

/// The known contents of a register.
#[derive(Clone, Copy, Debug)]
enum RegisterContents {
    Value(Value),
    /// The address at this offset from the thread pointer.
    ThreadPointer(i64),
    /// The thread-local variable at this offset from the thread pointer.
    ThreadLocal(i64),
    /// The address at this offset from the result of the only call.
    Called(i64),
    /// The variable at this offset from the result of the only call.
    AtCalled(i64),
}

impl RegisterContents {
    fn constant(number: u64) -> Self {
        Self::Value(Value {
            number,
            read_from: None,
        })
    }

    fn value(self) -> Option<Value> {
        match self {
            Self::Value(value) => Some(value),
            _ => None,
        }
    }

    /// The sum of an address or number, and a number.
    fn plus(self, number: u64) -> Option<Self> {
        match self {
            Self::Value(base) => Some(Self::constant(base.number.wrapping_add(number))),
            Self::ThreadPointer(base) => {
                Some(Self::ThreadPointer(base.wrapping_add_unsigned(number)))
            }
            Self::Called(base) => Some(Self::Called(base.wrapping_add_unsigned(number))),
            Self::ThreadLocal(_) | Self::AtCalled(_) => None,
        }
    }

    /// The number of this size, in bytes, that is stored at this address.
    fn load(self, memory: &dyn Memory, size: usize) -> Option<Self> {
        let (number, address) = match (self, size) {
            (Self::Value(value), 8) => (memory.read_u64(value.number), value.number),
            (Self::Value(value), 4) => {
                let number = memory.read_u32(value.number).map(u64::from);
                (number, value.number)
            }
            (Self::ThreadPointer(offset), 8) => return Some(Self::ThreadLocal(offset)),
            (Self::Called(offset), 8) => return Some(Self::AtCalled(offset)),
            _ => return None,
        };
        Some(Self::Value(Value {
            number: number.ok()?,
            read_from: Some(address),
        }))
    }

    fn returned(self) -> Option<Returned> {
        match self {
            Self::Value(value) => Some(Returned::Value(value)),
            Self::ThreadLocal(offset) => Some(Returned::ThreadLocal(offset)),
            Self::AtCalled(offset) => Some(Returned::AtCalled(offset)),
            Self::ThreadPointer(_) | Self::Called(_) => None,
        }
    }
}

/// The facts about a decoded function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Getter {
    /// The first argument of the first function that it calls, or jumps to at its end.
    pub(crate) argument: Option<Value>,
    /// Its result, if it calls no function, or if the result is [`Returned::AtCalled`].
    pub(crate) result: Option<Returned>,
    /// The addresses and numbers that it uses.
    pub(crate) constants: Vec<u64>,
}

impl Getter {
    /// Decodes the function of `size` bytes at `address`.
    ///
    /// # Errors
    /// If its code cannot be read.
    pub(crate) fn read(target: &dyn Target, address: u64, size: u64) -> Result<Self, MemoryError> {
        let code = target.read_vec(address, size.min(MAX_CODE), MAX_CODE as usize)?;
        Ok(match target.machine() {
            Machine::X86_64 => x86_64::read(target, &code, address),
            Machine::Aarch64 => aarch64::read(target, &code, address),
            Machine::Other(_) => Self::default(),
        })
    }
}

/// The ways in which code continues at another address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    Call,
    Jump,
    /// A jump that depends on a condition.
    Condition,
}

/// A jump or call to an address that is in the instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Jump {
    pub(crate) leaving: Leaving,
    pub(crate) target: u64,
}

/// Instructions of a process or file.
#[derive(Debug)]
pub(crate) struct Code {
    machine: Machine,
    start: u64,
    bytes: Vec<u8>,
}

impl Code {
    /// # Errors
    /// If the code in the range cannot be read, or is larger than `max` bytes.
    pub(crate) fn read(
        target: &dyn Target,
        range: &Range<u64>,
        max: usize,
    ) -> Result<Self, MemoryError> {
        let size = range.end.saturating_sub(range.start);
        let bytes = target.read_vec(range.start, size, max)?;
        Ok(Self::new(target.machine(), range.start, bytes))
    }

    pub(crate) const fn new(machine: Machine, start: u64, bytes: Vec<u8>) -> Self {
        Self {
            machine,
            start,
            bytes,
        }
    }

    /// Its jumps and calls, inside of it or not.
    pub(crate) fn jumps(&self) -> Vec<Jump> {
        match self.machine {
            Machine::X86_64 => x86_64::jumps(&self.bytes, self.start),
            Machine::Aarch64 => aarch64::jumps(&self.bytes, self.start),
            Machine::Other(_) => Vec::new(),
        }
    }

    /// The addresses and numbers that it uses.
    pub(crate) fn constants(&self) -> Vec<u64> {
        match self.machine {
            Machine::X86_64 => x86_64::constants(&self.bytes, self.start),
            Machine::Aarch64 => aarch64::constants(&self.bytes, self.start),
            Machine::Other(_) => Vec::new(),
        }
    }
}
