//! A process, and what is cached about it between reads.

mod find;
mod subject;

use std::ffi::OsString;
use std::ops::{ControlFlow, Deref};
use std::sync::Arc;
use std::time::{Duration, Instant};

use otelctx_format::{KeyMap, SYMBOL, record};
use otelctx_remote as remote;
use remote::mappings::{Scan, ScanOptions};
use remote::{CodeLayout, FileCache, Memory, MemoryError, Modules, ProcessMemory, Target, tls};

pub use self::find::Poll;
pub(crate) use self::subject::Subject;
use crate::process_context::{Found, HeaderBytes, Polled};
use crate::runtime::{Present, RuntimeReading, Runtimes};
use crate::sleeping::SleepingThreads;
use crate::thread_context::{self, Announced, Thread, ThreadSupport, is_registered};
use crate::{ContextState, Detected, Error};

/// Limits of a reader.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Maximum size of a process context's payload, in bytes. 1 MiB by default.
    pub max_payload: usize,
    /// Do not scan processes with more mappings than this. No limit by default. With a limit,
    /// `PROCMAP_QUERY` is not used: it does not count the mappings it skips.
    pub max_mappings: Option<u64>,
    /// Read the text of `/proc/PID/maps` even if the kernel supports `PROCMAP_QUERY` (Linux 6.11),
    /// which is faster and gives the same results.
    pub maps_as_text: bool,
    /// Maximum number of bytes to read of a thread's record: between 28, the record's header, and
    /// 65,563, the largest possible record; other values are clamped. The default, 640, is the size
    /// that OTEP 4947 recommends to writers.
    pub max_record: usize,
    /// How long to wait for a thread to stop. 500 ms by default.
    pub stop_timeout: Duration,
    /// Do not stop threads to read them: one that is not asleep is an [`Error::NotAsleep`].
    pub never_stop: bool,
    /// When to give up on the process: no slow operation is started after it. None by default.
    pub deadline: Option<Instant>,
    /// Read the thread-local variable even if the process context does not announce it.
    pub any_schema: bool,
    /// The language runtimes to read in addition to native contexts. None by default.
    pub runtimes: Runtimes,
    /// Also read the tasks of runtimes of which a thread can be read without stopping the process.
    pub tasks: bool,
    /// The caller has native stacks of the threads, too, into which the frames of runtimes go. True by default;
    /// without, finding a runtime takes less time.
    pub native_stacks: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_payload: 1 << 20,
            max_mappings: None,
            maps_as_text: false,
            max_record: record::RECOMMENDED_SIZE,
            stop_timeout: Duration::from_millis(500),
            never_stop: false,
            deadline: None,
            any_schema: false,
            runtimes: Runtimes::default(),
            tasks: false,
            native_stacks: true,
        }
    }
}

/// A process to read contexts from: a running process, or the core file of one that has ended.
///
/// It caches addresses, so that later reads are cheap: one system call if the process context has
/// not changed. It detects when the process publishes late, updates its context, loads or unloads
/// libraries, or executes another program.
#[derive(Debug)]
pub struct Process {
    subject: Subject,
    options: Options,
    files: FileCache,
    found: Option<Found>,
    /// Addresses of contexts that could not be read, with their headers if those were readable.
    broken: Vec<(u64, Option<HeaderBytes>)>,
    variables: Option<Arc<tls::Resolution>>,
    sleeping: SleepingThreads,
    runtimes: Option<(CodeLayout, Arc<[Present]>)>,
}

