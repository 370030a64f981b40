//! Lines about changes, never a flood of them.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::output::terminal;

/// Number of lines that may follow each other at once.
const BURST: u32 = 10;
/// The time after which one more line may be printed.
const REFILL: Duration = Duration::from_secs(60);

/// Bounds the number of lines: ten at once, then one in a minute.
#[derive(Debug)]
pub(super) struct Notices {
    left: u32,
    refilled: Instant,
    suppressed: u64,
}

impl Notices {
    pub(super) fn new() -> Self {
        Self {
            left: BURST,
            refilled: Instant::now(),
            suppressed: 0,
        }
    }

    /// Returns whether a line may be printed now, and how many were not printed before it.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        let refills = now.saturating_duration_since(self.refilled).as_secs() / REFILL.as_secs();
        if refills > 0 {
            let refills = u32::try_from(refills).unwrap_or(u32::MAX);
            self.left = self.left.saturating_add(refills).min(BURST);
            self.refilled = now;
        }
        if self.left == 0 {
            self.suppressed += 1;
            return None;
        }
        self.left -= 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

/// Prints a line, if there have not been too many.
pub(super) fn say(notices: &Mutex<Notices>, message: &str, hint: Option<&str>) {
    let mut notices = notices.lock().unwrap_or_else(PoisonError::into_inner);
    match notices.admit(Instant::now()) {
        Some(0) => terminal::complain(message, hint),
        Some(suppressed) => {
            let message = format!("{message} ({suppressed} lines before were not printed)");
            terminal::complain(&message, hint);
        }
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bounded_and_the_others_counted() {
        let mut notices = Notices::new();
        let start = notices.refilled;
        let at = |seconds| start + Duration::from_secs(seconds);
        for _ in 0..BURST {
            assert_eq!(notices.admit(at(1)), Some(0));
        }
        for _ in 0..1000 {
            assert_eq!(notices.admit(at(2)), None);
        }
        assert_eq!(notices.admit(at(61)), Some(1000));
        assert_eq!(notices.admit(at(62)), None);
        assert_eq!(notices.admit(at(122)), Some(1));
        // A quiet hour permits no more than a burst.
        for _ in 0..BURST {
            assert_eq!(notices.admit(at(4000)), Some(0));
        }
        assert_eq!(notices.admit(at(4000)), None);
    }
}
