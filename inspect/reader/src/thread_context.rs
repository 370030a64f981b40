//! The context of a thread: from its thread pointer to its record (OTEP 4947, "Reading").

use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use otelctx_format::record::{self, Context};
use otelctx_format::{KeyMap, KeyMapError, SYMBOL, Schema};
use otelctx_remote as remote;
use otelctx_sample::{Found, ReadStep};
use remote::threads::Batch;
use remote::tls::{Resolution, TlsVariable};
use remote::{Memory, MemoryError, Stopped};

use crate::process::Subject;
use crate::sleeping::Asleep;
use crate::{Broken, ContextState, Error, Process};

/// Unit in which memory is readable or not, in bytes: the page size of x86-64, and the smallest
/// page size of aarch64.
const PAGE: u64 = 4096;

/// Minimum time to wait for a thread to stop, even if less is left until the deadline: once
/// requested, the stop happens whether or not it is awaited.
const MIN_STOP_TIMEOUT: Duration = Duration::from_millis(20);

/// Attempts to stop a thread that exists but cannot be traced.
const MAX_TRIES: usize = 3;

/// Whether the threads of a process have readable contexts.
#[derive(Clone, Debug)]
pub enum ThreadSupport {
    /// They do.
    Readable(ThreadVariables),
    /// They don't.
    Unreadable(Unreadable),
}

/// How to read the threads of a process.
#[derive(Clone, Debug)]
pub struct ThreadVariables {
    /// The schema that the process announces. A schema other than a thread-local record is only
    /// possible with [`Options::any_schema`](crate::Options::any_schema).
    pub schema: Option<Schema>,
    /// The names that records refer to.
    pub keys: KeyMap,
    /// The variables with this name that the process uses, most likely first.
    pub resolution: Arc<Resolution>,
}

/// What a process announces about its threads' contexts.
pub(crate) struct Announced {
    schema: Option<Schema>,
    keys: KeyMap,
}

impl Announced {
    /// What `context` announces, or why its threads cannot be read. Never an error with
    /// `any_schema`.
    pub(crate) fn of(context: &ContextState, any_schema: bool) -> Result<Self, Unreadable> {
        let context = match context {
            ContextState::Published(context) => Some(context),
            _ if any_schema => None,
            ContextState::Absent => return Err(Unreadable::NoProcessContext),
            ContextState::Broken(why) => return Err(Unreadable::BrokenProcessContext(why.clone())),
        };
        let schema = context.and_then(|context| context.schema.clone());
        match &schema {
            Some(schema) if schema.is_thread_local_record() => {}
            _ if any_schema => {}
            None => return Err(Unreadable::NoSchema),
            Some(schema) => return Err(Unreadable::UnsupportedSchema(schema.clone())),
        }
        let keys = match context.map_or(Ok(None), |context| context.keys.clone()) {
            Ok(keys) => keys.unwrap_or_default(),
            Err(_) if any_schema => KeyMap::default(),
            Err(error) => return Err(Unreadable::KeyMap(error)),
        };
        Ok(Self { schema, keys })
    }

    /// Adds the variables.
    pub(crate) fn at(self, resolution: Arc<Resolution>) -> ThreadSupport {
        if resolution.variables.is_empty() {
            return ThreadSupport::Unreadable(Unreadable::NotFound {
                unreadable: resolution.unreadable.clone(),
            });
        }
        ThreadSupport::Readable(ThreadVariables {
            schema: self.schema,
            keys: self.keys,
            resolution,
        })
    }
}

/// Why the threads of a process have no readable contexts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unreadable {
    /// The process publishes no process context.
    NoProcessContext,
    /// Its process context is unreadable.
    BrokenProcessContext(Broken),
    /// Its process context has no `threadlocal.schema_version`.
    NoSchema,
    /// Its process context announces another schema.
    UnsupportedSchema(Schema),
    /// The `threadlocal.attribute_key_map` in its process context is invalid.
    KeyMap(KeyMapError),
    /// No module defines the variable.
    NotFound {
        /// Modules that could not be read, with the reason.
        unreadable: Vec<(OsString, String)>,
    },
}