/// The threads of a process, from [`Process::threads_while`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Threads<'p> {
    /// Whether and how their contexts can be read.
    pub support: Arc<ThreadSupport>,
    /// In the order of `/proc/PID/task`, or of the core file.
    pub threads: Vec<Thread<'p>>,
    /// Whether the list is complete.
    pub is_complete: bool,
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
            broken: Vec::new(),
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

    /// Its command name: at most 15 bytes, chosen by the process. Empty if its core file does not
    /// contain it.
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

    /// Whether [`Options::deadline`] has passed.
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

    /// The memory of the program that is running now.
    fn memory(&mut self) -> Result<&dyn Memory, Error> {
        if let Subject::Running { process, memory } = &mut self.subject {
            // Open memory belongs to the program for which it was opened. Nothing is mapped at
            // address 0: a read there only tells whether that program is still running.
            let gone = |memory: &ProcessMemory| {
                matches!(memory.read(0, &mut [0]), Err(MemoryError::Gone { .. }))
            };
            if memory.as_ref().is_none_or(gone) {
                self.variables = None;
                self.sleeping.clear();
                self.runtimes = None;
                *memory = Some(process.memory()?);
            }
        }
        // Opened above.
        Ok(self.open_memory().expect("memory was just opened"))
    }

    /// Detects resource attributes from outside.
    ///
    /// # Errors
    /// If the process cannot be inspected, or is not running.
    pub fn detected(&self) -> Result<Detected, Error> {
        Detected::of(self.running()?)
    }

    /// Whether and how the contexts of its threads can be read. Resolved again if libraries were
    /// loaded or unloaded.
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
            Ok(announced) => Ok(announced.at(self.resolve()?)),
            Err(why) => Ok(ThreadSupport::Unreadable(why)),
        }
    }

    /// Resolves the variable. Does so again if the modules have changed, or if the same modules may
    /// give another result.
    fn resolve(&mut self) -> Result<Arc<tls::Resolution>, Error> {
        // If the program has changed, this clears the caches.
        self.memory()?;
        if let Some(resolution) = &self.variables
            && is_settled(resolution)
            && self.modules_unchanged()?
        {
            return Ok(resolution.clone());
        }
        if self.is_late() {
            return Err(self.late("resolve the variable of its threads"));
        }
        let Some(target) = self.as_target() else {
            let pid = self.id();
            return Err(remote::Error::NoSuchProcess { pid }.into());
        };
        let resolution = match tls::resolve(&*target, &self.files, SYMBOL) {
            Err(remote::Error::Deadline { .. }) => {
                return Err(self.late("resolve the variable of its threads"));
            }
            resolution => Arc::new(resolution?),
        };
        drop(target);
        self.variables = Some(resolution.clone());
        Ok(resolution)
    }

    /// The runtimes among [`Options::runtimes`] that the process contains. Probed again if
    /// libraries were loaded or unloaded.
    ///
    /// # Errors
    /// If the process cannot be inspected.
    pub fn runtimes(&mut self) -> Result<Arc<[Present]>, Error> {
        if self.options.runtimes.is_empty() {
            return Ok(Arc::default());
        }
        // If the program has changed, this clears the caches.
        self.memory()?;
        let target = self.as_target().expect("memory was just opened");
        if let Some((known, present)) = &self.runtimes
            && *known == self.layout(&*target)?
        {
            let present = present.clone();
            drop(target);
            return Ok(self.adapted(present));
        }
        let (present, layout) = match self.options.runtimes.probe(&*target, &self.files) {
            Err(remote::Error::Deadline { .. }) => return Err(self.late("probe for runtimes")),
            probed => probed?,
        };
        if self.options.native_stacks {
            let found = present.iter().filter_map(|it| it.process.as_ref().ok());
            found.for_each(|process| process.find_code(&*target));
        }
        drop(target);
        let present: Arc<[Present]> = present.into();
        self.runtimes = Some((layout, Arc::clone(&present)));
        if !present.is_empty() {
            self.find_thread_lists();
        }
        Ok(self.adapted(present))
    }

    /// Finds the C library's list of threads, which is needed to read sleeping threads without stops. If a
    /// variable is announced, it has been resolved, and the list with it.
    fn find_thread_lists(&mut self) {
        let is_resolved = |it: &tls::Resolution| it.unplaced || !it.variables.is_empty();
        if !self.variables.as_deref().is_some_and(is_resolved)
            && let Some(lists) = self.lists_of_c_library()
        {
            self.variables = Some(Arc::new(lists));
            return;
        }
        // A static program has the list itself.
        let _ = self.resolve();
    }

    /// The list of threads alone, if the C library has it.
    fn lists_of_c_library(&self) -> Option<tls::Resolution> {
        let target = self.as_target()?;
        let modules = Modules::read_c_library(&*target, &self.files).ok()?;
        let threads = modules.thread_lists(target.machine());
        threads.is_known().then(|| tls::Resolution {
            threads,
            layout: Some(modules.layout),
            ..tls::Resolution::default()
        })
    }

    /// The runtimes as the process context wants them to be read.
    fn adapted(&mut self, mut present: Arc<[Present]>) -> Arc<[Present]> {
        let Some(found) = &self.found else {
            return present;
        };
        let attributes = &found.context.payload.attributes;
        let adapt = |present: &Present| present.process.as_ref().ok()?.with_context(attributes);
        let new: Vec<_> = present.iter().map(adapt).collect();
        if new.iter().any(Option::is_some) {
            let both = present.iter().zip(new);
            present = both
                .map(|(present, new)| Present {
                    process: new.map_or_else(|| present.process.clone(), Ok),
                    ..present.clone()
                })
                .collect();
            if let Some((_, known)) = &mut self.runtimes {
                *known = present.clone();
            }
        }
        present
    }

    /// The last resolution of its variables.
    pub(crate) fn resolution(&self) -> Option<&tls::Resolution> {
        self.variables.as_deref()
    }

    /// The process as a [`Target`](remote::Target), until [`Options::deadline`], with the memory of
    /// the program that was running when its context or its threads were last read. `None` if
    /// neither was read.
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

    /// The code that is mapped, and where.
    fn layout(&self, target: &dyn Target) -> Result<CodeLayout, Error> {
        match target.code_layout() {
            Err(remote::Error::Deadline { .. }) => Err(self.late("scan its mappings")),
            layout => Ok(layout?),
        }
    }

    /// The options for scanning its mappings.
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

    /// Lists its threads.
    ///
    /// # Errors
    /// If the process cannot be inspected. If its threads have no readable context,
    /// [`Thread::context`] reports that.
    pub fn threads(&mut self) -> Result<Vec<Thread<'_>>, Error> {
        Ok(self.threads_while(|| true)?.threads)
    }

    /// Lists its threads until `go_on` returns false, and resolves [`Self::thread_support`].
    /// Without a limit, the listing may not end if a process creates threads as fast as they are
    /// listed.
    ///
    /// # Errors
    /// See [`Self::threads`].
    pub fn threads_while(&mut self, go_on: impl FnMut() -> bool) -> Result<Threads<'_>, Error> {
        let context = self.context()?;
        self.threads_of(&context, go_on)
    }

    /// [`Self::threads_while`] for a process context that was just read, and is not read again.
    ///
    /// # Errors
    /// See [`Self::threads`].
    pub fn threads_of(
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
        process
            .sleeping
            .note_listed(threads.iter().map(Thread::tid));
        Ok(Threads {
            support,
            threads,
            is_complete,
        })
    }

    /// Whether the loaded libraries are the same as when the variable was last resolved and
    /// runtimes were last found. If a library is unloaded while threads are being read, other data
    /// may replace its variable: after reading several threads, check this, and read them again if
    /// it returns false.
    ///
    /// # Errors
    /// If the process cannot be inspected.
    pub fn modules_unchanged(&self) -> Result<bool, Error> {
        let variables = self.variables.as_ref();
        let runtimes = self.runtimes.as_ref();
        let runtimes = runtimes.filter(|(_, present)| !present.is_empty());
        let runtimes = runtimes.map(|(layout, _)| *layout);
        let known = variables.and_then(|it| it.layout).into_iter();
        let mut known = known.chain(runtimes).peekable();
        // Nothing was resolved, or the program for which it was resolved has ended.
        let (Some(_), Some(target)) = (known.peek(), self.as_target()) else {
            return Ok(true);
        };
        if !target.is_running() {
            return Ok(true);
        }
        let layout = self.layout(&*target)?;
        let is_registered = || variables.is_none_or(|it| self.are_registered(it));
        Ok(known.all(|known| known == layout) && is_registered())
    }

    /// Whether the variables of its threads still resolve to the same locations after
    /// [`Self::modules_unchanged`] returned false: a process that maps code frequently need not
    /// have loaded a module. Always false for a process with a language runtime, whose location is
    /// not compared.
    ///
    /// # Errors
    /// If the process cannot be inspected.
    pub fn variables_unchanged(&self) -> Result<bool, Error> {
        let has_runtime = self
            .runtimes
            .as_ref()
            .is_some_and(|(_, present)| !present.is_empty());
        let (Some(known), Some(target), false) = (&self.variables, self.as_target(), has_runtime)
        else {
            return Ok(false);
        };
        let now = match tls::resolve(&*target, &self.files, SYMBOL) {
            Err(remote::Error::Deadline { .. }) => {
                return Err(self.late("resolve the variable of its threads"));
            }
            now => now?,
        };
        let is_same = now.variables == known.variables && now.unplaced == known.unplaced;
        Ok(is_same && self.are_registered(known))
    }

    /// Whether the dynamic linker's entries for the modules of these variables are unchanged: a
    /// module that was unloaded and loaded again at the same address has different storage.
    fn are_registered(&self, resolution: &tls::Resolution) -> bool {
        let Some(memory) = self.open_memory() else {
            return false;
        };
        let mut variables = resolution.variables.iter();
        variables.all(|variable| match is_registered(variable, memory) {
            Ok(is_registered) => is_registered,
            // Data read from a process remains valid when it ends.
            Err(error) => matches!(error, MemoryError::Gone { .. }),
        })
    }

    /// What is cached about its threads for reading them while they sleep.
    pub(crate) fn sleeping(&self) -> &SleepingThreads {
        &self.sleeping
    }

    pub(crate) fn open_memory(&self) -> Option<&dyn Memory> {
        self.subject.memory()
    }

    /// The source of all reads.
    pub(crate) fn subject(&self) -> &Subject {
        &self.subject
    }

    /// Decodes the record that a runtime has found ([`RuntimeThread::record`]), with the names that the process
    /// publishes. Without a record, nothing changes.
    ///
    /// [`RuntimeThread::record`]: crate::runtime::RuntimeThread::record
    pub fn decode_record(&self, reading: &mut RuntimeReading) {
        let Ok(thread) = &mut reading.thread else {
            return;
        };
        if let Some(record) = thread.record.take() {
            let keys = self.found.as_ref().map(|found| found.context.keys.clone());
            let keys = keys.and_then(Result::ok).flatten().unwrap_or_default();
            thread.context = thread_context::decode(&record, &keys, || self.newer_keys());
        }
    }

    /// Reads the current key map, if it has changed since it was last read.
    pub(crate) fn newer_keys(&self) -> Option<KeyMap> {
        match self
            .found
            .as_ref()?
            .poll(self.open_memory()?, self.options.max_payload)
        {
            Polled::Changed(found) => found.context.keys.clone().ok().flatten(),
            _ => None,
        }
    }
}

