//! A process that has ended, from its core file.

use std::path::Path;
use std::sync::Arc;

use otelctx_format::record::{self, Context};
use otelctx_remote as remote;
use otelctx_sample::Found;
use remote::core_file::CoreThread;
use remote::{CoreFile, FileCache, tls};

use crate::process_context::{self, ContextState, MAX_PLACES, Place};
use crate::thread_context::{Announced, SYMBOL, ThreadSupport};
use crate::{Error, Options};

/// A core file to read contexts from: the answers that [`Process`](crate::Process) would have
/// given when the core was written.
///
/// ```no_run
/// use otelctx_reader::Core;
///
/// # fn main() -> Result<(), otelctx_reader::Error> {
/// let core = Core::open("core.4711".as_ref(), "/".as_ref())?;
/// for missing in core.target().missing() {
///     eprintln!("{missing}");
/// }
/// let support = core.thread_support()?;
/// for thread in core.target().threads() {
///     if let Some(context) = core.thread_context(&support, thread)?.attached() {
///         println!("{} was working on trace {}", thread.tid, context.trace_id);
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Core {
    target: CoreFile,
    options: Options,
}

impl Core {
    /// Opens a core file with the default [`Options`]. The files that the process had mapped are
    /// searched for below `sysroot`: `/`, or a copy of parts of another machine. One is used only if
    /// its build-id is that of the file which was mapped.
    ///
    /// # Errors
    /// When it is no core file.
    pub fn open(path: &Path, sysroot: &Path) -> Result<Self, Error> {
        Ok(Self::with_options(
            CoreFile::open(path, sysroot)?,
            Options::default(),
        ))
    }

    /// Takes a core file and what of [`Options`] is not about live processes.
    #[must_use]
    pub fn with_options(target: CoreFile, options: Options) -> Self {
        Self { target, options }
    }

    /// The core file as such: its process, its threads, what it lacks.
    #[must_use]
    pub fn target(&self) -> &CoreFile {
        &self.target
    }

    /// The limits it was opened with.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The process context as it was.
    ///
    /// # Errors
    /// When the core cannot be read.
    pub fn context(&self) -> Result<ContextState, Error> {
        let (places, missing) = self.places();
        let max_payload = self.options.max_payload;
        let found = process_context::read_first(&places, &self.target, max_payload);
        Ok(match found {
            Ok(Some(found)) => ContextState::Published(found.context),
            Ok(None) if missing > 0 => {
                ContextState::Broken(crate::Broken::NotInCore { mappings: missing })
            }
            Ok(None) => ContextState::Absent,
            Err(broken) => ContextState::Broken(broken),
        })
    }

    /// Every mapping that may hold a context; and how many that could hold one are missing.
    ///
    /// A core names only mappings of files, memfds among them. Where there is none of the right
    /// name, unnamed memory that starts with the signature is taken for one.
    fn places(&self) -> (Vec<Place>, usize) {
        let named = self.target.named_mappings();
        let mut places: Vec<Place> = named
            .filter(|(name, _)| process_context::is_named(name))
            .map(|(name, start)| Place::in_core(name, start))
            .take(MAX_PLACES)
            .collect();
        let mut missing = 0;
        if places.is_empty() {
            for start in self.target.unnamed_mappings() {
                match process_context::is_signed(&self.target, start) {
                    Some(true) if places.len() < MAX_PLACES => {
                        places.push(Place::in_core(b"", start))
                    }
                    Some(_) => {}
                    None => missing += 1,
                }
            }
        }
        (places, missing)
    }

    /// Whether the contexts of its threads can be read, and how they were reached.
    ///
    /// # Errors
    /// When the core cannot be read.
    pub fn thread_support(&self) -> Result<ThreadSupport, Error> {
        let announced = match Announced::of(&self.context()?, self.options.any_schema) {
            Ok(announced) => announced,
            Err(why) => return Ok(ThreadSupport::Unreadable(why)),
        };
        let mut resolution = tls::resolve(&self.target, &FileCache::new(), SYMBOL)?;
        for missing in self.target.missing() {
            if *missing == remote::core_file::Missing::FileNames {
                let name = self.target.path().as_os_str().to_owned();
                resolution.unreadable.push((name, missing.to_string()));
            }
        }
        Ok(announced.at(Arc::new(resolution)))
    }

    /// The context of one of its threads.
    ///
    /// # Errors
    /// When it can't be read, or none of the threads' can.
    pub fn thread_context(
        &self,
        support: &ThreadSupport,
        thread: &CoreThread,
    ) -> Result<Found<Context>, Error> {
        let tid = thread.tid;
        let variables = match support {
            ThreadSupport::Readable(variables) => variables,
            ThreadSupport::Unreadable(why) => {
                return Err(Error::Unreadable {
                    pid: self.target.pid().unwrap_or_default(),
                    why: why.clone(),
                });
            }
        };
        let thread_pointer = thread
            .thread_pointer
            .ok_or(Error::NoThreadPointer { tid })?;
        let size = self.options.max_record;
        let mut buffer = vec![0; size.clamp(record::HEADER_SIZE, record::MAX_SIZE)];
        let size = variables.read(&self.target, tid, thread_pointer, &mut buffer)?;
        Ok(variables.decode(size.map(|size| &buffer[..size]), || None))
    }
}
