//! Language runtimes: what their threads execute and work on, in the runtime's own terms.
//!
//! A native program has one stack per thread, and its context in one thread-local variable. A
//! runtime has frames that native debuggers do not see, its own threads that move between kernel
//! threads, and contexts stored in its own way. Each [`Runtime`] is a crate that supports one of
//! them. The command registers the runtimes that it includes in a [`Runtimes`]; a program that
//! embeds the reader registers those it needs.
//!
//! See `docs/runtimes.md` for an example.

mod read;

use std::fmt;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use otelctx_format::Schema;
use otelctx_format::process_context::{Attributes, Value};
use otelctx_format::record::Context;
use otelctx_remote::{CodeLayout, FileCache, MemoryError, Modules, Target};
use otelctx_sample::{Found, Frame, FrameKind, GilState, NamedFrame};

pub use crate::thread_context::read_record;
pub use read::{TaskReading, ThreadState, scope};

/// Maximum number of frames kept per thread or task: as many as the kernel keeps of a native stack
/// (`kernel.perf_event_max_stack`).
pub const MAX_FRAMES: usize = 127;
/// Maximum number of tasks kept of one runtime in one process.
pub const MAX_TASKS: usize = 16 * 1024;
/// Maximum memory of these, in bytes, so that a process cannot fill the reader's: about 16,384 tasks
/// with twenty frames each.
pub const MAX_TASK_BYTES: usize = 64 << 20;

/// A language runtime that can be found in a process.
pub trait Runtime: fmt::Debug + Send + Sync {
    /// Its name: the key of its facts in JSON, and the kind of its frames. Lower case: `cpython`.
    fn name(&self) -> &'static str;

    /// Whether a module with this file name may be the runtime: `libpython3.12.so.1.0`. Most
    /// processes have no such module, and none of their files is opened for it.
    fn is_candidate(&self, file_name: &[u8]) -> bool;

    /// How to recognize it in a module with any other name, such as a program that embeds it. `None` if names are
    /// enough.
    fn embedded(&self) -> Option<Embedded> {
        None
    }

    /// Finds the runtime among the candidate modules of a process. `None` if it is absent. Check
    /// symbols first, which are cached per file
    /// ([`LoadedModule::fact`](otelctx_remote::LoadedModule::fact)).
    ///
    /// # Errors
    /// If it is present but cannot be read: an unknown version, or an inconsistent structure.
    fn probe(
        &self,
        target: &dyn Target,
        modules: &Modules,
    ) -> Result<Option<Arc<dyn RuntimeProcess>>, RuntimeError>;
}

/// What every module that contains a runtime has, whatever its name is. Files are opened only if they are large
/// enough, and searched once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Embedded {
    /// A function that the module defines.
    pub symbol: &'static str,
    /// Minimum size of the module in memory, in bytes. The larger, the fewer files of other processes are opened.
    pub min_size: u64,
}

impl Embedded {
    /// A module with this function, of at least this size in memory, in bytes.
    #[must_use]
    pub const fn new(symbol: &'static str, min_size: u64) -> Self {
        Self { symbol, min_size }
    }
}

/// A runtime in one process. It is used until the process loads or unloads a module or executes
/// another program; then the process is probed again.
pub trait RuntimeProcess: fmt::Debug + Send + Sync {
    /// Facts about the process, for example the runtime's version.
    fn facts(&self) -> Attributes;

    /// The same for a process that has published these attributes of its process context, some of which may say
    /// how its threads are read. `None` if they change nothing.
    fn with_context(&self, attributes: &Attributes) -> Option<Arc<dyn RuntimeProcess>> {
        let _ = attributes;
        None
    }

    /// What must be stopped to read its threads and tasks.
    fn scope(&self) -> Scope {
        Scope::Thread
    }

    /// Whether it reads the thread contexts that a process announces with this schema
    /// (`threadlocal.schema_version`), which no native variable contains.
    fn reads_schema(&self, schema: &Schema) -> bool {
        let _ = schema;
        false
    }

    /// Finds the code that [`RuntimeStack::interpreter`] and [`Gil::code`] name, if that takes long: it is needed
    /// for native stacks only. Called before threads are read, with [`Options::native_stacks`]. Without it, both
    /// may be empty.
    ///
    /// [`Options::native_stacks`]: crate::Options::native_stacks
    fn find_code(&self, target: &dyn Target) {
        let _ = target;
    }