/// Whether the same modules always give the same resolution. This is not the case while a module is
/// being loaded or relocated (then something in it is unreadable), nor for dynamic storage: a
/// library that was unloaded and loaded again at the same address has another generation, which
/// distinguishes its blocks from stale ones.
fn is_settled(resolution: &tls::Resolution) -> bool {
    let is_static = |variable: &tls::TlsVariable| variable.storage() == tls::Storage::Static;
    resolution.unreadable.is_empty()
        && !resolution.variables.is_empty()
        && resolution.variables.iter().all(is_static)
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::ffi::OsStrExt;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use otelctx_format::process_context::Attributes;
    use remote::libc::is_c_library;

    use super::*;
    use crate::runtime::{Runtime, RuntimeError, RuntimeProcess, RuntimeThread, ThreadView};

    /// A runtime of every program, which counts how often its code was to be found.
    #[derive(Debug, Clone, Default)]
    struct Anything(Arc<AtomicUsize>);

    impl Runtime for Anything {
        fn name(&self) -> &'static str {
            "anything"
        }

        fn is_candidate(&self, file_name: &[u8]) -> bool {
            let program = std::env::current_exe().unwrap();
            program.file_name().unwrap().as_bytes() == file_name
        }

        fn probe(
            &self,
            _: &dyn Target,
            _: &Modules,
        ) -> Result<Option<Arc<dyn RuntimeProcess>>, RuntimeError> {
            Ok(Some(Arc::new(self.clone())))
        }
    }

    impl RuntimeProcess for Anything {
        fn facts(&self) -> Attributes {
            Vec::new()
        }

        fn find_code(&self, _: &dyn Target) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn thread(
            &self,
            _: &dyn Target,
            _: ThreadView,
        ) -> Result<Option<RuntimeThread>, RuntimeError> {
            Ok(None)
        }
    }

    #[test]
    fn a_runtime_without_published_contexts_takes_no_other_files_than_its_own_and_the_c_library() {
        let own = i32::try_from(std::process::id()).unwrap();
        let program = std::env::current_exe().unwrap();
        let mut files = BTreeSet::new();
        let mapped = remote::Process::open(own)
            .unwrap()
            .mappings(&mut |mapping| {
                let is_own = mapping.name == program.as_os_str().as_bytes();
                if mapping.permissions.execute && (is_own || is_c_library(mapping.name)) {
                    files.insert(mapping.name.to_vec());
                }
                ControlFlow::Continue(())
            });
        mapped.unwrap();
        for native_stacks in [false, true] {
            let runtime = Anything::default();
            let options = Options {
                runtimes: Runtimes::new(vec![Arc::new(runtime.clone())]),
                native_stacks,
                ..Options::default()
            };
            let mut process = Process::with_options(own, options).unwrap();
            assert_eq!(process.runtimes().unwrap().len(), 1);
            assert_eq!(process.files().len(), files.len(), "{files:?}");
            assert!(process.resolution().unwrap().threads.is_known());
            // Once for a process.
            process.runtimes().unwrap();
            let found = runtime.0.load(Ordering::Relaxed);
            assert_eq!(found, usize::from(native_stacks));
            // The variable is still searched for in all files, if it is announced.
            process.resolve().unwrap();
            assert!(process.files().len() > files.len());
        }
    }
}
