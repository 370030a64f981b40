//! Parts of the evaluation loop that have no symbol. From 3.14 on, it can be a function for each
//! instruction of Python, in a table, each of which jumps to the next; and link-time optimization moves
//! parts of it away from the function that has its name.

use std::ops::Range;
use std::sync::Arc;

use otelctx_reader::remote::elf::{Elf, ElfError, ElfSymbol};
use otelctx_reader::remote::{LoadedModule, Target};

use crate::getter::{Code, Jump, Leaving};

/// Number of instructions in the table.
const TABLE: usize = 256;
/// Maximum size of the functions in the table together, in bytes: ten times what they take.
const MAX_SIZE: u64 = 1 << 20;
/// Maximum size of the named part of the loop whose other parts are searched, in bytes: a larger one
/// is the loop.
const MAX_LOOP: usize = 64 << 10;

/// The largest other part of the function at `code`, which tells callers apart from it.
pub(crate) fn largest_part(
    target: &dyn Target,
    module: &LoadedModule,
    code: &Range<u64>,
) -> Option<Range<u64>> {
    let instructions = Code::read(target, code, MAX_LOOP).ok()?;
    let jumps = instructions.jumps().into_iter();
    let jumps = jumps.filter(|jump| jump.leaving != Leaving::Call && !code.contains(&jump.target));
    let jumps = jumps.map(|jump| jump.target);
    let constants = instructions.constants();
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
    let parts = jumps.filter_map(function);
    tables.chain(parts).max_by_key(|part| part.end - part.start)
}

/// The code that takes the GIL, or passes it on and waits until another thread has it: threads that wait for
/// it are in there. By symbols, these are the functions `take_gil` and `drop_gil`. In a stripped file, or where
/// compilers have made copies, exported functions call or contain the code. 2.7 has no such functions: its
/// evaluation loop calls the functions for all locks.
pub(crate) fn gil_code(target: &dyn Target, module: &LoadedModule) -> Arc<[Range<u64>]> {
    let part = |symbol: ElfSymbol| {
        let start = module.bias.wrapping_add(symbol.value);
        start..start.saturating_add(symbol.size)
    };
    let named = ["take_gil", "drop_gil"].into_iter();
    let named = named.filter_map(|name| module.symbol(target, name).ok()?.map(part));
    let mut parts: Vec<Range<u64>> = named.chain(exported_gil_code(target, module)).collect();
    parts.sort_unstable_by_key(|part| (part.start, part.end));
    parts.dedup();
    parts.into()
}

/// Maximum number of functions that an exported one leads to.
const MAX_FUNCTIONS: usize = 64;

/// The same by the exported functions alone.
fn exported_gil_code(target: &dyn Target, module: &LoadedModule) -> Vec<Range<u64>> {
    let exported = |name| {
        let symbol = module.exported(target, name).ok()??;
        let start = module.bias.wrapping_add(symbol.value);
        Some(start..start.saturating_add(symbol.size))
    };
    let locks = ["PyThread_acquire_lock", "PyThread_release_lock"].map(exported);
    let users = [
        "PyEval_RestoreThread",
        "PyEval_AcquireThread",
        "PyEval_SaveThread",
        "PyEval_ReleaseThread",
    ];
    let mut parts = Vec::new();
    for code in users.into_iter().filter_map(exported) {
        let mut found = called(target, module, &code, &[Leaving::Call, Leaving::Jump]);
        let mut index = 0;
        // Some only set an argument and jump to the next.
        while index < found.len() && found.len() < MAX_FUNCTIONS {
            let next = called(target, module, &found[index], &[Leaving::Jump]);
            let next = next.into_iter().filter(|next| !found.contains(next));
            found.extend(next.collect::<Vec<_>>());
            index += 1;
        }
        parts.extend(found);
        parts.push(code);
    }
    let is_lock = |part: &Range<u64>| locks.iter().flatten().any(|lock| lock.start == part.start);
    parts.retain(|part| !is_lock(part));
    parts
}

/// The functions of the module that the code leads to in these ways: by a call, or a jump at its end, by which the
/// other function takes its place in stacks.
fn called(
    target: &dyn Target,
    module: &LoadedModule,
    code: &Range<u64>,
    leaving: &[Leaving],
) -> Vec<Range<u64>> {
    /// The code that is searched has up to 400 bytes.
    const MAX_SIZE: u64 = 512;
    let end = code.end.min(code.start.saturating_add(MAX_SIZE));
    let Ok(instructions) = Code::read(target, &(code.start..end), MAX_SIZE as usize) else {
        return Vec::new();
    };
    let jumps = instructions.jumps().into_iter();
    let leaves = |jump: &Jump| {
        leaving.contains(&jump.leaving)
            && (jump.leaving == Leaving::Call || !code.contains(&jump.target))
    };
    let functions = jumps.filter(leaves).filter_map(|jump| {
        // An entry for a function of another module is not the start of a function.
        let function = function_in(target, module, jump.target)?;
        (function.start == jump.target).then_some(function)
    });
    functions.collect()
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

    use otelctx_fixtures::python::Interpreter;
    use otelctx_reader::remote::elf::{FileBytes, Source};
    use otelctx_reader::remote::{FileCache, LiveProcess, Modules, Process};

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

    /// Compared with the symbols of the versions that have them.
    #[test]
    fn the_code_that_takes_the_gil_is_found_without_symbols() {
        let versions = [
            "3.6", "3.7", "3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14", "3.15",
        ];
        for interpreter in versions.iter().flat_map(|it| Interpreter::with_version(it)) {
            let program = interpreter.start("locked.py");
            let process = Process::open(program.pid()).unwrap();
            let memory = process.memory().unwrap();
            let target = LiveProcess::new(&process, &memory);
            let modules = Modules::read(&target, &FileCache::default()).unwrap();
            let has_it = |module: &&LoadedModule| {
                let symbol = module.exported(&target, "PyEval_RestoreThread");
                symbol.ok().flatten().is_some()
            };
            let module = modules.loaded.iter().find(has_it).unwrap();
            let code = exported_gil_code(&target, module);
            // Each of the four functions contains it, or leads to it.
            assert!(code.len() >= 6, "{interpreter:?}: {code:x?}");
            for name in ["take_gil", "drop_gil"] {
                // 3.13 takes it in a function that this one calls in turn, and that is in stacks, too.
                let names: &[&str] = match interpreter.version.starts_with("3.13.") {
                    true => &["_PyThreadState_Attach", "_PyThreadState_Detach", "drop_gil"],
                    false => &[name],
                };
                for name in names {
                    if let Some(address) = module.address_of(&target, name).unwrap() {
                        let is_found = code.iter().any(|part| part.start == address)
                            // A copy of it takes its place.
                            || interpreter.version.starts_with("3.8.") && *name == "take_gil";
                        assert!(is_found, "{interpreter:?}: {name} {code:x?}");
                    }
                }
            }
        }
    }
}
