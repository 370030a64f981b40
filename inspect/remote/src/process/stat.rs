//! The `stat` file of a process or a thread, whose fields are numbered (proc_pid_stat(5)).

use std::io;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use super::{Process, STATUS_LIMIT};
use crate::Error;

/// Length of a clock tick in `/proc`, in nanoseconds: 100 per second on all architectures
/// (`USER_HZ`, include/asm-generic/param.h).
pub const TICK: u64 = 10_000_000;

impl Process {
    /// The process's `stat`.
    pub fn stat(&self) -> Result<Stat, Error> {
        self.read_stat("stat")
    }

    /// One thread's `stat`.
    pub fn thread_stat(&self, tid: i32) -> Result<Stat, Error> {
        let stat = self.read_stat(&format!("task/{tid}/stat"));
        stat.map_err(|error| error.of_thread(tid))
    }

    /// One thread's state letter, see [`Status::state`](super::Status::state).
    pub fn thread_state(&self, tid: i32) -> Result<char, Error> {
        Ok(self.thread_stat(tid)?.state())
    }

    /// Returns whether all threads of the process have ended: it does not exist, or is a zombie.
    /// False if that cannot be determined.
    pub fn has_ended(&self) -> bool {
        match self.stat() {
            Ok(stat) => stat.is_zombie(),
            Err(error) => matches!(error, Error::NoSuchProcess { .. }),
        }
    }

    /// CPU time that a thread has used, in nanoseconds: exact if the kernel counts it
    /// (CONFIG_SCHED_INFO), otherwise from [`Stat::cpu_time`].
    pub fn thread_cpu_time(&self, tid: i32) -> Option<u64> {
        let text = self.read_entry(&format!("task/{tid}/schedstat"), STATUS_LIMIT);
        let exact = |text: Vec<u8>| {
            let first = text.split(|byte| *byte == b' ').next()?;
            std::str::from_utf8(first).ok()?.parse().ok()
        };
        match text.ok().and_then(exact) {
            // A kernel without it has no such file, or returns 0.
            None | Some(0) => self.thread_stat(tid).ok()?.cpu_time(),
            exact => exact,
        }
    }

    fn read_stat(&self, entry: &str) -> Result<Stat, Error> {
        let bytes = self.read_entry(entry, STATUS_LIMIT)?;
        let malformed = || self.error(entry, "read /proc", io::ErrorKind::InvalidData.into());
        Stat::of(&bytes).ok_or_else(malformed)
    }
}

/// The fields from the third on, after the name, which may contain any bytes.
#[derive(Debug)]
pub struct Stat(String);

impl Stat {
    fn of(bytes: &[u8]) -> Option<Self> {
        let name_end = bytes.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(&bytes[name_end + 1..]).ok()?;
        Some(Self(rest.to_owned()))
    }

    /// The field with this number, from 3 on.
    pub fn field(&self, number: usize) -> Option<&str> {
        self.0.split_whitespace().nth(number.checked_sub(3)?)
    }

    fn number(&self, number: usize) -> Option<u64> {
        self.field(number)?.parse().ok()
    }

    /// State letter, see [`Status::state`](super::Status::state).
    pub fn state(&self) -> char {
        let state = self.field(3).and_then(|state| state.chars().next());
        state.unwrap_or('?')
    }

    pub(crate) fn parent(&self) -> Option<u64> {
        self.number(4)
    }

    /// `PF_…` of include/linux/sched.h.
    pub(super) fn flags(&self) -> Option<u64> {
        self.number(9)
    }

    /// Returns whether the kernel started the thread for io_uring: PF_IO_WORKER or PF_USER_WORKER.
    pub(crate) fn is_kernel_worker(&self) -> bool {
        const PF_IO_WORKER: u64 = 0x10;
        const PF_USER_WORKER: u64 = 0x4000;
        let flags = self.flags();
        flags.is_some_and(|flags| flags & (PF_IO_WORKER | PF_USER_WORKER) != 0)
    }

    /// CPU time used in user and kernel mode, in nanoseconds, with the resolution of clock ticks.
    pub fn cpu_time(&self) -> Option<u64> {
        let ticks = self.number(14)? + self.number(15)?;
        ticks.checked_mul(TICK)
    }

    /// The time of its start, in ticks since boot.
    pub fn start(&self) -> Option<u64> {
        self.number(22)
    }

    /// The time since its start, with the resolution of clock ticks. `None` if it is not known.
    pub fn age(&self) -> Option<Duration> {
        let start = self.start()?.checked_mul(TICK)?;
        let now = clock_gettime(ClockId::CLOCK_BOOTTIME).ok()?;
        Some(Duration::from(now).saturating_sub(Duration::from_nanos(start)))
    }

    /// Returns whether all threads of the process (field 20) have ended, but are not waited for.
    pub fn is_zombie(&self) -> bool {
        matches!(self.field(3), Some("Z" | "X"))
            && self.number(20).is_none_or(|threads| threads < 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_look_like_fields() {
        let stat = Stat::of(b"7 (a) R 1 (\xff) S 1 7 7\n").unwrap();
        let fields = [2, 3, 4, 6, 7].map(|number| stat.field(number));
        assert_eq!(fields, [None, Some("S"), Some("1"), Some("7"), None]);
        assert!(Stat::of(b"7").is_none());
    }

    #[test]
    fn a_process_is_a_zombie_once_its_last_thread_has_ended() {
        let stat = |state, threads| {
            let text =
                format!("7 (a) {state} 1 1 1 0 -1 0 0 0 0 0 21 4 0 0 20 0 {threads} 0 1234 0");
            Stat::of(text.as_bytes()).unwrap()
        };
        assert!(stat('Z', 1).is_zombie());
        assert!(!stat('Z', 2).is_zombie());
        assert!(!stat('R', 1).is_zombie());
        let stat = stat('R', 1);
        assert_eq!(stat.cpu_time(), Some(250_000_000));
        assert_eq!(stat.start(), Some(1234));
    }
}
