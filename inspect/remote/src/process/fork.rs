//! Finds out whether a forked child inherits a mapping, from `/proc/PID/smaps`.

use std::io::{BufRead, BufReader, Read};
use std::time::Instant;

use super::Process;
use crate::Error;
use crate::mappings::is_clock_check_due;

/// Maximum number of bytes read of `smaps`: about 20,000 mappings, which take about a second.
const LIMIT: u64 = 16 << 20;

impl Process {
    /// Returns whether a forked child gets a copy of the mapping that starts at `address` (not with
    /// MADV_DONTFORK). `None` if that is unknown, after too many other mappings, or past
    /// `deadline`.
    pub fn is_copied_on_fork(
        &self,
        address: u64,
        deadline: Option<Instant>,
    ) -> Result<Option<bool>, Error> {
        let entry = format!("{}smaps", self.task_prefix());
        self.open_entry(&entry)
            .and_then(|file| is_copied(BufReader::new(file.take(LIMIT)), address, deadline))
            .map_err(|error| self.error("smaps", "read the mappings", error))
    }
}

fn is_copied(
    lines: impl BufRead,
    address: u64,
    deadline: Option<Instant>,
) -> std::io::Result<Option<bool>> {
    let start = format!("{address:08x}-");
    let is_late = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
    let mut found = false;
    let mut seen = 0;
    // The names of mappings may contain any bytes.
    for line in lines.split(b'\n') {
        let line = line?;
        if is_clock_check_due(&mut seen) && is_late() {
            return Ok(None);
        }
        if line.starts_with(start.as_bytes()) {
            found = true;
        } else if found && let Some(flags) = line.strip_prefix(b"VmFlags:") {
            // "dc": do not copy area on fork (Documentation/filesystems/proc.rst).
            let mut flags = flags.split(|byte| *byte == b' ');
            return Ok(Some(!flags.any(|flag| flag == b"dc")));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::is_copied;

    #[test]
    fn the_flags_of_the_mapping_itself_count() {
        let text = "00400000-00401000 rw-p 00000000 00:01 7 /memfd:a\nSize: 4 kB\n\
                    VmFlags: rd wr mr mw me ac \n\
                    7f0000000000-7f0000001000 rw-p 00000000 00:01 8 /memfd:b\nSize: 4 kB\n\
                    VmFlags: rd wr mr mw me dc ac \n";
        let of = |address| is_copied(text.as_bytes(), address, None).unwrap();
        assert_eq!(of(0x40_0000), Some(true));
        assert_eq!(of(0x7f00_0000_0000), Some(false));
        assert_eq!(of(0x1000), None);
        let late = is_copied(text.as_bytes(), 0x40_0000, Some(Instant::now()));
        assert_eq!(late.unwrap(), None);
    }
}
