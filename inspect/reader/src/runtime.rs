//! Language runtimes: the frames, contexts and tasks of their threads.
//!
//! A runtime has frames that native debuggers do not see, its own threads that move between kernel
//! threads, and contexts stored in its own way. Each [`Runtime`] is a crate that supports one of
//! them; a program that embeds the reader registers those it needs in a [`Runtimes`]. See
//! `docs/runtimes.md` for an example.

mod both_ends;
mod choose;
mod error;
mod generated;
mod gil;
mod kept_memory;
mod read_limit;
mod stack;
mod supported;
mod task;
mod thread;

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use otelctx_format::Schema;
use otelctx_format::process_context::Attributes;
use otelctx_remote::threads::ThreadPointer;
use otelctx_remote::{FrameRecord, GeneratedCode, Marker, Modules, Target};
use otelctx_sample::Frame;

pub use self::both_ends::BothEnds;
pub use self::choose::{Chosen, ThreadState, choose};
pub use self::error::RuntimeError;
pub use self::generated::GeneratedWalkers;
pub use self::gil::Gil;
pub use self::kept_memory::KeptMemory;
pub use self::read_limit::{LimitedMemory, ReadLimit};
pub use self::stack::{NativeFrames, RuntimeStack};
pub use self::supported::{Present, Runtimes, scope};
pub use self::task::{MAX_TASK_BYTES, MAX_TASKS, Task, TaskReading};
pub use self::thread::{RuntimeReading, RuntimeThread, Source, read_thread, thread_name};
pub use crate::record::read_record;

/// Maximum number of frames kept per thread or task: as many as `otelctx-sampler` keeps of a native
/// stack. Of a longer one, [`MAX_OUTERMOST`] are the outermost frames, and the others the innermost
/// ones; [`NamedFrame::omitted`](otelctx_sample::NamedFrame::omitted) is between them.
pub const MAX_FRAMES: usize = 512;
/// Number of outermost frames that are kept of a stack with more than [`MAX_FRAMES`].
pub const MAX_OUTERMOST: usize = 32;
/// Maximum number of frames that are read of a stack. Beyond that, the outermost ones are unknown.
pub const MAX_WALKED: usize = 4096;

/// A language runtime that can be found in a process.
pub trait Runtime: fmt::Debug + Send + Sync {
    /// Its name: the key of its facts in JSON, and the kind of its frames. Lower case: `cpython`.
    fn name(&self) -> &'static str;

    /// Returns true if a module with this file name (`libpython3.12.so.1.0`) may be the runtime.
    fn is_candidate(&self, file_name: &[u8]) -> bool;

    /// Describes modules with other names that contain it, such as programs that embed it.
    fn embedded(&self) -> Option<Embedded> {
        None
    }

    /// Finds the runtime among the candidate modules of a process. `None` if it is absent. Check
    /// symbols first: they are [cached per file](otelctx_remote::LoadedModule::fact).
    ///
    /// # Errors
    /// If it is present but cannot be read: an unknown version, or an inconsistent structure.
    fn probe(
        &self,
        target: &dyn Target,
        modules: &Modules,
    ) -> Result<Option<Arc<dyn RuntimeProcess>>, RuntimeError>;
}

/// What every module with the runtime has, whatever the module's name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Embedded {
    /// A function that the module defines, or a section.
    pub marker: Marker<'static>,
    /// Minimum size of the module in memory, in bytes: smaller files are not opened.
    pub min_size: u64,
}

impl Embedded {
    /// A module with this function, of at least this size in memory, in bytes.
    #[must_use]
    pub const fn new(symbol: &'static str, min_size: u64) -> Self {
        Self {
            marker: Marker::Symbol(symbol),
            min_size,
        }
    }

    /// A module that has this section, which starts with these bytes, of at least this size in memory, in bytes.
    #[must_use]
    pub const fn with_section(section: &'static str, start: &'static [u8], min_size: u64) -> Self {
        Self {
            marker: Marker::Section(section, start),
            min_size,
        }
    }
}

/// A runtime in one process, until that loads or unloads a module or executes another program.
pub trait RuntimeProcess: fmt::Debug + Send + Sync {
    /// Facts about the process, for example the runtime's version.
    fn facts(&self) -> Attributes;

    /// Adapts it to these attributes of the process context. `None` if they change nothing.
    fn with_context(&self, attributes: &Attributes) -> Option<Arc<dyn RuntimeProcess>> {
        let _ = attributes;
        None
    }

    /// Returns what must be stopped to read its threads and tasks.
    fn scope(&self) -> Scope {
        Scope::Thread
    }

    /// Returns true if it reads the thread contexts that a process announces with this schema
    /// (`threadlocal.schema_version`), which no native variable contains.
    fn reads_schema(&self, schema: &Schema) -> bool {
        let _ = schema;
        false
    }

    /// Finds the code for [`RuntimeStack::interpreter`] and [`Gil::code`]. Called before threads
    /// are read, if [`Options::native_stacks`](crate::Options::native_stacks) is set.
    fn find_code(&self, target: &dyn Target) {
        let _ = target;
    }

    /// Returns false if [`Self::thread`] and [`Self::tasks`] never return anything, as those of a runtime that only names its
    /// functions ([`Self::frames`]): then no thread is stopped for them.
    fn reads_threads(&self) -> bool {
        true
    }

