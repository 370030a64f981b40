//! Reads memory of a sleeping thread, and proves that the thread slept throughout.
//!
//! State S with the same switch counters before and after is no proof: a thread that is about to
//! sleep may return to user code without a switch. `/proc/PID/task/TID/syscall` shows a call only
//! of a thread that is off its CPU and off the run queue, and still is when the report is complete
//! (lib/syscall.c, `task_current_syscall`); otherwise it shows `running`.
//!
//! Writes by other threads, io_uring or other processes are not detected.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use nix::sys::resource::{Resource, getrlimit};

use super::call::Call;
use crate::Process;

/// Size of `schedstat`, in bytes: three numbers of at most 20 digits.
const SCHEDSTAT_SIZE: usize = 96;
/// Size of `syscall`, in bytes: a number and eight hexadecimal words of at most 19 characters.
const SYSCALL_SIZE: usize = 256;
/// Maximum number of bytes read of `status`.
const STATUS_SIZE: u64 = 64 * 1024;

/// The evidence that a thread slept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// The third number of `schedstat`, which counts how often the thread was put on a CPU, read
    /// before `syscall` and after the memory. Needs CONFIG_SCHED_INFO.
    Schedstat,
    /// `syscall` and the context switches in `status`, read before and after the memory. Works on
    /// every kernel and takes about three times as long.
    Status,
}

/// A thread's files in `/proc`, kept open: once it has exited, every read fails.
#[derive(Debug)]
pub struct ThreadFiles {
    syscall: File,
    schedstat: Option<File>,
    status: Option<File>,
    /// The count of `schedstat` when the thread was last found asleep.
    asleep_at: Option<u64>,
    /// The count read since, if the thread was not asleep throughout.
    ran_at: Option<u64>,
}

impl ThreadFiles {
    /// Opens the necessary files: two, or three if the kernel has no `schedstat`. Reading them
    /// requires the right to trace the process.
    pub fn open(process: &Process, tid: i32) -> io::Result<Self> {
        let open = |name: &str| process.open_entry(&format!("task/{tid}/{name}"));
        let syscall = open("syscall")?;
        let schedstat = open("schedstat").ok();
        let times = schedstat.as_ref().and_then(|file| times_run(file).ok());
        // Zero: the kernel does not count.
        let ran_at = times.filter(|times| *times != 0);
        let status = ran_at.is_none().then(|| open("status")).transpose()?;
        Ok(Self {
            syscall,
            schedstat: schedstat.filter(|_| status.is_none()),
            status,
            asleep_at: None,
            ran_at,
        })
    }

    /// Opens the files that `protocol` needs, for tests of one protocol.
    #[doc(hidden)]
    pub fn open_for(process: &Process, tid: i32, protocol: Protocol) -> io::Result<Self> {
        let open = |name: &str| process.open_entry(&format!("task/{tid}/{name}"));
        let is_first = protocol == Protocol::Schedstat;
        Ok(Self {
            syscall: open("syscall")?,
            schedstat: is_first.then(|| open("schedstat")).transpose()?,
            status: (!is_first).then(|| open("status")).transpose()?,
            asleep_at: None,
            ran_at: None,
        })
    }

    /// The protocol in use.
    pub fn protocol(&self) -> Protocol {
        match self.schedstat {
            Some(_) => Protocol::Schedstat,
            None => Protocol::Status,
        }
    }

    /// Calls `read` while the thread sleeps. `None` if the thread ran before `read` returned.
    pub fn read_asleep<T>(&mut self, read: impl FnOnce() -> T) -> io::Result<Option<T>> {
        self.read_report_asleep(|_| read())
    }

    /// [`Self::read_asleep`] with the system call in which the thread sleeps throughout. `read` is
    /// not called if the kernel's report is not understood.
    pub fn read_call_asleep<T>(&mut self, read: impl FnOnce(&Call) -> T) -> io::Result<Option<T>> {
        let result = self.read_report_asleep(|text| Call::parse(text).as_ref().map(read))?;
        Ok(result.flatten())
    }

    /// Calls `read` with the kernel's report on the sleep.
    fn read_report_asleep<T>(&mut self, read: impl FnOnce(&[u8]) -> T) -> io::Result<Option<T>> {
        self.asleep_at = None;
        let before = self.ran_at.take();
        match (&self.schedstat, &self.status) {
            (Some(schedstat), _) => {
                let mut buffer = [0; SYSCALL_SIZE];
                let sleep = self.counted_sleep(schedstat, before, &mut buffer)?;
                let Some((sleep, before)) = sleep else {
                    return Ok(None);
                };
                let result = read(sleep);
                let is_same = times_run(schedstat)? == before;
                self.asleep_at = is_same.then_some(before);
                Ok(is_same.then_some(result))
            }
            (None, Some(status)) => self.by_status(status, read),
            (None, None) => Ok(None),
        }
    }

