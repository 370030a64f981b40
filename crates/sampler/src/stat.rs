//! The `stat` file of a process or of a thread, whose fields have numbers (proc_pid_stat(5)).

/// Nanoseconds of a tick: there are 100 a second on all architectures (`USER_HZ`,
/// include/asm-generic/param.h).
pub(crate) const TICK: u64 = 10_000_000;

/// Whether nothing of a process runs any longer: it is gone, or only waits for its parent to ask.
pub(crate) fn has_ended(pid: i32) -> bool {
    Stat::of_process(pid).is_none_or(|stat| stat.is_zombie())
}

/// The fields from the third on. The second, the name, may hold anything, parentheses and bytes that
/// are no UTF-8 included.
pub(crate) struct Stat(String);

impl Stat {
    /// Reads that of a process. `None` if it is gone.
    pub(crate) fn of_process(pid: i32) -> Option<Self> {
        Self::read(&format!("/proc/{pid}/stat"))
    }

    /// Reads that of a thread. `None` if it is gone.
    pub(crate) fn of_thread(pid: i32, tid: i32) -> Option<Self> {
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
    pub(crate) fn field(&self, number: usize) -> Option<&str> {
        self.0.split_whitespace().nth(number.checked_sub(3)?)
    }

    fn number(&self, number: usize) -> Option<u64> {
        self.field(number)?.parse().ok()
    }

    /// Nanoseconds that it has run, in itself and in the kernel, as exact as the clock's ticks.
    pub(crate) fn ran(&self) -> Option<u64> {
        let ticks = self.number(14)? + self.number(15)?;
        ticks.checked_mul(TICK)
    }

    /// When it started, in ticks since the machine did.
    pub(crate) fn start(&self) -> Option<u64> {
        self.number(22)
    }

    /// Whether it is a process whose threads have all ended, and nobody has waited for it yet. One
    /// that leads others (field 20 counts them) may have ended before them.
    pub(crate) fn is_zombie(&self) -> bool {
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
    fn a_process_has_ended_with_its_last_thread() {
        let stat = |state, threads| {
            let text =
                format!("7 (a) {state} 1 1 1 0 -1 0 0 0 0 0 21 4 0 0 20 0 {threads} 0 1234 0");
            Stat::of(text.as_bytes()).unwrap()
        };
        assert!(stat('Z', 1).is_zombie());
        assert!(!stat('Z', 2).is_zombie());
        assert!(!stat('R', 1).is_zombie());
        let stat = stat('R', 1);
        assert_eq!(stat.ran(), Some(250_000_000));
        assert_eq!(stat.start(), Some(1234));
    }
}
