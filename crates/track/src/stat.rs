//! The `stat` file of a process or of a thread, whose fields have numbers (proc_pid_stat(5)).

/// Length of a clock tick of `/proc`, in nanoseconds: there are 100 a second on all architectures
/// (`USER_HZ`, include/asm-generic/param.h).
pub const TICK: u64 = 10_000_000;

/// Whether all threads of a process have ended: it is gone, or a zombie.
#[must_use]
pub fn has_ended(pid: i32) -> bool {
    Stat::of_process(pid).is_none_or(|stat| stat.is_zombie())
}

/// The fields from the third on. The second, the name, may hold anything, including parentheses and
/// bytes that are not UTF-8.
#[derive(Debug)]
pub struct Stat(String);

impl Stat {
    /// Reads the file of a process. `None` if it is gone.
    #[must_use]
    pub fn of_process(pid: i32) -> Option<Self> {
        Self::read(&format!("/proc/{pid}/stat"))
    }

    /// Reads the file of a thread. `None` if it is gone.
    #[must_use]
    pub fn of_thread(pid: i32, tid: i32) -> Option<Self> {
        Self::read(&format!("/proc/{pid}/task/{tid}/stat"))
    }

    fn read(path: &str) -> Option<Self> {
        let bytes = std::fs::read(path).ok()?;
        Self::of(&bytes)
    }

    fn of(bytes: &[u8]) -> Option<Self> {
        let name_end = bytes.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(&bytes[name_end + 1..]).ok()?;
        Some(Self(rest.to_owned()))
    }

    /// The field of this number, from 3 on.
    #[must_use]
    pub fn field(&self, number: usize) -> Option<&str> {
        self.0.split_whitespace().nth(number.checked_sub(3)?)
    }

    fn number(&self, number: usize) -> Option<u64> {
        self.field(number)?.parse().ok()
    }

    /// CPU time used in user and kernel mode, in nanoseconds, as exact as the clock's ticks.
    #[must_use]
    pub fn cpu_time(&self) -> Option<u64> {
        let ticks = self.number(14)? + self.number(15)?;
        ticks.checked_mul(TICK)
    }

    /// When it started, in ticks since boot.
    #[must_use]
    pub fn start(&self) -> Option<u64> {
        self.number(22)
    }

    /// Whether all threads of the process have ended and its parent has not waited for it yet. The
    /// first thread may end before the others (field 20 counts them).
    #[must_use]
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
