//! Looking again where the first look came at a bad moment.

use std::thread::sleep;
use std::time::Duration;

use otelctx_reader::{Error, remote};

/// Waits before further looks. Whoever looks at a thread has it for some microseconds only.
const WAITS: [Duration; 4] = [
    Duration::from_micros(200),
    Duration::from_millis(1),
    Duration::from_millis(3),
    Duration::from_millis(10),
];

/// Does `look`, and again if another reader had the thread just then, or if `again` says so of the
/// answer. The last answer counts.
pub(super) fn patiently<T>(
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
