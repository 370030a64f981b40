//! Where a thread-local variable lies in one process.
//!
//! Every module that refers to the variable has a slot that the dynamic linker filled when it
//! bound the reference. The slots say which definition is in use, and whether its storage is
//! static or dynamic; the module list of the dynamic linker completes that.

use std::ffi::OsString;

use crate::arch::Machine;
use crate::libc::{CLibrary, glibc};
pub use crate::loaded::AddressSpace;
use crate::loaded::{self, Loaded};
use crate::memory::{MemoryError, Omission};
pub use crate::module::Access;
use crate::module::{Relocation, Symbol};
use crate::{Error, Memory, ModuleCache};

/// Bytes of the variable: a pointer.
const SIZE: u64 = 8;

/// Where each thread keeps the variable.
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
    /// In `.dynsym`. If not, it was found in `.symtab`, which `strip` removes.
    pub exported: bool,
    place: Place,
}

/// How to get from the thread pointer to the variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// At this distance from the thread pointer.
    Static(i64),
    /// In a module's block.
    Dynamic {
        library: CLibrary,
        machine: Machine,
        module: u64,
        offset: u64,
        generation: Option<u64>,
    },
}

/// What looking for the variable in a process came to.
#[derive(Debug, Clone, Default)]
pub struct Resolution {
    /// The definitions that the process uses; those that code is bound to come first.
    pub variables: Vec<TlsVariable>,
    /// Modules that define it while the process uses another module's.
    pub bound_elsewhere: Vec<OsString>,
    /// Modules that could not be read, or define something else under the name, with the reason.
    pub unreadable: Vec<(OsString, String)>,
}

/// Where the dynamic linker says that a reference leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Location {
    /// Distance from the thread pointer.
    Static(i64),
    /// A module's block, the offset in it, and the generation if the slot tells.
    Dynamic {
        module: u64,
        offset: u64,
        generation: Option<u64>,
    },
}

/// A definition while evidence is collected.
struct Definition<'a> {
    loaded: &'a Loaded,
    offset: u64,
    /// Distance of the variable from the thread pointer, if its storage is static.
    fixed: Option<i64>,
    /// Module id and generation.
    module: Option<(u64, Option<u64>)>,
    /// Access models of the references that are bound to it, its own module's first.
    accesses: Vec<Access>,
    /// References of its own module are bound to another definition.
    bound_elsewhere: bool,
}

impl Definition<'_> {
    fn is_at(&self, location: Location) -> bool {
        match location {
            Location::Static(offset) => self.fixed == Some(offset),
            Location::Dynamic { module, offset, .. } => {
                self.offset == offset && self.module.is_some_and(|(id, _)| id == module)
            }
        }
    }

    /// Takes a slot's word for it where nothing better is known.
    fn learn(&mut self, location: Location) {
        match location {
            Location::Static(offset) => self.fixed = self.fixed.or(Some(offset)),
            Location::Dynamic {
                module, generation, ..
            } => match &mut self.module {
                Some((_, known)) => *known = known.or(generation),
                unknown => *unknown = Some((module, generation)),
            },
        }
    }
}

/// Looks for the thread-local variable `name`, 8 bytes, in all modules of the process.
///
/// The result holds until the process loads or unloads a module, or executes another program.
/// Needs no stopped thread.
pub fn resolve(
    space: &dyn AddressSpace,
    memory: &dyn Memory,
    cache: &mut ModuleCache,
    name: &str,
) -> Result<Resolution, Error> {
    let loaded::Modules {
        loaded,
        mut unreadable,
    } = loaded::modules(space, memory, cache, name)?;
    let library = loaded.iter().find_map(|loaded| loaded.module.library);
    let tls_modules = glibc_tls_modules(memory, &loaded, &mut unreadable);

    let mut definitions = Vec::new();
    for loaded in &loaded {
        let Some((offset, size)) = loaded.module.symbol.definition() else {
            continue;
        };
        match definition(loaded, (offset, size), space.machine(), &tls_modules) {
            Ok(definition) => definitions.push(definition),
            Err(reason) => unreadable.push((loaded.name.clone(), reason)),
        }
    }
    for referrer in &loaded {
        if let Err(error) = bind(memory, referrer, &mut definitions) {
            let reason = format!("what its code is bound to: {error}");
            unreadable.push((referrer.name.clone(), reason));
        }
    }

    let mut resolution = Resolution {
        unreadable,
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
            Err(reason) => resolution.unreadable.push((name, reason.to_string())),
        }
    }
    Ok(resolution)
}

