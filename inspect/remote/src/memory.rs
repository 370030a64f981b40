//! Reading foreign memory: a whole range, or an error.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Why foreign memory could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// Part of the range is not readable.
    #[error("no readable memory at {address:#x} ({length} bytes requested)")]
    Unmapped {
        /// Start of the range.
        address: u64,
        /// Number of bytes requested.
        length: usize,
    },
    /// The address space does not exist any more: the process has exited, or has executed another
    /// program since this memory was opened.
    #[error(
        "the address space is gone while reading {address:#x}: the process has exited or has \
         executed another program"
    )]
    Gone {
        /// Start of the range.
        address: u64,
    },
    /// The length that the target announced exceeds the caller's limit.
    #[error("{length} bytes at {address:#x} are more than the limit of {limit}")]
    Limit {
        /// Start of the range.
        address: u64,
        /// Number of bytes requested.
        length: u64,
        /// The caller's limit.
        limit: usize,
    },
    /// The core file does not contain it.
    #[error("the page at {page:#x} is not in the core file: {why}")]
    NotInCore {
        /// Address of the first missing page.
        page: u64,
        /// Why it is missing.
        why: Omission,
    },
    /// Any other error.
    #[error("reading {length} bytes at {address:#x}: {}", io::Error::from_raw_os_error(*.errno))]
    System {
        /// Start of the range.
        address: u64,
        /// Number of bytes requested.
        length: usize,
        /// The error number.
        errno: i32,
    },
}

/// Why memory of a process is missing from its core file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Omission {
    /// The core file is truncated before it.
    #[error("the file is truncated")]
    CutShort,
    /// It was mapped, but not written to the core.
    #[error("it was excluded when the core file was written")]
    LeftOut,
    /// It maps an unmodified part of a file, and that file is not available.
    #[error("it maps a file of which no copy with the same build ID was found")]
    FileNotFound,
    /// The core file does not mention it.
    #[error("nothing was mapped there, or it was excluded")]
    NotMentioned,
}

/// The memory of another process, a core file, or a hand-made image.
///
/// Integers are in the byte order of the reader's machine.
pub trait Memory {
    /// Fills all of `buffer` from `address`. After an error, its contents are unspecified.
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError>;

    /// Drops cached contents, also those of the memory that this reads through: the next read
    /// returns the current contents, which other threads may have changed.
    fn forget(&self) {}

    /// Reads one byte.
    fn read_u8(&self, address: u64) -> Result<u8, MemoryError> {
        let mut bytes = [0; 1];
        self.read(address, &mut bytes)?;
        Ok(bytes[0])
    }

    /// Reads a 16-bit integer.
    fn read_u16(&self, address: u64) -> Result<u16, MemoryError> {
        let mut bytes = [0; 2];
        self.read(address, &mut bytes)?;
        Ok(u16::from_ne_bytes(bytes))
    }

    /// Reads a 32-bit integer.
    fn read_u32(&self, address: u64) -> Result<u32, MemoryError> {
        let mut bytes = [0; 4];
        self.read(address, &mut bytes)?;
        Ok(u32::from_ne_bytes(bytes))
    }

    /// Reads a 64-bit integer, or a pointer of a 64-bit process.
    fn read_u64(&self, address: u64) -> Result<u64, MemoryError> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Reads `length` bytes, at most `limit`. Only the length may come from the target.
    fn read_vec(&self, address: u64, length: u64, limit: usize) -> Result<Vec<u8>, MemoryError> {
        if length > limit as u64 {
            return Err(MemoryError::Limit {
                address,
                length,
                limit,
            });
        }
        let mut bytes = vec![0; length as usize];
        self.read(address, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads a string up to its NUL, which is left out, or the first `limit` bytes of a longer one.
    fn read_c_string(&self, address: u64, limit: usize) -> Result<Vec<u8>, MemoryError> {
        /// Bytes read at a time, none of which is on another page than the first: the string may end where memory does.
        const PIECE: u64 = 64;
        let (mut bytes, mut at) = (Vec::new(), address);
        while bytes.len() < limit {
            let size = PIECE - at % PIECE;
            let piece = self.read_vec(at, size, PIECE as usize)?;
            let end = piece.iter().position(|byte| *byte == 0);
            bytes.extend_from_slice(&piece[..end.unwrap_or(piece.len())]);
            if end.is_some() {
                break;
            }
            at = at.wrapping_add(size);
        }
        bytes.truncate(limit);
        Ok(bytes)
    }
}

impl<M: Memory + ?Sized> Memory for &M {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        (**self).read(address, buffer)
    }

    fn forget(&self) {
        (**self).forget();
    }
}

/// The memory of a running process, read through `/proc/PID/mem`, which is opened once: about 1 µs
/// per read. After an exec, every read fails with [`MemoryError::Gone`].
#[derive(Debug)]
pub struct ProcessMemory {
    file: File,
}

impl ProcessMemory {
    pub(crate) fn new(file: File) -> Self {
        ProcessMemory { file }
    }
}

impl Memory for ProcessMemory {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        let length = buffer.len();
        let unmapped = MemoryError::Unmapped { address, length };
        // pread rejects negative offsets, and user memory ends below these addresses.
        if length > 0 && address > i64::MAX as u64 {
            return Err(unmapped);
        }
        // A short read stops before an unreadable page: the next one returns the error.
        let read = self.file.read_exact_at(buffer, address);
        read.map_err(|error| match error.raw_os_error() {
            // fs/proc/base.c, mem_rw: nothing is read when the address space has no users left.
            None => MemoryError::Gone { address },
            Some(nix::libc::EIO) => unmapped,
            Some(errno) => MemoryError::System {
                address,
                length,
                errno,
            },
        })
    }
}

