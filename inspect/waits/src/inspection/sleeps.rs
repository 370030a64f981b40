//! Calls that wait for a time, a signal, a process, or a message.

use super::Inspection;
use super::named::Direction;
use crate::memory;
use crate::words::{duration, list};

/// TIMER_ABSTIME, CLOCK_MONOTONIC and CLOCK_BOOTTIME (<linux/time.h>).
const TIMER_ABSTIME: u64 = 1;
const CLOCK_MONOTONIC: i32 = 1;
/// P_ALL, P_PID, P_PGID and P_PIDFD of waitid(2) (<linux/wait.h>).
const P_ALL: i32 = 0;
const P_PID: i32 = 1;
const P_PGID: i32 = 2;
const P_PIDFD: i32 = 3;
/// Maximum number of signals that are named.
const MAX_SIGNALS: usize = 4;

impl Inspection<'_> {
    pub(super) fn sleep(&mut self, call: &'static str) -> Option<String> {
        match call {
            "nanosleep" => self.for_time(call, self.argument(0)),
            "clock_nanosleep" if self.argument(1) & TIMER_ABSTIME == 0 => {
                self.for_time(call, self.argument(2))
            }
            "clock_nanosleep" => Some(self.until(call)),
            "wait4" => Some(self.wait_for_child(call, self.int(0))),
            "waitid" => match self.int(0) {
                P_ALL => Some(self.wait_for_child(call, -1)),
                P_PID => Some(self.wait_for_child(call, self.int(1).max(1))),
                P_PGID => Some(self.wait_for_child(call, self.int(1).max(0).wrapping_neg())),
                P_PIDFD => {
                    let named = self.named(self.int(1), Direction::Unknown);
                    Some(format!("{call} for {}", self.with_peer(named)))
                }
                _ => None,
            },
            "rt_sigtimedwait" => self.wait_for_signals(call),
            "semop" | "semtimedop" => Some(format!("{call} on semaphore set {}", self.int(0))),
            "msgrcv" => Some(format!("{call} from queue {}", self.int(0))),
            "msgsnd" => Some(format!("{call} to queue {}", self.int(0))),
            "futex_waitv" => {
                let futexes = crate::words::count(self.int(1) as u32 as usize, "futex", "futexes");
                Some(format!("{call} on {futexes}"))
            }
            "restart_syscall" => Some(format!("{call}, a sleep that a signal or stop interrupted")),
            _ => None,
        }
    }

    /// The call with its time, a `struct timespec`.
    fn for_time(&self, call: &str, at: u64) -> Option<String> {
        let time = memory::timespec(self.memory()?, at)?;
        Some(format!("{call} {}", duration(time)))
    }

    /// A sleep until a time of a clock: how long it is, if its start is known.
    fn until(&self, call: &str) -> String {
        let length = || {
            let until = memory::timespec(self.memory()?, self.argument(2))?;
            let own = std::fs::read_link("/proc/self/ns/time");
            // Another time namespace has another clock; a kernel without them has one.
            let is_same = match (self.process.namespace("time"), own) {
                (Ok(theirs), Ok(own)) => own.as_os_str() == theirs,
                _ => true,
            };
            let is_comparable = is_same && self.int(0) == CLOCK_MONOTONIC;
            let length = until.checked_sub(self.thread.since?)?;
            is_comparable.then(|| duration(rounded(length)))
        };
        match length() {
            Some(length) => format!("{call} {length}"),
            None => format!("{call} until a set time"),
        }
    }

    /// A call that only waits for its timeout.
    pub(super) fn poll_without_descriptors(&self, call: &str) -> Option<String> {
        if call == "ppoll" {
            return self.for_time(call, self.argument(2));
        }
        // Milliseconds; negative ones mean without end.
        let timeout = u64::try_from(self.int(2)).ok()?;
        Some(format!("{call} {}", duration(timeout * 1_000_000)))
    }

    /// A call that only waits for its timeout.
    pub(super) fn select_without_descriptors(&self, call: &str) -> Option<String> {
        if call == "pselect6" {
            return self.for_time(call, self.argument(4));
        }
        let time = memory::timeval(self.memory()?, self.argument(4))?;
        Some(format!("{call} {}", duration(time)))
    }

    /// A call that waits for a child, given as in wait4(2).
    fn wait_for_child(&mut self, call: &str, id: i32) -> String {
        match id {
            -1 => format!("{call} for any child"),
            0 => format!("{call} for any child of its process group"),
            id if id < 0 => format!(
                "{call} for any child of process group {}",
                id.unsigned_abs()
            ),
            id => match self.outer_child(id) {
                Some(pid) => {
                    let named = self.ended_process(pid);
                    format!("{call} for {}", self.with_peer(named))
                }
                None => format!("{call} for process {id} of its PID namespace"),
            },
        }
    }

    /// The ID, in the reader's PID namespace, of a child that has this one in the process's own.
    fn outer_child(&self, id: i32) -> Option<i32> {
        let status = self.process.status().ok()?;
        let depth = status.namespace_pids.len().checked_sub(1)?;
        if depth == 0 {
            return Some(id);
        }
        let is_it = |pid: &i32| {
            let child = otelctx_reader::remote::Process::open(*pid);
            let status = child.and_then(|child| child.status());
            status.is_ok_and(|it| it.namespace_pids.get(depth) == Some(&id))
        };
        self.process.children().into_iter().find(is_it)
    }

    fn wait_for_signals(&self, call: &str) -> Option<String> {
        let set = memory::word(self.memory()?, self.argument(0))?;
        let signals = (0..64).filter(|bit| set & 1 << bit != 0);
        let mut names: Vec<String> = signals.map(|bit| signal_name(bit + 1)).collect();
        if names.is_empty() {
            return None;
        }
        let more = names.len().saturating_sub(MAX_SIGNALS);
        names.truncate(MAX_SIGNALS);
        Some(format!("{call} for {}", list(&names, more)))
    }
}

/// Three significant digits: the start of a wait is known to some microseconds.
fn rounded(nanoseconds: u64) -> u64 {
    let step = 10_u64.pow(nanoseconds.max(1).ilog10().saturating_sub(2));
    nanoseconds.saturating_add(step / 2) / step * step
}

/// The name of a signal (signal(7); the numbers are the same on x86-64 and aarch64).
fn signal_name(number: u32) -> String {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
        "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
        "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
    ];
    match NAMES.get(number.wrapping_sub(1) as usize) {
        Some(name) => format!("SIG{name}"),
        None => format!("signal {number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_has_three_digits() {
        assert_eq!(rounded(1_999_987_123), 2_000_000_000);
        assert_eq!(rounded(1_234_567), 1_230_000);
        assert_eq!(rounded(12), 12);
        assert_eq!(rounded(0), 0);
        assert_eq!(
            rounded(u64::MAX),
            u64::MAX / 100_000_000_000_000_000 * 100_000_000_000_000_000
        );
    }

    #[test]
    fn signals_have_names() {
        assert_eq!(signal_name(1), "SIGHUP");
        assert_eq!(signal_name(15), "SIGTERM");
        assert_eq!(signal_name(31), "SIGSYS");
        assert_eq!(signal_name(34), "signal 34");
        assert_eq!(signal_name(0), "signal 0");
    }
}
