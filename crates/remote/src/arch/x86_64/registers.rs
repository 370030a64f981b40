//! A stopped thread's registers.

use std::mem::size_of;

use nix::errno::Errno;
use nix::libc::{self, c_long, c_void};

/// `syscall`
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// The registers that a thread stopped with.
#[derive(Debug, Clone, Copy)]
pub struct Registers(libc::user_regs_struct);

impl Default for Registers {
    fn default() -> Self {
        // SAFETY: user_regs_struct is all integers.
        Registers(unsafe { std::mem::zeroed() })
    }
}

impl Registers {
    /// Reads those of a stopped tracee in one call. EINVAL for 32-bit code.
    pub(crate) fn read(tid: i32) -> Result<Self, Errno> {
        let mut registers = Registers::default();
        let length = transfer(libc::PTRACE_GETREGSET, tid, &mut registers.0)?;
        // A 32-bit thread has a smaller set.
        if length == size_of::<libc::user_regs_struct>() {
            Ok(registers)
        } else {
            Err(Errno::EINVAL)
        }
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

    /// Whether it stopped in a system call that is about to return EINTR and may be called again.
    /// close(2) may not: the descriptor is gone, or another file's, when it returns EINTR.
    ///
    /// Calls that the kernel restarts by itself end with other numbers (-ERESTARTSYS, 512 and
    /// following), and are none of our business.
    pub(crate) fn is_interrupted_call(&self) -> bool {
        let call = self.0.orig_rax as i64;
        self.0.rax as i64 == -i64::from(libc::EINTR) && call >= 0 && call != libc::SYS_close
    }

    /// Makes the thread call again: the call's number back into rax, the instruction pointer back
    /// on `syscall`, as the kernel does it for -ERESTARTNOINTR (arch/x86/kernel/signal.c).
    pub(crate) fn restart_call(&self, tid: i32) -> Result<(), Errno> {
        let at = self.0.rip.wrapping_sub(SYSCALL.len() as u64);
        if peek(tid, at)?.to_le_bytes()[..2] != SYSCALL {
            return Ok(());
        }
        let mut registers = self.0;
        registers.rax = registers.orig_rax;
        registers.rip = at;
        // It is in no system call any more that the kernel could restart.
        registers.orig_rax = u64::MAX;
        transfer(libc::PTRACE_SETREGSET, tid, &mut registers).map(drop)
    }
}

/// Reads or writes the general registers; returns how many bytes the thread has of them.
fn transfer(
    request: libc::c_uint,
    tid: i32,
    registers: &mut libc::user_regs_struct,
) -> Result<usize, Errno> {
    let mut vector = libc::iovec {
        iov_base: (&raw mut *registers).cast(),
        iov_len: size_of::<libc::user_regs_struct>(),
    };
    // SAFETY: vector describes a user_regs_struct that lives through the call.
    let result = unsafe {
        libc::ptrace(
            request,
            tid,
            libc::NT_PRSTATUS as *mut c_void,
            &raw mut vector,
        )
    };
    Errno::result(result)?;
    Ok(vector.iov_len)
}

fn peek(tid: i32, address: u64) -> Result<c_long, Errno> {
    Errno::clear();
    // SAFETY: PTRACE_PEEKTEXT takes an address of the tracee and no pointer of ours.
    let word = unsafe {
        libc::ptrace(
            libc::PTRACE_PEEKTEXT,
            tid,
            address as *mut c_void,
            std::ptr::null_mut::<c_void>(),
        )
    };
    // −1 may be a word as well as an error.
    match Errno::last_raw() {
        0 => Ok(word),
        _ if word != -1 => Ok(word),
        errno => Err(Errno::from_raw(errno)),
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
