//! A process seen from outside, of whatever kind: running, ended (its core file), or made by hand for
//! a test. Everything above this module works on a [`Target`] and does not ask which it is.

mod image;
mod live;

use std::ffi::OsString;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::ControlFlow;
use std::time::Instant;

use crate::machine::Machine;
use crate::mappings::{Mapping, Walk};
use crate::{Device, Error, Memory};
pub use image::TargetImage;
pub use live::LiveProcess;

/// A process: its memory, what it has mapped, its threads.
///
/// Its memory is read through [`Memory`], of which this is an extension, so that a `&dyn Target`
/// serves wherever a `&dyn Memory` does. The modules that it has loaded are
/// [`Modules::read`](crate::Modules::read).
pub trait Target: Memory {
    /// Calls `visit` for each mapping until it breaks, in address order.
    ///
    /// # Errors
    /// When the mappings cannot be read.
    fn mappings(
        &self,
        visit: &mut dyn FnMut(&Mapping<'_>) -> ControlFlow<()>,
    ) -> Result<Walk, Error>;

    /// Calls `visit` for each mapping of a file, in address order. Executable mappings have their
    /// names, others may not.
    ///
    /// # Errors
    /// When the mappings cannot be read, or [`Self::deadline`] has passed.
    fn file_mappings(&self, visit: &mut dyn FnMut(&Mapping<'_>)) -> Result<(), Error> {
        let walk = self.mappings(&mut |mapping| {
            if mapping.inode != 0 {
                visit(mapping);
            }
            ControlFlow::Continue(())
        });
        walk.map(drop)
    }

    /// Which code is mapped where: changes with every dlopen, dlclose and exec.
    ///
    /// # Errors
    /// See [`Self::file_mappings`].
    fn code_layout(&self) -> Result<CodeLayout, Error> {
        let mut layout = CodeLayoutBuilder::default();
        self.file_mappings(&mut |mapping| layout.add(mapping))?;
        Ok(layout.finish())
    }

    /// Why mappings of files may be missing from the others, as a sentence without a full stop. `None`
    /// if all are there.
    fn unlisted(&self) -> Option<String> {
        None
    }

    /// When to give up reading. Never by default.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Opens the very file that a mapping shows, by the mapping's range, name, device and inode.
    ///
    /// # Errors
    /// When it cannot be opened, with the reason if there is more to say than that. The loaded
    /// memory has to do then.
    fn mapped_file(
        &self,
        range: (u64, u64),
        name: &[u8],
        device: Device,
        inode: u64,
    ) -> Result<File, Option<String>>;

    /// The architecture that it runs on.
    fn machine(&self) -> Machine;

    /// What messages call it.
    fn name(&self) -> OsString;

    /// Its process id; for a core file the one that the process itself had. `None` if unknown.
    fn pid(&self) -> Option<i32> {
        None
    }

    /// Its short name: 15 bytes at most, chosen by it. Empty if unknown.
    ///
    /// # Errors
    /// When it has ended.
    fn comm(&self) -> Result<OsString, Error> {
        Ok(OsString::new())
    }

    /// Whether it runs: another read may give another result. False for a core file.
    fn is_running(&self) -> bool {
        false
    }

    /// Calls `visit` with the id of each thread until it breaks. The list does not end while a
    /// process creates threads as fast as it is read.
    ///
    /// # Errors
    /// When the threads cannot be listed.
    fn thread_ids(&self, visit: &mut dyn FnMut(i32) -> ControlFlow<()>) -> Result<(), Error> {
        let _ = visit;
        Ok(())
    }

    /// What is known of one of its threads without stopping it.
    ///
    /// # Errors
    /// [`Error::NoSuchThread`] when it has exited, or never was.
    fn thread(&self, tid: i32) -> Result<ThreadInfo, Error> {
        Err(Error::NoSuchThread {
            pid: self.pid().unwrap_or_default(),
            tid,
        })
    }
}

/// A thread, as far as it is known without stopping it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ThreadInfo {
    /// Its id as the reader sees it; in a core file the one that the process itself saw.
    pub tid: i32,
    /// Its name: 15 bytes at most, chosen by the target. `None` for a core file.
    pub name: Option<OsString>,
    /// Its state letter, see [`Status::state`](crate::process::Status::state). `None` for a core
    /// file.
    pub state: Option<char>,
    /// fs base on x86-64, TPIDR_EL0 on aarch64. `None` for a running process, whose threads have to
    /// be stopped for it, and if a core file lacks it.
    pub thread_pointer: Option<u64>,
    /// The registers that a stack is unwound from. `None` for a running process, and if a core file
    /// lacks them.
    pub registers: Option<CallRegisters>,
}

/// The registers that a stack is unwound from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CallRegisters {
    /// rip, or pc.
    pub instruction_pointer: u64,
    /// rsp, or sp.
    pub stack_pointer: u64,
    /// rbp, or x29.
    pub frame_pointer: u64,
    /// x30 on aarch64, the return address of a leaf function. `None` on x86-64.
    pub link: Option<u64>,
}

impl ThreadInfo {
    /// A thread of which nothing but the id is known.
    pub fn new(tid: i32) -> Self {
        ThreadInfo {
            tid,
            ..ThreadInfo::default()
        }
    }
}

/// Tells two sets of loaded modules apart. Two values of different targets are not comparable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeLayout(u64);

/// Computes a [`CodeLayout`] while mappings are visited in address order.
#[derive(Debug, Default)]
pub(crate) struct CodeLayoutBuilder(DefaultHasher);

impl CodeLayoutBuilder {
    /// Takes a mapping of a file; only executable ones count.
    pub(crate) fn add(&mut self, mapping: &Mapping<'_>) {
        if mapping.permissions.execute {
            let Mapping {
                start,
                end,
                device,
                inode,
                ..
            } = mapping;
            (start, end, device, inode).hash(&mut self.0);
        }
    }

    pub(crate) fn finish(self) -> CodeLayout {
        CodeLayout(self.0.finish())
    }
}
