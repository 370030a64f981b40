//! Counting the system calls of a program.

use std::io::Error;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Runs a program without other threads to its end, and counts its system calls.
pub(crate) fn count(mut command: Command) -> Result<i64, String> {
    let failed = |what: &str| format!("{what}: {}", Error::last_os_error());
    // SAFETY: ptrace(2) is a plain system call, allowed between fork and exec.
    unsafe {
        command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
            0 => Ok(()),
            _ => Err(Error::last_os_error()),
        });
    }
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| error.to_string())?;
    let pid = child.id() as i32;
    let mut stops = 0;
    loop {
        let mut status = 0;
        // SAFETY: `status` is writable.
        if unsafe { libc::waitpid(pid, &raw mut status, 0) } != pid {
            return Err(failed("waitpid"));
        }
        if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
            if status != 0 {
                return Err(format!("the program ended with status {status:#x}"));
            }
            // Each call stops the program as it enters and as it returns.
            return Ok(stops / 2);
        }
        let signal = libc::WSTOPSIG(status);
        // The first stop is the exec; with this option, system calls have a number of their own.
        let is_call = signal == libc::SIGTRAP | 0x80;
        stops += i64::from(is_call);
        let pass_on = if is_call || signal == libc::SIGTRAP {
            0
        } else {
            signal
        };
        // SAFETY: both requests take numbers only; the tracee is stopped.
        unsafe {
            let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL;
            libc::ptrace(libc::PTRACE_SETOPTIONS, pid, 0, options);
            if libc::ptrace(libc::PTRACE_SYSCALL, pid, 0, pass_on) != 0 {
                return Err(failed("ptrace"));
            }
        }
    }
}
