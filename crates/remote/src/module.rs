//! Facts of one ELF file that do not change from process to process.

use std::path::Path;

use crate::Error;

/// What one ELF file says about one thread-local variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// The variable as the module knows it.
    pub symbol: Symbol,
}

/// How a module knows the variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Symbol {
    /// Defined in `.dynsym`: readers find it.
    Exported {
        /// Offset in the module's TLS block (`st_value`).
        offset: u64,
        /// Bytes (`st_size`).
        size: u64,
    },
    /// Defined in `.symtab` only: the linker kept it local.
    Local {
        /// Offset in the module's TLS block (`st_value`).
        offset: u64,
        /// Bytes (`st_size`).
        size: u64,
    },
    /// Referred to, defined elsewhere.
    Undefined,
    /// Not mentioned.
    Absent,
}

/// [`Module`]s by file, for as long as the caller keeps it.
#[derive(Debug, Default)]
pub struct ModuleCache {}

impl ModuleCache {
    /// An empty cache.
    pub fn new() -> Self {
        ModuleCache::default()
    }
}

impl Module {
    /// Reads a file on the reader's own side.
    pub fn open(path: &Path, name: &str) -> Result<Self, Error> {
        let _ = name;
        Err(Error::NotRegularFile { path: path.into() })
    }
}
