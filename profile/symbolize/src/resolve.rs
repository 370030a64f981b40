//! Resolves addresses in a file, and in the kernel.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolized, Symbolizer};
use otelctx_remote::elf::{self, GoTable};
use otelctx_sample::{Function, SymbolQuery};

use crate::copy::Copy;
use crate::debug_file::DebugFile;
use crate::related::Related;
use crate::supplement::Supplement;
use crate::{demangle, identity, linkage, several_files};

/// Functions at addresses.
#[derive(Default)]
pub(crate) struct Resolved {
    /// For each address, innermost first.
    pub(crate) functions: Vec<Vec<Function>>,
    /// True if parts could not be decoded.
    pub(crate) is_broken: bool,
    /// The first `.dwo` file, and the supplementary file, that was not found.
    pub(crate) missing_object: Option<String>,
    pub(crate) missing_supplement: Option<String>,
}

/// Where the functions of a file are looked up, apart from the file itself.
#[derive(Debug)]
pub(crate) struct Sources {
    pub(crate) debug_file: Option<DebugFile>,
    /// True to read DWARF.
    pub(crate) with_dwarf: bool,
}

impl Sources {
    /// Adds functions that are in other files than this one, or its debug file.
    fn add_related(
        &self,
        found: &mut Resolved,
        copy: &Copy,
        query: SymbolQuery<'_>,
        offsets: &[u64],
        directories: &[PathBuf],
    ) {
        let opened = match &self.debug_file {
            Some(DebugFile::InPlace(path)) => File::open(path).ok().map(|file| (path, file)),
            _ => None,
        };
        let (file, supplement) = match (&self.debug_file, &opened) {
            (_, Some((_, file))) => (file, Supplement::in_file(file)),
            (Some(DebugFile::Copied(copy)), _) => (copy.file(), copy.supplement.clone()),
            _ => (copy.file(), copy.supplement.clone()),
        };
        let related = Related {
            query,
            directories,
            debug_file: opened.as_ref().map(|(path, _)| (*path).clone()),
            supplement,
        };
        let address = |offset: &u64| copy.address(*offset).unwrap_or(u64::MAX);
        let addresses: Vec<u64> = offsets.iter().map(address).collect();
        let Some(added) = several_files::functions(file, &addresses, &related) else {
            return;
        };
        for (functions, more) in found.functions.iter_mut().zip(added.functions) {
            // What is only in one file is known already.
            if more.len() > functions.len() || related.supplement().is_some() && !more.is_empty() {
                *functions = more;
            }
        }
        found.missing_object = added.missing_object;
        found.missing_supplement = added.missing_supplement;
    }
}

/// Resolves offsets of a file; `None` if it cannot be opened or is not an ELF file.
///
/// # Errors
/// If its debug information is too large.
pub(crate) fn in_file(
    query: SymbolQuery<'_>,
    kept: Option<&File>,
    offsets: &[u64],
    directories: &[PathBuf],
    sources: impl FnOnce(&Copy) -> Sources,
) -> io::Result<Option<Resolved>> {
    if offsets.is_empty() {
        return Ok(None);
    }
    let Some(file) = identity::open(query, kept) else {
        return Ok(None);
    };
    let Ok(copy) = Copy::of(&file, Some(offsets)) else {
        return Ok(None);
    };
    let sources = sources(&copy);
    let (debug_file, with_dwarf) = (&sources.debug_file, sources.with_dwarf);
    match debug_file {
        None if with_dwarf => copy.decompress()?,
        Some(DebugFile::Copied(copy)) if with_dwarf => copy.decompress()?,
        _ => {}
    }
    let path = debug_file.as_ref().map(DebugFile::path);
    let mut found = in_copy(&copy, path, offsets, with_dwarf);
    if let Some(found) = &mut found {
        if with_dwarf {
            sources.add_related(found, &copy, query, offsets, directories);
        }
        add_other_functions(&mut found.functions, &file, &copy, offsets);
    }
    Ok(found)
}

/// A symbol at the first function of Go's code, which has a name of its own.
const START_OF_GO: &str = "runtime.text";

