//! The registers of one frame.

use otelctx_remote::{CallRegisters, FrameRegisters, Machine};

use crate::arch::Architecture;

/// Registers of a frame, as far as they are known, by their DWARF numbers.
#[derive(Debug, Clone, Copy)]
pub struct Registers {
    pub(crate) architecture: &'static Architecture,
    pub(crate) frame: FrameRegisters,
}

impl Registers {
    /// The known registers of a sleeping thread. `None` if no stacks are unwound on this machine.
    pub fn new(machine: Machine, instruction_pointer: u64, stack_pointer: u64) -> Option<Self> {
        let architecture = Architecture::of(machine)?;
        let mut registers = Registers {
            architecture,
            frame: FrameRegisters::new(instruction_pointer),
        };
        registers.set(architecture.stack_pointer, stack_pointer);
        Some(registers)
    }

    /// All registers of a stopped thread. `None` if no stacks are unwound on this machine.
    pub fn of_stopped(stopped: &otelctx_remote::stop::Registers) -> Option<Self> {
        let (pointer, stack) = (stopped.instruction_pointer(), stopped.stack_pointer());
        let mut registers = Self::new(Machine::own(), pointer, stack)?;
        for (number, value) in stopped.general().into_iter().enumerate() {
            registers.set(number as u8, value);
        }
        Some(registers)
    }

    /// The registers in a core file. `None` if no stacks are unwound on this machine.
    pub fn of_call(machine: Machine, call: &CallRegisters) -> Option<Self> {
        let mut registers = Self::new(machine, call.instruction_pointer, call.stack_pointer)?;
        registers.set(registers.architecture.frame_pointer, call.frame_pointer);
        if let (Some(register), Some(value)) = (registers.architecture.link, call.link) {
            registers.set(register, value);
        }
        Some(registers)
    }

    /// Sets a register by its DWARF number. Numbers above 32 are ignored.
    pub fn set(&mut self, register: u8, value: u64) {
        self.frame.set(register, value);
    }

    /// The value of a register by its DWARF number, if it is known.
    pub fn get(&self, register: u8) -> Option<u64> {
        self.frame.get(register)
    }

    /// The address of the instruction.
    pub fn instruction_pointer(&self) -> u64 {
        self.frame.instruction_pointer
    }

    /// The stack pointer.
    pub fn stack_pointer(&self) -> u64 {
        let value = self.get(self.architecture.stack_pointer);
        value.unwrap_or_default()
    }

    /// The frame pointer. `None` if it is not known.
    pub fn frame_pointer(&self) -> Option<u64> {
        self.get(self.architecture.frame_pointer)
    }

    /// The registers of the caller, of which no others are known.
    pub(crate) fn caller(&self, return_address: u64, cfa: u64, frame_pointer: Option<u64>) -> Self {
        let mut registers = Registers {
            architecture: self.architecture,
            frame: FrameRegisters::new(return_address & self.architecture.address_mask),
        };
        registers.set(self.architecture.stack_pointer, cfa);
        if let Some(value) = frame_pointer {
            registers.set(self.architecture.frame_pointer, value);
        }
        registers
    }
}
