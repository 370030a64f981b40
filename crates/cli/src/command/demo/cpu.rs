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

/// A thread's files in `/proc`, kept open.
#[derive(Debug)]
pub(super) struct Cpu {
    stat: File,
    /// Absent from kernels without CONFIG_SCHED_INFO.
    schedstat: Option<File>,
    /// The unit of the times in `stat`.
    ticks_per_second: u64,
}

impl Cpu {
    pub(super) fn open(pid: i32, tid: i32) -> io::Result<Self> {
        // Linux on every architecture says 100.
        let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
        let schedstat = File::open(format!("/proc/{pid}/task/{tid}/schedstat")).ok();
        Ok(Self {
            stat: File::open(format!("/proc/{pid}/task/{tid}/stat"))?,
            schedstat,
            ticks_per_second: ticks.unsigned_abs().max(1),
        })
    }

    /// Whether the thread runs, or would if there were a processor for it.
    pub(super) fn runs(&self) -> io::Result<bool> {
        let line = read(&self.stat)?;
        field(&line, STATE)
            .map(|state| state == "R")
            .ok_or_else(malformed)
    }

    /// What the thread has used of the processors since it started: in nanoseconds, up to when it
    /// last left a processor, or else in ticks of 10 ms.
    pub(super) fn used(&self) -> io::Result<Duration> {
        if let Some(file) = &self.schedstat {
            // Documentation/scheduler/sched-stats.rst: the first number is the time on a processor.
            let line = read(file)?;
            let first = line.split_ascii_whitespace().next();
            let nanoseconds = first.and_then(|text| text.parse().ok());
            return nanoseconds.map(Duration::from_nanos).ok_or_else(malformed);
        }
        let line = read(&self.stat)?;
        let ticks = |number| field(&line, number)?.parse::<u64>().ok();
        let used = ticks(USER_TIME).zip(ticks(SYSTEM_TIME));
        let (user, system) = used.ok_or_else(malformed)?;
        let seconds = user.saturating_add(system) as f64 / self.ticks_per_second as f64;
        Ok(Duration::from_secs_f64(seconds))
    }
}

fn read(file: &File) -> io::Result<String> {
    let mut line = [0; 1024];
    let length = file.read_at(&mut line, 0)?;
    Ok(String::from_utf8_lossy(&line[..length]).into_owned())
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a malformed line in /proc")
}

/// A field of `stat` behind the second: that is the name, in parentheses, and may have any
/// character in it.
fn field(line: &str, number: usize) -> Option<&str> {
    let (_, rest) = line.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(number - STATE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_from_behind_the_name() {
        let line = "7 (a) R (b) S 1 7 7 0 -1 4194304 95 0 0 0 12 34 0 0 20 0 1 0 5 6";
        assert_eq!(field(line, STATE), Some("S"));
        assert_eq!(field(line, USER_TIME), Some("12"));
        assert_eq!(field(line, SYSTEM_TIME), Some("34"));
        assert_eq!(field("7 (a) R", USER_TIME), None);
        assert_eq!(field("7 (a", STATE), None);
    }

    #[test]
    fn a_thread_that_works_uses_processor_time() {
        let own = nix::unistd::gettid().as_raw();
        let cpu = Cpu::open(std::process::id() as i32, own).unwrap();
        let ticks = Cpu {
            schedstat: None,
            ..Cpu::open(std::process::id() as i32, own).unwrap()
        };
        for cpu in [cpu, ticks] {
            assert!(cpu.runs().unwrap());
            let before = cpu.used().unwrap();
            while cpu.used().unwrap() < before + Duration::from_millis(20) {
                std::hint::spin_loop();
            }
        }
    }
}
