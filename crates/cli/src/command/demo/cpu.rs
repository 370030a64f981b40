//! What the kernel says of a thread without stopping it: whether it runs, and how long it has.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use nix::unistd::{SysconfVar, sysconf};

/// The fields of `/proc/PID/stat` that are used here, by their numbers in proc_pid_stat(5).
const STATE: usize = 3;
const USER_TIME: usize = 14;
const SYSTEM_TIME: usize = 15;

/// `/proc/PID/task/TID/stat`, kept open.
#[derive(Debug)]
pub(super) struct Stat {
    file: File,
    /// Of user and system time.
    ticks_per_second: u64,
}

/// A thread at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    /// It runs, or would if there were a processor for it.
    pub(super) runs: bool,
    /// What it has used of processors since it started.
    pub(super) cpu: Duration,
}

impl Stat {
    pub(super) fn open(pid: i32, tid: i32) -> io::Result<Self> {
        // Linux on every architecture says 100; asked for all the same, as proc(5) says.
        let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
        Ok(Self {
            file: File::open(format!("/proc/{pid}/task/{tid}/stat"))?,
            ticks_per_second: ticks.unsigned_abs(),
        })
    }

    pub(super) fn read(&self) -> io::Result<Moment> {
        let mut line = [0; 1024];
        let length = self.file.read_at(&mut line, 0)?;
        let parsed = parse(&line[..length], self.ticks_per_second);
        parsed.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a malformed stat line"))
    }
}

fn parse(line: &[u8], ticks_per_second: u64) -> Option<Moment> {
    // The second field is the name, in parentheses, and may have any character in it.
    let name_end = line.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(&line[name_end + 1..]).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - STATE).copied();
    let ticks = |number| field(number)?.parse::<u64>().ok();
    let used = ticks(USER_TIME)?.checked_add(ticks(SYSTEM_TIME)?)?;
    Some(Moment {
        runs: field(STATE)? == "R",
        cpu: Duration::from_secs_f64(used as f64 / ticks_per_second.max(1) as f64),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_from_behind_the_name() {
        let line = b"7 (a) R (b) S 1 7 7 0 -1 4194304 95 0 0 0 12 34 0 0 20 0 1 0 5 6";
        assert_eq!(
            parse(line, 100),
            Some(Moment {
                runs: false,
                cpu: Duration::from_millis(460)
            })
        );
        assert_eq!(parse(b"7 (a", 100), None);
        assert_eq!(parse(b"7 (a) R 1", 100), None);
    }
}
