//! Device numbers, in one form for all sources.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

/// The device that a file lies on.
///
/// `/proc/PID/maps` prints it as `major:minor` in hexadecimal, stat(2) packs it into `st_dev`. On
/// some file systems (btrfs, overlayfs) the two differ for the same file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Device {
    /// The driver's number, 12 bits.
    pub major: u32,
    /// The device within it, 20 bits.
    pub minor: u32,
}

impl Device {
    /// Unpacks `st_dev`.
    pub fn from_stat(st_dev: u64) -> Self {
        // Both parts fit: glibc's `gnu_dev_major` and `gnu_dev_minor` return unsigned int.
        Device {
            major: nix::sys::stat::major(st_dev) as u32,
            minor: nix::sys::stat::minor(st_dev) as u32,
        }
    }

    /// The device of a file in stat(2).
    pub fn of_file(file: &File) -> io::Result<Self> {
        Ok(Self::from_stat(file.metadata()?.dev()))
    }
}
