//! Who has the lock of a file that a process waits for: by `/proc/locks` (fs/locks.c, `lock_get_status`).

use std::fs::File;
use std::io::Read;

/// Maximum number of bytes read of `/proc/locks`: about 60,000 locks.
const MAX_LOCKS: u64 = 4 << 20;

/// How a lock was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// By flock(2).
    Flock,
    /// By fcntl(2), for the process.
    Posix,
    /// By fcntl(2), for an open file description, of which the kernel tells no process.
    Description,
}

/// The process that has the lock for which process `pid` waits, in the reader's PID namespace. `None` if it is not certain.
pub(crate) fn holder(pid: i32, kind: Kind) -> Option<i32> {
    let mut text = Vec::new();
    let file = File::open("/proc/locks").ok()?;
    file.take(MAX_LOCKS).read_to_end(&mut text).ok()?;
    parse(&String::from_utf8_lossy(&text), pid, kind)
}

/// Each lock is one line, followed by one line for each waiting request: `1: FLOCK ADVISORY WRITE 4711 08:01:99 0 EOF`,
/// `1: -> FLOCK ADVISORY WRITE 4712 08:01:99 0 EOF`.
pub(crate) fn parse(text: &str, pid: i32, kind: Kind) -> Option<i32> {
    let kind = match kind {
        Kind::Flock => "FLOCK",
        Kind::Posix => "POSIX",
        Kind::Description => return None,
    };
    let mut holders = Vec::new();
    let mut held = None;
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(number) = words.next() else {
            continue;
        };
        let mut words = words.peekable();
        let waits = words.next_if_eq(&"->").is_some();
        let found = words.next();
        let Some(owner) = words.nth(2).and_then(|it| it.parse::<i32>().ok()) else {
            continue;
        };
        match (waits, held) {
            (false, _) => held = Some((number, owner)),
            (true, Some((of, holder))) if of == number && owner == pid && found == Some(kind) => {
                holders.push(holder);
            }
            (true, _) => {}
        }
    }
    // Several threads may wait for several files.
    let first = *holders.first()?;
    let is_one = holders.iter().all(|holder| *holder == first);
    (is_one && first > 0 && first != pid).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCKS: &str = "\
1: FLOCK  ADVISORY  WRITE 100 fe:00:1234 0 EOF
1: -> FLOCK  ADVISORY  WRITE 200 fe:00:1234 0 EOF
1:  -> FLOCK  ADVISORY  READ 201 fe:00:1234 0 EOF
2: POSIX  ADVISORY  WRITE 300 fe:00:1235 0 EOF
2: -> POSIX  ADVISORY  WRITE 200 fe:00:1235 0 EOF
3: POSIX  ADVISORY  WRITE 400 fe:00:1236 0 EOF
3: -> POSIX  ADVISORY  WRITE 500 fe:00:1236 0 EOF
4: POSIX  ADVISORY  WRITE 401 fe:00:1237 0 EOF
4: -> POSIX  ADVISORY  WRITE 500 fe:00:1237 0 EOF
5: OFDLCK ADVISORY  WRITE -1 fe:00:1238 0 EOF
5: -> POSIX  ADVISORY  WRITE 600 fe:00:1238 0 EOF
6: LEASE  ACTIVE    READ
";

    #[test]
    fn the_holder_is_named_if_there_is_one() {
        assert_eq!(parse(LOCKS, 200, Kind::Flock), Some(100));
        assert_eq!(parse(LOCKS, 201, Kind::Flock), Some(100));
        assert_eq!(parse(LOCKS, 200, Kind::Posix), Some(300));
        assert_eq!(parse(LOCKS, 500, Kind::Posix), None, "two files");
        assert_eq!(parse(LOCKS, 600, Kind::Posix), None, "no process");
        assert_eq!(parse(LOCKS, 100, Kind::Flock), None, "it does not wait");
        assert_eq!(parse(LOCKS, 200, Kind::Description), None);
        assert_eq!(parse("-> FLOCK A W 200\n1:\n\n", 200, Kind::Flock), None);
    }
}