/// A file's bytes, read with pread: a mapping would crash the reader if the file is truncated.
#[derive(Debug, Clone, Copy)]
pub struct FileBytes<'a>(pub &'a File);

impl Memory for FileBytes<'_> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        let length = buffer.len();
        let read = self.0.read_exact_at(buffer, address);
        read.map_err(|error| match error.raw_os_error() {
            Some(errno) => MemoryError::System {
                address,
                length,
                errno,
            },
            None => MemoryError::Unmapped { address, length },
        })
    }
}

/// Hand-made memory for tests: byte ranges at addresses.
#[derive(Debug, Clone, Default)]
pub struct Image {
    /// The ranges by start address; of overlapping ones, the last takes precedence.
    pieces: std::collections::BTreeMap<u64, Vec<u8>>,
}

impl Image {
    /// Creates an image with nothing mapped.
    pub fn new() -> Self {
        Image::default()
    }

    /// Maps `bytes` at `address`.
    pub fn map(&mut self, address: u64, bytes: impl Into<Vec<u8>>) -> &mut Self {
        self.pieces.insert(address, bytes.into());
        self
    }

    /// Maps 64-bit integers at `address`, in the machine's byte order.
    pub fn map_u64(&mut self, address: u64, values: &[u64]) -> &mut Self {
        let bytes = values.iter().flat_map(|value| value.to_ne_bytes());
        self.map(address, bytes.collect::<Vec<u8>>())
    }
}

impl Memory for Image {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        let length = buffer.len();
        let unmapped = MemoryError::Unmapped { address, length };
        let mut done = 0;
        while done < length {
            let at = address.checked_add(done as u64).ok_or(unmapped)?;
            let (start, bytes) = self.pieces.range(..=at).next_back().ok_or(unmapped)?;
            let skip = (at - start) as usize;
            let piece = bytes
                .get(skip..)
                .filter(|rest| !rest.is_empty())
                .ok_or(unmapped)?;
            let take = piece.len().min(length - done);
            buffer[done..done + take].copy_from_slice(&piece[..take]);
            done += take;
        }
        Ok(())
    }
}

/// Memory that counts its reads, for tests: each read of a process is a system call.
///
/// ```
/// use otelctx_remote::Memory;
/// use otelctx_remote::memory::{CountedMemory, Image};
///
/// let mut image = Image::new();
/// image.map_u64(0x1000, &[7]);
/// let memory = CountedMemory::new(image);
/// assert_eq!(memory.read_u64(0x1000), Ok(7));
/// assert!(memory.read_u64(0x2000).is_err());
/// assert_eq!((memory.take_reads(), memory.take_reads()), (2, 0));
/// ```
#[derive(Debug)]
pub struct CountedMemory<M> {
    memory: M,
    reads: Cell<usize>,
}

impl<M: Memory> CountedMemory<M> {
    /// Counts the reads of this memory from now on.
    pub fn new(memory: M) -> Self {
        let reads = Cell::new(0);
        CountedMemory { memory, reads }
    }

    /// The number of reads since the last call, failed ones included.
    pub fn take_reads(&self) -> usize {
        self.reads.take()
    }
}

impl<M: Memory> Memory for CountedMemory<M> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        self.reads.set(self.reads.get() + 1);
        self.memory.read(address, buffer)
    }

    fn forget(&self) {
        self.memory.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_that_is_partly_unmapped_fails_as_a_whole() {
        let mut image = Image::new();
        image.map(0x1000, [1, 2, 3, 4]).map(0x1004, [5]);
        let mut buffer = [0; 5];
        image.read(0x1000, &mut buffer).unwrap();
        assert_eq!(buffer, [1, 2, 3, 4, 5]);
        let error = image.read_u64(0x1000).unwrap_err();
        assert_eq!(
            error,
            MemoryError::Unmapped {
                address: 0x1000,
                length: 8
            }
        );
        assert!(image.read_u8(u64::MAX).is_err());
    }

    #[test]
    fn a_string_ends_with_nul_or_at_its_limit() {
        let mut image = Image::new();
        // It may end where memory does.
        image.map(0x1000, vec![b'a'; 0x80]).map(0x1080, *b"bc\0d");
        image.map(0x1084, vec![b'e'; 0x3c]);
        assert_eq!(image.read_c_string(0x107e, 128).unwrap(), b"aabc");
        assert_eq!(image.read_c_string(0x1082, 128).unwrap(), b"");
        assert_eq!(image.read_c_string(0x1001, 100).unwrap(), [b'a'; 100]);
        assert_eq!(image.read_c_string(0x1084, 0x3c).unwrap(), [b'e'; 0x3c]);
        assert!(image.read_c_string(0x1084, 128).is_err());
    }

    #[test]
    fn a_length_above_the_limit_allocates_nothing() {
        let image = Image::new();
        let error = image.read_vec(0x10, u64::MAX, 64).unwrap_err();
        assert_eq!(
            error,
            MemoryError::Limit {
                address: 0x10,
                length: u64::MAX,
                limit: 64
            }
        );
    }
}
