//! Resolves a thread-local variable to its address in each thread of a process.
//!
//! The dynamic linker has filled a slot in every module that refers to the variable: the slots show
//! which definition is in use, and its storage. The linker's list of modules provides the rest.

mod definition;
mod modules;
mod slot;

use std::ffi::OsString;
use std::ops::Range;

pub use crate::libc::CLibrary;
pub use crate::libc::glibc::Registration;
use crate::libc::{FileFacts, glibc};
pub use crate::machine::Access;
use crate::machine::Machine;
use crate::module::{Relocation, Symbol};
use crate::modules::Modules;
use crate::target::{CodeLayout, Target};
use crate::threads::ThreadLists;
use crate::{Error, FileCache, Memory};
use definition::{Definition, bind, definition};
use modules::{Loaded, TlsModules, tls_modules};
use slot::Location;

/// Size of a variable that is a pointer, in bytes.
const POINTER: u64 = 8;
/// Maximum number of definitions in a process, which usually has one or a few.
const MAX_DEFINITIONS: usize = 256;
/// Maximum number of slots that are followed in a process, one or two of each referring module.
const MAX_SLOTS: usize = 1 << 16;

/// The kind of a variable's storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Storage {
    /// The storage is at a fixed distance from the thread pointer, in every thread.
    Static,
    /// The storage is in a block that a thread allocates on first use.
    Dynamic,
}

/// One definition of the variable in one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsVariable {
    /// Name of the mapping of the module that defines it.
    pub module: OsString,
    /// The access model of the code that uses it.
    pub access: Access,
    /// True if it is in `.dynsym`. If not, it was found in `.symtab`, which `strip` removes.
    pub exported: bool,
    place: Place,
    machine: Machine,
    registration: Option<Registration>,
    own_module: Option<Range<u64>>,
}

/// The location of the variable, relative to the thread pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// An offset from the thread pointer, in bytes.
    Static(i64),
    /// The block of a module, which the thread's dynamic thread vector (DTV) points to.
    Dynamic {
        /// The C library that the vector belongs to.
        library: CLibrary,
        /// The module's index in the vector.
        module: u64,
        /// The offset in the module's block, in bytes.
        offset: u64,
        /// The generation from which on a vector contains the module's block; only for glibc.
        generation: Option<u64>,
    },
}

/// The result of resolving the variable in a process.
#[derive(Debug, Clone, Default)]
pub struct Resolution {
    /// The definitions that the process uses; definitions that code is bound to come first.
    pub variables: Vec<TlsVariable>,
    /// Modules that define it although the process uses another module's definition.
    pub bound_elsewhere: Vec<OsString>,
    /// Modules that could not be read, or define something else with the name, with the reason.
    pub unreadable: Vec<(OsString, String)>,
    /// True if a module defines the variable at an unknown location: unreadable, or not bound yet.
    pub unplaced: bool,
    /// The location of the process's list of threads.
    pub threads: ThreadLists,
    /// The code that was mapped when this was resolved, see [`Target::code_layout`].
    pub layout: Option<CodeLayout>,
}

/// Resolves the thread-local variable `name`, 8 bytes, in all modules of the process. The result is
/// valid until the process loads or unloads a module, or executes another program.
#[doc(alias = "__tls_get_addr")]
pub fn resolve(target: &dyn Target, cache: &FileCache, name: &str) -> Result<Resolution, Error> {
    resolve_sized(target, cache, name, POINTER)
}

