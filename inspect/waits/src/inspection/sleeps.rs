//! Calls that wait for a time, a signal or a process.

use super::Inspection;
use crate::memory;
use crate::words::duration;

/// TIMER_ABSTIME (<linux/time.h>).
const TIMER_ABSTIME: u64 = 1;

impl Inspection<'_> {
    pub(super) fn sleep(&mut self, call: &'static str) -> Option<String> {
        match call {
            "nanosleep" => self.for_time(call, self.argument(0)),
            "clock_nanosleep" if self.argument(1) & TIMER_ABSTIME == 0 => {
                self.for_time(call, self.argument(2))
            }
            "clock_nanosleep" => Some(format!("{call} until a set time")),
            _ => None,
        }
    }

    /// The call with its time, a `struct timespec`.
    fn for_time(&self, call: &str, at: u64) -> Option<String> {
        let time = memory::timespec(self.memory()?, at)?;
        Some(format!("{call} {}", duration(time)))
    }

    /// A call that only waits for its timeout.
    pub(super) fn poll_without_descriptors(&self, call: &str) -> Option<String> {
        if call == "ppoll" {
            return self.for_time(call, self.argument(2));
        }
        // Milliseconds; negative ones mean without end.
        let timeout = u64::try_from(self.int(2)).ok()?;
        Some(format!("{call} {}", duration(timeout * 1_000_000)))
    }

    /// A call that only waits for its timeout.
    pub(super) fn select_without_descriptors(&self, call: &str) -> Option<String> {
        if call == "pselect6" {
            return self.for_time(call, self.argument(4));
        }
        let time = memory::timeval(self.memory()?, self.argument(4))?;
        Some(format!("{call} {}", duration(time)))
    }
}
