//! Parses durations.

use std::time::Duration;

/// The maximum, in seconds: a day.
const MAX_SECONDS: f64 = 86_400.0;

/// Parses a number of seconds, with an optional fraction.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=MAX_SECONDS).contains(&seconds) => {
            Ok(Duration::from_secs_f64(seconds))
        }
        _ => Err(format!(
            "expected a number of seconds from 0.1 to {MAX_SECONDS}"
        )),
    }
}