    /// Reads a thread, which is stopped or asleep, or belongs to a core file. `None` if the runtime
    /// does not know the thread.
    ///
    /// # Errors
    /// If memory cannot be read, or is inconsistent.
    fn thread(
        &self,
        target: &dyn Target,
        thread: ThreadView,
    ) -> Result<Option<RuntimeThread>, RuntimeError>;

    /// Calls `visit` with each context that no thread is executing now (suspended tasks, parked
    /// goroutines) until it breaks: the caller limits their number and memory, and the time. Only
    /// called if [`Self::scope`] is the process, or [`Options::tasks`](crate::Options::tasks) is set: the
    /// process is stopped, but for threads that sleep, or is a core file.
    ///
    /// # Errors
    /// If memory cannot be read, or is inconsistent. Tasks that were visited before count: only others
    /// are missing then.
    fn tasks(
        &self,
        target: &dyn Target,
        visit: &mut dyn FnMut(Task) -> ControlFlow<()>,
    ) -> Result<(), RuntimeError> {
        let _ = (target, visit);
        Ok(())
    }

    /// The step of the kernel program that reads its threads while they are sampled. `None` if
    /// there is none: then only the ptrace sampler includes data of the runtime.
    fn kernel_step(&self) -> Option<&KernelStep> {
        None
    }

    /// What the kernel step has to know of a thread and cannot find in the thread itself, such as the address of
    /// its state: the step has asked for it (`unknown_thread` in `profile/sampler/bpf/steps.h`). The thread runs, and
    /// may have ended. `None` if the runtime does not know it.
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

    /// Decodes what the kernel step added to a sample: the same as [`Self::thread`], for the time
    /// of the sample. `target` is the current process, for data that does not change, such as the
    /// names of functions; it may have ended.
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

/// What has to be stopped to read a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The thread that is read. Tasks are listed then only if [`Options::tasks`](crate::Options::tasks) is set.
    Thread,
    /// All threads of the process. Tasks are not read while a thread sleeps in a system call whose
    /// timeout a stop would restart: that thread is not stopped.
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

/// What a runtime knows about a thread.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RuntimeThread {
    /// What the thread is working on, according to the runtime. [`Found::NotPublished`] for a
    /// runtime without contexts.
    pub context: Found<Context>,
    /// The source of `context`.
    pub source: Source,
    /// The bytes of a native record (OTEP 4947) that the runtime leads to in its own way. If there is one, the
    /// reader decodes it with the names that the process publishes, and it is `context`.
    pub record: Option<Vec<u8>>,
    /// Whether the runtime was not in the middle of a change that hides the context or the frames. If it was, the reader
    /// reads a running process again, up to three times, 1 ms apart.
    pub is_settled: bool,
    /// The runtime's frames.
    pub stack: RuntimeStack,
    /// The thread's relation to the interpreter's global lock. `None` if the interpreter has none.
    pub gil: Option<Gil>,
    /// Other facts about the thread, shown next to the frames.
    pub facts: Attributes,
}

impl RuntimeThread {
    /// Creates a thread with this context and its source, without frames, a global lock or other facts.
    #[must_use]
    pub fn new(context: Found<Context>, source: Source) -> Self {
        Self {
            context,
            source,
            record: None,
            is_settled: true,
            stack: RuntimeStack::default(),
            gil: None,
            facts: Vec::new(),
        }
    }
}

/// The frames of a thread that its runtime knows.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct RuntimeStack {
    /// The frames, innermost first, grouped by calls of the interpreter, innermost first.
    pub calls: Vec<Vec<NamedFrame>>,
    /// The code of the interpreter, in one or several parts: each native frame in it represents one of
    /// the calls. Empty for a runtime that compiles all code.
    pub interpreter: Vec<Range<u64>>,
    /// Whether outer frames are missing.
    pub is_truncated: bool,
    /// Libraries that let a thread execute on several stacks, such as greenlet's: what their file names begin with. The
    /// frames are those of one stack.
    pub switching_libraries: &'static [&'static str],
}

impl RuntimeStack {
    /// Creates a stack that is complete: see [`Self::calls`] and [`Self::interpreter`].
    #[must_use]
    pub const fn new(calls: Vec<Vec<NamedFrame>>, interpreter: Vec<Range<u64>>) -> Self {
        Self {
            calls,
            interpreter,
            is_truncated: false,
            switching_libraries: &[],
        }
    }

