//! What the fuzz targets call.

use std::fs::File;
use std::path::{Path, PathBuf};

use object::ReadCache;
use object::endian::Endianness;
use object::read::elf::ElfFile64;
use otelctx_sample::{Function, Module, ProcessFacts, SymbolQuery};

use crate::copy::Copy;
use crate::debug_file::Places;
use crate::related::Related;
use crate::supplement::Supplement;
use crate::{decompress, demangle, several_files};

/// The name of a function in its program's source.
#[must_use]
pub fn demangled(name: &str) -> String {
    demangle::demangle(name)
}

/// The functions at an address of an ELF file at `path` whose debug information is in several files, which are searched in
/// `folder`. `None` if it is not.
#[must_use]
pub fn functions_in_several_files(
    file: &File,
    path: &str,
    address: u64,
    folder: &Path,
) -> Option<Vec<Function>> {
    let module = Module {
        path: path.to_owned(),
        ..Module::default()
    };
    let process = ProcessFacts::default();
    let related = Related {
        query: SymbolQuery::new(&module, &process),
        directories: &[folder.to_owned()],
        debug_file: None,
        supplement: Supplement::in_file(file),
    };
    let added = several_files::functions(file, &[address], &related)?;
    added.functions.into_iter().next()
}

/// Where the debug file of an ELF file at `path` is searched, in `folder` among others.
#[must_use]
pub fn debug_file_places(file: &File, path: &str, folder: &Path) -> Vec<PathBuf> {
    let module = Module {
        path: path.to_owned(),
        ..Module::default()
    };
    let copy = Copy::of(file, None);
    let places = copy.map(|copy| Places::of(&copy, &module, &[folder.to_owned()]));
    places.map_or_else(|_| Vec::new(), |places| places.all().cloned().collect())
}

/// The contents of a section of an ELF file, decompressed. `None` if it is not there, damaged, or larger than `limit` bytes.
#[must_use]
pub fn section_contents(file: &File, name: &str, limit: u64) -> Option<Vec<u8>> {
    let cache = ReadCache::new(file);
    let elf = ElfFile64::<Endianness, _>::parse(&cache).ok()?;
    decompress::contents(file, &elf, name, limit)
}

/// Decompresses the sections of an ELF file in it, as those of a copy. Returns false if it is not possible.
#[must_use]
pub fn decompress_in_place(file: &File) -> bool {
    decompress::decompress(file).is_ok()
}