/// Names code that has no other name: stubs, and functions by the table of Go's runtime.
fn add_other_functions(functions: &mut [Vec<Function>], file: &File, copy: &Copy, offsets: &[u64]) {
    let is_unnamed = |found: &[Function]| found.iter().all(|function| function.name == START_OF_GO);
    let places = functions.iter_mut().zip(offsets);
    let places = places.filter_map(|(found, offset)| {
        let address = is_unnamed(found).then(|| copy.address(*offset))??;
        Some((found, address))
    });
    let (mut unnamed, addresses): (Vec<_>, Vec<_>) = places.unzip();
    if unnamed.is_empty() {
        return;
    }
    let bytes = elf::FileBytes(file);
    let elf = elf::Elf::read(elf::Source::File(&bytes)).ok().flatten();
    let functions_of_go = elf
        .as_ref()
        .and_then(|elf| GoTable::read(elf).ok().flatten());
    let mut read = |address, buffer: &mut [u8]| {
        let read = elf.as_ref().map(|elf| elf.read_at(address, buffer));
        matches!(read, Some(Ok(())))
    };
    let stubs = linkage::stubs(file, &addresses);
    for ((found, address), stub) in unnamed.iter_mut().zip(addresses).zip(stubs) {
        let stub = stub.map(|called| format!("{}@plt", demangle::demangle(&called)));
        if let Some(name) = stub.filter(|_| found.is_empty()) {
            found.push(Function {
                name,
                ..Function::default()
            });
            continue;
        }
        let function = functions_of_go
            .as_ref()
            .and_then(|it| it.function_at(address));
        let calls = function
            .into_iter()
            .flat_map(|it| it.calls(address, &mut read));
        let mut calls = calls.filter(|call| !call.name.is_empty()).peekable();
        if calls.peek().is_some() {
            found.clear();
        }
        found.extend(calls.map(|call| Function {
            name: call.name.into_owned(),
            file: call.file,
            line: call.line,
            ..Function::default()
        }));
    }
}

/// Resolves offsets of a copy, with the debug file that belongs to it.
pub(crate) fn in_copy(
    copy: &Copy,
    separate: Option<PathBuf>,
    offsets: &[u64],
    with_dwarf: bool,
) -> Option<Resolved> {
    // Addresses in a debug file follow the module's own program headers.
    let address = |(index, offset): (usize, &u64)| Some((index, copy.address(*offset)?));
    let known = offsets.iter().enumerate().filter_map(address);
    let (known, addresses): (Vec<usize>, Vec<u64>) = known.unzip();
    let mut elf = Elf::new(separate.unwrap_or_else(|| copy.path()));
    elf.debug_syms = with_dwarf;
    let reaches = |symbol, address| copy.is_one_section(symbol, address);
    let source = Source::Elf(elf.clone());
    let found = symbolize(&source, Input::VirtOffset(&addresses), reaches);
    let is_broken = found.as_ref().is_none_or(|it| it.is_broken);
    let mut named = found.map_or_else(|| vec![Vec::new(); addresses.len()], |it| it.functions);
    // Adds the functions that are only in a symbol table; returns true if all are known.
    let mut add_symbols = |elf: Option<Elf>| {
        let unnamed = named.iter_mut().zip(&addresses);
        let (unnamed, addresses): (Vec<_>, Vec<u64>) =
            unnamed.filter(|(found, _)| found.is_empty()).unzip();
        if let Some(mut elf) = elf.filter(|_| !unnamed.is_empty()) {
            elf.debug_syms = false;
            let found = symbolize(&Source::Elf(elf), Input::VirtOffset(&addresses), reaches);
            let found = found.into_iter().flat_map(|it| it.functions);
            unnamed
                .into_iter()
                .zip(found)
                .for_each(|(to, from)| *to = from);
        }
        named.iter().all(|found| !found.is_empty())
    };
    // A symbol may have a name where the DWARF has none, or is malformed.
    if !add_symbols(with_dwarf.then_some(elf.clone()))
        && let Some(data) = copy.debug_data()
    {
        add_symbols(Some(Elf::new(data.path())));
    }
    if with_dwarf {
        use_whole_names(&mut named, &addresses, elf, reaches);
    }
    let mut functions = vec![Vec::new(); offsets.len()];
    for (index, found) in known.into_iter().zip(named) {
        functions[index] = found;
    }
    Some(Resolved {
        functions,
        is_broken,
        ..Resolved::default()
    })
}

/// Extensions of source files whose compilers leave class, module and parameters out of a function's name in DWARF, but
/// not out of its symbol: Crystal and Free Pascal.
const SHORT_NAMES: [&str; 6] = ["cr", "pas", "pp", "lpr", "dpr", "inc"];

