//! Finds parts of the evaluation loop without symbols: compilers move rarely executed code away from
//! the function with the symbol. From 3.14 on, instructions of Python can also be code of their own, in a table, each of
//! which jumps to the next: parts of the loop's function, or, with tail calls, functions that it calls.

use std::collections::{BTreeMap, BTreeSet};
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
/// Maximum number of functions that the loop calls and that are searched for the table, and the maximum size of each, in
/// bytes: where they have it, the loop calls about ten.
const MAX_CALLED: usize = 32;
const MAX_CALLED_SIZE: u64 = 16 << 10;
/// Maximum number of functions that instructions continue with, and of these: there are about 230.
const MAX_REACHED: usize = 1024;
/// Maximum number of parts: compilers make two.
const MAX_PARTS: usize = 16;

/// Parts of a function, at addresses in the module.
struct Parts(Vec<Range<u64>>);

/// The code of the evaluation loop.
#[derive(Debug, Default)]
pub(crate) struct Loop {
    /// Its parts: native frames in any of them are calls of the interpreter.
    pub(crate) parts: Vec<Range<u64>>,
    /// The functions for single instructions that it calls, in ascending order. Each ends with a jump to the next one (a
    /// tail call): while the loop waits, there is one frame of such a function.
    pub(crate) instructions: Vec<Range<u64>>,
}

impl Loop {
    /// Finds all parts of the function `name` at `code`, which executes Python. With `has_table`, the code in its table of
    /// instructions, too.
    pub(crate) fn find(
        target: &dyn Target,
        module: &LoadedModule,
        name: &str,
        code: &Range<u64>,
        has_table: bool,
    ) -> Self {
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
        let parts = found.map_or_else(|_| vec![code.clone()], |found| loaded(&found));
        let mut all = Self {
            parts,
            instructions: Vec::new(),
        };
        // The table is in the memory of the process, on which other processes must not depend.
        let table = has_table.then(|| Table::find(target, module, &all.parts));
        let Some(table) = table.flatten() else {
            return all;
        };
        let find_functions = |elf: &Elf<'_>| Ok(table.functions(elf, module.bias).map(Parts));
        match module.read(target, find_functions) {
            Ok(Some(functions)) => all.instructions = loaded(&functions),
            _ => {
                if let Some(code) = table.range(target, module) {
                    let found = module.read(target, find(&code));
                    all.parts
                        .extend(found.map_or_else(|_| vec![code], |found| loaded(&found)));
                }
            }
        }
        all
    }
}

/// The table of instructions.
struct Table {
    address: u64,
    /// The addresses of the instructions' code, in ascending order, each once.
    code: Vec<u64>,
    /// The addresses of the functions that the loop calls, if these are few.
    called: Vec<u64>,
}

impl Table {
    /// Finds the table that the loop uses. If the instructions are functions, only called functions may use it.
    fn find(target: &dyn Target, module: &LoadedModule, parts: &[Range<u64>]) -> Option<Self> {
        let read = |code: &Range<u64>| Code::read(target, code, MAX_LOOP as usize).ok();
        let code: Vec<Code> = parts.iter().filter_map(read).collect();
        let mut called = BTreeSet::new();
        for code in &code {
            let calls = code.jumps().into_iter();
            called.extend(
                calls
                    .filter(|it| it.leaving == Leaving::Call)
                    .map(|it| it.target),
            );
        }
        // Other loops call hundreds.
        if called.len() > MAX_CALLED {
            called.clear();
        }
        let functions = called.iter();
        let functions = functions.filter_map(|it| function_in(target, module, *it));
        let small = functions.filter(|it| it.end - it.start <= MAX_CALLED_SIZE);
        let others: Vec<Code> = small.filter_map(|it| read(&it)).collect();
        let of_code = |code: &Code| {
            let constants = code.constants().into_iter();
            let found = constants.filter_map(|it| Self::read(target, module, it, parts));
            found.max_by_key(Self::size)
        };
        let found = code.iter().chain(&others).find_map(of_code)?;
        Some(Self {
            called: called.into_iter().collect(),
            ..found
        })
    }

    /// Reads a table at an address. `None` if it is not one, or has addresses within the parts of the loop instead.
    fn read(
        target: &dyn Target,
        module: &LoadedModule,
        address: u64,
        parts: &[Range<u64>],
    ) -> Option<Self> {
        let is_code = |address: &u64| {
            module.contains(*address) && !parts.iter().any(|part| part.contains(address))
        };
        // Most are something else.
        if !address.is_multiple_of(8) || !is_code(&target.read_u64(address).ok()?) {
            return None;
        }
        let mut words = [[0; 8]; TABLE];
        target.read(address, words.as_flattened_mut()).ok()?;
        let mut code = words.map(u64::from_ne_bytes).to_vec();
        if !code.iter().all(is_code) {
            return None;
        }
        code.sort_unstable();
        code.dedup();
        Some(Self {
            address,
            code,
            called: Vec::new(),
        })
    }

