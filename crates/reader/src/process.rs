//! One process, and what is remembered of it between two looks.

mod find;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use otelctx_format::{KeyMap, record};
use otelctx_remote as remote;
use remote::mappings::{Looked, Reading};
use remote::{Memory, MemoryError, ModuleCache, ProcessMemory, tls};

pub(crate) use self::find::Glance;
use crate::process_context::{Found, HeaderBytes, Polled};
use crate::thread_context::{Announced, SYMBOL, Thread, ThreadSupport};
use crate::{Detected, Error};

/// Limits of a reader.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The largest payload of a process context that is read, in bytes. 1 MiB.
    pub max_payload: usize,
    /// The most mappings that a process may have for its context to be looked for. No limit. With
    /// one, `PROCMAP_QUERY` is not used: it does not count what it skips.
    pub max_mappings: Option<u64>,
    /// Read the text of `/proc/PID/maps` even where the kernel answers `PROCMAP_QUERY` (Linux 6.11),
    /// which is faster and gives the same.
    pub maps_as_text: bool,
    /// The most of a thread's record that is read, in bytes: between 28, the record's header, and
    /// 65,563, the most there can be; values outside count as these. 640, what the proposal
    /// recommends to write.
    pub max_record: usize,
    /// How long to wait for a thread to stop. 500 ms.
    pub stop_timeout: Duration,
    /// When to give up looking at the process: from then on nothing that may take long is begun.
    /// Never.
    pub deadline: Option<Instant>,
    /// Read the thread-local variable also when the process context does not announce it.
    pub any_schema: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_payload: 1 << 20,
            max_mappings: None,
            maps_as_text: false,
            max_record: record::RECOMMENDED_SIZE,
            stop_timeout: Duration::from_millis(500),
            deadline: None,
            any_schema: false,
        }
    }
}

/// What is known of ELF files, for any number of processes: those that run the same programs and
/// libraries have each file read once. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct SharedModules(Arc<Mutex<ModuleCache>>);

/// A process to read contexts from.
///
/// It remembers where things lie, so that a second look is cheap: one read when the process context has
/// not changed. It notices when the process publishes late, updates, loads or unloads
/// libraries, or executes another program.
#[derive(Debug)]
pub struct Process {
    target: remote::Process,
    options: Options,
    memory: Option<ProcessMemory>,
    modules: SharedModules,
    found: Option<Found>,
    /// Where contexts lie that could not be read, and their headers as far as they could.
    broken: Vec<(u64, Option<HeaderBytes>)>,
    variables: Option<(Layout, Arc<tls::Resolution>)>,
}

/// Threads of a process: [`Process::threads_while`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Threads<'p> {
    /// Whether their contexts can be read, and how they are reached.
    pub support: Arc<ThreadSupport>,
    /// In the order of `/proc/PID/task`.
    pub threads: Vec<Thread<'p>>,
    /// Whether these are all.
    pub is_whole: bool,
}

/// Tells two sets of loaded modules apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout(u64);

