//! The source of all reads: `/proc` while a process runs, otherwise its core file or image.

use std::ffi::OsString;
use std::fmt;
use std::ops::{ControlFlow, Deref};

use otelctx_remote as remote;
use remote::{LiveProcess, Memory, ProcessMemory, Target};

use crate::{Error, Options};

pub(crate) enum Subject {
    /// A running process, and the memory of its program once opened.
    Running {
        process: remote::Process,
        memory: Option<ProcessMemory>,
    },
    /// A core file, or an image.
    Saved(Box<dyn Target + Send + Sync>),
}

impl Subject {
    pub(super) fn open(pid: i32) -> Result<Self, Error> {
        Ok(Self::Running {
            process: remote::Process::open(pid)?,
            memory: None,
        })
    }

    pub(super) fn pid(&self) -> Option<i32> {
        match self {
            Self::Running { process, .. } => Some(process.pid()),
            Self::Saved(target) => target.pid(),
        }
    }

    pub(super) fn comm(&self) -> Result<OsString, Error> {
        Ok(match self {
            Self::Running { process, .. } => process.comm()?,
            Self::Saved(target) => target.comm()?,
        })
    }

    pub(super) fn memory(&self) -> Option<&dyn Memory> {
        match self {
            Self::Running { memory, .. } => memory.as_ref().map(|memory| memory as &dyn Memory),
            Self::Saved(target) => Some(&**target),
        }
    }

    pub(super) fn as_target<'s>(
        &'s self,
        options: &Options,
    ) -> Option<impl Deref<Target = dyn Target + 's> + use<'s>> {
        Some(match self {
            Self::Running { process, memory } => {
                let target = LiveProcess::new(process, memory.as_ref()?);
                let target = target.with_deadline(options.deadline);
                AsTarget::Running(target.with_maps_as_text(options.maps_as_text))
            }
            Self::Saved(target) => AsTarget::Saved(&**target),
        })
    }

    pub(super) fn visit_thread_ids(
        &self,
        visit: &mut dyn FnMut(i32) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        match self {
            Self::Running { process, .. } => process.visit_thread_ids(visit)?,
            Self::Saved(target) => target.thread_ids(visit)?,
        }
        Ok(())
    }

    pub(crate) fn thread_name(&self, tid: i32) -> Result<Option<OsString>, Error> {
        Ok(match self {
            Self::Running { process, .. } => Some(process.thread_name(tid)?),
            Self::Saved(target) => target.thread(tid)?.name,
        })
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Running { process, memory } => f
                .debug_tuple("Running")
                .field(process)
                .field(memory)
                .finish(),
            Self::Saved(target) => f.debug_tuple("Saved").field(&target.name()).finish(),
        }
    }
}

/// A process as a [`Target`].
enum AsTarget<'s> {
    Running(LiveProcess<'s>),
    Saved(&'s dyn Target),
}

impl<'s> Deref for AsTarget<'s> {
    type Target = dyn Target + 's;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Running(target) => target,
            Self::Saved(target) => *target,
        }
    }
}
