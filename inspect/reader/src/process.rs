//! A process, and what is cached about it between reads.

mod find;
mod modules;
mod owners;
mod state;
mod subject;
mod thread;

use std::ffi::OsString;
use std::ops::{ControlFlow, Deref, Range};
use std::sync::Arc;
use std::time::Instant;

use otelctx_format::record::{HEADER_SIZE, MAX_SIZE};
use otelctx_format::{KeyMap, Schema};
use otelctx_remote as remote;
use remote::mappings::{Scan, ScanOptions};
use remote::process::Sizes;
use remote::{CodeLayout, FileCache, Memory, MemoryError, ProcessMemory, Target, tls};

pub use self::find::Poll;
use self::subject::Subject;
pub use self::thread::{Reading, StopReason, StoppedThread, Thread};
use crate::process_context::{Found, HeaderBytes, PastKeys, Polled};
use crate::record::{self, Newer};
use crate::record_keys::Owner;
use crate::runtime::{Present, RuntimeReading};
use crate::sleeping::SleepingThreads;
use crate::variables::Announced;
use crate::{ContextState, Detected, Error, Options, ProcessContext, RecordKeys, ThreadSupport};

/// A process to read contexts from: a running process, or the core file of one that has ended.
///
/// It caches addresses: a later read takes one system call if the process context has not changed,
/// no libraries were loaded or unloaded, and no other program was executed.
#[derive(Debug)]
pub struct Process {
    subject: Subject,
    options: Options,
    files: FileCache,
    found: Option<Found>,
    /// The key maps of the contexts that the program has had.
    past: PastKeys,
    owners: Option<Owners>,
    /// Addresses of contexts that could not be read, with their headers if those were readable.
    broken: Vec<(u64, Option<HeaderBytes>)>,
    /// How much memory the process had mapped before the last scan for contexts.
    scanned: Option<Sizes>,
    variables: Option<Arc<tls::Resolution>>,
    sleeping: SleepingThreads,
    runtimes: Option<(CodeLayout, Arc<[Present]>)>,
}

/// Which publisher uses which variable, for these contexts and modules.
#[derive(Debug)]
struct Owners {
    /// The address of each, and of its descriptor.
    contexts: Vec<(u64, Option<u64>)>,
    /// The addresses of each variable's module.
    modules: Vec<Option<Range<u64>>>,
    found: Vec<Owner>,
}

impl Owners {
    fn are_known(&self) -> bool {
        let known = self
            .found
            .iter()
            .filter(|it| matches!(it, Owner::Context(_)));
        known.count() == self.contexts.len()
    }
}

/// The names on which all publishers agree.
pub(crate) fn all_keys(context: &ProcessContext) -> Option<KeyMap> {
    context.keys.clone().ok()?
}

pub(crate) struct Threads<'p> {
    pub(crate) support: Arc<ThreadSupport>,
    /// In the order of `/proc/PID/task`, or of the core file.
    pub(crate) threads: Vec<Thread<'p>>,
    pub(crate) is_complete: bool,
}

impl Process {
    /// Opens a process with the default [`Options`]. Resolves nothing yet.
    ///
    /// # Errors
    /// If there is no such process.
    pub fn open(pid: i32) -> Result<Self, Error> {
        Self::with_options(pid, Options::default())
    }

    /// Opens a process.
    ///
    /// # Errors
    /// If there is no such process.
    pub fn with_options(pid: i32, options: Options) -> Result<Self, Error> {
        Self::with_files(pid, options, FileCache::default())
    }

    /// Opens a process that shares a cache of files with others.
    ///
    /// # Errors
    /// If there is no such process.
    pub fn with_files(pid: i32, options: Options, files: FileCache) -> Result<Self, Error> {
        Ok(Self::new(Subject::open(pid)?, options, files))
    }

    /// Opens a process that is not running: a [`CoreFile`](remote::CoreFile), or an image.
    ///
    /// ```no_run
    /// use otelctx_reader::remote::CoreFile;
    /// use otelctx_reader::{Options, Process};
    ///
    /// # fn main() -> Result<(), otelctx_reader::Error> {
    /// let core = CoreFile::open("core.4711".as_ref(), "/".as_ref())?;
    /// for missing in core.missing() {
    ///     eprintln!("{missing}");
    /// }
    /// let mut process = Process::of_target(core, Options::default());
    /// for thread in process.threads()? {
    ///     if let Some(context) = thread.context()?.attached() {
    ///         println!("{} was working on trace {}", thread.tid(), context.trace_id);
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn of_target(target: impl Target + Send + Sync + 'static, options: Options) -> Self {
        let subject = Subject::Saved(Box::new(target));
        Self::new(subject, options, FileCache::default())
    }

