//! The kernel's reports of changes of executable memory.

use otelctx_reader::remote::{self, Device};

/// A report of the kernel about a process's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    /// In nanoseconds of `CLOCK_MONOTONIC`.
    pub(crate) time: u64,
    pub(crate) pid: i32,
    pub(crate) change: MemoryChange,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MemoryChange {
    /// A file, or anonymous memory, was mapped executable.
    Mapped(Region),
    /// The process executes another program: all earlier mappings are gone.
    Exec,
    /// The process started as a copy of `parent`.
    Forked { parent: i32 },
    /// Its first thread ended.
    Exit,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Offset in the file, in bytes.
    pub(crate) offset: u64,
    pub(crate) file: FileId,
    /// As in `/proc/PID/maps`.
    pub(crate) path: String,
}

impl Region {
    pub(super) fn of(mapping: &remote::Mapping<'_>) -> Self {
        Self {
            start: mapping.start,
            end: mapping.end,
            offset: mapping.offset,
            file: FileId::Inode(mapping.device, mapping.inode),
            path: String::from_utf8_lossy(mapping.name).into_owned(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FileId {
    /// Its build ID, as the kernel read it from the file.
    BuildId(Vec<u8>),
    /// Its device and inode; zeroes for anonymous memory.
    Inode(Device, u64),
}
