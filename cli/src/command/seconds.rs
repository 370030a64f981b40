//! Parses durations.

use std::time::Duration;

/// The maximum, in seconds: a day.
const MAX_SECONDS: f64 = 86_400.0;

/// Units, each with its length in seconds.
const UNITS: [(&str, f64); 4] = [("h", 3600.0), ("m", 60.0), ("s", 1.0), ("ms", 0.001)];

/// Parses a number of seconds with an optional fraction, or numbers with units, such as `1m30s`.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    match span(text) {
        Some(seconds) if (0.1..=MAX_SECONDS).contains(&seconds) => {
            Ok(Duration::from_secs_f64(seconds))
        }
        _ => Err(format!(
            "expected a number of seconds from 0.1 to {MAX_SECONDS}, or a duration such as 1m30s"
        )),
    }
}

/// Parses a duration of any length, in seconds.
pub(super) fn span(text: &str) -> Option<f64> {
    let seconds: Option<f64> = text.parse().ok().or_else(|| with_units(text));
    seconds.filter(|it| it.is_finite() && !it.is_sign_negative())
}

/// Adds numbers with units, from the largest unit to the smallest.
fn with_units(text: &str) -> Option<f64> {
    let (mut rest, mut units, mut sum) = (text.trim(), &UNITS[..], 0.0);
    while !rest.is_empty() {
        let digits = rest.find(|it: char| !it.is_ascii_digit() && it != '.')?;
        let (number, after) = rest.split_at(digits);
        let letters = after.find(|it: char| !it.is_ascii_alphabetic());
        let (unit, after) = after.split_at(letters.unwrap_or(after.len()));
        let at = units.iter().position(|(name, _)| *name == unit)?;
        sum += number.parse::<f64>().ok()? * units[at].1;
        units = &units[at + 1..];
        rest = after.trim_start();
    }
    (!text.is_empty()).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_may_have_units() {
        for (text, milliseconds) in [
            ("10", 10_000),
            ("0.5", 500),
            ("10s", 10_000),
            ("1.5s", 1_500),
            ("500ms", 500),
            ("2m", 120_000),
            ("1m30s", 90_000),
            ("1m 30s", 90_000),
            ("1h2m3s400ms", 3_723_400),
            ("24h", 86_400_000),
        ] {
            let expected = Duration::from_millis(milliseconds);
            assert_eq!(seconds(text), Ok(expected), "{text}");
        }
        for text in [
            "", "s", "m30", "1x", "30s1m", "1s1s", "1m30", "-1s", "25h", "50ms", "0s", "1..5s",
            "1e9", "NaN", "inf",
        ] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