    /// All frames, innermost first.
    pub fn frames(&self) -> impl Iterator<Item = &NamedFrame> {
        self.calls.iter().flatten()
    }

    /// Replaces each call of the interpreter in a native stack, innermost frame first, by the
    /// frames of that call. Calls without a native frame, because the native stack is truncated,
    /// are added at the end. Native frames that exceed the calls are those of the innermost calls,
    /// which have not begun to execute a function, or have ended doing so.
    ///
    /// A runtime may have announced code that only calls the interpreter for one function, under the name of
    /// that function, as CPython does with `-X perf` (Python/perf_trampoline.c): a frame of it that has this
    /// name already, or none yet, is left out.
    #[must_use]
    pub fn in_native(self, native: Vec<Frame>) -> Vec<Frame> {
        self.in_native_with(native, |frame, callee| match frame {
            Frame::Named(named) => {
                let is_unnamed = named.is_unnamed() && !frame.is_gil_wait();
                named.kind == callee.kind && (named.name() == callee.name() || is_unnamed)
            }
            Frame::Native { .. } => false,
        })
    }

    /// [`Self::in_native`], for a native stack whose announced code is recognized by `only_calls`: whether this
    /// frame, which called the interpreter, only does so for this function.
    #[must_use]
    pub fn in_native_with(
        self,
        native: Vec<Frame>,
        only_calls: impl Fn(&Frame, &NamedFrame) -> bool,
    ) -> Vec<Frame> {
        let is_call = |frame: &Frame| {
            let address = frame.lookup_address();
            let contains = |address| self.interpreter.iter().any(|code| code.contains(&address));
            address.is_some_and(contains)
        };
        let mut without = match self.is_truncated {
            true => 0,
            false => {
                let count = native.iter().filter(|frame| is_call(frame)).count();
                count.saturating_sub(self.calls.len())
            }
        };
        let mut calls = self.calls.into_iter();
        let mut mixed: Vec<Frame> = Vec::with_capacity(native.len());
        let mut was_call = false;
        for frame in native {
            let is_call = is_call(&frame);
            let is_trampoline = match mixed.last() {
                Some(Frame::Named(callee)) => was_call && only_calls(&frame, callee),
                _ => false,
            };
            was_call = is_call;
            if is_trampoline {
                continue;
            }
            if !is_call {
                mixed.push(frame);
            } else if without > 0 {
                without -= 1;
                mixed.push(frame);
            } else {
                match calls.next() {
                    Some(frames) => mixed.extend(frames.into_iter().map(Frame::from)),
                    None => mixed.push(frame),
                }
            }
        }
        mixed.extend(calls.flatten().map(Frame::from));
        mixed
    }

    /// Whether the file at a path is one of [`Self::switching_libraries`].
    #[must_use]
    pub fn is_switching_library(&self, path: &str) -> bool {
        let name = path.rsplit('/').next().unwrap_or_default();
        let mut libraries = self.switching_libraries.iter();
        libraries.any(|library| name.starts_with(library))
    }

    /// How many native frames, innermost frame first, the stack has that the calls are of, where that is not the thread's
    /// own: its last frames are those in the library that began it. What follows in memory is of other stacks, and
    /// need not be there any more. `switches` returns whether an address is in such a library
    /// ([`Self::is_switching_library`]).
    #[must_use]
    pub fn own_native_frames(
        &self,
        native: &[Frame],
        switches: impl Fn(u64) -> bool,
    ) -> Option<usize> {
        if self.calls.is_empty() || self.is_truncated {
            return None;
        }
        let is_in = |frame: &Frame, contains: &dyn Fn(u64) -> bool| {
            frame.lookup_address().is_some_and(contains)
        };
        let is_call = |address| self.interpreter.iter().any(|code| code.contains(&address));
        let mut calls = 0;
        let first = native.iter().position(|frame| {
            calls += usize::from(is_in(frame, &is_call));
            calls >= self.calls.len() && is_in(frame, &switches)
        })?;
        let rest = native[first..].iter();
        Some(first + rest.take_while(|frame| is_in(frame, &switches)).count())
    }
}

