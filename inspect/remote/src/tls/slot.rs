//! The slots that the dynamic linker fills when it binds a reference.

use super::modules::Loaded;
use crate::Memory;
use crate::libc::CLibrary;
use crate::machine::Access;
use crate::memory::{MemoryError, Omission};
use crate::module::Relocation;

/// The variable that a reference is bound to, according to the dynamic linker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Location {
    /// Offset from the thread pointer.
    Static(i64),
    /// A module's block, the offset in it, and the generation if the slot contains it.
    Dynamic {
        module: u64,
        offset: u64,
        generation: Option<u64>,
    },
}

/// An unreadable address means an invalid slot, unless the core file just lacks the memory.
fn sense<T>(read: Result<T, MemoryError>) -> Result<Option<T>, MemoryError> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(error @ MemoryError::NotInCore { why, .. }) if why != Omission::NotMentioned => {
            Err(error)
        }
        Err(_) => Ok(None),
    }
}

/// Reads a slot; `None` if the dynamic linker has not filled it yet, or it is not valid.
pub(super) fn slot(
    memory: &dyn Memory,
    referrer: &Loaded,
    relocation: &Relocation,
    library: Option<CLibrary>,
) -> Result<Option<Location>, MemoryError> {
    let word = |at: u64| sense(memory.read_u64(at));
    let at = referrer.bias.wrapping_add(relocation.slot);
    let Some(first) = word(at)? else {
        return Ok(None);
    };
    let second = || word(at.wrapping_add(8));
    let location = match relocation.access {
        Access::InitialExec | Access::LocalExec => {
            let zero = library.is_some_and(|it| it.has_offset_zero(referrer.module.machine));
            (first != 0 || zero).then_some(Location::Static(first as i64))
        }
        Access::GeneralDynamic | Access::LocalDynamic => {
            let offset = if relocation.access == Access::LocalDynamic {
                let definition = referrer.module.symbol.definition();
                definition.map(|(offset, _)| offset)
            } else {
                second()?
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
            // Before lazy binding (glibc before 2.35): the module's own stub, and the relocation.
            let stubs = &referrer.module.jump_relocations;
            let relocation = argument.checked_sub(referrer.bias);
            let lazy = relocation.is_some_and(|address| stubs.contains(&address));
            if resolver == 0 || lazy || referrer.contains(resolver) {
                return Ok(None);
            }
            let machine = referrer.module.machine;
            match sense(machine.descriptor_is_static(memory, resolver, argument))? {
                Some(false) => {}
                Some(true) => return Ok(Some(Location::Static(argument as i64))),
                None => return Ok(None),
            }
            // glibc `struct tlsdesc_dynamic_arg` (sysdeps/x86_64/dl-tlsdesc.h); musl has no
            // generation.
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