    fn new(subject: Subject, options: Options, files: FileCache) -> Self {
        Self {
            subject,
            options,
            files,
            found: None,
            past: PastKeys::default(),
            owners: None,
            broken: Vec::new(),
            scanned: None,
            variables: None,
            sleeping: SleepingThreads::default(),
            runtimes: None,
        }
    }

    /// Its process ID. `None` if its core file does not contain it.
    #[must_use]
    pub fn pid(&self) -> Option<i32> {
        self.subject.pid()
    }

    /// Its command name: at most 15 bytes, chosen by the process. Empty if its core file lacks it.
    ///
    /// # Errors
    /// If it has ended.
    pub fn comm(&self) -> Result<OsString, Error> {
        self.subject.comm()
    }

    /// The running process, for its executable, its status, and the right to stop it.
    ///
    /// # Errors
    /// [`Error::NotRunning`] for a core file.
    pub fn running(&self) -> Result<&remote::Process, Error> {
        match &self.subject {
            Subject::Running { process, .. } => Ok(process),
            Subject::Saved(target) => Err(Error::NotRunning {
                name: target.name().to_string_lossy().into_owned(),
            }),
        }
    }

    /// The options with which it was opened.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Sets [`Options::deadline`] for the next reads.
    pub fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.options.deadline = deadline;
    }

    pub(crate) fn set_never_stop(&mut self, never_stop: bool) {
        self.options.never_stop = never_stop;
    }

    /// The number of threads by the kernel's count, 0 if the process has ended.
    pub(crate) fn thread_count(&self) -> usize {
        let status = self.running().ok().and_then(|it| it.status().ok());
        status.map_or(0, |status| status.threads)
    }

    fn is_late(&self) -> bool {
        self.options
            .deadline
            .is_some_and(|deadline| Instant::now() >= deadline)
    }

    fn late(&self, action: &'static str) -> Error {
        let pid = self.id();
        Error::Deadline { pid, action }
    }

    /// Its process ID, for messages; 0 if unknown.
    pub(crate) fn id(&self) -> i32 {
        self.pid().unwrap_or_default()
    }

    /// Returns the memory of the program that is running now.
    fn memory(&mut self) -> Result<&dyn Memory, Error> {
        if let Subject::Running { process, memory } = &mut self.subject {
            // Nothing is mapped at address 0: a read there only tells whether the program for which
            // the memory was opened is still running.
            let gone = |memory: &ProcessMemory| {
                matches!(memory.read(0, &mut [0]), Err(MemoryError::Gone { .. }))
            };
            if memory.as_ref().is_none_or(gone) {
                self.variables = None;
                self.past = PastKeys::default();
                self.owners = None;
                self.sleeping.clear();
                self.runtimes = None;
                *memory = Some(process.memory()?);
            }
        }
        Ok(self.open_memory().expect("memory was just opened"))
    }

    /// Detects resource attributes that the process did not publish.
    ///
    /// # Errors
    /// If the process cannot be inspected, or is not running.
    pub fn detected(&self) -> Result<Detected, Error> {
        Detected::of(self.running()?)
    }

    /// Finds out how its threads can be read; again if libraries were loaded or unloaded.
    ///
    /// # Errors
    /// If the process cannot be inspected.
    pub fn thread_support(&mut self) -> Result<ThreadSupport, Error> {
        let context = self.context()?;
        self.thread_support_of(&context)
    }

    /// [`Self::thread_support`] for a process context that was just read, and is not read again.
    ///
    /// # Errors
    /// If the process cannot be inspected.
    pub fn thread_support_of(&mut self, context: &ContextState) -> Result<ThreadSupport, Error> {
        match Announced::of(context, self.options.any_schema) {
            Ok(announced) => {
                let mut support = announced.at(self.resolve()?);
                if let (ThreadSupport::Readable(variables), ContextState::Published(context)) =
                    (&mut support, context)
                {
                    let owners = self.owners(context, &variables.resolution.variables);
                    let all = variables.keys.all().clone();
                    variables.keys = RecordKeys::by_owner(all, owners, context);
                }
                Ok(support)
            }
            Err(why) => Ok(ThreadSupport::Unreadable(why)),
        }
    }

    /// The publishers that alone use these variables, as far as that is known.
    fn owners(&mut self, context: &ProcessContext, variables: &[tls::TlsVariable]) -> &[Owner] {
        let publishers = &context.publishers;
        // With one variable, a second publisher would use the same.
        if publishers.is_empty() || variables.len() < 2 || publishers.len() > variables.len() {
            return &[];
        }
        let modules = variables.iter().map(tls::TlsVariable::own_module);
        let modules: Vec<_> = modules.collect();
        let contexts = publishers.iter().map(|it| (it.address, it.descriptor));
        let contexts: Vec<_> = contexts.collect();
        let is_known = self
            .owners
            .as_ref()
            .is_some_and(|known| known.contexts == contexts && known.modules == modules);
        if !is_known {
            let found = self
                .as_target()
                .map(|target| owners::find(&*target, publishers, variables));
            self.owners = Some(Owners {
                contexts,
                modules,
                found: found.unwrap_or_default(),
            });
        }
        self.owners.as_ref().map_or(&[], |known| &known.found)
    }

    pub(crate) fn resolution(&self) -> Option<&tls::Resolution> {
        self.variables.as_deref()
    }

    /// The process as a [`Target`](remote::Target), until [`Options::deadline`], with the memory of
    /// the program that was last read, if any.
    #[must_use]
    pub fn as_target(&self) -> Option<impl Deref<Target = dyn Target + '_>> {
        self.subject.as_target(&self.options)
    }

    /// [`Self::as_target`] with the memory of the program that is running now.
    ///
    /// # Errors
    /// If its memory cannot be opened.
    pub fn target(&mut self) -> Result<impl Deref<Target = dyn Target + '_>, Error> {
        self.memory()?;
        Ok(self.as_target().expect("memory was just opened"))
    }

    /// The cache of files through which its modules are read.
    #[must_use]
    pub fn files(&self) -> &FileCache {
        &self.files
    }

    fn scan_options(&self) -> ScanOptions {
        ScanOptions {
            max_mappings: self.options.max_mappings,
            deadline: self.options.deadline,
            text: self.options.maps_as_text,
        }
    }

    fn complete<T>(&self, scan: Scan<T>) -> Result<T, Error> {
        match scan {
            Scan::Complete(found) => Ok(found),
            Scan::TooMany => Err(Error::TooManyMappings {
                pid: self.id(),
                limit: self.options.max_mappings.unwrap_or(u64::MAX),
            }),
            Scan::DeadlinePassed => Err(self.late("scan its mappings")),
        }
    }

    /// Lists its threads. The listing may not end if a process creates threads as fast as they are
    /// listed: a [`Sweep`](crate::sweep::Sweep) has a deadline.
    ///
    /// # Errors
    /// If the process cannot be inspected; [`Thread::context`] reports unreadable contexts.
    pub fn threads(&mut self) -> Result<Vec<Thread<'_>>, Error> {
        let context = self.context()?;
        Ok(self.threads_of(&context, || true)?.threads)
    }

    /// Lists its threads until `go_on` returns false.
    pub(crate) fn threads_of(
        &mut self,
        context: &ContextState,
        mut go_on: impl FnMut() -> bool,
    ) -> Result<Threads<'_>, Error> {
        let support = Arc::new(self.thread_support_of(context)?);
        let process = &*self;
        let mut threads = Vec::new();
        let mut is_complete = true;
        process.subject.visit_thread_ids(&mut |tid| {
            is_complete = go_on();
            if !is_complete {
                return ControlFlow::Break(());
            }
            threads.push(Thread::new(process, support.clone(), tid));
            ControlFlow::Continue(())
        })?;
        let tids = threads.iter().map(Thread::tid);
        process.sleeping.note_listed(tids);
        Ok(Threads {
            support,
            threads,
            is_complete,
        })
    }

    pub(crate) fn open_memory(&self) -> Option<&dyn Memory> {
        self.subject.memory()
    }

    fn record_buffer(&self) -> Vec<u8> {
        let size = self.options.max_record;
        vec![0; size.clamp(HEADER_SIZE, MAX_SIZE)]
    }

    /// Decodes the [`record`](crate::runtime::RuntimeThread::record) that a runtime has found, if
    /// any, with the names that the process publishes.
    pub fn decode_record(&self, reading: &mut RuntimeReading) {
        let Ok(thread) = &mut reading.thread else {
            return;
        };
        if let Some(record) = thread.record.take() {
            let runtimes = self.runtimes.as_ref().map(|(_, present)| &**present);
            let mut runtimes = runtimes.unwrap_or_default().iter();
            let runtime = runtimes.find(|present| present.name == reading.name);
            let is_own = |schema: &Schema| runtime.is_none_or(|it| it.reads_schema(schema));
            let keys = |context: &ProcessContext| Some(context.keys_of_schemas(is_own));
            let known = self.found.as_ref().and_then(|found| keys(&found.context));
            let known = known.unwrap_or_default();
            thread.context = record::decode(&record, &known, || self.newer_keys(&keys));
        }
    }

    /// Reads the current process context, and returns its `keys` if it has changed since it was last
    /// read.
    pub(crate) fn newer_keys(&self, keys: &dyn Fn(&ProcessContext) -> Option<KeyMap>) -> Newer {
        let (Some(found), Some(memory)) = (&self.found, self.open_memory()) else {
            return Newer::Unknown;
        };
        match found.poll(memory, self.options.max_payload) {
            Polled::Unchanged => Newer::Same,
            Polled::Changed(found) => keys(&found.context).map_or(Newer::Unknown, Newer::Keys),
            Polled::Broken(..) | Polled::Gone => Newer::Unknown,
        }
    }
}
