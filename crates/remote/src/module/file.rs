//! Files on the reader's own side, and what reading them costs.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::Device;
use crate::elf::{Elf, Source};
use crate::memory::{Memory, MemoryError};

/// Bytes that are read of one module: several times what the tables of a large browser have. A
/// file full of holes costs its maker nothing.
pub(super) const MAX_COST: u64 = 256 << 20;
/// What a short read takes as long as: about half a microsecond.
const SHORT_READ: u64 = 1024;

/// Opens a file on the reader's own side; `None` if it is a FIFO, a device, a directory or a socket.
pub(crate) fn open_regular(path: &Path) -> io::Result<Option<File>> {
    // Opening a device can do anything (a tape rewinds, a watchdog starts).
    if !std::fs::metadata(path)?.is_file() {
        return Ok(None);
    }
    let file = File::options()
        .read(true)
        // A FIFO must not block the open.
        .custom_flags(nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY)
        .open(path)?;
    Ok(file.metadata()?.is_file().then_some(file))
}

/// Opens the file at `path`, on the reader's own side, if it is the very one that a mapping of
/// `device` and `inode` shows: for a process that has ended and shows its files no more.
pub fn open_mapped(path: &Path, device: Device, inode: u64) -> Option<File> {
    let file = open_regular(path).ok()??;
    is_mapped_file(&file, device, inode).then_some(file)
}

/// The build-id of an ELF file, which its linker made of the contents (NT_GNU_BUILD_ID). `None` if
/// the file has none, or is no readable ELF file.
pub fn build_id(file: &File) -> Option<Vec<u8>> {
    let bytes = FileBytes(file);
    Elf::read_headers(Source::File(&bytes))
        .ok()??
        .build_id()
        .ok()?
}

/// Whether the file is the one that a mapping of `device` and `inode` shows.
pub(crate) fn is_mapped_file(file: &File, device: Device, inode: u64) -> bool {
    file.metadata()
        .is_ok_and(|it| it.ino() == inode && Device::from_stat(it.dev()) == device)
}

/// Memory that adds up what reading it costs: bytes, a short read as [`SHORT_READ`]. Ends at a
/// limit.
pub(super) struct Counted<'a> {
    memory: &'a dyn Memory,
    cost: &'a Cell<u64>,
    limit: u64,
}

impl<'a> Counted<'a> {
    pub(super) fn new(memory: &'a dyn Memory, cost: &'a Cell<u64>, limit: u64) -> Self {
        Counted {
            memory,
            cost,
            limit,
        }
    }
}

impl Memory for Counted<'_> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        let length = buffer.len() as u64;
        let cost = self.cost.get().saturating_add(length.max(SHORT_READ));
        self.cost.set(cost);
        if cost > self.limit {
            return Err(MemoryError::Limit {
                address,
                length,
                limit: self.limit as usize,
            });
        }
        self.memory.read(address, buffer)
    }
}

/// A file's bytes, read with pread: a file that the target truncates ends a read early, where a
/// mapping of it would end the reader.
pub(crate) struct FileBytes<'a>(pub(crate) &'a File);

impl Memory for FileBytes<'_> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        let length = buffer.len();
        self.0
            .read_exact_at(buffer, address)
            .map_err(|error| match error.raw_os_error() {
                Some(errno) => MemoryError::System {
                    address,
                    length,
                    errno,
                },
                None => MemoryError::Unmapped { address, length },
            })
    }
}
