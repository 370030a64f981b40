//! Formats times.

use std::time::{SystemTime, UNIX_EPOCH};

use nix::libc;

/// Formats a time as `2026-11-21T06:42:09.123Z` (RFC 3339).
pub(crate) fn utc(time: SystemTime) -> String {
    // A clock that was never set may be before 1970.
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = otelctx_profile::utc(since.as_secs()).replace(' ', "T");
    format!("{seconds}.{:03}Z", since.subsec_millis())
}

/// Formats a time as `2026-11-21T06-42-09Z`, for names of files, which have no colons on some file systems.
pub(crate) fn file_stamp(time: SystemTime) -> String {
    let text = utc(time);
    // Without the milliseconds.
    let seconds = text.split('.').next().unwrap_or_default();
    format!("{}Z", seconds.replace(':', "-"))
}

/// Formats a time as `07:42:09`, in local time.
pub(crate) fn local(time: SystemTime) -> String {
    let at = of_day(since_epoch(time));
    format!("{:02}:{:02}:{:02}", at.tm_hour, at.tm_min, at.tm_sec)
}

/// Formats a time as `07:42:09 +01:00`, in local time with its offset.
pub(crate) fn local_with_offset(time: SystemTime) -> String {
    let at = of_day(since_epoch(time));
    let minutes = at.tm_gmtoff.unsigned_abs() / 60;
    let sign = if at.tm_gmtoff < 0 { '-' } else { '+' };
    let (hours, minutes) = (minutes / 60, minutes % 60);
    format!("{} {sign}{hours:02}:{minutes:02}", local(time))
}

/// Returns the time that is this number of milliseconds after midnight of the local day of `start`.
/// Both are in nanoseconds after 1970-01-01 UTC.
pub(crate) fn on_day_of(start: u64, milliseconds: u64) -> u64 {
    let seconds = Seconds::try_from(start / 1_000_000_000).unwrap_or(0);
    let mut at = of_day(seconds);
    let whole = i32::try_from(milliseconds / 1000).unwrap_or(i32::MAX);
    (at.tm_hour, at.tm_min, at.tm_sec) = (0, 0, whole);
    // The other offset may hold then.
    at.tm_isdst = -1;
    // SAFETY: mktime reads and changes a tm: this is a reference to one.
    let seconds = unsafe { libc::mktime(&raw mut at) };
    let seconds = u64::try_from(seconds).unwrap_or(0);
    let whole = seconds.saturating_mul(1_000_000_000);
    whole.saturating_add(milliseconds % 1000 * 1_000_000)
}

/// `time_t` of all 64-bit systems. The crate's name for it is deprecated for musl, which has changed it on 32-bit ones.
type Seconds = i64;

fn since_epoch(time: SystemTime) -> Seconds {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Seconds::try_from(since.as_secs()).unwrap_or(0)
}

/// Returns date and time of day in local time.
fn of_day(seconds: Seconds) -> libc::tm {
    // SAFETY: all fields of `tm` are numbers and a pointer, for which zeroes are valid values.
    let mut at: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: localtime_r reads a time_t and writes a tm: these are references to one of each. If the year
    // does not fit, `at` keeps its zeroes.
    unsafe { libc::localtime_r(&raw const seconds, &raw mut at) };
    at
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_time_is_formatted_by_rfc_3339() {
        // `date -u -d @1709210096 +%FT%TZ`
        let leap_day = UNIX_EPOCH + Duration::from_millis(1_709_210_096_007);
        assert_eq!(utc(leap_day), "2024-02-29T12:34:56.007Z");
        assert_eq!(utc(UNIX_EPOCH), "1970-01-01T00:00:00.000Z");
        assert_eq!(file_stamp(leap_day), "2024-02-29T12-34-56Z");
    }
}
