//! Relocation numbers (System V ABI, AMD64 supplement, "Relocation Types").

use object::elf;

use crate::arch::RelocationNumbers;
use crate::machine::Access;

pub(crate) const NUMBERS: RelocationNumbers = RelocationNumbers {
    descriptor: elf::R_X86_64_TLSDESC.0,
    module_id: elf::R_X86_64_DTPMOD64.0,
    thread_pointer_offset: elf::R_X86_64_TPOFF64.0,
    block_offset: elf::R_X86_64_DTPOFF64.0,
};

/// Their names in readelf: descriptor, module ID, offset from the thread pointer.
pub(crate) const NAMES: [&str; 3] = ["R_X86_64_TLSDESC", "R_X86_64_DTPMOD64", "R_X86_64_TPOFF64"];

/// The access model of code before it is linked.
pub(crate) fn in_code(number: u32) -> Option<Access> {
    use elf::*;
    Some(match RelocationType(number) {
        R_X86_64_TLSGD => Access::GeneralDynamic,
        R_X86_64_TLSLD | R_X86_64_DTPOFF32 | R_X86_64_DTPOFF64 => Access::LocalDynamic,
        R_X86_64_GOTTPOFF
        | R_X86_64_CODE_4_GOTTPOFF
        | R_X86_64_CODE_5_GOTTPOFF
        | R_X86_64_CODE_6_GOTTPOFF => Access::InitialExec,
        R_X86_64_TPOFF32 | R_X86_64_TPOFF64 => Access::LocalExec,
        R_X86_64_GOTPC32_TLSDESC
        | R_X86_64_CODE_4_GOTPC32_TLSDESC
        | R_X86_64_CODE_5_GOTPC32_TLSDESC
        | R_X86_64_CODE_6_GOTPC32_TLSDESC
        | R_X86_64_TLSDESC_CALL => Access::Tlsdesc,
        _ => return None,
    })
}
