//! A file in which a runtime announces its code.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::announcement::{Format, Next, decode};

/// Maximum number of bytes that are read of a file at a time.
pub(super) const CHUNK: usize = 1 << 20;
/// Number of last bytes that are compared to recognize a rewritten file: a line ends with the name,
/// after the address.
pub(super) const MAX_LAST_BYTES: usize = 128;

/// A file that a runtime appends to. Some write a map again when they are asked to.
#[derive(Debug, Default)]
pub(super) struct Source<F> {
    pub(super) file: Option<File>,
    format: F,
    pub(super) position: u64,
    pub(super) last_bytes: Vec<u8>,
    /// The rest cannot be decoded.
    pub(super) is_damaged: bool,
}

impl<F: Format> Source<F> {
    /// Opens the file, unless it is open. Returns true if it was not open yet.
    pub(super) fn find(&mut self, open: impl FnOnce() -> Option<File>) -> bool {
        let was_open = self.file.is_some();
        self.file = self.file.take().or_else(open);
        !was_open && self.file.is_some()
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

    /// Reads at most [`CHUNK`] new bytes, or the start of a rewritten file. Returns true if there
    /// was an entry.
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

    fn size(&self) -> Option<u64> {
        Some(self.file.as_ref()?.metadata().ok()?.len())
    }

    /// Returns true if a file that was read to its end ends within an entry.
    pub(super) fn is_cut(&self) -> bool {
        let size = self.size();
        !self.is_damaged && size.is_some_and(|size| size > 0 && size != self.position)
    }

    pub(super) fn rest(&self) -> u64 {
        let size = self.size().filter(|_| !self.is_damaged);
        size.unwrap_or(0).saturating_sub(self.position)
    }
}