/// A thread's relation to the global lock of its interpreter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gil {
    /// Whether the thread holds it.
    pub is_held: bool,
    /// The code that takes it or passes it on, in one or several parts: a thread that does not hold it and
    /// has a native frame there waits for it. If this is unknown, it is empty, and threads that wait count as having
    /// released it.
    pub code: Arc<[Range<u64>]>,
}

impl Gil {
    /// Creates the relation of a thread that holds the lock or not: see [`Self::code`].
    #[must_use]
    pub const fn new(is_held: bool, code: Arc<[Range<u64>]>) -> Self {
        Self { is_held, code }
    }

    /// The thread's state, by its native stack, innermost frame first. If it waits, adds a frame of this
    /// kind to the stack, [`GilState::WAITING_FRAME`], as if it had called the code that takes the lock.
    pub fn state_in(&self, native: &mut Vec<Frame>, kind: FrameKind) -> GilState {
        if self.is_held {
            return GilState::Held;
        }
        let takes_it = |frame: &Frame| {
            let address = frame.lookup_address();
            address.is_some_and(|it| self.code.iter().any(|code| code.contains(&it)))
        };
        let Some(innermost) = native.iter().position(takes_it) else {
            return GilState::Released;
        };
        // Its parts may call each other.
        let outer = &native[innermost..];
        let depth = outer.iter().take_while(|frame| takes_it(frame)).count();
        let frame = NamedFrame {
            kind,
            function: GilState::WAITING_FRAME.to_owned(),
            ..NamedFrame::default()
        };
        native.insert(innermost + depth, Frame::from(frame));
        GilState::Waiting
    }
}

/// A context that no thread is executing now, and where its task will resume.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Task {
    /// The runtime's number for the task.
    pub id: u64,
    /// What it is working on.
    pub context: Found<Context>,
    /// The address of the native record (OTEP 4947) that threads publish while they execute the task. If
    /// there is one, the reader decodes it, and it is `context`.
    pub record: Option<u64>,
    /// Other facts about the task: its name, its state, what it waits for.
    pub facts: Attributes,
    /// Its frames, innermost first.
    pub frames: Vec<NamedFrame>,
    /// Whether frames are missing.
    pub is_truncated: bool,
}

impl Task {
    /// Creates a task without frames, which publishes nothing.
    #[must_use]
    pub const fn new(id: u64) -> Self {
        Self {
            id,
            context: Found::NotPublished,
            record: None,
            facts: Vec::new(),
            frames: Vec::new(),
            is_truncated: false,
        }
    }

    /// About how many bytes it takes.
    pub(crate) fn memory(&self) -> usize {
        let context = self.context.attached().map_or(0, |context| {
            let texts = context.attributes.iter();
            texts.map(|(key, value)| 48 + key.len() + value.len()).sum()
        });
        let frames = self.frames.iter().map(NamedFrame::memory);
        let text = |value: &Value| match value {
            Value::String(text) => text.len(),
            _ => 0,
        };
        let facts = self.facts.iter().map(|(key, value)| {
            let value = match value {
                Value::Array(items) => items.iter().map(|it| size_of::<Value>() + text(it)).sum(),
                value => text(value),
            };
            size_of::<(String, Value)>() + key.len() + value
        });
        size_of::<Self>() + context + frames.sum::<usize>() + facts.sum::<usize>()
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

/// Sources of a context, most reliable first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The native record (OTEP 4947).
    Native,
    /// Data that the runtime publishes for readers.
    Runtime,
    /// Labels for profilers, which contain IDs only by convention.
    Labels,
}

/// Why a runtime cannot be read, as a sentence without a full stop.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct RuntimeError {
    reason: String,
    is_settled: bool,
}

impl RuntimeError {
    /// Creates an error with this reason.
    pub fn new(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            is_settled: true,
        }
    }

    /// The same, but the runtime may have been in the middle of a change. The reader reads a thread of a running process
    /// again then, as for [`RuntimeThread::is_settled`].
    #[must_use]
    pub fn in_a_change(self) -> Self {
        Self {
            is_settled: false,
            ..self
        }
    }
}

impl From<MemoryError> for RuntimeError {
    fn from(error: MemoryError) -> Self {
        Self::new(error.to_string())
    }
}

impl From<otelctx_remote::Error> for RuntimeError {
    fn from(error: otelctx_remote::Error) -> Self {
        Self::new(error.to_string())
    }
}