impl Unreadable {
    /// The outcome for each thread.
    pub(crate) fn found<C>(&self) -> Found<C> {
        match self {
            Self::NoProcessContext | Self::NoSchema => Found::NotPublished,
            _ => Found::Unreadable(ReadStep::Access),
        }
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoProcessContext => write!(f, "no process context"),
            Self::BrokenProcessContext(why) => write!(f, "broken process context: {why}"),
            Self::NoSchema => write!(
                f,
                "no schema: it does not publish {}",
                otelctx_format::SCHEMA_VERSION
            ),
            Self::UnsupportedSchema(schema) => {
                write!(f, "unsupported schema {}", schema.as_str().escape_debug())
            }
            Self::KeyMap(error) => error.fmt(f),
            Self::NotFound { unreadable } if unreadable.is_empty() => {
                write!(
                    f,
                    "{SYMBOL} is not exported by any module: the library that defines it may not be loaded yet"
                )
            }
            Self::NotFound { unreadable } => {
                let (module, reason) = &unreadable[0];
                write!(
                    f,
                    "{SYMBOL} was not found, and {} of the modules could not be read ({}: {})",
                    unreadable.len(),
                    module.to_string_lossy().escape_debug(),
                    reason.escape_debug()
                )
            }
        }
    }
}

/// The result of reading a thread's context.
#[derive(Debug)]
#[non_exhaustive]
pub struct Reading {
    /// The outcome.
    pub outcome: Result<Found<Context>, Error>,
    /// Why the thread was stopped, if it was.
    pub stop: Option<StopReason>,
}

/// Why a thread was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// It was running.
    Running,
    /// It was not running, but its thread pointer cannot be found without stopping it.
    ThreadPointer,
    /// A language runtime is read with it.
    Runtime,
    /// It was asleep, but its stack cannot be walked without all of its registers.
    Stack,
}

/// A thread of a [`Process`].
#[derive(Debug)]
pub struct Thread<'p> {
    process: &'p Process,
    support: Arc<ThreadSupport>,
    tid: i32,
}

impl<'p> Thread<'p> {
    pub(crate) fn new(process: &'p Process, support: Arc<ThreadSupport>, tid: i32) -> Self {
        Self {
            process,
            support,
            tid,
        }
    }

    /// Its ID in the reader's PID namespace.
    #[must_use]
    pub fn tid(&self) -> i32 {
        self.tid
    }

