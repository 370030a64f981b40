//! Retries reads that failed because of bad timing.

use std::thread::sleep;
use std::time::{Duration, Instant};

use otelctx_reader::{Error, Reading, Thread, remote};

use crate::error::is_gone;

/// Delays before retrying to read a thread that another reader has stopped, which takes
/// microseconds.
const WAITS: [Duration; 4] = [
    Duration::from_micros(200),
    Duration::from_millis(1),
    Duration::from_millis(3),
    Duration::from_millis(10),
];
/// Delays before reading all invalid records again. A record that is being rewritten is valid again
/// after less than a microsecond, unless its thread loses its CPU in between.
const WAITS_FOR_VALID: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(10)];

/// Reads a thread, and retries while another reader has it stopped.
pub(super) fn read_thread(thread: &Thread<'_>) -> Reading {
    for wait in WAITS {
        let reading = thread.read();
        match &reading.outcome {
            Err(Error::Remote(remote::Error::AlreadyTraced { .. })) => sleep(wait),
            _ => return reading,
        }
    }
    thread.read()
}

/// The outcome of reading an invalid thread again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// It is no longer invalid.
    Settled,
    /// It is still invalid. A sleeping thread does not write.
    Invalid {
        /// The thread sleeps.
        asleep: bool,
    },
}

/// Reads the threads with invalid records again, until `deadline`. Afterwards `invalid` contains
/// the threads whose records are still invalid: they have detached them that way. Returns false if
/// there was not enough time.
pub(super) fn settle(
    invalid: &mut Vec<usize>,
    deadline: Instant,
    mut read: impl FnMut(usize) -> Again,
) -> bool {
    let mut detached = Vec::new();
    for wait in WAITS_FOR_VALID {
        if invalid.is_empty() {
            break;
        }
        if Instant::now() + wait >= deadline {
            invalid.append(&mut detached);
            return false;
        }
        sleep(wait);
        invalid.retain(|index| match read(*index) {
            Again::Settled => false,
            Again::Invalid { asleep: false } => true,
            Again::Invalid { asleep: true } => {
                detached.push(*index);
                false
            }
        });
    }
    invalid.append(&mut detached);
    true
}

/// Number of attempts that may find no process although there is one.
const MAX_ATTEMPTS: usize = 3;

/// Calls `read` for process `pid`, and again if it reports that the process has ended although it
/// exists. `None` if it has ended.
pub(super) fn unless_ended<T>(
    pid: i32,
    mut read: impl FnMut() -> Result<T, Error>,
) -> Result<Option<T>, Error> {
    for _ in 0..MAX_ATTEMPTS {
        match read() {
            Err(error) if is_gone(&error) => {}
            answer => return answer.map(Some),
        }
        if has_ended(pid) {
            return Ok(None);
        }
    }
    Err(Error::NotStopped { tid: pid })
}

/// Whether there is no program with this ID: a process that is exiting has no executable, and
/// neither does a kernel thread.
fn has_ended(pid: i32) -> bool {
    let executable = remote::Process::open(pid).and_then(|process| process.executable());
    executable.is_err()
}
