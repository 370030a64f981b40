//! Retries reads that failed because of bad timing.

use std::thread::sleep;
use std::time::{Duration, Instant};

use otelctx_remote as remote;
use remote::Stopped;

use super::reading::Outcome;
use crate::runtime::{Present, ThreadState};
use crate::{Error, Thread};

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
pub(super) fn read_state(
    thread: &Thread<'_>,
    present: &[Present],
    stopped: Option<&Stopped>,
) -> Result<ThreadState, Error> {
    for wait in WAITS {
        match thread.state(present, stopped) {
            Err(Error::Remote(remote::Error::AlreadyTraced { .. })) => sleep(wait),
            state => return state,
        }
    }
    thread.state(present, stopped)
}

/// Reads the threads with invalid records again, until `deadline`. Returns those whose records are still
/// invalid: the threads have detached them that way. `None` if there was not enough time.
pub(super) fn settle(
    mut invalid: Vec<usize>,
    deadline: Instant,
    mut read: impl FnMut(usize) -> Outcome,
) -> Option<Vec<usize>> {
    let mut detached = Vec::new();
    for wait in WAITS_FOR_VALID {
        if invalid.is_empty() {
            break;
        }
        if Instant::now() + wait >= deadline {
            return None;
        }
        sleep(wait);
        invalid.retain(|index| match read(*index) {
            Outcome::Invalid { is_asleep: false } => true,
            // A sleeping thread does not write.
            Outcome::Invalid { is_asleep: true } => {
                detached.push(*index);
                false
            }
            _ => false,
        });
    }
    detached.append(&mut invalid);
    Some(detached)
}
