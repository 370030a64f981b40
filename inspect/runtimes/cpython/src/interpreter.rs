//! Finds parts of the evaluation loop without symbols: compilers move rarely executed code away from
//! the function with the symbol. From 3.14 on, the loop can also be a table of functions, one for each
//! instruction of Python, each of which jumps to the next.

use std::ops::Range;
use std::sync::Arc;

use otelctx_reader::remote::elf::{Elf, ElfError, ElfSymbol};
use otelctx_reader::remote::{LoadedModule, Target};

use crate::getter::{Code, Jump, Leaving};

/// Number of instructions in the table.
const TABLE: usize = 256;
/// Maximum size of the functions in the table together, in bytes: ten times the actual size.
const MAX_SIZE: u64 = 1 << 20;
/// Maximum size of all code that is searched for parts of the loop, in bytes: five times the largest.
const MAX_LOOP: u64 = 1 << 20;
/// Maximum number of functions that are looked up for jumps of the loop.
const MAX_LOOKUPS: usize = 256;
/// Maximum number of parts: compilers make two.
const MAX_PARTS: usize = 16;

/// Parts of a function, at addresses in the module.
struct Parts(Vec<Range<u64>>);

/// Finds all parts of the function `name` at `code`, which executes Python: native frames in any of
/// them are calls of the interpreter. With `has_table`, the functions in its table of instructions, too.
pub(crate) fn parts(
    target: &dyn Target,
    module: &LoadedModule,
    name: &str,
    code: &Range<u64>,
    has_table: bool,
) -> Vec<Range<u64>> {
    let find = |code: &Range<u64>| {
        let code = moved(code, module.bias.wrapping_neg());
        move |elf: &Elf<'_>| Ok(Parts(parts_in(elf, code)))
    };
    let loaded = |found: &Parts| -> Vec<_> {
        let parts = found.0.iter();
        parts.map(|part| moved(part, module.bias)).collect()
    };
    // Searched once per file.
    let found = module.fact(target, name, find(code));
    let mut parts = found.map_or_else(|_| vec![code.clone()], |found| loaded(&found));
    // The table is in the memory of the process, on which other processes must not depend.
    if has_table && let Some(functions) = table(target, module, code, &parts) {
        let found = module.read(target, find(&functions));
        parts.extend(found.map_or_else(|_| vec![functions], |found| loaded(&found)));
    }
    parts
}

/// Finds the functions in the table of instructions that the code uses, which are adjacent. `None` if
/// the table has addresses within these parts instead.
fn table(
    target: &dyn Target,
    module: &LoadedModule,
    code: &Range<u64>,
    parts: &[Range<u64>],
) -> Option<Range<u64>> {
    let instructions = Code::read(target, code, MAX_LOOP as usize).ok()?;
    let functions = |address: u64| {
        let mut words = [[0; 8]; TABLE];
        target.read(address, words.as_flattened_mut()).ok()?;
        let functions = words.map(u64::from_ne_bytes);
        let is_code = |address: &u64| {
            module.contains(*address) && !parts.iter().any(|part| part.contains(address))
        };
        if !functions.iter().all(is_code) {
            return None;
        }
        let (start, last) = (functions.iter().min()?, functions.iter().max()?);
        let end = function_in(target, module, *last)?.end;
        (end.checked_sub(*start)? <= MAX_SIZE).then_some(*start..end)
    };
    let found = instructions.constants().into_iter().filter_map(functions);
    found.max_by_key(|functions| functions.end - functions.start)
}