/// [`resolve`], for a variable of `size` bytes.
pub fn resolve_sized(
    target: &dyn Target,
    cache: &FileCache,
    name: &str,
    size: u64,
) -> Result<Resolution, Error> {
    let TlsModules {
        loaded,
        mut unreadable,
        layout,
    } = tls_modules(target, cache, name)?;
    let library = FileFacts::c_library(loaded.iter().map(|loaded| &loaded.module.libc));
    let tls_modules = glibc_tls_modules(target, &loaded, &mut unreadable);
    let found = definitions(target, &loaded, name, size, &tls_modules);
    let (mut definitions, mut skipped) = (found.usable, found.skipped);
    let unplaced = found.unplaced;
    unreadable.extend(found.unreadable);
    let mut slots = 0;
    for referrer in &loaded {
        slots += referrer.module.relocations.len();
        if slots > MAX_SLOTS {
            skipped += 1;
            continue;
        }
        if let Err(error) = bind(target, referrer, &mut definitions, library) {
            let reason = format!("binding of its code: {error}");
            unreadable.push((referrer.name.clone(), reason));
        }
    }

    if skipped > 0 {
        let reason = format!(
            "{skipped} definitions of the variable, or modules that refer to it, skipped, above \
             the limit of {MAX_DEFINITIONS} definitions or {MAX_SLOTS} references"
        );
        unreadable.push((target.name(), reason));
    }

    let files = loaded.iter().map(|it| (it.bias, &*it.module.file));
    let mut resolution = Resolution {
        unreadable,
        unplaced,
        threads: ThreadLists::of(files, target.machine()),
        layout: Some(layout),
        ..Resolution::default()
    };
    let (used, unused): (Vec<_>, Vec<_>) = definitions
        .into_iter()
        .partition(|it| !it.accesses.is_empty() || it.loaded.module.executable);
    for definition in used.into_iter().chain(unused) {
        let name = definition.loaded.name.clone();
        if definition.bound_elsewhere && definition.accesses.is_empty() {
            resolution.bound_elsewhere.push(name);
            continue;
        }
        match variable(&definition, library) {
            Ok(variable) => resolution.variables.push(variable),
            Err(reason) => {
                resolution.unplaced = true;
                resolution.unreadable.push((name, reason.to_string()));
            }
        }
    }
    Ok(resolution)
}

/// The definitions of a variable in the modules of a process.
#[derive(Default)]
struct Definitions<'l> {
    usable: Vec<Definition<'l>>,
    /// True if a module defines it at an unknown location.
    unplaced: bool,
    unreadable: Vec<(OsString, String)>,
    /// Number of definitions above the limit.
    skipped: usize,
}

fn definitions<'l>(
    target: &dyn Target,
    loaded: &'l [Loaded],
    name: &str,
    expected: u64,
    tls_modules: &[glibc::TlsModule],
) -> Definitions<'l> {
    let mut found = Definitions::default();
    for loaded in loaded {
        let Some((offset, size)) = loaded.module.symbol.definition() else {
            if loaded.module.symbol == Symbol::NotThreadLocal {
                let reason = format!("it defines {name}, but not as a thread-local variable");
                found.unreadable.push((loaded.name.clone(), reason));
            }
            continue;
        };
        if found.usable.len() == MAX_DEFINITIONS {
            found.skipped += 1;
            continue;
        }
        let result = if size == expected {
            definition(loaded, (offset, size), target.machine(), tls_modules)
        } else {
            Err(format!(
                "it defines a variable of {size} bytes instead of {expected}"
            ))
        };
        match result {
            Ok(definition) => found.usable.push(definition),
            Err(reason) => {
                found.unplaced = true;
                found.unreadable.push((loaded.name.clone(), reason));
            }
        }
    }
    found
}

/// Resolves a module's own variable of 8 bytes to its offset from the thread pointer, in bytes,
/// from the slot at the address `slot` that its code uses: a pair of words for `__tls_get_addr`
/// (general dynamic) on x86-64, a TLS descriptor on aarch64. `None` if the dynamic linker has not
/// filled it, or the storage is not static. Of `modules`, the one with the slot, the C library and
/// the dynamic linker are needed.
pub fn resolve_slot(
    target: &dyn Target,
    modules: &Modules,
    slot: u64,
) -> Result<Option<i64>, Error> {
    let loaded: Vec<Loaded> = modules.loaded.iter().map(Loaded::without_symbol).collect();
    let Some(referrer) = loaded.iter().find(|loaded| loaded.contains(slot)) else {
        return Ok(None);
    };
    let machine = referrer.module.machine;
    let relocation = Relocation {
        access: match machine {
            Machine::Aarch64 => Access::Tlsdesc,
            _ => Access::GeneralDynamic,
        },
        slot: slot.wrapping_sub(referrer.bias),
        named: false,
    };
    let location = slot::slot(target, referrer, &relocation, modules.c_library());
    let location = location.map_err(Error::memory("the slot of a thread-local variable"))?;
    let (id, offset) = match location {
        Some(Location::Static(offset)) => return Ok(Some(offset)),
        Some(Location::Dynamic { module, offset, .. }) => (module, offset),
        None => return Ok(None),
    };
    let is_inside = referrer.module.tls.is_some_and(|tls| {
        let end = offset.checked_add(POINTER);
        end.is_some_and(|end| end <= tls.memory_size)
    });
    let listed = glibc_tls_modules(target, &loaded, &mut Vec::new());
    let mut listed = listed.iter();
    let own = listed.find(|it| is_inside && it.id == id && it.bias == referrer.bias);
    let block = own.and_then(|module| machine.glibc_block(module.static_offset?));
    Ok(block.map(|block| block.wrapping_add(offset.cast_signed())))
}

