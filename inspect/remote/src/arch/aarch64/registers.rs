//! A stopped thread's registers.

use nix::errno::Errno;
use nix::libc;

use crate::arch::read_register_set;

/// The registers that a thread stopped with.
#[derive(Debug, Clone, Copy)]
pub struct Registers {
    general: libc::user_regs_struct,
    thread_pointer: u64,
}

impl Default for Registers {
    fn default() -> Self {
        // SAFETY: all fields of user_regs_struct are integers, for which zero is valid.
        Registers {
            general: unsafe { std::mem::zeroed() },
            thread_pointer: 0,
        }
    }
}

impl Registers {
    /// Reads the registers of a stopped tracee. EINVAL for 32-bit code.
    pub(crate) fn read(tid: i32) -> Result<Self, Errno> {
        /// Register set of TPIDR_EL0 (<linux/elf.h>).
        const NT_ARM_TLS: usize = 0x401;
        let mut registers = Registers::default();
        // SAFETY: `user_regs_struct` and u64 consist of integers.
        unsafe {
            read_register_set(tid, libc::NT_PRSTATUS as usize, &mut registers.general)?;
            read_register_set(tid, NT_ARM_TLS, &mut registers.thread_pointer)?;
        }
        Ok(registers)
    }

    /// TPIDR_EL0.
    pub fn thread_pointer(&self) -> u64 {
        self.thread_pointer
    }

    /// pc.
    pub fn instruction_pointer(&self) -> u64 {
        self.general.pc
    }

    /// sp.
    pub fn stack_pointer(&self) -> u64 {
        self.general.sp
    }

    /// x29.
    pub fn frame_pointer(&self) -> u64 {
        self.general.regs[29]
    }

    /// The general registers in the order of their DWARF numbers, from 0 on: x0 to x30, sp.
    pub fn general(&self) -> [u64; 32] {
        let mut all = [0; 32];
        all[..31].copy_from_slice(&self.general.regs);
        all[31] = self.general.sp;
        all
    }

    /// Always false: a call cannot be restarted from outside. The kernel shows its first argument
    /// (`orig_x0`), which the result has overwritten, neither to tracers nor in
    /// `/proc/PID/task/TID/syscall` (arch/arm64/kernel/signal.c, `do_signal`). A program counter
    /// set back would restart it even after a signal handler.
    pub(crate) fn is_interrupted_call(&self) -> bool {
        false
    }

    /// Never called, see [`Self::is_interrupted_call`].
    pub(crate) fn restart_call(&self, _tid: i32) -> Result<(), Errno> {
        Ok(())
    }
}