/// Finds the other parts of the code: compilers, and tools that optimize linked programs, move rarely
/// executed code away (`.cold`), in several pieces. The code jumps into each piece, and the piece jumps
/// back. A function that the code jumps to at its end does not, except to the start of the code.
fn parts_in(elf: &Elf<'_>, code: Range<u64>) -> Vec<Range<u64>> {
    let mut left = MAX_LOOP;
    let mut jumps = |code: &Range<u64>| {
        let size = code.end.checked_sub(code.start)?;
        left = left.checked_sub(size)?;
        let mut bytes = vec![0; usize::try_from(size).ok()?];
        elf.read_at(code.start, &mut bytes).ok()?;
        let jumps = Code::new(elf.machine(), code.start, bytes).jumps();
        let jumps = jumps.into_iter().filter(|it| it.leaving != Leaving::Call);
        Some(jumps.map(|jump| jump.target).collect::<Vec<u64>>())
    };
    let mut targets = jumps(&code).unwrap_or_default();
    let mut parts = vec![code];
    // Functions without a jump back to known parts, and their jumps: they may jump to another part.
    let mut others: Vec<(Range<u64>, Vec<u64>)> = Vec::new();
    let mut lookups = 0;
    while let Some(target) = targets.pop() {
        let mut known = parts.iter().chain(others.iter().map(|(code, _)| code));
        if known.any(|code| code.contains(&target)) {
            continue;
        }
        if lookups == MAX_LOOKUPS {
            break;
        }
        lookups += 1;
        let Ok(Some(function)) = function_at(elf, target) else {
            continue;
        };
        let jumps = jumps(&function).unwrap_or_default();
        let is_part = |jumps: &[u64], parts: &[Range<u64>]| {
            let is_inside = |target: &u64| {
                let mut parts = parts.iter();
                parts.any(|part| part.start != *target && part.contains(target))
            };
            jumps.iter().any(is_inside)
        };
        if !is_part(&jumps, &parts) {
            others.push((function, jumps));
            continue;
        }
        let mut part = Some((function, jumps));
        while let Some((code, jumps)) = part {
            parts.push(code);
            if parts.len() == MAX_PARTS {
                return parts;
            }
            targets.extend(jumps);
            let next = others.iter().position(|(_, jumps)| is_part(jumps, &parts));
            part = next.map(|index| others.swap_remove(index));
        }
    }
    parts
}

/// Finds the code that takes the GIL, or passes it on and waits until another thread has it, in which
/// threads wait for it: the functions `take_gil` and `drop_gil`. In a stripped file, or where compilers
/// have made copies, exported functions call or contain the code. 2.7 has no such functions: its
/// evaluation loop calls the functions for all locks.
pub(crate) fn gil_code(target: &dyn Target, module: &LoadedModule) -> Arc<[Range<u64>]> {
    let named = ["take_gil", "drop_gil"].into_iter();
    let named = named.filter_map(|name| Some(range(module, module.symbol(target, name).ok()??)));
    let mut parts: Vec<Range<u64>> = named.chain(exported_gil_code(target, module)).collect();
    parts.sort_unstable_by_key(|part| (part.start, part.end));
    parts.dedup();
    parts.into()
}

/// The addresses of a symbol in the process.
pub(crate) fn range(module: &LoadedModule, symbol: ElfSymbol) -> Range<u64> {
    let start = module.bias.wrapping_add(symbol.value);
    start..start.saturating_add(symbol.size)
}

/// Maximum number of functions that are found from an exported one.
const MAX_FUNCTIONS: usize = 64;

/// [`gil_code`] without the symbols of `.symtab`.
fn exported_gil_code(target: &dyn Target, module: &LoadedModule) -> Vec<Range<u64>> {
    let exported = |name| Some(range(module, module.exported(target, name).ok()??));
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
        // Some functions only set an argument and jump to the next.
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

/// Finds the functions of the module that the code calls, or jumps to at its end.
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
    Some(moved(&found, module.bias))
}

fn moved(range: &Range<u64>, distance: u64) -> Range<u64> {
    range.start.wrapping_add(distance)..range.end.wrapping_add(distance)
}