    /// Reads a thread, which is stopped, asleep, or in a core file. `None` for an unknown thread.
    ///
    /// # Errors
    /// If memory cannot be read, or is inconsistent.
    fn thread(
        &self,
        target: &dyn Target,
        thread: ThreadView,
    ) -> Result<Option<RuntimeThread>, RuntimeError>;

    /// Calls `visit` with each context that no thread is executing now (suspended tasks, parked
    /// goroutines) until it breaks. Only called if [`Self::scope`] is the process, or
    /// [`Options::tasks`](crate::Options::tasks) is set: the process is stopped, but for threads
    /// that sleep, or is a core file.
    ///
    /// # Errors
    /// If memory cannot be read, or is inconsistent. Tasks that were visited before count.
    fn tasks(
        &self,
        target: &dyn Target,
        visit: &mut dyn FnMut(Task) -> ControlFlow<()>,
    ) -> Result<(), RuntimeError> {
        let _ = (target, visit);
        Ok(())
    }

    /// The step of the kernel program that reads its threads while they are sampled. `None` if
    /// there is none.
    ///
    /// Without a step, or if the sampler's kernel object does not contain it, the runtime adds
    /// nothing to samples that are taken with eBPF: no frames, no contexts and no lock. Only the
    /// ptrace sampler includes its data. The object of `otelctx-sampler` itself contains no steps:
    /// `otelctx_sampler::Options::kernel_object` replaces it (docs/runtimes.md, "A runtime outside
    /// of this checkout").
    fn kernel_step(&self) -> Option<&KernelStep> {
        None
    }

    /// Finds a word that the kernel step has asked for (`unknown_thread` in
    /// `profile/sampler/bpf/steps.h`), such as the address of the thread's state. The thread runs,
    /// and may have ended. `None` if the runtime does not know it.
    ///
    /// # Errors
    /// If memory cannot be read, or is inconsistent.
    fn thread_word(
        &self,
        target: &dyn Target,
        thread: ThreadView,
    ) -> Result<Option<u64>, RuntimeError> {
        let _ = (target, thread);
        Ok(None)
    }

    /// Finds the thread pointers of threads that it has created without the C library, by their IDs in the process's own
    /// PID namespace. They take precedence over those in the C library's list, and are checked at each use.
    fn thread_pointers(&self, target: &dyn Target) -> Vec<(i32, ThreadPointer)> {
        let _ = target;
        Vec::new()
    }

    /// The name that the program has given to a thread, where the kernel does not have it. `thread` was read before, if
    /// [`Self::thread`] returned something; the thread runs.
    fn thread_name(
        &self,
        target: &dyn Target,
        tid: i32,
        thread: Option<&RuntimeThread>,
    ) -> Option<String> {
        let _ = (target, tid, thread);
        None
    }

    /// Returns the walker of the code that it has generated in the process until now. `None` if there is none. Called
    /// again when the process has other executable memory.
    fn generated(&self, target: &dyn Target) -> Option<Arc<dyn GeneratedCode>> {
        let _ = target;
        None
    }

    /// Returns the functions of a frame in generated code, innermost inlined function first, by the record that the
    /// walker of [`Self::generated`] has made. `address` is the frame's. The process has gone on since then: what
    /// identifies a function is read again after its name, and a name that may be another function's is left out, in favour
    /// of a frame that is [unnamed](otelctx_sample::NamedFrame::is_unnamed), such as `[Java]`. Empty if the frame is in
    /// code that has no function.
    ///
    /// Results are cached by identity. The target may have ended.
    fn frames(&self, target: &dyn Target, address: u64, record: &FrameRecord) -> Arc<[Frame]> {
        let _ = (target, address, record);
        Arc::default()
    }

    /// Decodes the part of a sample that the kernel step added, to the result of [`Self::thread`]
    /// then. `target` is the current process, for data that does not change; it may have ended.
    ///
    /// # Errors
    /// If the data is inconsistent, or refers to something that can no longer be read.
    fn decode(
        &self,
        target: &dyn Target,
        part: &[u8],
    ) -> Result<Option<RuntimeThread>, RuntimeError> {
        let _ = (target, part);
        Ok(None)
    }
}

/// The part of a process that has to be stopped to read a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The thread that is read.
    Thread,
    /// All threads of the process, but for those whose timeout a stop would restart.
    Process,
}

/// A thread to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThreadView {
    /// Its ID in the reader's PID namespace.
    pub tid: i32,
    /// Its thread pointer: fs base on x86-64, `TPIDR_EL0` on aarch64.
    pub thread_pointer: u64,
}

impl ThreadView {
    /// Creates a view of a thread from its ID and its thread pointer.
    #[must_use]
    pub const fn new(tid: i32, thread_pointer: u64) -> Self {
        Self {
            tid,
            thread_pointer,
        }
    }
}

/// A step of the kernel program, and its configuration for a process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelStep {
    /// The name under which `cargo xtask bpf` has included it.
    pub name: &'static str,
    /// The configuration for this process, in the step's own layout.
    pub configuration: Vec<u8>,
}

impl KernelStep {
    /// Creates a step from its name and its configuration.
    #[must_use]
    pub const fn new(name: &'static str, configuration: Vec<u8>) -> Self {
        Self {
            name,
            configuration,
        }
    }
}
