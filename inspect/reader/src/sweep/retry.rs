//! Retries reading a thread that another reader has stopped.

use std::thread::sleep;
use std::time::Duration;

use otelctx_remote as remote;

use crate::Error;

/// Delays before retrying: the other reader takes microseconds.
const WAITS: [Duration; 4] = [
    Duration::from_micros(200),
    Duration::from_millis(1),
    Duration::from_millis(3),
    Duration::from_millis(10),
];

/// Calls `read`, and again while another reader has the thread stopped.
pub(super) fn while_traced<T>(mut read: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    for wait in WAITS {
        match read() {
            Err(Error::Remote(remote::Error::AlreadyTraced { .. })) => sleep(wait),
            result => return result,
        }
    }
    read()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the result of the attempt with this number, and the number of attempts.
    fn attempts(succeeds_at: usize) -> (bool, usize) {
        let mut attempts = 0;
        let result = while_traced(|| {
            attempts += 1;
            let (pid, tid, tracer) = (7, 7, 1);
            let traced = remote::Error::AlreadyTraced { pid, tid, tracer };
            (attempts == succeeds_at).then_some(()).ok_or(traced.into())
        });
        (result.is_ok(), attempts)
    }

    #[test]
    fn a_traced_thread_is_read_four_more_times() {
        assert_eq!(attempts(1), (true, 1));
        assert_eq!(attempts(5), (true, 5));
        assert_eq!(attempts(6), (false, 5));
        let mut attempts = 0;
        let other = while_traced::<()>(|| {
            attempts += 1;
            Err(Error::NotAsleep { tid: 7 })
        });
        assert!(other.is_err());
        assert_eq!(attempts, 1);
    }
}