    /// The process to which it belongs.
    #[must_use]
    pub fn process(&self) -> &'p Process {
        self.process
    }

    /// Its current name, at most 15 bytes, chosen by the process: escape it before printing it to a
    /// terminal. `None` if a core file does not contain it.
    ///
    /// # Errors
    /// If the thread has exited.
    pub fn name(&self) -> Result<Option<OsString>, Error> {
        self.process.subject().thread_name(self.tid)
    }

    /// Stops the thread until the result is dropped. ptrace ties the stop to the calling OS thread.
    ///
    /// # Errors
    /// If it cannot be stopped. What the process publishes does not matter.
    pub fn stop(&self) -> Result<StoppedThread<'_>, Error> {
        // Do as much as possible before the stop.
        let mut record = self.buffer();
        let variables = self.variables();
        let mut ahead = self.rehearse(|memory, pointer| {
            let variables = variables.as_ref().ok()?;
            variables.read(memory, self.tid, pointer, &mut record).ok()
        });
        Ok(StoppedThread {
            thread: self,
            stopped: self.stop_and_read(&mut ahead)?,
            ahead,
            record,
        })
    }

    /// Reads the thread while it runs, to predict which memory a read in a stop needs.
    fn rehearse<T>(&self, read: impl FnOnce(&dyn Memory, u64) -> T) -> Batch {
        let mut ahead = Batch::default();
        if let Subject::Running { process, memory } = self.process.subject()
            && let (Some(memory), Some(resolution)) = (memory, self.process.resolution())
            && let sleeping = self.process.sleeping()
            && let Some(pointer) = sleeping.pointer((process, memory), resolution, self.tid)
        {
            let noted = ahead.over_all(memory);
            read(&noted, pointer);
            let ranges = noted.into_ranges();
            ahead.add(&ranges);
        }
        ahead
    }

    /// Stops the thread, and immediately reads `ahead` with one system call.
    fn stop_and_read(&self, ahead: &mut Batch) -> Result<Stopped, Error> {
        let options = self.process.options();
        let timeout = match options.deadline {
            None => options.stop_timeout,
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(Error::Deadline {
                        pid: self.process.id(),
                        action: "stop a thread",
                    });
                }
                left.max(MIN_STOP_TIMEOUT).min(options.stop_timeout)
            }
        };
        let process = self.process.running()?;
        // The registers are read after it, which fails if the process has executed another program
        // meanwhile. One that it executed before the stop is noticed by `modules_unchanged`.
        let read = || ahead.read(process);
        Ok(Stopped::stop_then(process, self.tid, timeout, read)?)
    }

    /// Allocates a buffer for its record.
    pub(crate) fn buffer(&self) -> Vec<u8> {
        let size = self.process.options().max_record;
        vec![0; size.clamp(record::HEADER_SIZE, record::MAX_SIZE)]
    }

    /// Reads its context. [`Self::read`] also returns whether the thread was stopped.
    ///
    /// # Errors
    /// If it cannot be stopped or read.
    pub fn context(&self) -> Result<Found<Context>, Error> {
        self.read().outcome
    }

    /// Reads its context. A sleeping thread is not stopped. A running thread is stopped for a few
    /// microseconds, as is a sleeping thread whose thread pointer cannot be found otherwise, unless
    /// that would restart the timeout of its system call ([`Error::WouldLengthen`]).
    #[must_use]
    pub fn read(&self) -> Reading {
        let mut stop = None;
        let outcome = self.read_noting(&mut stop);
        Reading { outcome, stop }
    }

    fn read_noting(&self, stop: &mut Option<StopReason>) -> Result<Found<Context>, Error> {
        let variables = self.variables()?;
        let mut record = self.buffer();
        let size = self.with_pointer(stop, |memory, pointer| {
            variables.read(memory, self.tid, pointer, &mut record)
        })??;
        Ok(self.decode(variables, size.map(|size| &record[..size])))
    }

    /// Calls `read` with the memory and the thread pointer while the thread executes nothing: it
    /// sleeps, or is stopped for the reason in `stop`. Only the last result counts.
    ///
    /// # Errors
    /// If it must be stopped, but cannot be.
    pub(crate) fn with_pointer<T>(
        &self,
        stop: &mut Option<StopReason>,
        mut read: impl FnMut(&dyn Memory, u64) -> T,
    ) -> Result<T, Error> {
        let (process, memory) = match self.process.subject() {
            Subject::Running {
                process,
                memory: Some(memory),
            } => (process, memory),
            Subject::Running { process, .. } => {
                let pid = process.pid();
                return Err(remote::Error::NoSuchProcess { pid }.into());
            }
            Subject::Saved(target) => {
                let pointer = target.thread(self.tid)?.thread_pointer;
                let pointer = pointer.ok_or(Error::NoThreadPointer { tid: self.tid })?;
                return Ok(read(&**target, pointer));
            }
        };
        let sleeping = self.process.sleeping();
        let pid = process.pid();
        let mut read_once = |is_last: bool| {
            let asleep = match self.process.resolution() {
                Some(resolution) => {
                    sleeping.read((process, memory), resolution, self.tid, &mut read)
                }
                None => Asleep::Unknown(None),
            };
            let reason = match asleep {
                Asleep::Read(result) => return Ok(Some(result)),
                asleep => self.stop_reason(&asleep)?,
            };
            let mut ahead = self.rehearse(&mut read);
            // It may have gone to sleep since then, and this process may have waited for a CPU.
            let call = sleeping.call(self.tid).filter(|_| !is_last);
            if call.is_some_and(|call| call.is_lengthened_by_a_stop(pid)) {
                return Ok(None);
            }
            let stopped = self.stop_and_read(&mut ahead)?;
            *stop = Some(reason);
            let pointer = stopped.thread_pointer();
            let result = read(&ahead.over_all(memory), pointer);
            stopped.resume()?;
            sleeping.learn(memory, self.tid, pointer);
            Ok(Some(result))
        };
        for left in (0..MAX_TRIES).rev() {
            match read_once(left == 0) {
                Ok(Some(result)) => return Ok(result),
                Ok(None) => {}
                // The thread still exists, so it has not ended.
                Err(Error::Remote(remote::Error::NoSuchThread { .. })) if self.is_there() => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::NotStopped { tid: self.tid })
    }

    /// Why the thread must be stopped, after an attempt to read it asleep.
    ///
    /// # Errors
    /// If the thread must not be stopped, or the stop would restart a timeout.
    fn stop_reason<T>(&self, asleep: &Asleep<T>) -> Result<StopReason, Error> {
        match asleep {
            _ if self.process.options().never_stop => Err(Error::NotAsleep { tid: self.tid }),
            Asleep::Unknown(Some(call)) if call.is_lengthened_by_a_stop(self.process.id()) => {
                Err(Error::WouldLengthen { tid: self.tid })
            }
            Asleep::Unknown(_) => Ok(StopReason::ThreadPointer),
            // A thread that was running a moment ago has not slept for long: if it sleeps now, its
            // timeout has hardly begun.
            Asleep::Read(_) | Asleep::Ran => Ok(StopReason::Running),
        }
    }

    /// Whether the thread exists, and is not a zombie.
    fn is_there(&self) -> bool {
        let process = self.process.running().ok();
        match process.map(|process| process.thread_state(self.tid)) {
            Some(Ok(state)) => !matches!(state, 'Z' | 'X'),
            Some(Err(error)) => !matches!(error, remote::Error::NoSuchThread { .. }),
            None => false,
        }
    }

    pub(crate) fn support(&self) -> &ThreadSupport {
        &self.support
    }

    pub(crate) fn variables(&self) -> Result<&ThreadVariables, Error> {
        match &*self.support {
            ThreadSupport::Readable(variables) => Ok(variables),
            ThreadSupport::Unreadable(why) => Err(Error::Unreadable {
                pid: self.process.id(),
                why: why.clone(),
            }),
        }
    }

    pub(crate) fn decode(
        &self,
        variables: &ThreadVariables,
        record: Option<&[u8]>,
    ) -> Found<Context> {
        // A key may have been registered since the key map was read.
        variables.decode(record, || self.process.newer_keys())
    }
}

