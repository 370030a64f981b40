//! Files on the reader's side: opened without side effects, and read without mapping them.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::memory::{Memory, MemoryError};
use crate::{Device, module};

/// Opens a file on the reader's side; `None` if it is a FIFO, a device, a directory or a socket.
pub fn open_regular(path: &Path) -> io::Result<Option<File>> {
    // Opening a device can have any effect (a tape rewinds, a watchdog starts).
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

/// Opens the file at `path`, on the reader's side, if it is the one that a mapping with `device`
/// and `inode` refers to: for a process that has ended and so does not give access to its files.
pub fn open_mapped(path: &Path, device: Device, inode: u64) -> Option<File> {
    let file = open_regular(path).ok()??;
    is_mapped_file(&file, device, inode).then_some(file)
}

/// Opens the file at `path`, on the reader's side, if it has this build ID.
pub fn open_by_build_id(path: &Path, build_id: &[u8]) -> Option<File> {
    let file = open_regular(path).ok()??;
    let found = module::build_id(&file)?;
    (found == build_id).then_some(file)
}

/// Whether the file is the one that a mapping with `device` and `inode` refers to.
pub(crate) fn is_mapped_file(file: &File, device: Device, inode: u64) -> bool {
    file.metadata()
        .is_ok_and(|it| it.ino() == inode && Device::from_stat(it.dev()) == device)
}

/// A file's bytes, read with pread: if the target truncates the file, a read ends early, whereas a
/// mapping of it would crash the reader.
#[derive(Debug, Clone, Copy)]
pub struct FileBytes<'a>(pub &'a File);

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
