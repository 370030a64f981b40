//! Where a thread-local variable lies in one process.

use std::ffi::OsString;

use crate::{Error, Memory, ModuleCache, Process};

/// How the code reaches the variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Through a TLS descriptor.
    Tlsdesc,
    /// `__tls_get_addr` with module and offset.
    GeneralDynamic,
    /// `__tls_get_addr` for the module, the offset fixed by the linker. Not in OTEP 4947.
    LocalDynamic,
    /// The offset from the thread pointer is in the global offset table.
    InitialExec,
    /// The offset from the thread pointer is in the code.
    LocalExec,
}

/// Where each thread keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Storage {
    /// At a fixed distance from the thread pointer, in every thread.
    Static,
    /// In a block that a thread allocates on first use.
    Dynamic,
}

/// One definition of the variable in one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsVariable {
    /// Name of the mapping of the module that defines it.
    pub module: OsString,
    /// How the code reaches it.
    pub access: Access,
    /// Where each thread keeps it.
    pub storage: Storage,
    /// In `.dynsym`. If not, it was found in `.symtab`, which `strip` removes.
    pub exported: bool,
}

/// What looking for the variable in a process came to.
#[derive(Debug, Clone, Default)]
pub struct Resolution {
    /// The definitions that the process uses, best evidence first.
    pub variables: Vec<TlsVariable>,
    /// Modules that define it while the process uses another module's.
    pub bound_elsewhere: Vec<OsString>,
    /// Modules that could not be read, with the reason.
    pub unreadable: Vec<(OsString, String)>,
}

/// Looks for the thread-local variable `name`, 8 bytes, in all modules of the process.
pub fn resolve(
    process: &Process,
    memory: &dyn Memory,
    cache: &mut ModuleCache,
    name: &str,
) -> Result<Resolution, Error> {
    let _ = (process, memory, cache, name);
    Ok(Resolution::default())
}

impl TlsVariable {
    /// The variable's address for the thread with this thread pointer, `None` if the thread
    /// never touched it. Reads a few words of `memory`.
    pub fn address(&self, memory: &dyn Memory, thread_pointer: u64) -> Result<Option<u64>, Error> {
        let _ = (memory, thread_pointer);
        Ok(None)
    }
}
