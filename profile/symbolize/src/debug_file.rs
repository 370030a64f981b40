//! Separate debug files, below directories that belong to this machine, and beside the modules.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};

use object::elf::{ELFMAG, SHF_COMPRESSED};
use object::endian::Endianness;
use object::read::elf::{ElfFile64, SectionHeader};
use object::{Object, ObjectSection, ReadCache};
use otelctx_remote::{Process, module};
use otelctx_sample::format::hexadecimal;
use otelctx_sample::{Module, SymbolQuery};

use crate::copy::Copy;

/// Directories in which distributions install them (gdb's manual, "Debugging Information in
/// Separate Files").
pub(crate) const DIRECTORIES: [&str; 2] = ["/usr/lib/debug", "/usr/local/lib/debug"];

/// Maximum size of a debug file beside a module, in bytes; larger ones are not decoded either.
const MAX_SIZE: u64 = 4 << 30;

/// Finds the debug file of a module, in these directories and then in [`DIRECTORIES`]: by its build
/// ID, or by the name in its debug link in the directory that mirrors the module's own, if the
/// checksum matches. In `directories`, also by that name alone; and the module itself with its symbols, by its path or file
/// name, if it has the build ID.
pub(crate) fn find(copy: &Copy, of: &Module, directories: &[PathBuf]) -> Option<PathBuf> {
    let defaults = DIRECTORIES.map(PathBuf::from);
    let all = || directories.iter().chain(&defaults);
    let by_build_id = build_id_name(&of.build_id).and_then(|name| {
        let name = format!("{name}.debug");
        let mut paths = all().map(|base| base.join(&name));
        paths.find(|path| path.is_file())
    });
    let path = of.path.strip_prefix('/').unwrap_or_default();
    let path = plain(Path::new(path));
    let by_link = || {
        let (name, crc) = link(copy)?;
        let mirror = path?.parent()?;
        let mirrored = all().map(|base| base.join(mirror).join(name));
        let mut paths = mirrored.chain(directories.iter().map(|base| base.join(name)));
        paths.find(|path| {
            let file = module::open_regular(path).ok().flatten();
            file.is_some_and(|file| checksum(&file) == Some(crc))
        })
    };
    let with_symbols = || {
        let names = [path, path.and_then(Path::file_name).map(Path::new)];
        let names = names.into_iter().flatten();
        let mut paths = names.flat_map(|name| directories.iter().map(move |base| base.join(name)));
        paths.find(|path| {
            !of.build_id.is_empty() && module::open_by_build_id(path, &of.build_id).is_some()
        })
    };
    by_build_id.or_else(by_link).or_else(with_symbols)
}

/// Opens the debug file that the debug link names, in the directory of the module or in `.debug` below it, if the build ID
/// and the checksum match. The target may have put it there: only a copy of it is decoded.
pub(crate) fn open_beside(copy: &Copy, query: SymbolQuery<'_>) -> Option<File> {
    let (name, crc) = link(copy)?;
    let own = Path::new(&query.module.path);
    let folder = own.parent().filter(|_| own.is_absolute())?;
    let process = Process::open(query.process.pid);
    let files = [folder.join(name), folder.join(".debug").join(name)]
        .into_iter()
        .flat_map(|path| {
            let relative = path.strip_prefix("/").ok();
            let in_process = process
                .as_ref()
                .ok()
                .and_then(|it| it.open_own_file(relative?));
            let here = module::open_regular(&path).ok().flatten();
            in_process.into_iter().chain(here)
        });
    let build_id = &query.module.build_id;
    // Read first: nothing is read of files of size 0, such as those in /proc, or of another kind.
    let belongs = |file: &File| {
        let size = file.metadata().map_or(u64::MAX, |it| it.len());
        let has_build_id = || module::build_id(file).unwrap_or_default() == *build_id;
        (1..=MAX_SIZE).contains(&size)
            && has_build_id()
            && (!build_id.is_empty() || starts_as_elf(file))
            && checksum(file) == Some(crc)
    };
    files.into_iter().find(belongs)
}

fn starts_as_elf(file: &File) -> bool {
    let mut magic = [0; 4];
    file.read_exact_at(&mut magic, 0).is_ok() && magic == ELFMAG
}

/// Returns the name and the checksum in the debug link.
fn link(copy: &Copy) -> Option<(&Path, u32)> {
    let (name, crc) = copy.debug_link.as_ref()?;
    Some((plain(OsStr::from_bytes(name).as_ref())?, *crc))
}

/// The name of a file below a directory that has files by their build IDs.
pub(crate) fn build_id_name(build_id: &[u8]) -> Option<String> {
    let (first, rest) = build_id.split_first().filter(|it| !it.1.is_empty())?;
    Some(format!(".build-id/{first:02x}/{}", hexadecimal(rest)))
}

/// Returns true if the debug information of a file is compressed.
pub(crate) fn is_compressed(path: &Path) -> bool {
    let Ok(file) = File::open(path) else {
        return false;
    };
    let cache = ReadCache::new(&file);
    let Ok(elf) = ElfFile64::<Endianness, _>::parse(&cache) else {
        return false;
    };
    let info = elf.section_by_name(".debug_info");
    info.is_some_and(|section| {
        let flags = section.elf_section_header().sh_flags(elf.endian());
        section.name() != Ok(".debug_info") || flags.contains(SHF_COMPRESSED)
    })
}

/// The path, if it contains no `..` and so stays below a directory that it is appended to.
pub(crate) fn plain(path: &Path) -> Option<&Path> {
    let plain = |component| matches!(component, Component::Normal(_));
    path.components().all(plain).then_some(path)
}

/// The CRC-32 of a file.
fn checksum(mut file: &File) -> Option<u32> {
    let mut crc = flate2::Crc::new();
    let mut buffer = vec![0; 1 << 16];
    file.rewind().ok()?;
    // The file may grow while it is read.
    let mut limited = file.take(MAX_SIZE);
    loop {
        match limited.read(&mut buffer).ok()? {
            0 => return Some(crc.sum()),
            read => crc.update(&buffer[..read]),
        }
    }
}
