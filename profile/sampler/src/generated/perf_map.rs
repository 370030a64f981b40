//! `/tmp/perf-PID.map`: a line with start, size and name for each function.

use super::announcement::{Entry, Format, MAX_ENTRY, Next};

#[derive(Debug, Default)]
pub(super) struct PerfMap;

impl Format for PerfMap {
    const MAY_BE_REWRITTEN: bool = true;

    fn next<'a>(&mut self, bytes: &'a [u8]) -> Option<(Next<'a>, u64)> {
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
            // A line beyond the maximum is skipped.
            return (bytes.len() > MAX_ENTRY).then_some((Next::Other, bytes.len() as u64));
        };
        let entry = entry_of_line(&bytes[..end]).map_or(Next::Other, Next::Function);
        Some((entry, end as u64 + 1))
    }
}

/// Decodes `START SIZE NAME`, with numbers in hexadecimal digits.
fn entry_of_line(line: &[u8]) -> Option<Entry<'_>> {
    let mut parts = line.splitn(3, |byte| *byte == b' ');
    let mut number = || {
        let digits = std::str::from_utf8(parts.next()?).ok()?;
        let digits = digits.strip_prefix("0x").unwrap_or(digits);
        u64::from_str_radix(digits, 16).ok()
    };
    let (start, size) = (number()?, number()?);
    Some(Entry {
        start,
        size,
        time: None,
        name: parts.next()?,
    })
}