/// The runtimes that a reader supports. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Runtimes(Arc<[Arc<dyn Runtime>]>);

impl Runtimes {
    /// Creates a list of these runtimes.
    #[must_use]
    pub fn new(runtimes: Vec<Arc<dyn Runtime>>) -> Self {
        Self(runtimes.into())
    }

    /// Whether there are no runtimes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Finds the runtimes that a process contains, and the code that was mapped then: see
    /// [`Modules::layout`].
    ///
    /// # Errors
    /// If its modules cannot be read, see [`Modules::read`].
    pub fn probe(
        &self,
        target: &dyn Target,
        files: &FileCache,
    ) -> Result<(Vec<Present>, CodeLayout), otelctx_remote::Error> {
        let is_candidate = |name: &[u8]| {
            let name = file_name(name);
            self.0.iter().any(|runtime| runtime.is_candidate(name))
        };
        let embedded = self.0.iter().filter_map(|runtime| runtime.embedded());
        let symbols: Vec<_> = embedded.map(|it| (it.symbol, it.min_size)).collect();
        let modules = Modules::read_named_or_defining(target, files, &is_candidate, &symbols)?;
        if modules.loaded.is_empty() {
            return Ok((Vec::new(), modules.layout));
        }
        let present = |runtime: &Arc<dyn Runtime>| {
            let process = runtime.probe(target, &modules).transpose()?;
            Some(Present {
                name: runtime.name(),
                process,
            })
        };
        let present = self.0.iter().filter_map(present).collect();
        Ok((present, modules.layout))
    }
}

/// The last component of a path, as the kernel shows it for a mapping.
fn file_name(path: &[u8]) -> &[u8] {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    name.strip_suffix(b" (deleted)").unwrap_or(name)
}

impl PartialEq for Runtimes {
    /// Whether they are the same list.
    fn eq(&self, other: &Self) -> bool {
        self.is_empty() && other.is_empty() || Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Runtimes {}

/// A runtime in a process.
#[derive(Clone, Debug)]
pub struct Present {
    /// [`Runtime::name`].
    pub name: &'static str,
    /// Access to its threads, or why it cannot be read.
    pub process: Result<Arc<dyn RuntimeProcess>, RuntimeError>,
}

impl Present {
    /// [`RuntimeProcess::reads_schema`].
    #[must_use]
    pub fn reads_schema(&self, schema: &Schema) -> bool {
        let process = self.process.as_ref();
        process.is_ok_and(|process| process.reads_schema(schema))
    }
}

/// What one runtime knows about a thread.
#[derive(Clone, Debug, PartialEq)]
pub struct RuntimeReading {
    /// [`Runtime::name`].
    pub name: &'static str,
    /// The result, or why the thread could not be read.
    pub thread: Result<RuntimeThread, RuntimeError>,
}

impl RuntimeReading {
    /// [`RuntimeThread::is_settled`], or [`RuntimeError::in_a_change`].
    fn is_settled(&self) -> bool {
        match &self.thread {
            Ok(thread) => thread.is_settled,
            Err(error) => error.is_settled,
        }
    }
}

/// Reads a thread, which is stopped or asleep, or belongs to a core file, with the runtimes of its
/// process. Runtimes that do not know the thread, or cannot be read, are omitted.
pub fn read_thread(
    target: &dyn Target,
    runtimes: &[Present],
    thread: ThreadView,
) -> Vec<RuntimeReading> {
    let read = |present: &Present| {
        let process = present.process.as_ref().ok()?;
        let thread = process.thread(target, thread).transpose()?;
        Some(RuntimeReading {
            name: present.name,
            thread,
        })
    };
    runtimes.iter().filter_map(read).collect()
}

/// What a thread is working on, chosen from several sources.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Chosen {
    /// The context of the most reliable source that has one. If none has one: the outcome of the
    /// native record, or, if no native contexts are published, that of the most reliable other
    /// source.
    pub context: Found<Context>,
    /// Whether sources have contexts with different trace or span IDs.
    pub is_conflict: bool,
}

/// Chooses between sources: the native record, then data published by a runtime, then labels.
#[must_use]
pub fn choose(native: Found<Context>, runtimes: &[RuntimeReading]) -> Chosen {
    let mut others: Vec<&RuntimeThread> = runtimes
        .iter()
        .filter_map(|reading| reading.thread.as_ref().ok())
        .filter(|thread| thread.context != Found::NotPublished)
        .collect();
    others.sort_by_key(|thread| thread.source);
    let ids = |context: &Context| (context.trace_id, context.span_id);
    let attached = others.iter().filter_map(|thread| thread.context.attached());
    let mut all = native
        .attached()
        .into_iter()
        .chain(attached.clone())
        .map(ids);
    let first = all.next();
    let is_conflict = all.any(|other| Some(other) != first);
    let context = match (&native, attached.clone().next(), others.first()) {
        (Found::Attached(_), ..) => native,
        (_, Some(context), _) => Found::Attached(context.clone()),
        (Found::NotPublished, None, Some(other)) => other.context.clone(),
        _ => native,
    };
    Chosen {
        context,
        is_conflict,
    }
}

#[cfg(test)]
mod tests {
    use otelctx_format::{SpanId, TraceId};
    use otelctx_sample::ReadStep;