    /// Returns whether the thread is asleep: [`Self::has_stayed_asleep`] can confirm it later.
    /// Always `false` with [`Protocol::Status`].
    pub fn is_asleep(&mut self) -> io::Result<bool> {
        self.asleep_at = None;
        let before = self.ran_at.take();
        let Some(schedstat) = &self.schedstat else {
            return Ok(false);
        };
        let mut buffer = [0; SYSCALL_SIZE];
        let sleep = self.counted_sleep(schedstat, before, &mut buffer)?;
        self.asleep_at = sleep.map(|(_, times)| times);
        Ok(sleep.is_some())
    }

    /// Returns whether the thread has stayed asleep since the last successful
    /// [`Self::read_asleep`], or since [`Self::is_asleep`] was true: what was read of it is still
    /// valid. Takes one system call. Always `false` with [`Protocol::Status`].
    pub fn has_stayed_asleep(&mut self) -> io::Result<bool> {
        let (Some(schedstat), Some(asleep_at)) = (&self.schedstat, self.asleep_at) else {
            return Ok(false);
        };
        let times = times_run(schedstat)?;
        self.ran_at = (times != asleep_at).then_some(times);
        Ok(times == asleep_at)
    }

    /// The time that the thread has been ready to run without a CPU, in nanoseconds, up to the last time when it got one.
    /// `None` if the kernel does not count.
    pub fn queue_time(&self) -> io::Result<Option<u64>> {
        let of = |file| counter(file, 1).map(Some);
        self.schedstat.as_ref().map_or(Ok(None), of)
    }

    /// The system call in which the thread sleeps; `None` if it is running.
    pub fn call(&self) -> io::Result<Option<Call>> {
        let mut buffer = [0; SYSCALL_SIZE];
        Ok(Call::parse(read_whole(&self.syscall, &mut buffer)?))
    }

    /// The kernel's report on the thread's sleep; `None` if the thread is running.
    fn sleep<'b>(&self, buffer: &'b mut [u8]) -> io::Result<Option<&'b [u8]>> {
        let text = read_whole(&self.syscall, buffer)?;
        // A number, or −1 outside a system call.
        let is_asleep = |byte: &u8| *byte == b'-' || byte.is_ascii_digit();
        Ok(text.first().is_some_and(is_asleep).then_some(text))
    }

    /// [`Self::sleep`], and the count of `schedstat` before it: `before`, if that was read already.
    /// In the opposite order, a thread that runs between the two would not be detected. `None` if
    /// the thread is running, or the kernel does not count.
    fn counted_sleep<'b>(
        &self,
        schedstat: &File,
        before: Option<u64>,
        buffer: &'b mut [u8],
    ) -> io::Result<Option<(&'b [u8], u64)>> {
        let before = before.map_or_else(|| times_run(schedstat), Ok)?;
        let sleep = self.sleep(buffer)?.filter(|_| before != 0);
        Ok(sleep.map(|sleep| (sleep, before)))
    }

    /// Both reports must be the same: the thread may have run between the first one and the count.
    fn by_status<T>(&self, status: &File, read: impl FnOnce(&[u8]) -> T) -> io::Result<Option<T>> {
        let mut text = Vec::new();
        let (mut first, mut second) = ([0; SYSCALL_SIZE], [0; SYSCALL_SIZE]);
        let Some(sleep) = self.sleep(&mut first)? else {
            return Ok(None);
        };
        let before = switches_in(status, &mut text)?;
        let result = read(sleep);
        let is_same = before.is_some()
            && self.sleep(&mut second)? == Some(sleep)
            && switches_in(status, &mut text)? == before;
        Ok(is_same.then_some(result))
    }
}

/// Returns whether a thread sleeps that was switched out this many times: what was read of it since it was found asleep with the
/// same number is still valid. Where the thread does not sleep in the kernel's eyes at this moment, that is unknown.
///
/// # Errors
/// If the thread has ended, or the caller is not permitted to trace it.
pub fn is_still_asleep(process: &Process, tid: i32, switches: u64) -> io::Result<bool> {
    let open = |name: &str| process.open_entry(&format!("task/{tid}/{name}"));
    let mut buffer = [0; SYSCALL_SIZE];
    let report = open("syscall")?;
    // First, as the count rises when the thread is switched out: it was off its CPU at the time of the report.
    let is_asleep = Call::parse(read_whole(&report, &mut buffer)?).is_some();
    Ok(is_asleep && self::switches(process, tid)? == Some(switches))
}