impl Process {
    /// Opens a process with the default [`Options`]; resolves nothing yet.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn open(pid: i32) -> Result<Self, Error> {
        Self::with_options(pid, Options::default())
    }

    /// Opens a process.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn with_options(pid: i32, options: Options) -> Result<Self, Error> {
        Self::with_modules(pid, options, SharedModules::default())
    }

    /// Opens a process of several that are looked at.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn with_modules(pid: i32, options: Options, modules: SharedModules) -> Result<Self, Error> {
        Ok(Self {
            target: remote::Process::open(pid)?,
            options,
            memory: None,
            modules,
            found: None,
            broken: Vec::new(),
            variables: None,
        })
    }

    /// The process as such: its name, executable, status.
    #[must_use]
    pub fn target(&self) -> &remote::Process {
        &self.target
    }

    /// The limits it was opened with.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Sets [`Options::deadline`], for another look.
    pub fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.options.deadline = deadline;
    }

    /// Whether [`Options::deadline`] has passed.
    fn is_late(&self) -> bool {
        self.options
            .deadline
            .is_some_and(|deadline| Instant::now() >= deadline)
    }

    fn late(&self, action: &'static str) -> Error {
        Error::Deadline {
            pid: self.target.pid(),
            action,
        }
    }

    /// The memory of the program that runs now.
    fn memory(&mut self) -> Result<&ProcessMemory, Error> {
        // Open memory stays that of the program it was opened for. Nothing is mapped at 0: a read
        // there tells only whether that program still runs.
        let gone = |memory: &ProcessMemory| {
            matches!(memory.read(0, &mut [0]), Err(MemoryError::Gone { .. }))
        };
        if self.memory.as_ref().is_none_or(gone) {
            self.variables = None;
            self.memory = Some(self.target.memory()?);
        }
        // The line above filled it.
        Ok(self.memory.as_ref().expect("memory was just opened"))
    }

    /// What can be told of the process without its help.
    ///
    /// # Errors
    /// When the process can't be looked at.
    pub fn detected(&self) -> Result<Detected, Error> {
        Detected::of(&self.target)
    }

    /// Whether the contexts of its threads can be read, and how they are reached. Follows
    /// libraries that come and go.
    ///
    /// # Errors
    /// When the process can't be looked at.
    pub fn thread_support(&mut self) -> Result<ThreadSupport, Error> {
        match Announced::of(&self.context()?, self.options.any_schema) {
            Ok(announced) => Ok(announced.at(self.resolve()?)),
            Err(why) => Ok(ThreadSupport::Unreadable(why)),
        }
    }

    /// Finds the variable, again when other modules are loaded than last time, or when what was
    /// found then may differ by now with the same modules.
    fn resolve(&mut self) -> Result<Arc<tls::Resolution>, Error> {
        // May forget what is known of a program that runs no more.
        self.memory()?;
        let layout = self.layout()?;
        if let Some((known, resolution)) = &self.variables
            && *known == layout
            && is_settled(resolution)
            && self.are_registered(resolution)
        {
            return Ok(resolution.clone());
        }
        if self.is_late() {
            return Err(self.late("look for the variable of its threads"));
        }
        // Borrowed apart: the cache is written while the memory is read.
        let memory = self.memory.as_ref().expect("memory was just opened");
        let modules = &mut self
            .modules
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let space = remote::Within {
            process: &self.target,
            deadline: self.options.deadline,
            text: self.options.maps_as_text,
        };
        let resolution = match tls::resolve(&space, memory, modules, SYMBOL) {
            Err(remote::Error::Late { .. }) => {
                return Err(self.late("look for the variable of its threads"));
            }
            resolution => Arc::new(resolution?),
        };
        self.variables = Some((layout, resolution.clone()));
        Ok(resolution)
    }

    /// Which code is mapped where: changes with every dlopen, dlclose and exec.
    fn layout(&self) -> Result<Layout, Error> {
        let mut hasher = DefaultHasher::new();
        let looked = self.target.code_mappings(self.reading(), &mut |mapping| {
            (mapping.start, mapping.end, mapping.device, mapping.inode).hash(&mut hasher);
        });
        self.through(looked?)?;
        Ok(Layout(hasher.finish()))
    }

    /// How its mappings are gone through.
    fn reading(&self) -> Reading {
        Reading {
            max_mappings: self.options.max_mappings,
            deadline: self.options.deadline,
            text: self.options.maps_as_text,
        }
    }

    fn through<T>(&self, looked: Looked<T>) -> Result<T, Error> {
        match looked {
            Looked::Through(found) => Ok(found),
            Looked::TooMany => Err(Error::TooManyMappings {
                pid: self.target.pid(),
                limit: self.options.max_mappings.unwrap_or(u64::MAX),
            }),
            Looked::Late => Err(self.late("go through its mappings")),
        }
    }

    /// Its threads.
    ///
    /// # Errors
    /// When the process can't be looked at. That its threads have no readable context shows when one
    /// of them is asked for it.
    pub fn threads(&mut self) -> Result<Vec<Thread<'_>>, Error> {
        Ok(self.threads_while(|| true)?.threads)
    }

    /// Its threads, listed for as long as `go_on` says so, and what [`Self::thread_support`] says.
    /// The list has no end while a process creates threads as fast as they are listed.
    ///
    /// # Errors
    /// See [`Self::threads`].
    pub fn threads_while(&mut self, mut go_on: impl FnMut() -> bool) -> Result<Threads<'_>, Error> {
        let support = Arc::new(self.thread_support()?);
        let process = &*self;
        let mut threads = Vec::new();
        let mut is_whole = true;
        process.target.visit_thread_ids(&mut |tid| {
            is_whole = go_on();
            if !is_whole {
                return ControlFlow::Break(());
            }
            threads.push(Thread::new(process, support.clone(), tid));
            ControlFlow::Continue(())
        })?;
        Ok(Threads {
            support,
            threads,
            is_whole,
        })
    }

    /// Whether the same libraries are loaded as when the variable was last looked for. A library
    /// that goes while threads are being read may leave others' data where its variable was: whoever
    /// reads several threads asks this afterwards, and reads again if the answer is no.
    ///
    /// # Errors
    /// When the process can't be looked at.
    pub fn modules_unchanged(&self) -> Result<bool, Error> {
        let layout = self.layout()?;
        Ok(self
            .variables
            .as_ref()
            .is_none_or(|(known, resolution)| *known == layout && self.are_registered(resolution)))
    }

    /// Whether the dynamic linker still has the modules of these variables under what it noted of
    /// them: one that was closed and loaded again, at the same place, has been given other storage.
    fn are_registered(&self, resolution: &tls::Resolution) -> bool {
        let Some(memory) = &self.memory else {
            return false;
        };
        let registrations = resolution
            .variables
            .iter()
            .map(tls::TlsVariable::registration);
        registrations.flatten().all(|registration| {
            let [generation, map] = registration.words.map(u64::to_le_bytes);
            let mut words = [0; 16];
            match memory.read(registration.address, &mut words) {
                Ok(()) => words[..8] == generation && words[8..] == map,
                // What was found of a process stands when it ends.
                Err(error) => matches!(error, MemoryError::Gone { .. }),
            }
        })
    }

    pub(crate) fn open_memory(&self) -> Option<&ProcessMemory> {
        self.memory.as_ref()
    }

    /// The key map as it is now, if it has changed since it was last read.
    pub(crate) fn newer_keys(&self) -> Option<KeyMap> {
        match self
            .found
            .as_ref()?
            .poll(self.memory.as_ref()?, self.options.max_payload)
        {
            Polled::Changed(found) => found.context.keys.clone().ok().flatten(),
            _ => None,
        }
    }
}

/// Whether the same modules always make it the same. Not so while a module is being loaded or bound
/// (then something in it is unreadable), nor for dynamic storage: a library that was closed and
/// loaded again at the same place has another generation, by which blocks left over from the first
/// time are told apart.
fn is_settled(resolution: &tls::Resolution) -> bool {
    let is_static = |variable: &tls::TlsVariable| variable.storage() == tls::Storage::Static;
    resolution.unreadable.is_empty()
        && !resolution.variables.is_empty()
        && resolution.variables.iter().all(is_static)
}
