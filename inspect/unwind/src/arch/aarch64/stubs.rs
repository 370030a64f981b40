//! Code that linkers make, for which they write no unwind tables: procedure linkage tables (PLT).

use super::{leaf, rule};
use crate::arch::Write;
use crate::error::Error;
use crate::rule::ReturnAddress;

/// `stp x16, x30, [sp, #-16]!`: the PLT's header saves the return address.
const SAVE: [u8; 4] = 0xa9bf_7bf0_u32.to_le_bytes();
/// Bytes of the header, which ends with a jump to the dynamic linker (Arm's ELF ABI, "PLT").
const HEADER: u64 = 32;

pub(super) fn rules(bytes: &[u8], address: u64, write: &mut Write<'_>) -> Result<(), Error> {
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