/// A stopped thread. Dropping this resumes it.
#[derive(Debug)]
pub struct StoppedThread<'t> {
    thread: &'t Thread<'t>,
    stopped: Stopped,
    /// Memory that was read together with the stop.
    ahead: Batch,
    record: Vec<u8>,
}

impl StoppedThread<'_> {
    /// Reads the thread's context.
    ///
    /// # Errors
    /// If its variable or record cannot be read, or the process publishes no thread contexts.
    pub fn context(&mut self) -> Result<Found<Context>, Error> {
        let variables = self.thread.variables()?;
        let size = self.read(variables)?;
        Ok(self
            .thread
            .decode(variables, size.map(|size| &self.record[..size])))
    }

    /// The thread pointer: fs base on x86-64, `TPIDR_EL0` on aarch64.
    #[must_use]
    pub fn thread_pointer(&self) -> u64 {
        self.stopped.thread_pointer()
    }

    /// The stopped thread, for its registers.
    #[must_use]
    pub fn stopped(&self) -> &Stopped {
        &self.stopped
    }

    fn read(&mut self, variables: &ThreadVariables) -> Result<Option<usize>, Error> {
        let (tid, thread_pointer) = (self.thread.tid, self.stopped.thread_pointer());
        let process = self.thread.process;
        // It was opened when the variables were resolved.
        let memory = process.open_memory().ok_or_else(|| {
            let pid = process.id();
            remote::Error::NoSuchProcess { pid }
        })?;
        let memory = self.ahead.over_all(memory);
        variables.read(&memory, tid, thread_pointer, &mut self.record)
    }
}

impl ThreadVariables {
    /// Reads the record of thread `tid` into `buffer`, and returns its size: `None` if none is
    /// attached, 0 if the attached record is invalid. Of several variables, uses the first that
    /// points to a valid record, or else the first that is not null.
    ///
    /// The thread must be stopped. `thread_pointer` is the thread's fs base on x86-64, and
    /// `TPIDR_EL0` on aarch64.
    ///
    /// # Errors
    /// If the variable or the record cannot be read.
    pub fn read(
        &self,
        memory: &dyn Memory,
        tid: i32,
        thread_pointer: u64,
        buffer: &mut [u8],
    ) -> Result<Option<usize>, Error> {
        let mut fallback = Ok(None);
        for variable in &self.resolution.variables {
            let other = match read_variable(variable, memory, tid, thread_pointer, buffer) {
                Ok(None) => continue,
                Ok(Some(size)) if buffer[record::offset::VALID] == record::VALID => {
                    return Ok(Some(size));
                }
                Ok(Some(_)) => Ok(Some(0)),
                Err(error) => Err(error),
            };
            if matches!(fallback, Ok(None)) {
                fallback = other;
            }
        }
        fallback
    }

