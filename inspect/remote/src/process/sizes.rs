//! `/proc/PID/statm`: how much memory a process has mapped, in one system call.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::{Error, Process};

/// The amount of mapped memory of a process, in pages (proc(5), `/proc/PID/statm`). It changes with
/// every mapping that is created or removed, unless other changes compensate exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sizes {
    /// All mapped memory. 0 for a process without memory: a zombie, or a kernel thread.
    pub total: u64,
    /// Private writable memory, and stacks.
    pub data: u64,
}

/// `/proc/PID/statm`, opened once. Reading it does not require the right to trace the process.
#[derive(Debug)]
pub struct SizesFile {
    pid: i32,
    file: File,
}

impl Process {
    /// Opens `/proc/PID/statm` and reads it once. If the thread-group leader has exited, another
    /// thread's file is opened: open again when that thread exits too.
    pub fn sizes(&self) -> Result<(SizesFile, Sizes), Error> {
        let (file, sizes) = self.sizes_of("")?;
        if sizes.total == 0
            && let Some(prefix) = self.other_task()
            && let Ok(other) = self.sizes_of(&prefix)
        {
            return Ok(other);
        }
        Ok((file, sizes))
    }

    fn sizes_of(&self, prefix: &str) -> Result<(SizesFile, Sizes), Error> {
        let entry = format!("{prefix}statm");
        let file = self
            .open_entry(&entry)
            .map_err(|error| self.error(&entry, "read how much it has mapped", error))?;
        let file = SizesFile {
            pid: self.pid(),
            file,
        };
        let sizes = file.read()?;
        Ok((file, sizes))
    }
}

impl SizesFile {
    /// Reads the current amount of mapped memory.
    ///
    /// # Errors
    /// [`Error::NoSuchProcess`] if the process, or the thread of the file, has exited.
    pub fn read(&self) -> Result<Sizes, Error> {
        // Seven numbers of at most 20 digits.
        let mut text = [0; 160];
        let pid = self.pid;
        let failed = |error: io::Error| Error::io(format!("/proc/{pid}/statm"))(error);
        let length = loop {
            match self.file.read_at(&mut text, 0) {
                Ok(length) => break length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if super::is_gone(&error) => return Err(Error::NoSuchProcess { pid }),
                Err(error) => return Err(failed(error)),
            }
        };
        Sizes::parse(&text[..length]).ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))
    }
}

impl Sizes {
    fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let mut numbers = text.split_ascii_whitespace();
        let total = numbers.next()?.parse().ok()?;
        // size, resident, shared, text, lib, data
        let data = numbers.nth(4)?.parse().ok()?;
        Some(Sizes { total, data })
    }
}

#[cfg(test)]
mod tests {
    use super::Sizes;

    #[test]
    fn the_first_and_the_sixth_number_count() {
        let sizes = Sizes::parse(b"2167 390 360 5 0 112 0\n");
        assert_eq!(
            sizes,
            Some(Sizes {
                total: 2167,
                data: 112
            })
        );
        for text in [&b""[..], b"1 2 3 4 5\n", b"1 2 3 4 5 x 7\n", b"\xff"] {
            assert_eq!(Sizes::parse(text), None, "{text:?}");
        }
    }
}
