//! Delays between attempts.

use std::time::Duration;

/// The delays between attempts to send a message: each is twice the one before, less a random part of up to half, so
/// that many agents do not retry at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The delay after the first attempt. Default: 1 s.
    pub first: Duration,
    /// The maximum delay. Default: 30 s.
    pub max: Duration,
    /// The maximum delay that is granted to a receiver that asks for one. Default: an hour.
    pub max_asked: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(1),
            max: Duration::from_secs(30),
            max_asked: Duration::from_secs(3600),
        }
    }
}

impl Backoff {
    /// Returns the delay after a number of failed attempts, from 1.
    #[must_use]
    pub fn delay(&self, failures: u32) -> Duration {
        let doubled = 2_u32.saturating_pow(failures.saturating_sub(1));
        let whole = self.first.saturating_mul(doubled).min(self.max);
        whole.mul_f64(1.0 - fastrand::f64() / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_maximum_and_are_random() {
        let backoff = Backoff::default();
        for (failures, seconds) in [
            (1, 1.0),
            (2, 2.0),
            (3, 4.0),
            (5, 16.0),
            (6, 30.0),
            (u32::MAX, 30.0),
        ] {
            let mut all = Vec::new();
            for _ in 0..200 {
                let delay = backoff.delay(failures).as_secs_f64();
                assert!(delay <= seconds && delay >= seconds / 2.0, "{delay}");
                all.push(delay);
            }
            all.dedup();
            assert!(all.len() > 100, "{failures}");
        }
    }
}
