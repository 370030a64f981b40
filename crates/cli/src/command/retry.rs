//! Looking again where the first look came at a bad moment.

use std::thread::sleep;
use std::time::Duration;

use otelctx_reader::{Error, Found, remote};

use crate::error::is_gone;

/// Waits before further looks. Whoever looks at a thread has it for some microseconds only.
const WAITS: [Duration; 4] = [
    Duration::from_micros(200),
    Duration::from_millis(1),
    Duration::from_millis(3),
    Duration::from_millis(10),
];

/// Does `look`, and again if another reader had the thread just then, or if `again` says so of the
/// answer. The last answer counts.
pub(super) fn retry_while<T>(
    mut look: impl FnMut() -> Result<T, Error>,
    again: impl Fn(&T) -> bool,
) -> Result<T, Error> {
    for wait in WAITS {
        match look() {
            Ok(answer) if again(&answer) => {}
            Err(Error::Remote(remote::Error::AlreadyTraced { .. })) => {}
            answer => return answer,
        }
        sleep(wait);
    }
    look()
}

/// Whether a record was being rewritten just then.
pub(super) fn is_rewritten<C>(outcome: &Found<C>) -> bool {
    matches!(outcome, Found::Invalid)
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
