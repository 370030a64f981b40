//! The modules that define the variable, and the evidence for where each of them stores it.

use super::modules::Loaded;
use super::slot::{Location, slot};
use crate::Memory;
use crate::libc::{CLibrary, glibc};
use crate::machine::Access;
use crate::machine::Machine;
use crate::memory::MemoryError;

/// A definition while evidence is collected.
pub(super) struct Definition<'a> {
    pub(super) loaded: &'a Loaded,
    pub(super) offset: u64,
    /// Offset of the variable from the thread pointer, if its storage is static.
    pub(super) fixed: Option<i64>,
    /// Module ID and, if known, generation.
    pub(super) module: Option<(u64, Option<u64>)>,
    /// Access models of the references that are bound to it, its own module's first.
    pub(super) accesses: Vec<Access>,
    /// True if references of its own module are bound to another definition.
    pub(super) bound_elsewhere: bool,
    /// The registration of a module that can be closed.
    pub(super) registration: Option<glibc::Registration>,
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

    /// Uses a slot's contents if nothing more reliable is known.
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

pub(super) fn definition<'a>(
    loaded: &'a Loaded,
    (offset, size): (u64, u64),
    machine: Machine,
    tls_modules: &[glibc::TlsModule],
) -> Result<Definition<'a>, String> {
    let module = &loaded.module;
    if module.machine != machine {
        let machine = module.machine;
        return Err(format!("it was built for another machine ({machine:?})"));
    }
    let end = offset.checked_add(size);
    let is_inside = |size: u64| end.is_some_and(|end| end <= size);
    let Some(tls) = module.tls.filter(|tls| is_inside(tls.memory_size)) else {
        return Err("its definition is outside its thread-local storage".to_string());
    };
    let known = tls_modules.iter().find(|known| known.bias == loaded.bias);
    // glibc gives the executable ID 1 (elf/rtld.c, `rtld_main`); from its file alone, a library
    // that can be executed looks the same.
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
        registration: known.and_then(|it| it.registration.filter(|_| !executable)),
    })
}

/// Follows the slots of one module to the definitions that they lead to.
///
/// Returns an error if one of them is missing from the core file; the others are still followed.
pub(super) fn bind(
    memory: &dyn Memory,
    referrer: &Loaded,
    definitions: &mut [Definition<'_>],
    library: Option<CLibrary>,
) -> Result<(), MemoryError> {
    let mut missing = Ok(());
    let is_own = |it: &Definition<'_>| std::ptr::eq(it.loaded, referrer);
    let own = definitions.iter().position(is_own);
    let only = (definitions.len() == 1).then_some(0);
    for relocation in &referrer.module.relocations {
        let location = match slot(memory, referrer, relocation, library) {
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
                let definition = &definitions[*index];
                definition.module.is_none() && definition.fixed.is_none()
            };
            // Another offset belongs to another definition, of a module that could not be read.
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
