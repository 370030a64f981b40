//! The runtimes that a reader supports, and those of a process.

use std::sync::Arc;

use otelctx_format::Schema;
use otelctx_remote::{CodeLayout, FileCache, Modules, Target};

use super::{Runtime, RuntimeError, RuntimeProcess, Scope};

/// The runtimes that a reader supports. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Runtimes(Arc<[Arc<dyn Runtime>]>);

impl Runtimes {
    /// Creates a list of these runtimes.
    #[must_use]
    pub fn new(runtimes: Vec<Arc<dyn Runtime>>) -> Self {
        Self(runtimes.into())
    }

    /// Returns true if there are no runtimes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The same list with this runtime in the place of the one with its name, if there is one.
    #[must_use]
    pub fn with(&self, runtime: Arc<dyn Runtime>) -> Self {
        let replaced = self.0.iter().map(|it| match it.name() == runtime.name() {
            true => runtime.clone(),
            false => it.clone(),
        });
        Self(replaced.collect())
    }

    /// Finds the runtimes that a process contains, and [`Modules::layout`].
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
        let markers: Vec<_> = embedded.map(|it| (it.marker, it.min_size)).collect();
        let modules = Modules::read_named_or_marked(target, files, &is_candidate, &markers)?;
        if modules.loaded.is_empty() {
            return Ok((Vec::new(), modules.layout));
        }
        let present = |runtime: &Arc<dyn Runtime>| {
            let process = runtime.probe(target, &modules).transpose()?;
            let name = runtime.name();
            Some(Present { name, process })
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
    /// Access to its threads, or the reason why it cannot be read.
    pub process: Result<Arc<dyn RuntimeProcess>, RuntimeError>,
}

impl Present {
    /// [`RuntimeProcess::reads_schema`].
    #[must_use]
    pub fn reads_schema(&self, schema: &Schema) -> bool {
        let process = self.process.as_ref();
        process.is_ok_and(|process| process.reads_schema(schema))
    }

    /// Returns whether its threads have to be read: [`RuntimeProcess::reads_threads`], or an error to report.
    #[must_use]
    pub fn reads_threads(&self) -> bool {
        let process = self.process.as_ref();
        process.map_or(true, |process| process.reads_threads())
    }
}

/// Returns what must be stopped to read threads with these runtimes.
#[must_use]
pub fn scope(runtimes: &[Present]) -> Scope {
    let is_whole = |present: &Present| {
        let process = present.process.as_ref();
        process.is_ok_and(|process| process.scope() == Scope::Process)
    };
    if runtimes.iter().any(is_whole) {
        Scope::Process
    } else {
        Scope::Thread
    }
}
