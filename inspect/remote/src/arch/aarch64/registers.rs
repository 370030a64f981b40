//! A stopped thread's registers.

use std::mem::size_of;

use nix::errno::Errno;
use nix::libc::{self, c_void};

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
    /// Reads those of a stopped tracee. EINVAL for 32-bit code.
    pub(crate) fn read(tid: i32) -> Result<Self, Errno> {
        /// Register set of TPIDR_EL0 (<linux/elf.h>).
        const NT_ARM_TLS: usize = 0x401;
        let mut registers = Registers::default();
        let length = read_set(tid, libc::NT_PRSTATUS as usize, &mut registers.general)?;
        // A 32-bit thread has a smaller set.
        if length != size_of::<libc::user_regs_struct>() {
            return Err(Errno::EINVAL);
        }
        read_set(tid, NT_ARM_TLS, &mut registers.thread_pointer)?;
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

    /// Never: the kernel does not show the first argument, which the result has overwritten
    /// (`orig_x0`), so a call cannot be made again from outside. Nor does `/proc/PID/task/TID/syscall`:
    /// before a thread stops on its way out of a call, the kernel forgets that call
    /// (arch/arm64/kernel/signal.c, `do_signal`). What that file said before the stop may be another
    /// call's; and a call that is made again by a new program counter would be made again also after
    /// a signal handler, in place of the EINTR that the program then expects.
    pub(crate) fn is_interrupted_call(&self) -> bool {
        false
    }

    /// Never called, see [`Self::is_interrupted_call`].
    pub(crate) fn restart_call(&self, _tid: i32) -> Result<(), Errno> {
        Ok(())
    }
}

/// Reads one register set; returns how many bytes the thread has of it.
fn read_set<T>(tid: i32, set: usize, registers: &mut T) -> Result<usize, Errno> {
    let mut vector = libc::iovec {
        iov_base: (&raw mut *registers).cast(),
        iov_len: size_of::<T>(),
    };
    // SAFETY: `vector` has the address and size of `registers`, which lives through the call; the
    // callers pass integers and structs of integers: the kernel may write any bytes of them.
    let result = unsafe {
        libc::ptrace(
            libc::PTRACE_GETREGSET,
            tid,
            set as *mut c_void,
            &raw mut vector,
        )
    };
    Errno::result(result)?;
    Ok(vector.iov_len)
}