    /// Number of bytes from the first instruction to the last one.
    fn size(&self) -> u64 {
        let (first, last) = (self.code.first(), self.code.last());
        first.zip(last).map_or(0, |(first, last)| last - first)
    }

    /// The code of all instructions, which is adjacent.
    fn range(&self, target: &dyn Target, module: &LoadedModule) -> Option<Range<u64>> {
        let end = function_in(target, module, *self.code.last()?)?.end;
        let start = *self.code.first()?;
        (end - start <= MAX_SIZE).then_some(start..end)
    }

    /// Finds the functions of the instructions, at addresses in the module: the table's functions, and the ones that they
    /// continue with, such as what handles an exception, and rarely executed parts. `None` if the table has other addresses
    /// than functions.
    fn functions(&self, elf: &Elf<'_>, bias: u64) -> Option<Vec<Range<u64>>> {
        let table = self.address.wrapping_sub(bias);
        let mut functions = Functions::new(elf, table);
        for address in &self.code {
            let start = address.wrapping_sub(bias);
            let function = functions.add(start)?;
            if function.code.start != start {
                return None;
            }
            function.is_member = true;
        }
        if functions.found.len() < 2 {
            return None;
        }
        let found = functions.found.values();
        let mut targets: Vec<u64> = found.flat_map(|it| &it.targets).copied().collect();
        while let Some(address) = targets.pop() {
            if functions.found.len() < MAX_REACHED
                && functions.at(address).is_none()
                && let Some(function) = functions.add(address)
            {
                targets.extend(&function.targets);
            }
        }
        // The loop calls one to begin, which has a frame of its own, too.
        for address in &self.called {
            functions.add(address.wrapping_sub(bias));
        }
        Some(functions.into_members())
    }
}

/// A function of the instructions, or one that they continue with.
struct Function {
    code: Range<u64>,
    /// Where it jumps to outside of its own code.
    targets: BTreeSet<u64>,
    /// It continues with an instruction.
    is_member: bool,
}

/// Functions of a module, by their addresses.
struct Functions<'e> {
    elf: &'e Elf<'e>,
    /// The address of the table.
    table: u64,
    found: BTreeMap<u64, Function>,
    /// Number of bytes of code that may still be read.
    left: u64,
}

impl<'e> Functions<'e> {
    fn new(elf: &'e Elf<'e>, table: u64) -> Self {
        Self {
            elf,
            table,
            found: BTreeMap::new(),
            left: MAX_SIZE,
        }
    }

    fn at(&self, address: u64) -> Option<&Function> {
        let (_, function) = self.found.range(..=address).next_back()?;
        function.code.contains(&address).then_some(function)
    }

    /// Reads the function at an address.
    fn add(&mut self, address: u64) -> Option<&mut Function> {
        let function = function_at(self.elf, address).ok()??;
        let size = function.end.checked_sub(function.start)?;
        if !self.found.contains_key(&function.start) {
            self.left = self.left.checked_sub(size)?;
        }
        let mut bytes = vec![0; usize::try_from(size).ok().filter(|_| size <= MAX_SIZE)?];
        self.elf.read_at(function.start, &mut bytes).ok()?;
        let code = Code::new(self.elf.machine(), function.start, bytes);
        let jumps = code.jumps().into_iter();
        let jumps = jumps.filter(|it| it.leaving != Leaving::Call);
        let targets = jumps.map(|it| it.target);
        let targets = targets.filter(|it| !function.contains(it)).collect();
        let entry = self.found.entry(function.start);
        Some(entry.or_insert(Function {
            targets,
            is_member: code.constants().contains(&self.table),
            code: function,
        }))
    }

    /// The code of the functions that continue with an instruction. A function in C that they end with does not.
    fn into_members(mut self) -> Vec<Range<u64>> {
        for _ in 0..MAX_PARTS {
            let is_member = |address: &u64| self.at(*address).is_some_and(|it| it.is_member);
            let others = self.found.iter().filter(|(_, it)| !it.is_member);
            let found = others.filter(|(_, it)| it.targets.iter().any(is_member));
            let found: Vec<u64> = found.map(|(start, _)| *start).collect();
            if found.is_empty() {
                break;
            }
            for start in found {
                if let Some(function) = self.found.get_mut(&start) {
                    function.is_member = true;
                }
            }
        }
        let members = self.found.into_values().filter(|it| it.is_member);
        joined(members.map(|it| it.code))
    }
}

