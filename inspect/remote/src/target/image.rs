//! A hand-made process, for tests.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::ops::ControlFlow;
use std::path::PathBuf;

use super::{Target, ThreadInfo};
use crate::machine::Machine;
use crate::mappings::{self, Visit, Walk};
use crate::memory::{Image, MemoryError};
use crate::{Device, Error, Memory};

/// A hand-made process: an [`Image`] for its memory, mappings as text, and threads.
///
/// ```
/// use otelctx_remote::{Memory, Target, TargetImage, ThreadInfo};
///
/// let mut image = TargetImage::new();
/// image.memory.map_u64(0x1000, &[7]);
/// image.threads.push(ThreadInfo::new(1));
/// let target: &dyn Target = &image;
/// assert_eq!(target.read_u64(0x1000), Ok(7));
/// assert_eq!(target.thread(1).unwrap().tid, 1);
/// ```
#[derive(Debug, Clone)]
pub struct TargetImage {
    /// Its memory.
    pub memory: Image,
    /// Its mappings, in the form of `/proc/PID/maps`.
    pub maps: String,
    /// The files that it has mapped, by inode.
    pub files: BTreeMap<u64, PathBuf>,
    /// Its threads.
    pub threads: Vec<ThreadInfo>,
    /// Its architecture: the reader's by default.
    pub machine: Machine,
    /// Its process ID.
    pub pid: Option<i32>,
}

impl TargetImage {
    /// Creates an empty process.
    pub fn new() -> Self {
        TargetImage {
            memory: Image::new(),
            maps: String::new(),
            files: BTreeMap::new(),
            threads: Vec::new(),
            machine: Machine::own(),
            pid: None,
        }
    }
}

impl Default for TargetImage {
    fn default() -> Self {
        TargetImage::new()
    }
}

impl Memory for TargetImage {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        self.memory.read(address, buffer)
    }
}

impl Target for TargetImage {
    fn mappings(&self, visit: Visit<'_>) -> Result<Walk, Error> {
        mappings::walk(self.maps.as_bytes(), visit).map_err(Error::io("maps"))
    }

    fn mapped_file(
        &self,
        _: (u64, u64),
        _: &[u8],
        _: Device,
        inode: u64,
    ) -> Result<File, Option<String>> {
        let path = self.files.get(&inode).ok_or(None)?;
        File::open(path).map_err(|error| Some(error.to_string()))
    }

    fn machine(&self) -> Machine {
        self.machine
    }

    fn name(&self) -> OsString {
        "the image".into()
    }

    fn pid(&self) -> Option<i32> {
        self.pid
    }

    fn thread_ids(&self, visit: &mut dyn FnMut(i32) -> ControlFlow<()>) -> Result<(), Error> {
        let _ = self.threads.iter().try_for_each(|thread| visit(thread.tid));
        Ok(())
    }

    fn thread(&self, tid: i32) -> Result<ThreadInfo, Error> {
        let thread = self.threads.iter().find(|thread| thread.tid == tid);
        thread.cloned().ok_or(Error::NoSuchThread {
            pid: self.pid.unwrap_or_default(),
            tid,
        })
    }
}
