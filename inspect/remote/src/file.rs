//! Opens files on the reader's side, without side effects.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::stat::Mode;

use crate::mappings::query::Query;
use crate::mappings::walk;
use crate::{Device, Error};

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

/// [`open_regular`]; a file of another kind is an error.
pub(crate) fn require_regular(path: &Path) -> Result<File, Error> {
    let file = open_regular(path).map_err(Error::io(path))?;
    file.ok_or_else(|| Error::NotRegularFile { path: path.into() })
}

/// Opens the file at `path`, on the reader's side, if it is the one that a mapping with `device`
/// and `inode` refers to: for a process that has ended.
pub fn open_mapped(path: &Path, device: Device, inode: u64) -> Option<File> {
    let file = open_regular(path).ok()??;
    (in_stat(&file)? == (device, inode)).then_some(file)
}

/// Returns whether a mapping with `device` and `inode` refers to the file, which may be O_PATH.
pub(crate) fn is_mapped_file(file: &File, device: Device, inode: u64) -> bool {
    match in_stat(file) {
        Some((of_stat, found)) if of_stat == device => found == inode,
        Some(_) => shown_in_maps(file) == Some((device, inode)),
        None => false,
    }
}

/// Device and inode of a file in stat(2).
fn in_stat(file: &File) -> Option<(Device, u64)> {
    let found = file.metadata().ok()?;
    Some((Device::from_stat(found.dev()), found.ino()))
}

/// Device and inode of a file in `/proc/PID/maps`, which differ from those of stat(2) on some file
/// systems (btrfs, overlayfs): maps the file, without reading it.
fn shown_in_maps(file: &File) -> Option<(Device, u64)> {
    let file = reopen(file)?;
    let (length, access) = (NonZeroUsize::MIN, ProtFlags::PROT_NONE);
    // SAFETY: without MAP_FIXED, the kernel chooses unused addresses, so no other mapping changes.
    let mapped = unsafe { mmap(None, length, access, MapFlags::MAP_PRIVATE, &file, 0) }.ok()?;
    let found = own_mapping(mapped.addr().get() as u64);
    // SAFETY: the range was mapped above, no pointer into it was created, and it is unmapped once.
    let _ = unsafe { munmap(mapped, length.get()) };
    found
}

/// Device and inode of this process's mapping at an address.
fn own_mapping(address: u64) -> Option<(Device, u64)> {
    // Not `self`: it has no mappings once the first thread has ended.
    let maps = File::open("/proc/thread-self/maps").ok()?;
    match Query::new(&maps).next(address, 0) {
        Err(Errno::ENOTTY) => {}
        answer => return answer.ok()?.map(|it| (it.device, it.inode)),
    }
    let mut found = None;
    let walked = walk(&maps, &mut |mapping| {
        if !(mapping.start..mapping.end).contains(&address) {
            return ControlFlow::Continue(());
        }
        found = Some((mapping.device, mapping.inode));
        ControlFlow::Break(())
    });
    walked.ok()?;
    found
}

/// Opens a file that was opened with O_PATH again, to read it.
pub(crate) fn reopen(file: &File) -> Option<File> {
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    open(path.as_str(), flags, Mode::empty())
        .ok()
        .map(File::from)
}
