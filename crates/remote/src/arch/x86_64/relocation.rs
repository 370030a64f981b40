//! Relocation numbers (System V ABI, AMD64 supplement, "Relocation Types").

use object::elf;

use crate::arch::RelocationNumbers;

pub(crate) const NUMBERS: RelocationNumbers = RelocationNumbers {
    descriptor: elf::R_X86_64_TLSDESC.0,
    module_id: elf::R_X86_64_DTPMOD64.0,
    thread_pointer_offset: elf::R_X86_64_TPOFF64.0,
};
