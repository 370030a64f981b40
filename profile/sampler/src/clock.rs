//! The clock of samples, and the calendar time of what it shows.

/// Nanoseconds of `CLOCK_MONOTONIC`, the clock of all samples.
#[must_use]
pub fn monotonic() -> u64 {
    nanoseconds(libc::CLOCK_MONOTONIC)
}

/// Returns the calendar time of a time of [`monotonic`], in nanoseconds after 1970-01-01 UTC, by what the clocks show now.
#[must_use]
pub fn calendar_time(monotonic_time: u64) -> u64 {
    let calendar = || nanoseconds(libc::CLOCK_REALTIME);
    monotonic_time.saturating_add_signed(calendar_offset(monotonic, calendar))
}

/// Number of times that both clocks are read: a thread is rarely interrupted in all of them.
const READINGS: usize = 8;

/// Returns by how much the second clock is ahead of the first. Where the thread is interrupted between the two, they seem
/// further apart than they are: the reading that took the least time counts.
fn calendar_offset(mut monotonic: impl FnMut() -> u64, mut calendar: impl FnMut() -> u64) -> i64 {
    let readings = (0..READINGS).map(|_| {
        let (before, time, after) = (monotonic(), calendar(), monotonic());
        let took = after.saturating_sub(before);
        (took, time.wrapping_sub(before + took / 2) as i64)
    });
    let (_, offset) = readings.min_by_key(|(took, _)| *took).unwrap_or_default();
    offset
}

/// Reads a clock that every kernel has, in nanoseconds.
pub(crate) fn nanoseconds(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: this function owns the structure, which outlives the call.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A calendar clock that is 1,000 ahead. Reading it takes 2, and the thread is interrupted before or behind some readings.
    #[test]
    fn an_interrupted_reading_does_not_count() {
        for uninterrupted in 0..READINGS {
            let now = std::cell::Cell::new(50);
            let count = std::cell::Cell::new(0);
            let tick = |by| now.set(now.get() + by);
            let calendar = || {
                let reading = count.replace(count.get() + 1);
                let before = if reading == uninterrupted {
                    1
                } else {
                    700 * (reading as u64 % 2)
                };
                tick(1 + before);
                let time = now.get() + 1000;
                tick(if reading == uninterrupted {
                    2
                } else {
                    701 - before
                });
                time
            };
            assert_eq!(calendar_offset(|| now.get(), calendar), 1000);
        }
    }
}
