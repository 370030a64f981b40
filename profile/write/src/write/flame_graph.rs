//! A flame graph.

use std::io::{self, Write};
use std::num::NonZeroU64;

use inferno::flamegraph;

use super::folded;
use crate::Clock;

/// Writes the graph of `stacks`, each with its number of samples.
pub(super) fn write<'s>(
    title: &str,
    clock: Clock,
    period: NonZeroU64,
    stacks: impl Iterator<Item = (&'s str, usize)>,
    writer: &mut dyn Write,
) -> io::Result<()> {
    let mut samples = 0;
    let lines = stacks.map(|(stack, count)| {
        samples += count;
        format!("{stack} {count}")
    });
    let lines: Vec<String> = lines.collect();
    let mut chosen = flamegraph::Options::default();
    chosen.title = title.chars().map(folded::in_a_line).collect();
    chosen.subtitle = Some(subtitle(clock, period, samples));
    chosen.count_name = "samples".to_owned();
    // Keeps the start of a name.
    chosen.text_truncate_direction = flamegraph::TextTruncateDirection::Right;
    // Each function has the same colour in every graph.
    chosen.hash = true;
    if lines.is_empty() {
        // inferno fails without samples.
        return writer.write_all(EMPTY.as_bytes());
    }
    flamegraph::from_lines(&mut chosen, lines.iter().map(String::as_str), writer)
}

/// Formats the number of samples, their frequency, and the time of the recording.
fn subtitle(clock: Clock, period: NonZeroU64, samples: usize) -> String {
    let seconds = clock.duration() as f64 / 1e9;
    let frequency = (1e9 / period.get() as f64).round();
    let start = utc(clock.unix(clock.start) / 1_000_000_000);
    let samples = grouped(samples);
    format!("{samples} samples at {frequency} Hz, {seconds:.1} s from {start} UTC")
}

/// Formats a number with thousands separators, as inferno does for functions: `12,345`.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let groups: Vec<&[u8]> = digits.as_bytes().rchunks(3).rev().collect();
    String::from_utf8_lossy(&groups.join(&b',')).into_owned()
}

/// Formats date and time of day, `seconds` after 1970-01-01.
fn utc(seconds: u64) -> String {
    const DAY: u64 = 86_400;
    // If years start in March, the leap day is the last day of the year, and each five months have
    // 153 days. Days count from 1 March of year 0, in eras of 400 years.
    let days = seconds / DAY + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let of_day = seconds % DAY;
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

const EMPTY: &str = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"400\" height=\"40\">\
    <text x=\"10\" y=\"25\" font-family=\"sans-serif\">No samples.</text></svg>\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_subtitle_has_thousands_separators() {
        let clock = Clock {
            start: 0,
            end: 60_000_000_000,
            start_unix: 0,
        };
        let period = NonZeroU64::new(1_001_001).unwrap();
        let text = subtitle(clock, period, 1_234_567);
        assert!(
            text.starts_with("1,234,567 samples at 999 Hz, 60.0 s"),
            "{text}"
        );
        assert_eq!([0, 999, 1000].map(grouped), ["0", "999", "1,000"]);
    }

    /// The expected values are from `date -u -d @SECONDS`.
    #[test]
    fn a_time_is_formatted_by_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_399, "2000-02-28 23:59:59"),
            (951_868_799, "2000-02-29 23:59:59"),
            (951_868_800, "2000-03-01 00:00:00"),
            (1_700_000_000, "2023-11-14 22:13:20"),
            (1_735_689_599, "2024-12-31 23:59:59"),
            (4_107_542_400, "2100-03-01 00:00:00"),
        ] {
            assert_eq!(utc(seconds), expected);
        }
    }
}