/// The dynamic linker's own list. Empty if it cannot be read, which is reported in `unreadable`.
fn glibc_tls_modules(
    memory: &dyn Memory,
    loaded: &[Loaded],
    unreadable: &mut Vec<(OsString, String)>,
) -> Vec<glibc::TlsModule> {
    let layout = loaded.iter().find_map(|loaded| loaded.module.libc.tls);
    let linker = loaded
        .iter()
        .find_map(|loaded| Some((loaded, loaded.module.libc.rtld_global?)));
    let (Some((linker, rtld_global)), Some(layout)) = (linker, layout) else {
        return Vec::new();
    };
    let address = linker.bias.wrapping_add(rtld_global);
    glibc::tls_modules(memory, address, &layout).unwrap_or_else(|error| {
        unreadable.push((linker.name.clone(), format!("its list of modules: {error}")));
        Vec::new()
    })
}

fn variable(
    definition: &Definition<'_>,
    library: Option<CLibrary>,
) -> Result<TlsVariable, &'static str> {
    let module = &definition.loaded.module;
    let place = match (definition.fixed, definition.module, library) {
        (Some(offset), ..) => Place::Static(offset),
        (None, Some((_, None)), Some(CLibrary::Glibc)) => {
            return Err(
                "its storage is dynamic, and a thread's block cannot be distinguished from that \
                 of a library closed before: the module list of glibc's dynamic linker cannot be \
                 read; before glibc 2.34, this needs a loaded libpthread.so.0 with its .symtab",
            );
        }
        (None, Some((id, generation)), Some(library)) => Place::Dynamic {
            library,
            module: id,
            offset: definition.offset,
            generation: generation.filter(|_| library == CLibrary::Glibc),
        },
        (None, Some(_), None) => {
            return Err("the C library of the process is unknown: it is neither glibc nor musl");
        }
        (None, None, _) => {
            return Err("the process does not show yet where the variable is");
        }
    };
    let own = module.relocations.iter().map(|it| it.access);
    let access = definition.accesses.iter().copied().chain(own).next();
    let unreferenced = if module.executable {
        Access::LocalExec
    } else {
        Access::GeneralDynamic
    };
    Ok(TlsVariable {
        module: definition.loaded.name.clone(),
        access: access.unwrap_or(unreferenced),
        exported: matches!(module.symbol, Symbol::Exported { .. }),
        place,
        machine: module.machine,
        registration: definition.registration,
        own_module: (!definition.bound_elsewhere).then(|| module.range(definition.loaded.bias)),
    })
}

impl TlsVariable {
    /// Creates a variable at this offset from the thread pointer, in bytes, for hand-made images.
    #[must_use]
    pub fn at_offset(machine: Machine, offset: i64) -> Self {
        Self {
            module: OsString::new(),
            access: Access::LocalExec,
            exported: false,
            place: Place::Static(offset),
            machine,
            registration: None,
            own_module: None,
        }
    }

    /// The addresses of the module that defines it. `None` if that module's code uses another
    /// definition.
    pub fn own_module(&self) -> Option<Range<u64>> {
        self.own_module.clone()
    }

    /// The kind of its storage.
    pub fn storage(&self) -> Storage {
        match self.place {
            Place::Static(_) => Storage::Static,
            Place::Dynamic { .. } => Storage::Dynamic,
        }
    }

    /// Its location, for code that cannot call [`Self::address`], such as an eBPF program.
    pub fn place(&self) -> Place {
        self.place
    }

    /// The place where a glibc that describes this stores that the module, which may be closed, is
    /// loaded. If the words change, the variable does not exist any more.
    pub fn registration(&self) -> Option<Registration> {
        self.registration
    }

    /// The variable's address for the thread with this thread pointer; `None` if the thread has
    /// never accessed it. Takes no reads for static storage, three for dynamic storage.
    pub fn address(&self, memory: &dyn Memory, thread_pointer: u64) -> Result<Option<u64>, Error> {
        if thread_pointer == 0 {
            return Ok(None);
        }
        match self.place {
            Place::Static(offset) => Ok(Some(thread_pointer.wrapping_add_signed(offset))),
            Place::Dynamic {
                library,
                module,
                offset,
                generation,
            } => library
                .block(memory, self.machine, thread_pointer, module, generation)
                .map(|block| block.map(|block| block.wrapping_add(offset)))
                .map_err(Error::memory(
                    "the thread's table of thread-local storage (DTV)",
                )),
        }
    }
}

#[cfg(test)]
mod tests;