    /// Reads and decodes the record at an address, which a runtime has found.
    pub(crate) fn record_at(
        &self,
        memory: &dyn Memory,
        record: u64,
        process: &Process,
    ) -> Found<Context> {
        let options = process.options();
        let size = options
            .max_record
            .clamp(record::HEADER_SIZE, record::MAX_SIZE);
        let mut buffer = vec![0; size];
        match read_record(memory, record, &mut buffer) {
            Ok(size) => self.decode(Some(&buffer[..size]), || process.newer_keys()),
            Err(_) => Found::Unreadable(ReadStep::Record),
        }
    }

    /// Whether the modules of the variables are unchanged according to the dynamic linker (glibc):
    /// after a module was unloaded, other data may take its place. False if the process has
    /// executed another program.
    #[must_use]
    pub fn are_current(&self, memory: &dyn Memory) -> bool {
        let variables = &self.resolution.variables;
        variables
            .iter()
            .all(|variable| is_registered(variable, memory) == Ok(true))
    }

    /// Decodes a record, see [`Self::read`]. `newer_keys` is called if a key is unknown.
    pub(crate) fn decode(
        &self,
        record: Option<&[u8]>,
        newer_keys: impl FnOnce() -> Option<KeyMap>,
    ) -> Found<Context> {
        match record {
            Some(record) => decode(record, &self.keys, newer_keys),
            None => Found::Detached,
        }
    }
}

/// Decodes a record with these keys. `newer_keys` is called if one is unknown.
pub(crate) fn decode(
    record: &[u8],
    keys: &KeyMap,
    newer_keys: impl FnOnce() -> Option<KeyMap>,
) -> Found<Context> {
    let Ok(record) = record::decode(record) else {
        return Found::Invalid;
    };
    let context = record.resolve(keys);
    if context.skipped.unknown_key == 0 {
        return Found::Attached(context);
    }
    Found::Attached(match newer_keys() {
        Some(keys) => record.resolve(&keys),
        None => context,
    })
}

/// Whether the dynamic linker's entry for the module of a variable is unchanged: a module that was
/// unloaded and loaded again at the same address has different storage.
pub(crate) fn is_registered(
    variable: &TlsVariable,
    memory: &dyn Memory,
) -> Result<bool, MemoryError> {
    let Some(registration) = variable.registration() else {
        return Ok(true);
    };
    let [generation, map] = registration.words.map(u64::to_le_bytes);
    let mut words = [0; 16];
    memory.read(registration.address, &mut words)?;
    Ok(words[..8] == generation && words[8..] == map)
}

fn read_variable(
    variable: &TlsVariable,
    memory: &dyn Memory,
    tid: i32,
    thread_pointer: u64,
    buffer: &mut [u8],
) -> Result<Option<usize>, Error> {
    let Some(address) = variable.address(memory, thread_pointer)? else {
        return Ok(None);
    };
    let pointer = memory.read_u64(address).map_err(|source| Error::Variable {
        tid,
        module: variable.module.to_string_lossy().into_owned(),
        source,
    })?;
    if pointer == 0 {
        return Ok(None);
    }
    let no_record = |reason: String| Error::Pointer {
        tid,
        pointer,
        reason,
    };
    if pointer % 2 != 0 {
        return Err(no_record("a record's address is even".into()));
    }
    match read_record(memory, pointer, buffer) {
        Ok(size) => Ok(Some(size)),
        // It is unknown whether it is a record.
        Err(source @ MemoryError::NotInCore { .. }) => Err(Error::Record {
            tid,
            pointer,
            source,
        }),
        Err(error) => Err(no_record(error.to_string())),
    }
}

