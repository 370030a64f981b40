//! Reads several ranges of a process's memory with one system call.

use std::cell::{Cell, RefCell};
use std::io::IoSliceMut;
use std::ops::Range;

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use crate::{Memory, MemoryError, Process};

/// Maximum number of ranges per call (UIO_MAXIOV in <linux/uio.h>).
const MAX_RANGES: usize = 1024;
/// Maximum number of bytes per call.
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
    /// Adds ranges to read. Returns their positions in the batch; `None` if there is no room.
    pub fn add(&mut self, ranges: &[MemoryRange]) -> Option<Range<usize>> {
        let first = self.pieces.len();
        let mut start = self.size();
        let added = ranges.iter().map(|(_, length)| length).sum::<usize>();
        if first + ranges.len() > MAX_RANGES || start + added > MAX_BYTES {
            return None;
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
        Some(first..self.pieces.len())
    }

    fn size(&self) -> usize {
        self.pieces.last().map_or(0, |piece| piece.end)
    }

    /// Reads all ranges that can be read this way. If the process has executed another program,
    /// this reads that program's memory: see [`Self::discard_if_gone`].
    pub fn read(&mut self, process: &Process) {
        if self.pieces.is_empty() {
            return;
        }
        let remote = |piece: &Piece| RemoteIoVec {
            base: piece.address as usize,
            len: piece.end - piece.start,
        };
        let ranges: Vec<_> = self.pieces.iter().map(remote).collect();
        self.bytes.resize(self.size(), 0);
        let pid = Pid::from_raw(process.pid());
        let local = &mut [IoSliceMut::new(&mut self.bytes)];
        let read = process_vm_readv(pid, local, &ranges).unwrap_or(0);
        self.bytes.truncate(read);
    }

    /// Removes what was read if the program of `memory`, which was opened before, no longer runs.
    pub fn discard_if_gone(&mut self, memory: &dyn Memory) {
        // Nothing is mapped at 0.
        if let Err(MemoryError::Gone { .. }) = memory.read(0, &mut [0]) {
            self.bytes.clear();
        }
    }

    /// Removes all ranges.
    pub fn clear(&mut self) {
        self.pieces.clear();
        self.bytes.clear();
    }

    /// Memory for which all ranges in the batch are already read.
    pub fn over_all<'m>(&'m self, memory: &'m dyn Memory) -> NotedMemory<'m> {
        self.over(0..self.pieces.len(), memory)
    }

    /// Memory for which these ranges of the batch are already read.
    pub fn over<'m>(&'m self, pieces: Range<usize>, memory: &'m dyn Memory) -> NotedMemory<'m> {
        NotedMemory {
            pieces: self.pieces.get(pieces).unwrap_or_default(),
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
        let process = Process::open(std::process::id() as i32).unwrap();
        let memory = process.memory().unwrap();
        let mut bytes = Box::new(*b"first second");
        let address = bytes.as_ptr() as u64;
        // Nothing is mapped in the first page. A call ends where it cannot read.
        let ranges = [(address, 6), (8, 4), (address + 6, 6)];
        let mut batch = Batch::default();
        assert_eq!(batch.add(&ranges[..1]), Some(0..1));
        assert_eq!(batch.add(&ranges[1..]), Some(1..3));
        batch.read(&process);
        batch.discard_if_gone(&memory);
        bytes.copy_from_slice(b"FIRST SECOND");
        let read = |pieces, address, length| {
            let memory = batch.over(pieces, &memory);
            let mut buffer = vec![0; length];
            let result = memory.read(address, &mut buffer);
            assert_eq!(memory.into_ranges(), [(address, length)]);
            result.map(|()| String::from_utf8(buffer).unwrap())
        };
        assert_eq!(read(0..3, address, 6).unwrap(), "first ");
        assert_eq!(read(0..3, address + 1, 4).unwrap(), "irst");
        assert_eq!(read(0..3, address + 6, 6).unwrap(), "SECOND");
        assert_eq!(read(0..3, address, 12).unwrap(), "FIRST SECOND");
        assert_eq!(read(1..3, address, 6).unwrap(), "FIRST ");
        assert!(read(0..3, 8, 4).is_err());
        assert!(read(0..3, u64::MAX - 1, 4).is_err());
        // Ranges that exceed one call are rejected as a whole.
        assert_eq!(batch.add(&[(address, 1); MAX_RANGES]), None);
        batch.clear();
        assert_eq!(batch.add(&[(address, 1); MAX_RANGES]), Some(0..MAX_RANGES));
    }
}
