//! `PROCMAP_QUERY` (Linux 6.11): one mapping per call, in binary form; the kernel skips others.
//!
//! Source: include/uapi/linux/fs.h, fs/proc/task_mmu.c (`do_procmap_query`).

use std::fs::File;
use std::os::fd::AsRawFd;

use nix::errno::Errno;

use super::{Mapping, Permissions};
use crate::Device;

/// Flags that select mappings, and describe a returned one.
pub(crate) mod flags {
    pub(crate) const READABLE: u64 = 1;
    pub(crate) const WRITABLE: u64 = 2;
    pub(crate) const EXECUTABLE: u64 = 4;
    pub(super) const SHARED: u64 = 8;
    /// Returns the next mapping if the address is not mapped.
    pub(super) const COVERING_OR_NEXT: u64 = 0x10;
    /// Selects mappings of files; the file of shared anonymous memory cannot be opened.
    pub(crate) const FILE_BACKED: u64 = 0x20;
}

/// `struct procmap_query`.
#[repr(C)]
#[derive(Debug, Default)]
struct ProcmapQuery {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

mod call {
    nix::ioctl_readwrite!(procmap_query, b'f', 17, super::ProcmapQuery);
}

/// Maximum size of names other than paths: a memfd's has at most 249 bytes, a prefix and a suffix.
const MAX_NAME: usize = 512;
/// Maximum size of a path in the kernel (PATH_MAX).
const MAX_PATH: usize = 4096;

/// Queries an open `/proc/PID/maps`.
#[derive(Debug)]
pub(crate) struct Query<'f> {
    maps: &'f File,
    name: Vec<u8>,
}

impl<'f> Query<'f> {
    pub(crate) fn new(maps: &'f File) -> Self {
        let name = vec![0; MAX_NAME];
        Query { maps, name }
    }

    /// A query that returns paths of any length.
    pub(crate) fn with_paths(maps: &'f File) -> Self {
        let name = vec![0; MAX_PATH];
        Query { maps, name }
    }

    /// The first mapping that ends after `address` and has all of `wanted`, without its name.
    /// `None` after the last one; ESRCH if there is no memory; ENOTTY if the kernel is older.
    pub(crate) fn next(
        &mut self,
        address: u64,
        wanted: u64,
    ) -> Result<Option<Mapping<'static>>, Errno> {
        let wanted = wanted | flags::COVERING_OR_NEXT;
        Ok(self.ask(address, wanted, 0)?.map(|(mapping, _)| mapping))
    }

    /// [`Self::next`] with the name, which is empty if it is longer than the requested maximum.
    pub(crate) fn next_named(
        &mut self,
        address: u64,
        wanted: u64,
    ) -> Result<Option<Mapping<'_>>, Errno> {
        let wanted = wanted | flags::COVERING_OR_NEXT;
        let answer = match self.ask(address, wanted, self.name.len()) {
            Err(Errno::ENAMETOOLONG) => self.ask(address, wanted, 0)?,
            answer => answer?,
        };
        Ok(answer.map(|(mapping, name_size)| Mapping {
            // The size includes the terminating zero.
            name: self.name.get(..name_size.saturating_sub(1)).unwrap_or(&[]),
            ..mapping
        }))
    }

    fn ask(
        &mut self,
        address: u64,
        wanted: u64,
        name_size: usize,
    ) -> Result<Option<(Mapping<'static>, usize)>, Errno> {
        let name_at = if name_size == 0 {
            0
        } else {
            self.name.as_mut_ptr() as u64
        };
        let mut query = ProcmapQuery {
            size: size_of::<ProcmapQuery>() as u64,
            query_flags: wanted,
            query_addr: address,
            vma_name_size: name_size as u32,
            vma_name_addr: name_at,
            ..ProcmapQuery::default()
        };
        // SAFETY: `query` lives through the call and says its own size; the kernel writes at most
        // `vma_name_size` bytes to `self.name`, whose length both callers pass, or 0.
        match unsafe { call::procmap_query(self.maps.as_raw_fd(), &raw mut query) } {
            Ok(_) => {}
            Err(Errno::ENOENT) => return Ok(None),
            Err(error) => return Err(error),
        }
        let has = |flag| query.vma_flags & flag != 0;
        let mapping = Mapping {
            start: query.vma_start,
            end: query.vma_end,
            permissions: Permissions {
                read: has(flags::READABLE),
                write: has(flags::WRITABLE),
                execute: has(flags::EXECUTABLE),
                shared: has(flags::SHARED),
            },
            offset: query.vma_offset,
            device: Device {
                major: query.dev_major,
                minor: query.dev_minor,
            },
            inode: query.inode,
            name: &[],
        };
        Ok(Some((mapping, query.vma_name_size as usize)))
    }
}