/// The dynamic linker's own list. Empty, with a word to `unreadable`, if it cannot be read: the
/// slots tell most of it, too.
fn glibc_tls_modules(
    memory: &dyn Memory,
    loaded: &[Loaded],
    unreadable: &mut Vec<(OsString, String)>,
) -> Vec<glibc::TlsModule> {
    let layout = loaded.iter().find_map(|loaded| loaded.module.glibc.layout);
    let linker = loaded
        .iter()
        .find_map(|loaded| Some((loaded, loaded.module.glibc.rtld_global?)));
    let (Some((linker, rtld_global)), Some(layout)) = (linker, layout) else {
        return Vec::new();
    };
    let address = linker.bias.wrapping_add(rtld_global);
    glibc::tls_modules(memory, address, &layout).unwrap_or_else(|error| {
        unreadable.push((linker.name.clone(), format!("its list of modules: {error}")));
        Vec::new()
    })
}

fn definition<'a>(
    loaded: &'a Loaded,
    (offset, size): (u64, u64),
    machine: Machine,
    tls_modules: &[glibc::TlsModule],
) -> Result<Definition<'a>, String> {
    let module = &loaded.module;
    if module.machine != machine {
        return Err(format!(
            "it was built for another machine ({:?})",
            module.machine
        ));
    }
    if size != SIZE {
        return Err(format!(
            "it defines a variable of {size} bytes instead of {SIZE}"
        ));
    }
    let Some(tls) = module.tls.filter(|tls| {
        offset
            .checked_add(SIZE)
            .is_some_and(|end| end <= tls.memory_size)
    }) else {
        return Err("its definition lies outside of its thread-local storage".to_string());
    };
    let known = tls_modules.iter().find(|known| known.bias == loaded.bias);
    // glibc numbers the executable 1 (elf/rtld.c, `rtld_main`); a library that can be run looks
    // like one to whoever sees the file alone.
    let executable = module.executable && known.is_none_or(|known| known.id == 1);
    let block = if executable {
        module.machine.executable_block(&tls)
    } else {
        known.and_then(|known| module.machine.glibc_block(known.static_offset?))
    };
    Ok(Definition {
        loaded,
        offset,
        fixed: block.map(|block| block.wrapping_add(offset as i64)),
        module: known.map(|known| (known.id, Some(known.generation))),
        accesses: Vec::new(),
        bound_elsewhere: false,
    })
}

/// Follows the slots of one module to the definitions that they lead to.
///
/// An error if one of them is missing from the core; the others are followed all the same.
fn bind(
    memory: &dyn Memory,
    referrer: &Loaded,
    definitions: &mut [Definition<'_>],
) -> Result<(), MemoryError> {
    let mut missing = Ok(());
    let own = definitions
        .iter()
        .position(|it| std::ptr::eq(it.loaded, referrer));
    let only = if definitions.len() == 1 {
        Some(0)
    } else {
        None
    };
    for relocation in &referrer.module.relocations {
        let location = match slot(memory, referrer, relocation) {
            Ok(Some(location)) => location,
            Ok(None) => continue,
            Err(error) => {
                missing = Err(error);
                continue;
            }
        };
        let target = if relocation.named {
            let known = definitions.iter().position(|it| it.is_at(location));
            let unplaced = |index: &usize| {
                definitions[*index].module.is_none() && definitions[*index].fixed.is_none()
            };
            // Another offset is another definition's, of a module that could not be read.
            let possible = |index: &usize| match location {
                Location::Static(_) => true,
                Location::Dynamic { offset, .. } => definitions[*index].offset == offset,
            };
            known.or_else(|| own.filter(unplaced).or(only).filter(possible))
        } else {
            own
        };
        let Some(target) = target else { continue };
        definitions[target].learn(location);
        if own == Some(target) {
            definitions[target].accesses.insert(0, relocation.access);
        } else {
            definitions[target].accesses.push(relocation.access);
            if let Some(own) = own {
                definitions[own].bound_elsewhere = true;
            }
        }
    }
    missing
}

/// What a live process does not let us read makes no sense as a slot; what a core file lacks
/// might.
fn sense<T>(read: Result<T, MemoryError>) -> Result<Option<T>, MemoryError> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(MemoryError::NotInCore {
            why: Omission::NotMentioned,
            ..
        }) => Ok(None),
        Err(error @ MemoryError::NotInCore { .. }) => Err(error),
        Err(_) => Ok(None),
    }
}