/// The function that contains an address of a module, by its unwind tables: `.eh_frame_hdr` (Linux
/// Standard Base, "Exception Frames") in the form that linkers write.
pub(crate) fn function_at(elf: &Elf<'_>, address: u64) -> Result<Option<Range<u64>>, ElfError> {
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
        if relative(header.address, word(entry(middle))?) <= address {
            low = middle + 1
        } else {
            high = middle
        }
    }
    let Some(index) = low.checked_sub(1) else {
        return Ok(None);
    };
    let start = relative(header.address, word(entry(index))?);
    let description = relative(header.address, word(entry(index).wrapping_add(4))?);
    // After its length and the offset of its common entry.
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

    use otelctx_fixtures::Compiler;
    use otelctx_fixtures::python::Interpreter;
    use otelctx_reader::remote::elf::{FileBytes, Source};
    use otelctx_reader::remote::{FileCache, Modules};

    use super::*;
    use crate::test_process;

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

    /// Compared with the symbol table.
    #[test]
    fn all_parts_of_a_function_are_found() {
        for compiler in [Compiler::gcc(), Compiler::aarch64_gcc()] {
            let Some(library) = compiler.library(&["parts.c"], &["-freorder-blocks-and-partition"])
            else {
                continue;
            };
            let file = File::open(library).unwrap();
            let bytes = FileBytes(&file);
            let elf = Elf::read(Source::File(&bytes)).unwrap().unwrap();
            let code = |name: &str| {
                let symbol = elf.symbol(name.as_bytes()).unwrap();
                let symbol = symbol.unwrap_or_else(|| panic!("{name}"));
                symbol.value..symbol.value + symbol.size
            };
            let all: [&[&str]; 3] = [
                &["work", "work.cold"],
                &["pieces", "first_piece", "second_piece", "third_piece"],
                &["whole"],
            ];
            for names in all {
                let mut parts = parts_in(&elf, code(names[0]));
                parts[1..].sort_unstable_by_key(|part| part.start);
                let expected: Vec<_> = names.iter().map(|name| code(name)).collect();
                assert_eq!(parts, expected, "{names:?}");
            }
        }
    }

    /// Debian's interpreters have another part, in which they call functions.
    #[test]
    fn parts_of_the_evaluation_loop_are_found() {
        let versions = [
            "2.7", "3.6", "3.7", "3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.13t", "3.14",
            "3.15",
        ];
        for interpreter in versions.iter().flat_map(|it| Interpreter::with_version(it)) {
            let program = interpreter.start("crowd.py");
            let target = test_process::open(program.pid());
            let modules = Modules::read(&target, &FileCache::default()).unwrap();
            let name = if interpreter.version.starts_with("2.") {
                "PyEval_EvalFrameEx"
            } else {
                "_PyEval_EvalFrameDefault"
            };
            let found = modules.loaded.iter().find_map(|module| {
                let symbol = module.exported(&target, name).unwrap()?;
                let start = module.bias + symbol.value;
                Some((module, start..start + symbol.size))
            });
            let (module, code) = found.unwrap();
            let has_table = matches!(&interpreter.version[..4], "3.14" | "3.15");
            let parts = parts(&target, module, name, &code, has_table);
            let calls = parts.iter().map(|part| {
                let code = Code::read(&target, part, MAX_LOOP as usize).unwrap();
                let jumps = code.jumps();
                let calls = jumps.iter().filter(|it| it.leaving == Leaving::Call);
                (part.end - part.start, calls.count())
            });
            let calls: Vec<_> = calls.collect();
            eprintln!("{interpreter} {}: {calls:?}", interpreter.path.display());
            assert_eq!(parts[0], code);
            // Compiled with a profile of which code is executed rarely.
            let is_setup = interpreter.path.to_string_lossy().contains("/setup/");
            let is_debian = is_setup && !interpreter.is_free_threaded;
            let is_debian = is_debian || interpreter.version == "3.11.2";
            if is_debian && cfg!(target_arch = "x86_64") {
                assert_eq!(parts.len(), 2, "{interpreter}");
                assert!(calls[1].1 > 100, "{interpreter}: {calls:?}");
            }
        }
    }

    /// Compared with the symbols of the versions that have them.
    #[test]
    fn the_code_that_takes_the_gil_is_found_without_symbols() {
        let versions = [
            "3.6", "3.7", "3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14", "3.15",
        ];
        for interpreter in versions.iter().flat_map(|it| Interpreter::with_version(it)) {
            let program = interpreter.start("locked.py");
            let target = test_process::open(program.pid());
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
                let names: &[&str] = if interpreter.version.starts_with("3.13.") {
                    &["_PyThreadState_Attach", "_PyThreadState_Detach", "drop_gil"]
                } else {
                    &[name]
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
