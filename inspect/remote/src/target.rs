//! A process, observed from outside: running, ended (its core file), or hand-made for a test.

mod image;
mod live;
mod through;

use std::ffi::OsString;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::ControlFlow;
use std::time::Instant;

use crate::machine::Machine;
use crate::mappings::moved::{Access, CodeVisitor};
use crate::mappings::{Mapping, Visit, VisitExecutable, Walk};
use crate::{Device, Error, Memory};
pub use image::TargetImage;
pub use live::LiveProcess;
pub use through::Through;

/// A process: its memory ([`Memory`]), its mappings, its threads.
/// [`Modules::read`](crate::Modules::read) returns the modules that it has loaded.
pub trait Target: Memory {
    /// Calls `visit` for each mapping until it breaks, in address order.
    fn mappings(&self, visit: Visit<'_>) -> Result<Walk, Error>;

    /// Calls `visit` for each mapping of a file, in address order; only executable ones must be
    /// named.
    ///
    /// # Errors
    /// If the mappings cannot be read, or [`Self::deadline`] has passed.
    fn file_mappings(&self, visit: &mut dyn FnMut(&Mapping<'_>)) -> Result<(), Error> {
        let walk = self.mappings(&mut |mapping| {
            if mapping.inode != 0 {
                visit(mapping);
            }
            ControlFlow::Continue(())
        });
        walk.map(drop)
    }

    /// Calls `visit` for each executable mapping, of a file or not, until it breaks, in address order. Code that was moved
    /// from its file to other memory, as for huge pages, is reported as the file's.
    ///
    /// # Errors
    /// If the mappings cannot be read.
    fn executable_mappings(&self, visit: VisitExecutable<'_>) -> Result<(), Error> {
        visit_code(self, visit)
    }

    /// Identifies the code that is mapped, and where: changes with every dlopen, dlclose and exec.
    fn code_layout(&self) -> Result<CodeLayout, Error> {
        let mut layout = CodeLayoutBuilder::default();
        self.file_mappings(&mut |mapping| layout.add(mapping))?;
        Ok(layout.finish())
    }

    /// The reason why mappings of files may be missing, as a sentence without a full stop, if any.
    fn unlisted(&self) -> Option<String> {
        None
    }

    /// The time after which reading is given up. `None`, the default, is never.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Opens the file of a mapping, given the mapping's range, name, device and inode.
    ///
    /// # Errors
    /// If it cannot be opened, with the reason if known. The loaded memory is used instead.
    fn mapped_file(
        &self,
        range: (u64, u64),
        name: &[u8],
        device: Device,
        inode: u64,
    ) -> Result<File, Option<String>>;

    /// The architecture on which it runs.
    fn machine(&self) -> Machine;

    /// Its name in messages.
    fn name(&self) -> OsString;

    /// Its process ID, if known; for a core file, the one in the process's own PID namespace.
    fn pid(&self) -> Option<i32> {
        None
    }

    /// Its command name: at most 15 bytes, chosen by the process. Empty if unknown.
    fn comm(&self) -> Result<OsString, Error> {
        Ok(OsString::new())
    }

    /// Returns whether it is running, so that another read may return another result.
    fn is_running(&self) -> bool {
        false
    }

    /// Calls `visit` with the ID of each thread until it breaks. The list does not end while a
    /// process creates threads as fast as it is read.
    fn thread_ids(&self, visit: &mut dyn FnMut(i32) -> ControlFlow<()>) -> Result<(), Error> {
        let _ = visit;
        Ok(())
    }

    /// The facts about one of its threads that are known without stopping it.
    ///
    /// # Errors
    /// [`Error::NoSuchThread`] if it has exited, or never existed.
    fn thread(&self, tid: i32) -> Result<ThreadInfo, Error> {
        Err(Error::NoSuchThread {
            pid: self.pid().unwrap_or_default(),
            tid,
        })
    }

    /// The ID of one of its threads in the process's own PID namespace. `None` if the thread has exited.
    fn inner_tid(&self, tid: i32) -> Option<i32> {
        Some(tid)
    }
}

/// Implements [`Target::executable_mappings`] by all mappings.
fn visit_code<T: Target + ?Sized>(target: &T, visit: VisitExecutable<'_>) -> Result<(), Error> {
    let open = |mapping: &Mapping<'_>| {
        let range = (mapping.start, mapping.end);
        let file = target.mapped_file(range, mapping.name, mapping.device, mapping.inode);
        file.ok()
    };
    let read = |address, buffer: &mut [u8]| target.read(address, buffer).is_ok();
    let access = Access {
        open: &open,
        read: &read,
    };
    let mut visitor = CodeVisitor::new(access, visit);
    let walk = target.mappings(&mut |mapping| visitor.take(mapping))?;
    if !walk.stopped {
        let _ = visitor.finish();
    }
    Ok(())
}

/// Facts about a thread that are known without stopping it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ThreadInfo {
    /// Its ID in the reader's PID namespace; in a core file, in the process's own.
    pub tid: i32,
    /// Its name: at most 15 bytes, chosen by the target. `None` for a core file.
    pub name: Option<OsString>,
    /// Its state letter ([`Status::state`](crate::process::Status::state)). `None` for a core file.
    pub state: Option<char>,
    /// fs base on x86-64, TPIDR_EL0 on aarch64. `None` for a running process, whose threads must be
    /// stopped for it, and if a core file lacks it.
    pub thread_pointer: Option<u64>,
    /// The registers for unwinding a stack, if a core file has them.
    pub registers: Option<CallRegisters>,
}

/// The registers for unwinding a stack.
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
    /// A thread of which only the ID is known.
    pub fn new(tid: i32) -> Self {
        ThreadInfo {
            tid,
            ..ThreadInfo::default()
        }
    }
}

/// Distinguishes sets of loaded modules. Values of different targets are not comparable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeLayout(u64);

/// Computes a [`CodeLayout`] while mappings are visited in address order.
#[derive(Debug, Default)]
pub(crate) struct CodeLayoutBuilder(DefaultHasher);

impl CodeLayoutBuilder {
    /// Adds a mapping of a file; only executable ones count.
    pub(crate) fn add(&mut self, mapping: &Mapping<'_>) {
        let Mapping {
            start,
            end,
            device,
            inode,
            ..
        } = mapping;
        if mapping.permissions.execute {
            (start, end, device, inode).hash(&mut self.0);
        }
    }

    pub(crate) fn finish(self) -> CodeLayout {
        CodeLayout(self.0.finish())
    }
}
