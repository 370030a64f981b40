//! Parts of the evaluation loop that have no symbol. From 3.14 on, it can be a function for each
//! instruction of Python, in a table, each of which jumps to the next; and link-time optimization moves
//! parts of it away from the function that has its name.

use std::ops::Range;
use std::sync::Arc;

use iced_x86::{Decoder, DecoderOptions, FlowControl};
use otelctx_reader::remote::elf::{Elf, ElfError, ElfSymbol};
use otelctx_reader::remote::{LoadedModule, Target};

use crate::getter;

/// Number of instructions in the table.
const TABLE: usize = 256;
/// Maximum size of the functions in the table together, in bytes: ten times what they take.
const MAX_SIZE: u64 = 1 << 20;

/// The largest other part of the function at `code`, which tells callers apart from it.
pub(crate) fn largest_part(
    target: &dyn Target,
    module: &LoadedModule,
    code: &Range<u64>,
) -> Option<Range<u64>> {
    let (jumps, constants) = getter::references(target, code).ok()?;
    let function = |address: u64| function_in(target, module, address);
    let table = |address: u64| {
        let mut words = [[0; 8]; TABLE];
        target.read(address, words.as_flattened_mut()).ok()?;
        let functions = words.map(u64::from_ne_bytes);
        let is_code = |address: &u64| module.contains(*address);
        if !functions.iter().all(is_code) {
            return None;
        }
        let (start, last) = (functions.iter().min()?, functions.iter().max()?);
        let end = function(*last)?.end;
        (end.checked_sub(*start)? <= MAX_SIZE).then_some(*start..end)
    };
    let tables = constants.into_iter().filter_map(table);
    let parts = jumps.into_iter().filter_map(function);
    tables.chain(parts).max_by_key(|part| part.end - part.start)
}

/// The code that takes the GIL, which threads that wait for it are in: the function `take_gil`, by its
/// symbol, or, in a stripped file, as that which the exported functions call first; and these themselves,
/// which may contain it. 2.7 has no such function: its evaluation loop takes the GIL itself, in code that is
/// not among these.
pub(crate) fn gil_code(target: &dyn Target, module: &LoadedModule) -> Arc<[Range<u64>]> {
    let mut parts = Vec::new();
    let part = |symbol: ElfSymbol| {
        let start = module.bias.wrapping_add(symbol.value);
        start..start.saturating_add(symbol.size)
    };
    let taking = module.symbol(target, "take_gil").ok().flatten();
    parts.extend(taking.map(part));
    let exported = |name| module.exported(target, name).ok()?.map(part);
    // 2.7 calls it for all locks.
    let lock = exported("PyThread_acquire_lock");
    for name in ["PyEval_RestoreThread", "PyEval_AcquireThread"] {
        let Some(code) = exported(name) else {
            continue;
        };
        let called = first_called(target, module, &code);
        parts.push(code);
        if called.as_ref().map(|it| it.start) != lock.as_ref().map(|it| it.start) {
            parts.extend(called);
        }
    }
    parts.sort_unstable_by_key(|part| (part.start, part.end));
    parts.dedup();
    parts.into()
}

/// The function of the module that the code calls first.
fn first_called(
    target: &dyn Target,
    module: &LoadedModule,
    code: &Range<u64>,
) -> Option<Range<u64>> {
    /// The code that is searched has up to 150 bytes.
    const MAX_SIZE: u64 = 512;
    let size = code.end.saturating_sub(code.start).min(MAX_SIZE);
    let bytes = target.read_vec(code.start, size, MAX_SIZE as usize).ok()?;
    let instructions = Decoder::with_ip(64, &bytes, code.start, DecoderOptions::NONE).into_iter();
    let mut calls = instructions.filter(|it| it.flow_control() == FlowControl::Call);
    calls.find_map(|call| {
        let called = call.near_branch_target();
        // What leads to a function of another module is not one of its own.
        function_in(target, module, called).filter(|function| function.start == called)
    })
}

/// The function of the module that contains an address of the process.
fn function_in(target: &dyn Target, module: &LoadedModule, address: u64) -> Option<Range<u64>> {
    let find = |elf: &Elf<'_>| function_at(elf, address.wrapping_sub(module.bias));
    let found = module.read(target, find).ok()??;
    let at = |address: u64| module.bias.wrapping_add(address);
    Some(at(found.start)..at(found.end))
}

/// The function that contains an address of a module, by its unwind tables: `.eh_frame_hdr` (Linux
/// Standard Base, "Exception Frames") in the form that linkers write.
fn function_at(elf: &Elf<'_>, address: u64) -> Result<Option<Range<u64>>, ElfError> {
    /// Version 1; a pointer as a signed 32-bit offset from itself; an unsigned 32-bit count; a table of
    /// signed 32-bit offsets from the header.
    const FORM: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
    let Some(header) = elf.eh_frame_header() else {
        return Ok(None);
    };
    let mut form = [0; 4];
    elf.read_at(header.address, &mut form)?;
    if form != FORM {
        return Ok(None);
    }
    let word = |at: u64| {
        let mut bytes = [0; 4];
        elf.read_at(at, &mut bytes)?;
        Ok::<_, ElfError>(u32::from_le_bytes(bytes))
    };
    let relative = |base: u64, word: u32| base.wrapping_add_signed(word.cast_signed().into());
    let entry = |index: u64| header.address.wrapping_add(12).wrapping_add(8 * index);
    // The number of functions that start at or before the address.
    let (mut low, mut high) = (0, u64::from(word(header.address.wrapping_add(8))?));
    while low < high {
        let middle = low + (high - low) / 2;
        match relative(header.address, word(entry(middle))?) <= address {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    let Some(index) = low.checked_sub(1) else {
        return Ok(None);
    };
    let start = relative(header.address, word(entry(index))?);
    let description = relative(header.address, word(entry(index).wrapping_add(4))?);
    // After its length and the offset of what it has in common with others.
    let first = description.wrapping_add(8);
    if relative(first, word(first)?) != start {
        return Ok(None);
    }
    let end = start.wrapping_add(word(first.wrapping_add(4))?.into());
    Ok((start..end).contains(&address).then_some(start..end))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use otelctx_reader::remote::elf::{FileBytes, Source};

    use super::*;

    /// They are as long as the symbol table says.
    #[test]
    fn functions_are_found_by_their_addresses() {
        let file = File::open("/proc/self/exe").unwrap();
        let bytes = FileBytes(&file);
        let elf = Elf::read(Source::File(&bytes)).unwrap().unwrap();
        for name in ["main", "rust_eh_personality"] {
            let symbol = elf.symbol(name.as_bytes()).unwrap().unwrap();
            let range = symbol.value..symbol.value + symbol.size;
            for address in [range.start, range.end - 1] {
                assert_eq!(
                    function_at(&elf, address),
                    Ok(Some(range.clone())),
                    "{name}"
                );
            }
        }
        assert_eq!(function_at(&elf, 0), Ok(None));
    }
}
