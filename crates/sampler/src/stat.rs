//! The `stat` file of a process or of a thread, whose fields have numbers (proc_pid_stat(5)).

/// The fields from the third on. The second, the name, may hold anything, parentheses and bytes that
/// are no UTF-8 included.
pub(crate) struct Stat(String);

impl Stat {
    /// Reads that of a process, `/proc/PID/stat`, or of a thread, `/proc/PID/task/TID/stat`. `None`
    /// if it has ended.
    pub(crate) fn read(path: &str) -> Option<Self> {
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
}