/// Reads the record at `pointer`, up to its announced size and the size of `buffer`, in bytes. Returns how many bytes it has:
/// at least those of a header, if `buffer` has room for one.
///
/// # Errors
/// If the record cannot be read.
///
/// # Panics
/// If `buffer` is smaller than a header.
pub fn read_record(
    memory: &dyn Memory,
    pointer: u64,
    buffer: &mut [u8],
) -> Result<usize, MemoryError> {
    // One read is enough if a buffer's worth after the pointer lies in one page, which is readable
    // as a whole. Otherwise, the memory after a short record may be unmapped.
    let one_read = pointer % PAGE + buffer.len() as u64 <= PAGE;
    let first = if one_read {
        buffer.len()
    } else {
        record::HEADER_SIZE
    };
    memory.read(pointer, &mut buffer[..first])?;
    let attributes = [
        buffer[record::offset::ATTRIBUTES_SIZE],
        buffer[record::offset::ATTRIBUTES_SIZE + 1],
    ];
    let announced = record::HEADER_SIZE + usize::from(u16::from_ne_bytes(attributes));
    let size = announced.min(buffer.len());
    if size > first {
        memory.read(pointer + first as u64, &mut buffer[first..size])?;
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use otelctx_remote::memory::Image;

    /// A record with this many bytes of attributes.
    fn record(attributes: u16) -> Vec<u8> {
        let mut bytes = vec![0xa5; record::HEADER_SIZE + usize::from(attributes)];
        bytes[record::offset::ATTRIBUTES_SIZE..record::HEADER_SIZE]
            .copy_from_slice(&attributes.to_ne_bytes());
        bytes
    }

    #[test]
    fn a_record_may_end_where_its_mapping_ends() {
        for attributes in [0, 1, 36, 612] {
            let bytes = record(attributes);
            let pointer = 2 * PAGE - bytes.len() as u64;
            let mut image = Image::new();
            image.map(pointer, bytes.clone());
            let mut buffer = vec![0; record::RECOMMENDED_SIZE];
            let size = read_record(&image, pointer, &mut buffer);
            assert_eq!(size, Ok(bytes.len()));
            assert_eq!(buffer[..bytes.len()], bytes);
        }
    }

    #[test]
    fn a_record_is_read_up_to_the_buffers_size() {
        let bytes = record(u16::MAX);
        let mut image = Image::new();
        image.map(PAGE, bytes.clone());
        for size in [
            record::HEADER_SIZE,
            record::RECOMMENDED_SIZE,
            record::MAX_SIZE,
        ] {
            let mut buffer = vec![0; size];
            assert_eq!(read_record(&image, PAGE, &mut buffer), Ok(size));
            assert_eq!(buffer, bytes[..size]);
        }
    }

    #[test]
    fn a_record_that_announces_more_than_is_mapped_is_an_error() {
        let mut image = Image::new();
        image.map(2 * PAGE - 40, record(12));
        let mut longer = record(13);
        longer.truncate(40);
        image.map(2 * PAGE - 40, longer);
        let mut buffer = vec![0; record::RECOMMENDED_SIZE];
        assert!(read_record(&image, 2 * PAGE - 40, &mut buffer).is_err());
        assert!(read_record(&image, u64::MAX - 1, &mut buffer).is_err());
    }

    #[test]
    fn without_the_process_s_memory_no_thread_is_detached() {
        let flags = ["-DLINKED", "-rdynamic"];
        let compiler = otelctx_fixtures::Compiler::gcc();
        let Some(program) = compiler.program(&["threads.c", "variable.c"], &flags) else {
            return;
        };
        let mut program = std::process::Command::new(program);
        let target = otelctx_fixtures::Target::spawn(&mut program);
        let options = crate::Options {
            any_schema: true,
            ..crate::Options::default()
        };
        let open = || Process::with_options(target.pid(), options.clone()).unwrap();
        let support = Arc::new(open().thread_support().unwrap());
        assert!(matches!(*support, ThreadSupport::Readable(_)));
        // Nothing was resolved through this one, so it has opened no memory.
        let process = open();
        let thread = Thread::new(&process, support, target.pid());
        let stopped = thread.stop().unwrap().context();
        for outcome in [stopped, thread.context()] {
            let Err(Error::Remote(remote::Error::NoSuchProcess { pid })) = outcome else {
                panic!("{outcome:?}")
            };
            assert_eq!(pid, target.pid());
        }
    }
}
