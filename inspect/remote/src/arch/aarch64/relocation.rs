//! Relocation numbers (ELF for the Arm 64-bit Architecture, "Dynamic relocations").

use object::elf;

use crate::arch::RelocationNumbers;
use crate::machine::Access;

pub(crate) const NUMBERS: RelocationNumbers = RelocationNumbers {
    descriptor: elf::R_AARCH64_TLSDESC.0,
    module_id: elf::R_AARCH64_TLS_DTPMOD.0,
    thread_pointer_offset: elf::R_AARCH64_TLS_TPREL.0,
    block_offset: elf::R_AARCH64_TLS_DTPREL.0,
};

/// Their names in readelf: descriptor, module ID, offset from the thread pointer.
pub(crate) const NAMES: [&str; 3] = [
    "R_AARCH64_TLSDESC",
    "R_AARCH64_TLS_DTPMOD64",
    "R_AARCH64_TLS_TPREL64",
];

/// The access model of code before it is linked.
pub(crate) fn in_code(number: u32) -> Option<Access> {
    Some(match number {
        512..=516 => Access::GeneralDynamic,
        517..=538 | 572..=573 => Access::LocalDynamic,
        539..=543 => Access::InitialExec,
        544..=559 | 570..=571 => Access::LocalExec,
        560..=569 => Access::Tlsdesc,
        _ => return None,
    })
}
