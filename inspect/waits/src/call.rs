//! What is known about a thread that waits.

use otelctx_reader::remote::{Memory, threads};

use crate::numbers;

/// The system call in which a thread waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// Its number on this machine; −1 for none, for example in a page fault.
    pub number: i64,
    /// Its arguments.
    pub arguments: [u64; 6],
}

impl Call {
    /// The descriptor on which alone, in a process, the words for this call depend. `None` where they depend on memory or on
    /// other arguments.
    #[must_use]
    pub fn only_descriptor(&self) -> Option<i32> {
        let has_only = |name: &str| {
            let all = [
                "read",
                "readv",
                "pread64",
                "preadv",
                "preadv2",
                "write",
                "writev",
                "pwrite64",
                "pwritev",
                "pwritev2",
                "recvfrom",
                "recvmsg",
                "recvmmsg",
                "sendmsg",
                "sendmmsg",
                "accept",
                "accept4",
                "epoll_wait",
                "epoll_pwait",
                "epoll_pwait2",
                "fsync",
                "fdatasync",
            ];
            all.contains(&name)
        };
        let descriptor = || self.arguments[0] as i32;
        numbers::name(self.number)
            .is_some_and(has_only)
            .then(descriptor)
    }
}

impl From<&threads::Call> for Call {
    fn from(call: &threads::Call) -> Self {
        Self {
            number: call.number,
            arguments: call.arguments,
        }
    }
}

/// Why a thread is off its CPU, as far as the scheduler knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It sleeps, and a signal would wake it.
    Asleep,
    /// It sleeps, and no signal wakes it: usually for a disk.
    Disk,
    /// It was stopped by a signal or a debugger, or its control group is frozen.
    Stopped,
    /// It waits for a CPU. The call, if any, is not what it waits for.
    Queued,
}

/// A thread that waits.
#[derive(Clone, Copy)]
pub struct Waiting<'w> {
    /// Its ID in the reader's PID namespace.
    pub tid: i32,
    /// The call in which it waits.
    pub call: Call,
    /// Why it is off its CPU.
    pub state: State,
    /// Its user stack, innermost first: the instruction pointer, then return addresses. May be empty: no holder of a lock is
    /// named then.
    pub frames: &'w [u64],
    /// The process's memory as it was when the call was read, where that was noted; `None` for the memory as it is.
    pub memory: Option<&'w dyn Memory>,
    /// When the wait began, in nanoseconds of `CLOCK_MONOTONIC`, if known.
    pub since: Option<u64>,
    /// The current time, in nanoseconds of `CLOCK_MONOTONIC`: what was cached long before it is read again.
    pub now: u64,
}
