//! The time allowed for one process (`--deadline`).

use std::time::{Duration, Instant};

/// When the time for one process ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline(Instant);

impl Deadline {
    /// A deadline this far away.
    pub(super) fn after(timeout: Duration) -> Self {
        Self(Instant::now() + timeout)
    }

    pub(super) fn end(&self) -> Instant {
        self.0
    }

    /// Half of the time that is left: the limit for work that may never end, or that is optional.
    pub(super) fn half(&self) -> Instant {
        let now = Instant::now();
        now + self.0.saturating_duration_since(now) / 2
    }

    pub(super) fn has_passed(&self) -> bool {
        Instant::now() >= self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_time_is_half_of_what_is_left() {
        let end = Instant::now() + Duration::from_secs(3600);
        let half = Deadline(end).half();
        assert!(
            half <= Instant::now() + Duration::from_secs(1800),
            "{half:?}"
        );
        assert!(half < end);
    }
}