/// Gives functions the names of their symbols where their names in DWARF are only a part of these.
fn use_whole_names(
    named: &mut [Vec<Function>],
    addresses: &[u64],
    mut elf: Elf,
    reaches: impl Fn(u64, u64) -> bool,
) {
    let is_short = |function: &Function| {
        let extension = Path::new(&function.file).extension();
        extension.is_some_and(|it| SHORT_NAMES.iter().any(|short| it == *short))
    };
    let (short, addresses): (Vec<_>, Vec<u64>) = named
        .iter_mut()
        .zip(addresses)
        .filter_map(|(found, address)| Some((found.last_mut()?, *address)))
        .filter(|(outermost, _)| is_short(outermost))
        .unzip();
    if short.is_empty() {
        return;
    }
    elf.debug_syms = false;
    let found = symbolize(&Source::Elf(elf), Input::VirtOffset(&addresses), reaches);
    let symbols = found.into_iter().flat_map(|it| it.functions);
    for (function, symbols) in short.into_iter().zip(symbols) {
        // `*Foo#bar<Int32>:Nil`, `~procProc(Nil)@foo.cr:7`; `P$PROGRAM$_$TFOO_$__$$_BAR$LONGINT`.
        let is_whole = |name: &str| name.starts_with(['*', '~']) || name.contains("_$");
        if let Some(symbol) = symbols.into_iter().last()
            && is_whole(&symbol.name)
        {
            function.name = symbol.name;
        }
    }
}

/// Resolves addresses; `None` if none could be resolved. `reaches` returns true if a symbol of
/// unknown size may extend from its address to another one.
pub(crate) fn symbolize(
    source: &Source<'_>,
    addresses: Input<&[u64]>,
    reaches: impl Fn(u64, u64) -> bool,
) -> Option<Resolved> {
    // It caches what it has parsed, so there is one for each module.
    let symbolizer = Symbolizer::builder()
        .enable_auto_reload(false)
        .enable_demangling(false)
        .build();
    let (Input::AbsAddr(all) | Input::VirtOffset(all) | Input::FileOffset(all)) = addresses;
    if let Ok(found) = symbolizer.symbolize(source, addresses) {
        let found = found.iter().zip(all);
        let found = found.map(|(found, address)| functions(found, *address, &reaches));
        return Some(Resolved {
            functions: found.collect(),
            ..Resolved::default()
        });
    }
    // Perhaps only one of the addresses is affected.
    let one = |address: &u64| {
        let input = addresses.map(|_| *address);
        let found = symbolizer.symbolize_single(source, input).ok()?;
        Some(functions(&found, *address, &reaches))
    };
    let found: Vec<_> = all.iter().map(one).collect();
    found.iter().any(Option::is_some).then(|| Resolved {
        functions: found.into_iter().map(Option::unwrap_or_default).collect(),
        is_broken: true,
        ..Resolved::default()
    })
}

/// The functions, innermost first.
fn functions(
    symbolized: &Symbolized<'_>,
    address: u64,
    reaches: impl Fn(u64, u64) -> bool,
) -> Vec<Function> {
    let Symbolized::Sym(symbol) = symbolized else {
        return Vec::new();
    };
    let Sym {
        name,
        code_info,
        inlined,
        ..
    } = symbol;
    // DWARF has no size of a function that is in several pieces, and its address is 0.
    let is_in_pieces = symbol.addr == 0 && code_info.is_some();
    // Such as `_init`, which is followed by stubs of the procedure linkage table.
    if symbol.size.is_none() && !is_in_pieces && !reaches(symbol.addr, address) {
        return Vec::new();
    }
    let inlined = inlined.iter().rev();
    let mut functions: Vec<Function> = inlined
        .map(|function| named(&function.name, function.code_info.as_ref()))
        .collect();
    functions.push(named(name, code_info.as_deref()));
    // DWARF may describe a function without a name.
    functions.retain(|function| !function.name.is_empty());
    functions
}

fn named(name: &str, code: Option<&CodeInfo<'_>>) -> Function {
    Function {
        name: demangle::demangle(name),
        system_name: String::new(),
        file: code.map_or(String::new(), |it| it.to_path().to_string_lossy().into()),
        line: code.and_then(|code| code.line).unwrap_or(0),
        column: code.and_then(|code| code.column).unwrap_or(0).into(),
    }
}
