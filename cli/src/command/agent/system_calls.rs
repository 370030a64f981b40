//! A filter for system calls: what neither the sampler nor a decoder has a use for fails, also after an error in their code
//! was exploited.
//!
//! It lists what is forbidden. A list of what is permitted would have to have each call of each C library's version, and the
//! agent would end where one is missing.

use std::io;

use nix::libc;

/// kexec_file_load(2), which `libc` lacks for musl on aarch64.
#[cfg(target_arch = "x86_64")]
const KEXEC_FILE_LOAD: libc::c_long = 320;
#[cfg(target_arch = "aarch64")]
const KEXEC_FILE_LOAD: libc::c_long = 294;

/// Calls that fail with `EPERM`: starting programs, changing another process, the file systems, the clock or the kernel.
const FORBIDDEN: &[libc::c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_unshare,
    libc::SYS_chroot,
    libc::SYS_pivot_root,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_open_tree,
    libc::SYS_mknodat,
    libc::SYS_open_by_handle_at,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    KEXEC_FILE_LOAD,
    libc::SYS_reboot,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_userfaultfd,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
];

/// Requests of ptrace(2) that change a thread's memory, and all of its registers (sys/ptrace.h). Single registers are
/// written where a stopped system call has to be made again.
const FORBIDDEN_REQUESTS: &[u32] = &[4, 5, 13, 15];

/// The architecture in `struct seccomp_data` (linux/audit.h).
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;
/// Numbers from here on are calls of another architecture that has the same number: x32 of x86-64.
const FIRST_FOREIGN: u32 = 0x4000_0000;

/// Offsets in `struct seccomp_data` (linux/seccomp.h).
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
/// The lower half of the first argument.
const ARGUMENT: u32 = 16;

// Instructions (linux/filter.h).
const LOAD: u16 = 0x20;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;

const fn instruction(code: u16, operand: u32) -> libc::sock_filter {
    libc::sock_filter {
        code,
        jt: 0,
        jf: 0,
        k: operand,
    }
}

/// Goes to the instruction behind the next one if the condition holds, else to the next one.
const fn skip_if(code: u16, operand: u32) -> libc::sock_filter {
    libc::sock_filter {
        jt: 1,
        ..instruction(code, operand)
    }
}

/// Continues with the next instruction, which forbids the call, if the condition holds.
const fn skip_unless(code: u16, operand: u32) -> libc::sock_filter {
    libc::sock_filter {
        jf: 1,
        ..instruction(code, operand)
    }
}

fn program() -> Vec<libc::sock_filter> {
    let forbid = instruction(RETURN, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
    let mut program = vec![
        instruction(LOAD, ARCH),
        skip_if(JUMP_EQUAL, ARCHITECTURE),
        instruction(RETURN, libc::SECCOMP_RET_KILL_PROCESS),
        instruction(LOAD, NUMBER),
        skip_unless(JUMP_AT_LEAST, FIRST_FOREIGN),
        forbid,
    ];
    for call in FORBIDDEN {
        program.extend([skip_unless(JUMP_EQUAL, *call as u32), forbid]);
    }
    program.extend([
        skip_if(JUMP_EQUAL, libc::SYS_ptrace as u32),
        instruction(RETURN, libc::SECCOMP_RET_ALLOW),
        instruction(LOAD, ARGUMENT),
    ]);
    for request in FORBIDDEN_REQUESTS {
        program.extend([skip_unless(JUMP_EQUAL, *request), forbid]);
    }
    program.push(instruction(RETURN, libc::SECCOMP_RET_ALLOW));
    program
}

/// Installs the filter for this thread, and for those and the child processes that it starts.
pub(super) fn forbid() -> io::Result<()> {
    let mut program = program();
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(io::Error::other)?,
        filter: program.as_mut_ptr(),
    };
    // Without it, only root could install a filter; and no program that is executed can gain a privilege.
    // SAFETY: this call takes numbers alone.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let mode = libc::c_ulong::from(libc::SECCOMP_MODE_FILTER);
    // SAFETY: the kernel copies `len` instructions from `program`, which lives until the end of this function.
    if unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a system call whose arguments but the first are invalid, and returns its error.
    fn call(number: libc::c_long, first: libc::c_long) -> Option<i32> {
        // SAFETY: -1 is an invalid address, size, ID and descriptor: no call of this test does anything with it.
        let result =
            unsafe { libc::syscall(number, first, -1_i64, -1_i64, -1_i64, -1_i64, -1_i64) };
        (result < 0).then(|| io::Error::last_os_error().raw_os_error().unwrap())
    }

    #[test]
    fn forbidden_calls_fail_and_others_do_not() {
        let thread = std::thread::spawn(|| {
            forbid().unwrap();
            for number in FORBIDDEN {
                assert_eq!(call(*number, -1), Some(libc::EPERM), "{number}");
            }
            for request in FORBIDDEN_REQUESTS {
                let request = libc::c_long::from(*request);
                assert_eq!(call(libc::SYS_ptrace, request), Some(libc::EPERM));
            }
            // There is no process with the ID -1: PTRACE_PEEKDATA, PTRACE_DETACH.
            for request in [2, 17] {
                assert_eq!(call(libc::SYS_ptrace, request), Some(libc::ESRCH));
            }
            assert_eq!(call(libc::SYS_close, -1), Some(libc::EBADF));
            assert_eq!(call(libc::SYS_getpid, -1), None);
            let foreign = libc::c_long::from(FIRST_FOREIGN) | libc::SYS_getpid;
            assert_eq!(call(foreign, -1), Some(libc::EPERM));
        });
        thread.join().unwrap();
        // Of this thread, nothing is forbidden.
        let status = std::process::Command::new("true").status();
        assert!(status.unwrap().success());
    }
}