    use super::*;

    fn context(id: u8) -> Found<Context> {
        let mut context = Context::default();
        context.trace_id = TraceId::from_bytes([id; 16]);
        context.span_id = SpanId::from_bytes([id; 8]);
        Found::Attached(context)
    }

    fn reading(source: Source, context: Found<Context>) -> RuntimeReading {
        RuntimeReading {
            name: "toy",
            thread: Ok(RuntimeThread::new(context, source)),
        }
    }

    #[test]
    fn the_native_record_goes_before_the_runtime_and_that_before_labels() {
        let labels = reading(Source::Labels, context(3));
        let runtime = reading(Source::Runtime, context(2));
        let both = [labels.clone(), runtime.clone()];
        let chosen = |native, others: &[RuntimeReading]| {
            let chosen = choose(native, others);
            (chosen.context, chosen.is_conflict)
        };
        assert_eq!(chosen(context(1), &both), (context(1), true));
        assert_eq!(chosen(Found::Detached, &both), (context(2), true));
        assert_eq!(chosen(Found::Detached, &both[..1]), (context(3), false));
        // Equal IDs are not a conflict.
        assert_eq!(chosen(context(2), &both[1..]), (context(2), false));
        assert_eq!(chosen(context(2), &[]), (context(2), false));
    }

    #[test]
    fn without_a_context_the_native_outcome_stands_unless_nothing_native_is_published() {
        let detached = [reading(Source::Runtime, Found::Detached)];
        let without = [reading(Source::Runtime, Found::NotPublished)];
        let unreadable = Found::Unreadable(ReadStep::Record);
        assert_eq!(choose(unreadable.clone(), &detached).context, unreadable);
        assert_eq!(
            choose(Found::NotPublished, &detached).context,
            Found::Detached
        );
        assert_eq!(
            choose(Found::NotPublished, &without).context,
            Found::NotPublished
        );
        assert_eq!(choose(Found::Invalid, &without).context, Found::Invalid);
    }

    /// A native stack of these addresses, innermost frame first.
    fn native(addresses: &[u64]) -> Vec<Frame> {
        let frame = |(depth, address): (usize, &u64)| Frame::native(depth, *address);
        addresses.iter().enumerate().map(frame).collect()
    }

    fn named(function: &str) -> NamedFrame {
        NamedFrame {
            function: function.into(),
            ..NamedFrame::default()
        }
    }

    #[test]
    fn a_thread_waits_if_it_is_in_the_code_that_takes_the_lock_and_does_not_hold_it() {
        let mut gil = Gil {
            is_held: false,
            code: [0x100..0x120, 0x200..0x240].into(),
        };
        let waiting = Frame::from(NamedFrame {
            kind: FrameKind::CPYTHON,
            function: "[waiting for the GIL]".into(),
            ..NamedFrame::default()
        });
        let state = |gil: &Gil, addresses: &[u64]| {
            let mut stack = native(addresses);
            let state = gil.state_in(&mut stack, FrameKind::CPYTHON);
            let place = stack.iter().position(|frame| *frame == waiting);
            stack.retain(|frame| *frame != waiting);
            assert_eq!(stack, native(addresses));
            (state, place)
        };
        let released = (GilState::Released, None);
        assert_eq!(state(&gil, &[]), released);
        // The instruction at the end is another function's, the return address there is its own.
        assert_eq!(state(&gil, &[0x120, 0x300]), released);
        assert_eq!(state(&gil, &[0x300, 0x120]), (GilState::Waiting, Some(2)));
        assert_eq!(state(&gil, &[0x200, 0x300]), (GilState::Waiting, Some(1)));
        // One part calls the other. What is further out takes the lock, too, but has called something else.
        let stack = [0x300, 0x210, 0x110, 0x300, 0x210];
        assert_eq!(state(&gil, &stack), (GilState::Waiting, Some(3)));
        gil.is_held = true;
        assert_eq!(state(&gil, &stack), (GilState::Held, None));
        assert_eq!(state(&Gil::default(), &stack), released);
    }

