//! Whether a signal is on its way to a stopped thread: then a system call that ended with EINTR
//! did so rightly.

use nix::libc::{self, c_int, c_void};

use crate::process::Status;

/// Signals without effect unless a handler is set (signal(7), "Standard signals").
const IGNORED_BY_DEFAULT: u64 =
    bit(libc::SIGCHLD) | bit(libc::SIGCONT) | bit(libc::SIGURG) | bit(libc::SIGWINCH);

const fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// Whether thread `tid`, stopped and traced by this OS thread, has a signal before it that it
/// neither blocks nor ignores. `delivering` is the one it stopped at, 0 for none.
pub(super) fn deliverable(pid: i32, tid: i32, delivering: c_int) -> bool {
    // Two short calls instead of a long text, in the common case that nothing is pending.
    if delivering == 0 && nothing_queued(tid) {
        return false;
    }
    let Ok(text) = std::fs::read(format!("/proc/{pid}/task/{tid}/status")) else {
        // It dies: leave it alone.
        return true;
    };
    let status = Status::parse(&text);
    let on_its_way = if delivering == 0 { 0 } else { bit(delivering) };
    let unblocked = (status.pending | status.shared_pending) & !status.blocked;
    effective(on_its_way | unblocked, &status)
}

fn effective(signals: u64, status: &Status) -> bool {
    let without_effect = status.ignored | (IGNORED_BY_DEFAULT & !status.caught);
    signals & !without_effect != 0
}

/// `struct ptrace_peeksiginfo_args` of <linux/ptrace.h>.
#[repr(C)]
struct PeekArguments {
    offset: u64,
    flags: u32,
    count: i32,
}

fn nothing_queued(tid: i32) -> bool {
    const PTRACE_PEEKSIGINFO_SHARED: u32 = 1;
    [0, PTRACE_PEEKSIGINFO_SHARED].into_iter().all(|flags| {
        let arguments = PeekArguments {
            offset: 0,
            flags,
            count: 1,
        };
        // SAFETY: an all-zero siginfo_t is a valid value.
        let mut signal: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel reads one PeekArguments and writes at most one siginfo_t.
        let queued = unsafe {
            libc::ptrace(
                libc::PTRACE_PEEKSIGINFO,
                tid,
                (&raw const arguments).cast::<c_void>(),
                &raw mut signal,
            )
        };
        queued == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_without_effect_is_no_reason_for_eintr() {
        let quiet = Status::default();
        assert!(!effective(bit(libc::SIGCHLD) | bit(libc::SIGWINCH), &quiet));
        assert!(effective(bit(libc::SIGUSR1), &quiet));
        let handled = Status {
            caught: bit(libc::SIGCHLD),
            ..Status::default()
        };
        assert!(effective(bit(libc::SIGCHLD), &handled));
        let ignored = Status {
            ignored: bit(libc::SIGUSR1),
            ..Status::default()
        };
        assert!(!effective(bit(libc::SIGUSR1), &ignored));
        assert!(effective(1 << 63, &quiet), "signal 64");
    }
}
