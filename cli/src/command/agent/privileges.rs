//! Gives up what the agent does not need, before it starts a thread: capabilities, and system calls.
//!
//! No Landlock: a process under Landlock may read the memory of no process outside of it, and the thread that sends shares
//! its process with the sampler.

use std::fs;
use std::io;

use nix::libc;

/// The capabilities that are kept, if the agent has them (linux/capability.h). `deploy/README.md` says what is missing without
/// each one.
const KEPT: [u32; 8] = [
    CAP_DAC_READ_SEARCH,
    CAP_SYS_PTRACE,
    CAP_SYS_NICE,
    CAP_SYS_RESOURCE,
    CAP_SYSLOG,
    CAP_PERFMON,
    CAP_BPF,
    CAP_CHECKPOINT_RESTORE,
];
const CAP_DAC_READ_SEARCH: u32 = 2;
const CAP_NET_BIND_SERVICE: u32 = 10;
const CAP_SYS_PTRACE: u32 = 19;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_SYS_NICE: u32 = 23;
const CAP_SYS_RESOURCE: u32 = 24;
const CAP_SYSLOG: u32 = 34;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;
const CAP_CHECKPOINT_RESTORE: u32 = 40;

/// Maximum number of capabilities that the kernel's interface has room for.
const MAX_CAPABILITIES: u32 = 64;
/// `_LINUX_CAPABILITY_VERSION_3`
const VERSION: u32 = 0x2008_0522;
/// Above this value of `kernel.perf_event_paranoid`, distributions' kernels permit `perf_event_open` to `CAP_SYS_ADMIN` alone.
const MAX_PARANOID_FOR_PERFMON: i32 = 2;
/// Ports below need a capability.
const FIRST_FREE_PORT: u16 = 1024;

/// `struct __user_cap_header_struct`
#[repr(C)]
struct Header {
    version: u32,
    pid: libc::c_int,
}

/// `struct __user_cap_data_struct`, of which there are two: for the lower and for the upper 32 capabilities.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Data {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Gives up privileges of this thread and of the threads that it starts, given the port that will be bound. Returns what could not
/// be given up.
pub(super) fn give_up(port: Option<u16>) -> Vec<String> {
    let capabilities = keep_capabilities(needed(port)).map_err(|why| ("capabilities", why));
    let calls = super::system_calls::forbid().map_err(|why| ("system calls", why));
    let failures = [capabilities, calls].into_iter().filter_map(Result::err);
    failures
        .map(|(what, why)| format!("the agent keeps {what} that it does not need: {why}"))
        .collect()
}

/// The set of capabilities that the agent needs, as bits.
fn needed(port: Option<u16>) -> u64 {
    let last = number("/proc/sys/kernel/cap_last_cap");
    let paranoid = number("/proc/sys/kernel/perf_event_paranoid");
    needed_where(port, last, paranoid)
}

/// The number in a file, if it has one.
fn number(path: &str) -> Option<i32> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The same, given the last capability that the kernel knows, and `kernel.perf_event_paranoid`.
fn needed_where(port: Option<u16>, last: Option<i32>, paranoid: Option<i32>) -> u64 {
    let mut set = KEPT.iter().fold(0, |set, it| set | 1 << it);
    if port.is_some_and(|it| (1..FIRST_FREE_PORT).contains(&it)) {
        set |= 1 << CAP_NET_BIND_SERVICE;
    }
    // Before Linux 5.8, this one includes those for eBPF.
    let is_before_bpf = last.is_some_and(|it| it < CAP_BPF as i32);
    if is_before_bpf || paranoid.is_some_and(|it| it > MAX_PARANOID_FOR_PERFMON) {
        set |= 1 << CAP_SYS_ADMIN;
    }
    set
}

/// Gives up all capabilities but these, for good.
fn keep_capabilities(kept: u64) -> io::Result<()> {
    for capability in (0..MAX_CAPABILITIES).filter(|it| kept & 1 << it == 0) {
        // Without the right to, the bounding set stays: nothing is executed that could gain from it.
        // SAFETY: this call takes numbers alone.
        unsafe {
            libc::prctl(
                libc::PR_CAPBSET_DROP,
                libc::c_ulong::from(capability),
                0,
                0,
                0,
            )
        };
    }
    let header = Header {
        version: VERSION,
        pid: 0,
    };
    let mut data = [Data::default(); 2];
    // SAFETY: the kernel reads the header and writes two structures, which this function owns.
    let read = unsafe { libc::syscall(libc::SYS_capget, &raw const header, data.as_mut_ptr()) };
    if read < 0 {
        return Err(io::Error::last_os_error());
    }
    for (half, data) in data.iter_mut().enumerate() {
        let kept = (kept >> (32 * half)) as u32;
        *data = Data {
            effective: data.effective & kept,
            permitted: data.permitted & kept,
            inheritable: 0,
        };
    }
    // SAFETY: the kernel reads the header and two structures, which this function owns.
    let written = unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) };
    if written < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAP_SETPCAP: u32 = 8;

    /// The effective, the permitted and the bounding set of this thread.
    fn sets() -> Vec<u64> {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        let names = ["CapEff:", "CapPrm:", "CapBnd:"];
        let sets = names.iter().map(|name| {
            let line = status.lines().find_map(|it| it.strip_prefix(name));
            u64::from_str_radix(line.unwrap().trim(), 16).unwrap()
        });
        sets.collect()
    }

    #[test]
    fn other_capabilities_are_given_up() {
        let before = sets();
        let thread = std::thread::spawn(|| {
            keep_capabilities(needed(None)).unwrap();
            sets()
        });
        let after = thread.join().unwrap();
        let kept = needed(None);
        assert_eq!(after[..2], [before[0] & kept, before[1] & kept]);
        let may_change_the_bound = before[0] & 1 << CAP_SETPCAP != 0;
        if may_change_the_bound {
            assert_eq!(after[2], before[2] & kept);
        } else {
            println!("skipped: without root, the bounding set stays");
        }
        assert_eq!(sets(), before);
    }

    #[test]
    fn some_kernels_need_a_further_capability() {
        let has = |last, paranoid| needed_where(None, last, paranoid) & 1 << CAP_SYS_ADMIN != 0;
        assert!(!has(Some(40), Some(2)) && !has(Some(39), Some(-1)) && !has(None, None));
        // Debian's and Ubuntu's values; a kernel before Linux 5.8.
        assert!(has(Some(40), Some(3)) && has(Some(40), Some(4)) && has(Some(37), Some(2)));
    }

    #[test]
    fn a_low_port_needs_a_capability() {
        let has = |port| needed(port) & 1 << CAP_NET_BIND_SERVICE != 0;
        assert!(has(Some(1)) && has(Some(1023)));
        assert!(!has(None) && !has(Some(0)) && !has(Some(1024)));
    }
}
