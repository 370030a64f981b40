//! Reading again where the first attempt came at a bad moment.

use std::thread::sleep;
use std::time::{Duration, Instant};

use otelctx_reader::{Error, Reading, Thread, remote};

use crate::error::is_gone;

/// Waits before a thread that another reader has stopped is read again. That takes some microseconds.
const WAITS: [Duration; 4] = [
    Duration::from_micros(200),
    Duration::from_millis(1),
    Duration::from_millis(3),
    Duration::from_millis(10),
];
/// Waits before invalid records are read again, all of them together. One that is being rewritten is
/// valid again after less than a microsecond, unless its thread lost its CPU in the middle.
const WAITS_FOR_VALID: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(10)];

/// Reads a thread, and again while another reader has it stopped.
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

/// What reading a thread again came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// It is no longer invalid.
    Settled,
    /// It still is. A thread that sleeps does not write.
    Invalid {
        /// The thread sleeps.
        asleep: bool,
    },
}

/// Reads the threads again whose records were invalid, until `deadline`. Afterwards `invalid` has those
/// that still are: their threads detached them that way. Returns false if there was no time to find
/// that out.
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

/// Looks that find no process where there is one.
const LOOKS: usize = 3;

/// Does `look` at process `pid`, and again while that finds it gone and it is there. `None` if it
/// has ended.
pub(super) fn unless_ended<T>(
    pid: i32,
    mut look: impl FnMut() -> Result<T, Error>,
) -> Result<Option<T>, Error> {
    for _ in 0..LOOKS {
        match look() {
            Err(error) if is_gone(&error) => {}
            answer => return answer.map(Some),
        }
        if has_ended(pid) {
            return Ok(None);
        }
    }
    Err(Error::NotStopped { tid: pid })
}

/// Whether nothing runs any more under this id: one that is ending has no executable, nor has a
/// thread of the kernel.
fn has_ended(pid: i32) -> bool {
    let executable = remote::Process::open(pid).and_then(|process| process.executable());
    executable.is_err()
}
