//! A file in which a runtime announces its code.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::announcement::{Format, Next, decode};

/// Maximum number of bytes that are read of a file at a time.
pub(super) const CHUNK: usize = 1 << 20;
/// How many of the last bytes of a file are compared to see whether it was written again: the end of a line has the
/// name, and the address of its code is before.
pub(super) const MAX_LAST_BYTES: usize = 128;

/// A file that a runtime appends to. Some write a map again when they are asked to.
#[derive(Debug, Default)]
pub(super) struct Source<F> {
    pub(super) file: Option<File>,
    format: F,
    /// How much of it was read, in bytes.
    pub(super) position: u64,
    /// The last bytes before that.
    pub(super) last_bytes: Vec<u8>,
    /// The rest cannot be decoded.
    pub(super) is_damaged: bool,
}

impl<F: Format> Source<F> {
    /// Opens the file, unless it is open. Returns whether it is new.
    pub(super) fn find(&mut self, open: impl FnOnce() -> Option<File>) -> bool {
        if self.file.is_none() {
            self.file = open();
            return self.file.is_some();
        }
        false
    }

    /// Returns true if the bytes that were read before are no longer there.
    pub(super) fn was_rewritten(&self) -> bool {
        let Some(file) = self.file.as_ref().filter(|_| F::MAY_BE_REWRITTEN) else {
            return false;
        };
        let mut bytes = [0; MAX_LAST_BYTES];
        let bytes = &mut bytes[..self.last_bytes.len()];
        let start = self.position.saturating_sub(bytes.len() as u64);
        file.read_exact_at(bytes, start).is_err() || *bytes != self.last_bytes[..]
    }

    /// Reads what was appended, at most [`CHUNK`] bytes of it, or the start of a file that was written again. Returns
    /// whether there was anything.
    pub(super) fn read(&mut self, mut add: impl FnMut(Next<'_>)) -> bool {
        if self.was_rewritten() {
            self.position = 0;
            self.last_bytes.clear();
        }
        let Some(file) = self.file.as_ref().filter(|_| !self.is_damaged) else {
            return false;
        };
        let mut bytes = vec![0; CHUNK];
        let size = file.read_at(&mut bytes, self.position).unwrap_or(0);
        let read = decode(&mut self.format, &bytes[..size], |next| {
            self.is_damaged |= next == Next::Damaged;
            add(next);
        });
        self.position = self.position.saturating_add(read);
        if F::MAY_BE_REWRITTEN {
            let read = usize::try_from(read).map_or(size, |read| read.min(size));
            let start = read.saturating_sub(MAX_LAST_BYTES);
            self.last_bytes.extend_from_slice(&bytes[start..read]);
            let excess = self.last_bytes.len().saturating_sub(MAX_LAST_BYTES);
            self.last_bytes.drain(..excess);
        }
        read > 0
    }

    /// The size of the file, in bytes; `None` if there is none.
    fn size(&self) -> Option<u64> {
        Some(self.file.as_ref()?.metadata().ok()?.len())
    }

    /// Returns true if the file ends within an entry, once it was read to its end.
    pub(super) fn is_cut(&self) -> bool {
        let size = self.size();
        !self.is_damaged && size.is_some_and(|size| size > 0 && size != self.position)
    }

    /// How many bytes of the file are left.
    pub(super) fn rest(&self) -> u64 {
        let size = self.size().filter(|_| !self.is_damaged);
        size.unwrap_or(0).saturating_sub(self.position)
    }
}