    #[test]
    fn each_call_of_the_interpreter_is_replaced_by_its_frames() {
        let stack = RuntimeStack::new(
            vec![vec![named("c"), named("b")], vec![named("a")]],
            vec![0x100..0x120, 0x120..0x200],
        );
        let [a, b, c] = ["a", "b", "c"].map(|name| Frame::from(named(name)));
        let other = Frame::native(1, 0x300);
        // A return address just after the interpreter's code still belongs to it.
        let mixed = stack
            .clone()
            .in_native(native(&[0x100, 0x300, 0x200, 0x301]));
        let last = Frame::native(3, 0x301);
        assert_eq!(mixed, [c.clone(), b.clone(), other, a.clone(), last]);
        // A truncated stack, and an empty one.
        let mixed = stack.clone().in_native(native(&[0x300, 0x101]));
        assert_eq!(
            mixed,
            [Frame::native(0, 0x300), c.clone(), b.clone(), a.clone()]
        );
        let all = [c.clone(), b.clone(), a.clone()];
        assert_eq!(stack.clone().in_native(Vec::new()), all);
        // More native calls than the runtime knows.
        let mixed = stack
            .clone()
            .in_native(native(&[0x150, 0x300, 0x150, 0x150]));
        let [first, second] = [Frame::native(0, 0x150), Frame::native(1, 0x300)];
        assert_eq!(mixed, [first, second, c.clone(), b.clone(), a]);
        let mixed = RuntimeStack {
            calls: vec![vec![named("c")]],
            is_truncated: true,
            ..stack.clone()
        };
        let last = Frame::native(1, 0x150);
        assert_eq!(mixed.in_native(native(&[0x150, 0x150])), [c.clone(), last]);
        // The first is code that calls the interpreter for `b`.
        let announced = |name: &str| {
            Frame::from(NamedFrame {
                line: 0,
                ..named(name)
            })
        };
        let mixed = RuntimeStack {
            calls: vec![vec![named("c"), named("b")]],
            ..stack.clone()
        };
        for name in ["b", "[toy]"] {
            let mut with_announced = native(&[0x150, 0x300, 0x300]);
            with_announced[1] = announced(name);
            with_announced[2] = announced(name);
            let mixed = mixed.clone().in_native(with_announced);
            assert_eq!(mixed, [c.clone(), b.clone(), announced(name)]);
        }
        let mixed = RuntimeStack {
            calls: Vec::new(),
            ..stack
        };
        assert_eq!(mixed.in_native(native(&[0x150])), native(&[0x150]));
    }

    #[test]
    fn a_stack_of_its_own_ends_in_the_library_that_began_it() {
        let own = |calls: usize, addresses: &[u64]| {
            let interpreter = vec![0x100..0x180, 0x180..0x200];
            let stack = RuntimeStack::new(vec![vec![named("a")]; calls], interpreter);
            stack.own_native_frames(&native(addresses), |address| address >> 8 == 4)
        };
        // The library calls the interpreter, and follows once more, as part of another stack.
        let addresses = [0x300, 0x150, 0x450, 0x460, 0x150, 0x450];
        assert_eq!(own(1, &addresses), Some(4));
        assert_eq!(own(2, &addresses), Some(6));
        assert_eq!(own(0, &addresses), None);
        // It was called by the interpreter.
        assert_eq!(own(1, &[0x450, 0x460, 0x150, 0x300]), None);
        // The innermost call has not begun.
        assert_eq!(own(1, &[0x150, 0x300, 0x150, 0x450, 0x150]), Some(4));
    }
}
