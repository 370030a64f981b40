//! How addresses get names: the seam to whoever knows symbols.

use otelctx_sample::{Mapping, Module, ProcessFacts};

/// A function that an address lies in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Function {
    /// Its name, demangled.
    pub name: String,
    /// Its name as the linker knows it; empty if that is the same.
    pub system_name: String,
    /// The source file; empty if unknown.
    pub file: String,
    /// The line in it that the address belongs to, counted from 1; 0 if unknown.
    pub line: u32,
}

/// What tells a file from every other, for backends that look up symbols later.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The GNU build id; empty if it has none.
    pub build_id: Vec<u8>,
    /// The head-tail hash of the OpenTelemetry profiles specification
    /// (`process.executable.build_id.htlhash`): the first 16 bytes of the SHA-256 of the file's
    /// first and last 4,096 bytes and its size as a big-endian `u64`. `None` if the file can't be
    /// read.
    pub htlhash: Option<[u8; 16]>,
}

/// A module that is asked about.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Asked<'a> {
    /// What it is.
    pub module: &'a Module,
    /// A process that had it mapped.
    pub process: &'a ProcessFacts,
    /// Where; `None` for the kernel.
    pub mapping: Option<&'a Mapping>,
}

impl<'a> Asked<'a> {
    /// Asks about a module of a process, wherever it had it mapped.
    #[must_use]
    pub fn new(module: &'a Module, process: &'a ProcessFacts) -> Self {
        Self {
            module,
            process,
            mapping: None,
        }
    }

    /// The same, with where it was mapped.
    #[must_use]
    pub fn mapped(self, mapping: Option<&'a Mapping>) -> Self {
        Self { mapping, ..self }
    }
}

/// Names functions.
pub trait Symbolizer {
    /// The functions that lie at `addresses` of a module, for each address the innermost of those
    /// that were inlined there first; none where nothing is known.
    ///
    /// Addresses are offsets in the module's file. Of the kernel ([`Module::is_kernel`]) they are
    /// addresses in memory, and of a module without a file ([`Module::has_file`]) they are
    /// addresses in the process.
    fn functions(&mut self, asked: Asked<'_>, addresses: &[u64]) -> Vec<Vec<Function>>;

    /// What identifies a module.
    fn identity(&mut self, asked: Asked<'_>) -> Identity;
}

/// Knows no function.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSymbols;

impl Symbolizer for NoSymbols {
    fn functions(&mut self, _: Asked<'_>, addresses: &[u64]) -> Vec<Vec<Function>> {
        vec![Vec::new(); addresses.len()]
    }

    fn identity(&mut self, asked: Asked<'_>) -> Identity {
        Identity {
            build_id: asked.module.build_id.clone(),
            htlhash: None,
        }
    }
}
