//! Reads several ranges of a process's memory ahead of their use.

use crate::{Memory, MemoryError};
use std::cell::{Cell, RefCell};

/// Maximum number of ranges in a batch.
const MAX_RANGES: usize = 1024;
/// Maximum number of bytes in a batch.
const MAX_BYTES: usize = 256 << 10;

/// A range of memory: address and length in bytes.
pub type MemoryRange = (u64, usize);

/// Ranges of a process's memory that are read at once.
#[derive(Debug, Default)]
pub struct Batch {
    pieces: Vec<Piece>,
    bytes: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
struct Piece {
    address: u64,
    /// Its start and end in `bytes`.
    start: usize,
    end: usize,
}

impl Batch {
    /// Adds ranges to read. Returns false if there is no room.
    pub fn add(&mut self, ranges: &[MemoryRange]) -> bool {
        let mut start = self.size();
        let added = ranges.iter().map(|(_, length)| length).sum::<usize>();
        if self.pieces.len() + ranges.len() > MAX_RANGES || start + added > MAX_BYTES {
            return false;
        }
        for (address, length) in ranges {
            let end = start + length;
            self.pieces.push(Piece {
                address: *address,
                start,
                end,
            });
            start = end;
        }
        true
    }

    fn size(&self) -> usize {
        self.pieces.last().map_or(0, |piece| piece.end)
    }

    /// Reads all ranges, up to the first one that cannot be read.
    ///
    /// One after another: process_vm_readv(2), which reads all with one call, waits for pages that
    /// another thread has to provide (userfaultfd(2)), without an end if the caller has stopped that
    /// thread, or if it never does. A read of `/proc/PID/mem` fails at once.
    pub fn read(&mut self, memory: &dyn Memory) {
        self.bytes.resize(self.size(), 0);
        let bytes = &mut self.bytes;
        let is_read = |piece: &&Piece| {
            let piece = bytes
                .get_mut(piece.start..piece.end)
                .map(|to| (piece.address, to));
            piece.is_some_and(|(address, to)| memory.read(address, to).is_ok())
        };
        let read = self.pieces.iter().take_while(is_read).last();
        self.bytes.truncate(read.map_or(0, |piece| piece.end));
    }

    /// Memory for which the ranges of the batch are already read.
    pub fn over_all<'m>(&'m self, memory: &'m dyn Memory) -> NotedMemory<'m> {
        NotedMemory {
            pieces: &self.pieces,
            bytes: &self.bytes,
            memory,
            noted: RefCell::default(),
            is_forgotten: Cell::new(false),
        }
    }
}

/// Memory that records which ranges are read.
pub struct NotedMemory<'m> {
    pieces: &'m [Piece],
    bytes: &'m [u8],
    memory: &'m dyn Memory,
    noted: RefCell<Vec<MemoryRange>>,
    /// True if reads no longer use the batch.
    is_forgotten: Cell<bool>,
}

impl NotedMemory<'_> {
    /// The ranges that were read, in the order of the reads.
    pub fn into_ranges(self) -> Vec<MemoryRange> {
        self.noted.into_inner()
    }
}

impl Memory for NotedMemory<'_> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        self.noted.borrow_mut().push((address, buffer.len()));
        let known = |piece: &Piece| {
            let skip = usize::try_from(address.checked_sub(piece.address)?).ok()?;
            let start = piece.start.checked_add(skip)?;
            let end = start.checked_add(buffer.len())?;
            (end <= piece.end).then(|| self.bytes.get(start..end))?
        };
        if !self.is_forgotten.get()
            && let Some(bytes) = self.pieces.iter().find_map(known)
        {
            buffer.copy_from_slice(bytes);
            return Ok(());
        }
        self.memory.read(address, buffer)
    }

    fn forget(&self) {
        self.is_forgotten.set(true);
        self.memory.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_batch_lacks_is_read_when_it_is_needed() {
        let process = crate::Process::open(std::process::id() as i32).unwrap();
        let memory = process.memory().unwrap();
        let mut bytes = Box::new(*b"first second");
        let address = bytes.as_ptr() as u64;
        // Nothing is mapped in the first page. A batch ends where it cannot read.
        let ranges = [(address, 6), (8, 4), (address + 6, 6)];
        let mut batch = Batch::default();
        assert!(batch.add(&ranges[..1]) && batch.add(&ranges[1..]));
        batch.read(&memory);
        bytes.copy_from_slice(b"FIRST SECOND");
        let read = |batch: &Batch, address, length| {
            let memory = batch.over_all(&memory);
            let mut buffer = vec![0; length];
            let result = memory.read(address, &mut buffer);
            assert_eq!(memory.into_ranges(), [(address, length)]);
            result.map(|()| String::from_utf8(buffer).unwrap())
        };
        assert_eq!(read(&batch, address, 6).unwrap(), "first ");
        assert_eq!(read(&batch, address + 1, 4).unwrap(), "irst");
        assert_eq!(read(&batch, address + 6, 6).unwrap(), "SECOND");
        assert_eq!(read(&batch, address, 12).unwrap(), "FIRST SECOND");
        assert!(read(&batch, 8, 4).is_err());
        assert!(read(&batch, u64::MAX - 1, 4).is_err());
        let mut unread = Batch::default();
        unread.read(&memory);
        assert_eq!(read(&unread, address, 6).unwrap(), "FIRST ");
        // Ranges that exceed a batch are rejected as a whole.
        assert!(!batch.add(&[(address, 1); MAX_RANGES]));
        assert!(unread.add(&[(address, 1); MAX_RANGES]));
    }
}
