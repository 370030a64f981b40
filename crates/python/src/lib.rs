//! Reads CPython from outside: which thread state each thread has, whether it holds the GIL, and
//! the functions that it executes, with their files and lines. It runs nothing in the process, and
//! needs no debug information: it knows the structures of each version.
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
mod tasks;
#[cfg(test)]
mod test_process;
mod threads;
mod version;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use otelctx_reader::remote::{Modules, Target};
use otelctx_reader::runtime::{Embedded, Runtime, RuntimeError, RuntimeProcess};

/// CPython.
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
        file_name.starts_with(b"python") || file_name.starts_with(b"libpython")
    }

    fn embedded(&self) -> Option<Embedded> {
        // A program may have a copy of the interpreter's variables, but not of its functions. The smallest
        // interpreter has twice as much code.
        Some(Embedded::new(find::FUNCTION, 1 << 20))
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
