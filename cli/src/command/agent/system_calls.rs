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

/// Calls that fail with `EPERM`: starting programs, changing another process, the file systems, the clock or the kernel, and those
/// that no filter sees (io_uring's).
const FORBIDDEN: &[libc::c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_unshare,
    libc::SYS_chroot,
    libc::SYS_pivot_root,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_fanotify_init,
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
    libc::SYS_syslog,
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

/// The only requests of ptrace(2) that do not fail, for stopping a thread and reading its registers (sys/ptrace.h): SEIZE, INTERRUPT,
/// GETREGSET and DETACH. `libc` has them as signed numbers for musl alone.
#[cfg(target_arch = "aarch64")]
const PERMITTED_REQUESTS: &[u32] = &[0x4206, 0x4207, 0x4204, 17];
/// The same, with POKEUSER: a single register is written where a stopped system call has to be made again.
#[cfg(target_arch = "x86_64")]
const PERMITTED_REQUESTS: &[u32] = &[0x4206, 0x4207, 0x4204, 17, 6];

/// The only kind of namespace that may be entered: a thread that is to name peers of sockets opens its own one there.
const PERMITTED_NAMESPACE: u32 = libc::CLONE_NEWNET as u32;

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
/// The lower halves of the first two arguments.
const FIRST_ARGUMENT: u32 = 16;
const SECOND_ARGUMENT: u32 = 24;

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
    let limited = [
        (libc::SYS_ptrace, FIRST_ARGUMENT, PERMITTED_REQUESTS),
        (libc::SYS_setns, SECOND_ARGUMENT, &[PERMITTED_NAMESPACE]),
    ];
    for (call, argument, permitted) in limited {
        let permit = instruction(RETURN, libc::SECCOMP_RET_ALLOW);
        let size = 2 * permitted.len() + 2;
        let skip = libc::sock_filter {
            // As many instructions as the block of this call has.
            jf: size as u8,
            ..instruction(JUMP_EQUAL, call as u32)
        };
        program.extend([skip, instruction(LOAD, argument)]);
        for value in permitted {
            program.extend([skip_unless(JUMP_EQUAL, *value), permit]);
        }
        program.push(forbid);
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
    // Before Linux 5.16, a filter otherwise turns off speculative stores for its threads, which makes them slower.
    match install(&filter, libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW) {
        // Linux before 4.17 knows no such flag, and turns nothing off.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => install(&filter, 0),
        result => result,
    }
}

fn install(filter: &libc::sock_fprog, flags: libc::c_ulong) -> io::Result<()> {
    let mode = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: the kernel copies `len` instructions from `filter`, whose creator keeps them until this function returns.
    if unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, &raw const *filter) } < 0 {
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

    /// The state of speculative stores of this thread (linux/prctl.h; `libc` has the numbers for x86-64 with glibc alone).
    fn speculation() -> libc::c_int {
        const PR_GET_SPECULATION_CTRL: libc::c_int = 52;
        const PR_SPEC_STORE_BYPASS: libc::c_int = 0;
        // SAFETY: the call takes numbers alone.
        unsafe { libc::prctl(PR_GET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, 0, 0, 0) }
    }

    #[test]
    fn forbidden_calls_fail_and_others_do_not() {
        let thread = std::thread::spawn(|| {
            forbid().unwrap();
            for number in FORBIDDEN {
                assert_eq!(call(*number, -1), Some(libc::EPERM), "{number}");
            }
            // There is no process with the ID -1. Numbers of requests are below 32, or from 0x4200 on; PTRACE_TRACEME takes no ID.
            for request in (1..32).chain(0x4200..0x4220) {
                let expected = match PERMITTED_REQUESTS.contains(&request) {
                    true => libc::ESRCH,
                    false => libc::EPERM,
                };
                let error = call(libc::SYS_ptrace, request.into());
                assert_eq!(error, Some(expected), "{request:#x}");
            }
            assert_eq!(call(libc::SYS_ptrace, 0), Some(libc::EPERM));
            // There is no descriptor -1.
            let enter = |kind: libc::c_int| {
                // SAFETY: the call takes numbers alone, and nothing is entered by an invalid descriptor.
                let result = unsafe { libc::setns(-1, kind) };
                (result < 0).then(|| io::Error::last_os_error().raw_os_error().unwrap())
            };
            assert_eq!(enter(libc::CLONE_NEWNET), Some(libc::EBADF));
            for kind in [
                0,
                libc::CLONE_NEWNS,
                libc::CLONE_NEWPID,
                libc::CLONE_NEWUSER,
            ] {
                assert_eq!(enter(kind), Some(libc::EPERM), "{kind:#x}");
            }
            assert_eq!(call(libc::SYS_close, -1), Some(libc::EBADF));
            assert_eq!(call(libc::SYS_getpid, -1), None);
            let foreign = libc::c_long::from(FIRST_FOREIGN) | libc::SYS_getpid;
            assert_eq!(call(foreign, -1), Some(libc::EPERM));
            speculation()
        });
        // The filter leaves the processor's speculation as it is.
        assert_eq!(thread.join().unwrap(), speculation());
        // Of this thread, nothing is forbidden.
        let status = std::process::Command::new("true").status();
        assert!(status.unwrap().success());
    }
}