/// Returns how often a thread was switched out. `None` if it runs, or is ready to.
///
/// # Errors
/// If the thread has ended.
pub fn switches(process: &Process, tid: i32) -> io::Result<Option<u64>> {
    let status = process.open_entry(&format!("task/{tid}/status"))?;
    switches_in(&status, &mut Vec::new())
}

/// Maximum number of threads to keep two files each open: half of the soft limit (RLIMIT_NOFILE).
pub fn max_kept() -> usize {
    let limits = getrlimit(Resource::RLIMIT_NOFILE);
    limits.map_or(0, |(soft, _)| {
        usize::try_from(soft / 4).unwrap_or(usize::MAX)
    })
}

/// Reads a file of `/proc` that a single read returns completely.
fn read_whole<'b>(file: &File, buffer: &'b mut [u8]) -> io::Result<&'b [u8]> {
    let size = file.read_at(buffer, 0)?;
    Ok(&buffer[..size])
}

/// Reads how often the thread was put on a CPU (kernel/sched/stats.h, `sched_info_arrive`).
fn times_run(schedstat: &File) -> io::Result<u64> {
    counter(schedstat, 2)
}

/// Reads one of the numbers: time on a CPU, time in the queue, and the one above.
fn counter(schedstat: &File, position: usize) -> io::Result<u64> {
    let mut buffer = [0; SCHEDSTAT_SIZE];
    let text = read_whole(schedstat, &mut buffer)?;
    let mut words = text.split(|byte| *byte == b' ' || *byte == b'\n');
    Ok(words.nth(position).and_then(number).unwrap_or(0))
}

/// The number of context switches of a thread that is off its CPU; `None` if it is not, or unknown.
fn switches_in(status: &File, text: &mut Vec<u8>) -> io::Result<Option<u64>> {
    text.clear();
    let mut chunk = [0; 4096];
    while (text.len() as u64) < STATUS_SIZE {
        match status.read_at(&mut chunk, text.len() as u64)? {
            0 => break,
            size => text.extend_from_slice(&chunk[..size]),
        }
    }
    Ok(sum_of_switches(text))
}

fn sum_of_switches(status: &[u8]) -> Option<u64> {
    let field = |name: &[u8]| {
        let mut lines = status.split(|byte| *byte == b'\n');
        let value = lines.find_map(|line| line.strip_prefix(name));
        value.map(<[u8]>::trim_ascii)
    };
    let is_running = field(b"State:")?.first()? == &b'R';
    let voluntary = number(field(b"voluntary_ctxt_switches:")?)?;
    let other = number(field(b"nonvoluntary_ctxt_switches:")?)?;
    (!is_running).then(|| voluntary.wrapping_add(other))
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_of_a_thread_that_runs_do_not_count() {
        let status = |state: &str| {
            format!(
                "Name:\tx\nState:\t{state}\nGroups:\t1 2\n\
                 voluntary_ctxt_switches:\t40\nnonvoluntary_ctxt_switches:\t2\n"
            )
        };
        let sum = |text: &str| sum_of_switches(text.as_bytes());
        assert_eq!(sum(&status("S (sleeping)")), Some(42));
        assert_eq!(sum(&status("D (disk sleep)")), Some(42));
        assert_eq!(sum(&status("R (running)")), None);
        assert_eq!(sum("State:\tS (sleeping)\n"), None);
        assert_eq!(sum(""), None);
    }

    #[test]
    fn a_thread_that_runs_is_not_read() {
        let process = Process::open(i32::try_from(std::process::id()).unwrap()).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sender.send(nix::unistd::gettid().as_raw()).unwrap();
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let tid = receiver.recv().unwrap();
            for protocol in [Protocol::Schedstat, Protocol::Status] {
                let Ok(mut files) = ThreadFiles::open_for(&process, tid, protocol) else {
                    assert_eq!(protocol, Protocol::Schedstat, "the kernel does not count");
                    continue;
                };
                assert_eq!(files.protocol(), protocol);
                for _ in 0..100 {
                    assert_eq!(files.read_asleep(|| 1).unwrap(), None, "{protocol:?}");
                    assert_eq!(files.read_call_asleep(|_| 1).unwrap(), None);
                }
                assert_eq!(files.call().unwrap(), None);
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }
}
