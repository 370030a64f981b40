//! A running process as a [`Target`].

use std::ffi::OsString;
use std::fs::File;
use std::ops::ControlFlow;
use std::time::Instant;

use super::{CodeLayout, CodeLayoutBuilder, Target, ThreadInfo};
use crate::machine::Machine;
use crate::mappings::{Mapping, Scan, ScanOptions, Visit, VisitExecutable, Walk};
use crate::memory::{MemoryError, ProcessMemory};
use crate::{Device, Error, Memory, Process};

/// A running process and its opened memory, as a [`Target`].
#[derive(Debug, Clone, Copy)]
pub struct LiveProcess<'p> {
    process: &'p Process,
    memory: &'p ProcessMemory,
    deadline: Option<Instant>,
    maps_as_text: bool,
}

impl<'p> LiveProcess<'p> {
    /// Combines a process with its [`Process::memory`].
    pub fn new(process: &'p Process, memory: &'p ProcessMemory) -> Self {
        LiveProcess {
            process,
            memory,
            deadline: None,
            maps_as_text: false,
        }
    }

    /// Gives up reading at `deadline`.
    #[must_use]
    pub fn with_deadline(self, deadline: Option<Instant>) -> Self {
        LiveProcess { deadline, ..self }
    }

    /// Reads `/proc/PID/maps` as text, see [`ScanOptions::text`].
    #[must_use]
    pub fn with_maps_as_text(self, maps_as_text: bool) -> Self {
        Self {
            maps_as_text,
            ..self
        }
    }

    fn options(&self) -> ScanOptions {
        ScanOptions {
            max_mappings: None,
            deadline: self.deadline,
            text: self.maps_as_text,
        }
    }

    fn complete(&self, scan: Scan<()>) -> Result<(), Error> {
        match scan {
            Scan::Complete(()) => Ok(()),
            Scan::DeadlinePassed | Scan::TooMany => Err(Error::Deadline {
                name: self.name().to_string_lossy().into_owned(),
                action: "all of its mappings were read",
            }),
        }
    }
}

impl Memory for LiveProcess<'_> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        self.memory.read(address, buffer)
    }
}

impl Target for LiveProcess<'_> {
    fn mappings(&self, visit: Visit<'_>) -> Result<Walk, Error> {
        self.process.mappings(visit)
    }

    fn file_mappings(&self, visit: &mut dyn FnMut(&Mapping<'_>)) -> Result<(), Error> {
        self.complete(self.process.file_mappings(self.options(), visit)?)
    }

    fn executable_mappings(&self, visit: VisitExecutable<'_>) -> Result<(), Error> {
        if self.maps_as_text {
            super::visit_code(self, visit)
        } else {
            self.process.executable_mappings(visit)
        }
    }

    fn code_layout(&self) -> Result<CodeLayout, Error> {
        // Without names: faster if the kernel supports `PROCMAP_QUERY`.
        let mut layout = CodeLayoutBuilder::default();
        let mut add = |mapping: &Mapping<'_>| layout.add(mapping);
        self.complete(self.process.code_mappings(self.options(), &mut add)?)?;
        Ok(layout.finish())
    }

    fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    fn mapped_file(
        &self,
        range: (u64, u64),
        name: &[u8],
        device: Device,
        inode: u64,
    ) -> Result<File, Option<String>> {
        self.process
            .mapped_file(range, name, device, inode)
            .ok_or(None)
    }

    fn machine(&self) -> Machine {
        Machine::own()
    }

    fn name(&self) -> OsString {
        OsString::from(format!("process {}", self.process.pid()))
    }

    fn pid(&self) -> Option<i32> {
        Some(self.process.pid())
    }

    fn comm(&self) -> Result<OsString, Error> {
        self.process.comm()
    }

    fn is_running(&self) -> bool {
        true
    }

    fn thread_ids(&self, visit: &mut dyn FnMut(i32) -> ControlFlow<()>) -> Result<(), Error> {
        self.process.visit_thread_ids(visit)
    }

    fn thread(&self, tid: i32) -> Result<ThreadInfo, Error> {
        Ok(ThreadInfo {
            name: Some(self.process.thread_name(tid)?),
            state: Some(self.process.thread_state(tid)?),
            ..ThreadInfo::new(tid)
        })
    }

    fn inner_tid(&self, tid: i32) -> Option<i32> {
        let status = self.process.thread_status(tid).ok()?;
        status.namespace_pids.last().copied()
    }
}
