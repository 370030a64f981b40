//! A stopped thread's registers.

use nix::errno::Errno;
use nix::libc::{self, c_void};

use crate::arch::read_register_set;

/// The result by which a system call asks the kernel to be called again unless a signal handler
/// runs, and to return EINTR if one does (<linux/errno.h>).
const ERESTARTNOHAND: i64 = 514;

/// The registers that a thread stopped with.
#[derive(Debug, Clone, Copy)]
pub struct Registers(libc::user_regs_struct);

impl Default for Registers {
    fn default() -> Self {
        // SAFETY: all fields of user_regs_struct are integers, for which zero is valid.
        Registers(unsafe { std::mem::zeroed() })
    }
}

impl Registers {
    /// Reads the registers of a stopped tracee. EINVAL for 32-bit code.
    pub(crate) fn read(tid: i32) -> Result<Self, Errno> {
        let mut registers = Registers::default();
        // SAFETY: `user_regs_struct` consists of integers.
        unsafe { read_register_set(tid, libc::NT_PRSTATUS as usize, &mut registers.0)? };
        Ok(registers)
    }

    /// fs base.
    pub fn thread_pointer(&self) -> u64 {
        self.0.fs_base
    }

    /// rip.
    pub fn instruction_pointer(&self) -> u64 {
        self.0.rip
    }

    /// rsp.
    pub fn stack_pointer(&self) -> u64 {
        self.0.rsp
    }

    /// rbp.
    pub fn frame_pointer(&self) -> u64 {
        self.0.rbp
    }

    /// The general registers in the order of their DWARF numbers, from 0 on (System V ABI, AMD64,
    /// "DWARF Register Number Mapping"): rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8 to r15.
    pub fn general(&self) -> [u64; 16] {
        let all = &self.0;
        [
            all.rax, all.rdx, all.rcx, all.rbx, all.rsi, all.rdi, all.rbp, all.rsp, all.r8, all.r9,
            all.r10, all.r11, all.r12, all.r13, all.r14, all.r15,
        ]
    }

    /// Returns whether it stopped in a system call that is about to return EINTR and may be called
    /// again. close(2) may not: the descriptor is gone, or another file's, when it returns EINTR.
    /// Calls that the kernel restarts by itself end with other numbers (-ERESTARTSYS, 512 and up).
    pub(crate) fn is_interrupted_call(&self) -> bool {
        let call = self.0.orig_rax as i64;
        self.0.rax as i64 == -i64::from(libc::EINTR) && call >= 0 && call != libc::SYS_close
    }

    /// Makes the kernel restart the call when the thread leaves the stop, unless a signal with a
    /// handler is pending: then EINTR is the right answer. The kernel decides this after the stop,
    /// without a race (arch/x86/kernel/signal.c, `arch_do_signal_or_restart` and `handle_signal`).
    pub(crate) fn restart_call(&self, tid: i32) -> Result<(), Errno> {
        // The registers are the first member of `struct user`.
        let offset = std::mem::offset_of!(libc::user_regs_struct, rax) as *mut c_void;
        // SAFETY: PTRACE_POKEUSER takes an offset in the tracee's `struct user` and a number, and
        // accesses no memory of this process.
        let done = unsafe { libc::ptrace(libc::PTRACE_POKEUSER, tid, offset, -ERESTARTNOHAND) };
        Errno::result(done).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_interrupted_call_that_may_be_repeated_is_repeated() {
        let at = |call: i64, result: i64| {
            let mut registers = Registers::default();
            (registers.0.orig_rax, registers.0.rax) = (call as u64, result as u64);
            registers.is_interrupted_call()
        };
        assert!(at(libc::SYS_epoll_wait, -4));
        assert!(at(libc::SYS_read, -4), "system call 0");
        assert!(!at(libc::SYS_epoll_wait, -512), "-ERESTARTSYS");
        assert!(!at(libc::SYS_epoll_wait, -516), "-ERESTART_RESTARTBLOCK");
        assert!(!at(libc::SYS_epoll_wait, 4));
        assert!(!at(libc::SYS_close, -4));
        assert!(!at(-1, -4), "not in a system call");
    }
}
