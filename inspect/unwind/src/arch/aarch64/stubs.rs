//! Code that linkers make, for which they write no unwind tables: procedure linkage tables (PLT), and what crti.o adds to
//! `.init` and `.fini`.

use super::{code, leaf, rule};
use crate::arch::Write;
use crate::error::Error;
use crate::instructions::{CodeWork, FunctionCode, Tails};
use crate::rule::{ReturnAddress, Rule};

/// `stp x16, x30, [sp, #-16]!`: the PLT's header saves the return address.
const SAVE: [u8; 4] = 0xa9bf_7bf0_u32.to_le_bytes();
/// `stp x29, x30, [sp, #-16]!`: `_init` and `_fini` are functions.
const SAVE_FRAME: [u8; 4] = 0xa9bf_7bfd_u32.to_le_bytes();
/// Bytes of the header, which ends with a jump to the dynamic linker (Arm's ELF ABI, "PLT").
const HEADER: u64 = 32;

pub(super) fn rules(bytes: &[u8], address: u64, write: &mut Write<'_>) -> Result<(), Error> {
    // `nop`, `bti c` or `paciasp` may come first.
    if bytes.chunks(4).take(2).any(|it| it == SAVE_FRAME) {
        return function(bytes, address, write);
    }
    write(address, leaf())?;
    let header = bytes.get(..HEADER as usize).unwrap_or_default();
    // `bti c` may come first.
    let saved = header.chunks(4).take(2).position(|it| it == SAVE);
    if let Some(index) = saved {
        let behind = address + 4 * (index as u64 + 1);
        write(behind, rule(16, ReturnAddress::AtCfa(-8)))?;
        write(address + HEADER, leaf())?;
    }
    Ok(())
}

fn function(bytes: &[u8], address: u64, write: &mut Write<'_>) -> Result<(), Error> {
    let code = FunctionCode {
        bytes,
        address,
        start: address,
        end: address.saturating_add(bytes.len() as u64),
        starts: &[],
        tails: Tails::NONE,
        is_function: false,
    };
    let found = (code::READER.function)(&code, &mut CodeWork::default());
    write(address, Rule::Gap)?;
    for (at, rule) in found.unwrap_or_default().rules {
        write(at, rule)?;
    }
    Ok(())
}
