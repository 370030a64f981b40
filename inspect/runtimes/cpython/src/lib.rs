//! Reads CPython from outside: each thread's thread state, the holder of the GIL, and the functions
//! that threads execute, with their files and lines. It runs nothing in the process, and needs no
//! debug information: it knows the structures of each version.
//!
//! ```
//! use std::sync::Arc;
//!
//! use otelctx_python::Python;
//! use otelctx_reader::runtime::Runtimes;
//!
//! let runtimes = Runtimes::new(vec![Arc::new(Python::default())]);
//! ```

mod ahead;
mod callers;
mod code;
mod find;
mod frames;
mod getter;
mod identity;
mod interpreter;
mod layout;
mod lines;
mod process;
mod step;
mod structure;
mod symbols;
mod tasks;
#[cfg(test)]
mod test_process;
mod threads;
mod version;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use otelctx_reader::remote::{Memory, Modules, Target};
use otelctx_reader::runtime::{Embedded, Runtime, RuntimeError, RuntimeProcess};

/// The CPython runtime.
#[derive(Clone, Debug, Default)]
pub struct Python {
    /// Memory of the functions of all processes, in bytes.
    memory: Arc<AtomicUsize>,
}

impl Python {
    /// CPython of this version (major, minor, micro) in a process whose `_PyRuntime` has this address;
    /// up to 3.6, its pointer to the first interpreter. For tests and fuzzing, where there are no modules
    /// to search for it.
    ///
    /// # Errors
    /// If the version is not supported, or its description of itself is inconsistent.
    pub fn at(
        target: &dyn Target,
        version: [u8; 3],
        runtime: u64,
    ) -> Result<Arc<dyn RuntimeProcess>, RuntimeError> {
        Ok(Arc::new(find::at(target, version, runtime)?))
    }
}

impl Runtime for Python {
    fn name(&self) -> &'static str {
        "cpython"
    }

    fn is_candidate(&self, file_name: &[u8]) -> bool {
        // PyPy is reported as unsupported.
        let is_cpython = file_name.starts_with(b"python") || file_name.starts_with(b"libpython");
        is_cpython || find::is_pypy(file_name)
    }

    fn embedded(&self) -> Option<Embedded> {
        // A program may have a copy of the interpreter's variables, but not of its functions. The smallest
        // interpreter has twice as much code.
        Some(Embedded::new(symbols::FUNCTION, 1 << 20))
    }

    fn probe(
        &self,
        target: &dyn Target,
        modules: &Modules,
    ) -> Result<Option<Arc<dyn RuntimeProcess>>, RuntimeError> {
        let process = find::find(target, modules, &self.memory)?;
        Ok(process.map(|process| Arc::new(process) as Arc<dyn RuntimeProcess>))
    }
}

/// The thread states of a process, without their functions.
///
/// ```no_run
/// # fn list(target: &dyn otelctx_reader::remote::Target) -> Result<(), Box<dyn std::error::Error>> {
/// use otelctx_python::ThreadStates;
/// use otelctx_reader::remote::{FileCache, Modules};
///
/// let modules = Modules::read(target, &FileCache::default())?;
/// if let Some(states) = ThreadStates::find(target, &modules)? {
///     println!("{} thread states", states.list(target)?.len());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ThreadStates(process::PythonProcess);

impl ThreadStates {
    /// Finds CPython in a process. `None` if it is not there.
    ///
    /// # Errors
    /// If it cannot be read, for example because its version is not known.
    pub fn find(target: &dyn Target, modules: &Modules) -> Result<Option<Self>, RuntimeError> {
        Ok(find::find(target, modules, &Arc::default())?.map(Self))
    }

    /// The addresses of the current thread states (`PyThreadState *`), in any order. Running threads may
    /// add and remove some meanwhile.
    ///
    /// # Errors
    /// If the process has more than 16,384, or its memory cannot be read or is inconsistent.
    pub fn list(&self, memory: &dyn Memory) -> Result<Vec<u64>, RuntimeError> {
        threads::addresses(memory, &self.0.layout, &self.0.variables)
    }
}
