//! Relocation numbers (ELF for the Arm 64-bit Architecture, "Dynamic relocations").

use object::elf;

use crate::arch::RelocationNumbers;

pub(crate) const NUMBERS: RelocationNumbers = RelocationNumbers {
    descriptor: elf::R_AARCH64_TLSDESC.0,
    module_id: elf::R_AARCH64_TLS_DTPMOD.0,
    thread_pointer_offset: elf::R_AARCH64_TLS_TPREL.0,
};