/// Reads a slot; `None` while the dynamic linker has not filled it, or if it makes no sense.
fn slot(
    memory: &dyn Memory,
    referrer: &Loaded,
    relocation: &Relocation,
) -> Result<Option<Location>, MemoryError> {
    let word = |at: u64| sense(memory.read_u64(at));
    let at = referrer.bias.wrapping_add(relocation.slot);
    let Some(first) = word(at)? else {
        return Ok(None);
    };
    let second = || word(at.wrapping_add(8));
    let location = match relocation.access {
        Access::InitialExec | Access::LocalExec => {
            (first != 0).then_some(Location::Static(first as i64))
        }
        Access::GeneralDynamic | Access::LocalDynamic => {
            let offset = match relocation.access {
                Access::LocalDynamic => {
                    let definition = referrer.module.symbol.definition();
                    definition.map(|(offset, _)| offset)
                }
                _ => second()?,
            };
            offset
                .filter(|_| first != 0)
                .map(|offset| Location::Dynamic {
                    module: first,
                    offset,
                    generation: None,
                })
        }
        Access::Tlsdesc => {
            let (resolver, Some(argument)) = (first, second()?) else {
                return Ok(None);
            };
            // Until lazy binding has run (glibc before 2.35) the resolver is the module's own
            // stub, and the argument is the relocation.
            let (start, end) = referrer.module.jump_relocations;
            let lazy = argument
                .checked_sub(referrer.bias)
                .is_some_and(|argument| (start..end).contains(&argument));
            if resolver == 0 || lazy || referrer.contains(resolver) {
                return Ok(None);
            }
            let machine = referrer.module.machine;
            match sense(machine.descriptor_is_static(memory, resolver, argument))? {
                Some(false) => {}
                Some(true) => return Ok(Some(Location::Static(argument as i64))),
                None => return Ok(None),
            }
            // glibc `struct tlsdesc_dynamic_arg` (sysdeps/x86_64/dl-tlsdesc.h); musl's has no
            // generation, and stores its offset in the third word's place to the same effect.
            let (Some(module), Some(offset)) = (word(argument)?, word(argument.wrapping_add(8))?)
            else {
                return Ok(None);
            };
            let generation = word(argument.wrapping_add(16))?;
            (module != 0).then_some(Location::Dynamic {
                module,
                offset,
                generation,
            })
        }
    };
    Ok(location)
}

fn variable(
    definition: &Definition<'_>,
    library: Option<CLibrary>,
) -> Result<TlsVariable, &'static str> {
    let module = &definition.loaded.module;
    let place = match (definition.fixed, definition.module, library) {
        (Some(offset), ..) => Place::Static(offset),
        (None, Some((id, generation)), Some(library)) => Place::Dynamic {
            library,
            machine: module.machine,
            module: id,
            offset: definition.offset,
            generation: generation.filter(|_| library == CLibrary::Glibc),
        },
        (None, Some(_), None) => return Err("the C library of the process is not known"),
        (None, None, _) => {
            return Err("nothing in the process tells yet where the variable is");
        }
    };
    let own = module
        .relocations
        .first()
        .map(|relocation| relocation.access);
    let unreferenced = if module.executable {
        Access::LocalExec
    } else {
        Access::GeneralDynamic
    };
    Ok(TlsVariable {
        module: definition.loaded.name.clone(),
        access: definition
            .accesses
            .first()
            .copied()
            .or(own)
            .unwrap_or(unreferenced),
        exported: matches!(module.symbol, Symbol::Exported { .. }),
        place,
    })
}

impl TlsVariable {
    /// Where each thread keeps it.
    pub fn storage(&self) -> Storage {
        match self.place {
            Place::Static(_) => Storage::Static,
            Place::Dynamic { .. } => Storage::Dynamic,
        }
    }

    /// The variable's address for the thread with this thread pointer, `None` if the thread
    /// never touched it. Reads nothing for static storage, three times for dynamic storage.
    pub fn address(&self, memory: &dyn Memory, thread_pointer: u64) -> Result<Option<u64>, Error> {
        // A thread that has no thread pointer yet has no thread-local storage.
        if thread_pointer == 0 {
            return Ok(None);
        }
        match self.place {
            Place::Static(offset) => Ok(Some(thread_pointer.wrapping_add_signed(offset))),
            Place::Dynamic {
                library,
                machine,
                module,
                offset,
                generation,
            } => library
                .block(memory, machine, thread_pointer, module, generation)
                .map(|block| block.map(|block| block.wrapping_add(offset)))
                .map_err(Error::memory(
                    "the thread's table of thread-local storage (DTV)",
                )),
        }
    }
}

#[cfg(test)]
mod tests;