/// Joins ranges in ascending order that have only padding between them.
fn joined(ranges: impl Iterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    /// Functions start at multiples of it, or of less.
    const ALIGNMENT: u64 = 64;
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start.saturating_sub(last.end) < ALIGNMENT => {
                last.end = last.end.max(range.end);
            }
            _ => joined.push(range),
        }
    }
    joined
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
        let mut found = called(target, module, &code, true);
        let mut index = 0;
        // Some functions only set an argument and jump to the next.
        while index < found.len() && found.len() < MAX_FUNCTIONS {
            let next = called(target, module, &found[index], false);
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

/// Finds the functions of the module that the code jumps to at its end, also if that depends on a condition, as clang
/// compiles it, or, `with_calls`, that it calls.
fn called(
    target: &dyn Target,
    module: &LoadedModule,
    code: &Range<u64>,
    with_calls: bool,
) -> Vec<Range<u64>> {
    /// The code that is searched has up to 400 bytes.
    const MAX_SIZE: u64 = 512;
    let end = code.end.min(code.start.saturating_add(MAX_SIZE));
    let Ok(instructions) = Code::read(target, &(code.start..end), MAX_SIZE as usize) else {
        return Vec::new();
    };
    let jumps = instructions.jumps().into_iter();
    let leaves = |jump: &Jump| match jump.leaving {
        Leaving::Call => with_calls,
        Leaving::Jump | Leaving::Condition => !code.contains(&jump.target),
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
    use std::process::Command;

    use otelctx_fixtures::python::Interpreter;
    use otelctx_fixtures::{Compiler, Target as Program};
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

    /// Compared with the symbol table.
    #[test]
    fn functions_of_instructions_are_found() {
        for flags in [&["-O2"][..], &["-O2", "-DIN_LOOP"], &["-O2", "-no-pie"]] {
            let compiler = Compiler::clang_with_descriptors();
            let Some(program) = compiler.program(&["tail_calls.c"], flags) else {
                return;
            };
            let program = Program::spawn(&mut Command::new(program));
            let target = test_process::open(program.pid());
            let modules = Modules::read(&target, &FileCache::default()).unwrap();
            let module = &modules.loaded[0];
            let code = |name: &str| {
                let symbol = module.symbol(&target, name).unwrap();
                range(module, symbol.unwrap_or_else(|| panic!("{name}")))
            };
            let found = Loop::find(&target, module, "loop", &code("loop"), true);
            assert_eq!(found.parts, [code("loop")], "{flags:?}");
            let is_found = |name: &str| {
                let code = code(name);
                let mut found = found.instructions.iter();
                found.any(|it| it.start <= code.start && code.end <= it.end)
            };
            let names = [
                "start",
                "resume",
                "fail",
                "instruction_0",
                "instruction_1",
                "instruction_2",
            ];
            for name in names.into_iter().chain(["instruction_last"]) {
                assert!(is_found(name), "{flags:?}: {name}");
            }
            for name in ["other", "rare", "main", "loop"] {
                assert!(!is_found(name), "{flags:?}: {name}");
            }
            // Processes of other versions have none.
            let without = Loop::find(&target, module, "loop", &code("loop"), false);
            assert_eq!(without.instructions, []);
        }
    }

    /// In stacks, what it jumps to takes its place.
    #[test]
    fn a_function_that_takes_the_gil_can_be_jumped_to_on_a_condition() {
        let compiler = Compiler::clang_with_descriptors();
        let Some(program) = compiler.program(&["tail_calls.c"], &["-O2", "-rdynamic"]) else {
            return;
        };
        let program = Program::spawn(&mut Command::new(program));
        let target = test_process::open(program.pid());
        let modules = Modules::read(&target, &FileCache::default()).unwrap();
        let module = &modules.loaded[0];
        let code = |name: &str| range(module, module.symbol(&target, name).unwrap().unwrap());
        let found = exported_gil_code(&target, module);
        assert_eq!(found, [code("attach"), code("PyEval_RestoreThread")]);
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
            let found = Loop::find(&target, module, name, &code, has_table);
            let parts = found.parts;
            let calls = parts.iter().map(|part| {
                let code = Code::read(&target, part, MAX_LOOP as usize).unwrap();
                let jumps = code.jumps();
                let calls = jumps.iter().filter(|it| it.leaving == Leaving::Call);
                (part.end - part.start, calls.count())
            });
            let calls: Vec<_> = calls.collect();
            eprintln!("{interpreter} {}: {calls:?}", interpreter.path.display());
            let is_found = |name: &str| {
                let code = range(module, module.symbol(&target, name).ok()??);
                let mut found = found.instructions.iter();
                Some(found.any(|it| it.start <= code.start && code.end <= it.end))
            };
            // With tail calls, by clang; those of Debian's builds by gcc are parts of the loop's function.
            let first = is_found("_TAIL_CALL_CACHE");
            for name in [
                "CALL_KW_NON_PY",
                "STORE_FAST",
                "start_frame",
                "error",
                "exception_unwind",
            ] {
                assert_eq!(
                    is_found(&format!("_TAIL_CALL_{name}")),
                    first.map(|_| true),
                    "{interpreter}: {name}"
                );
            }
            assert_eq!(
                found.instructions.is_empty(),
                first.is_none(),
                "{interpreter}"
            );
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
                // Some builds take it in a function that this one calls in turn, and that is in stacks, too.
                let attach = module.address_of(&target, "_PyThreadState_Attach").unwrap();
                let is_attach = |part: &Range<u64>| attach == Some(part.start);
                let names: &[&str] = if code.iter().any(is_attach) {
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
