//! The interface to a symbolizer, which resolves addresses to functions.

use crate::process::{Mapping, Module, ProcessFacts};

/// A function that contains an address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Function {
    /// Its name, demangled.
    pub name: String,
    /// Its linker name; empty if that is the same.
    pub system_name: String,
    /// The source file; empty if unknown.
    pub file: String,
    /// The line that the address belongs to, from 1; 0 if unknown.
    pub line: u32,
    /// The column that the address belongs to, from 1; 0 if unknown.
    pub column: u32,
}

/// Identifies a file, for backends that resolve symbols later.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Identity {
    /// The GNU build ID; empty if it has none.
    pub build_id: Vec<u8>,
    /// The head-tail hash of the OpenTelemetry profiles specification
    /// (`process.executable.build_id.htlhash`): the first 16 bytes of the SHA-256 of the file's
    /// first and last 4,096 bytes and its size as a big-endian `u64`. `None` if the file can't be
    /// read.
    pub htlhash: Option<[u8; 16]>,
}

impl Identity {
    /// The identity of a module whose file cannot be read: its build ID alone.
    #[must_use]
    pub fn by_build_id(module: &Module) -> Self {
        Self {
            build_id: module.build_id.clone(),
            htlhash: None,
        }
    }
}

/// A file in a recording, some of whose functions are unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct UnnamedModule {
    /// Its path, as its process saw it.
    pub path: String,
    /// Its identity.
    pub identity: Identity,
    /// Offsets in the file whose functions are unknown, in ascending order.
    pub offsets: Vec<u64>,
}

/// A module whose functions or identity are queried.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SymbolQuery<'a> {
    /// The module.
    pub module: &'a Module,
    /// A process that has it mapped.
    pub process: &'a ProcessFacts,
    /// The mapping; `None` for the kernel.
    pub mapping: Option<&'a Mapping>,
}

impl<'a> SymbolQuery<'a> {
    /// Creates a query about a module of a process, without a mapping.
    #[must_use]
    pub fn new(module: &'a Module, process: &'a ProcessFacts) -> Self {
        Self {
            module,
            process,
            mapping: None,
        }
    }

    /// Sets the mapping.
    #[must_use]
    pub fn mapped(self, mapping: Option<&'a Mapping>) -> Self {
        Self { mapping, ..self }
    }
}

/// Resolves addresses to functions.
pub trait Symbolizer {
    /// Resolves each of `addresses` to its functions, innermost inlined function first; to an empty
    /// list if unknown.
    ///
    /// Addresses are offsets in the module's file. For the kernel ([`Module::is_kernel`]) they are
    /// addresses in memory, and for a module without a file ([`Module::has_file`]) addresses in the
    /// process.
    fn functions(&mut self, query: SymbolQuery<'_>, addresses: &[u64]) -> Vec<Vec<Function>>;

    /// Returns the identity of a module.
    fn identity(&mut self, query: SymbolQuery<'_>) -> Identity;
}

/// A symbolizer that resolves nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSymbols;

impl Symbolizer for NoSymbols {
    fn functions(&mut self, _: SymbolQuery<'_>, addresses: &[u64]) -> Vec<Vec<Function>> {
        vec![Vec::new(); addresses.len()]
    }

    fn identity(&mut self, query: SymbolQuery<'_>) -> Identity {
        Identity::by_build_id(query.module)
    }
}
