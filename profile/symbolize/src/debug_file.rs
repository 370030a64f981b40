//! Separate debug files, below directories that belong to this machine.

use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use object::elf::SHF_COMPRESSED;
use object::endian::Endianness;
use object::read::elf::{ElfFile64, SectionHeader};
use object::{Object, ObjectSection, ReadCache};
use otelctx_sample::Module;
use otelctx_sample::format::hexadecimal;

use crate::copy::Copy;

/// Directories in which distributions install them (gdb's manual, "Debugging Information in
/// Separate Files").
pub(crate) const DIRECTORIES: [&str; 2] = ["/usr/lib/debug", "/usr/local/lib/debug"];

/// Finds the debug file of a module, in these directories and then in [`DIRECTORIES`]: by its build
/// ID, or by the name in its debug link in the directory that mirrors the module's own, if the
/// checksum matches.
pub(crate) fn find(copy: &Copy, module: &Module, directories: &[PathBuf]) -> Option<PathBuf> {
    let defaults = DIRECTORIES.map(PathBuf::from);
    let directories = directories.iter().chain(&defaults);
    let by_build_id = build_id_name(&module.build_id).and_then(|name| {
        let name = format!("{name}.debug");
        let mut paths = directories.clone().map(|base| base.join(&name));
        paths.find(|path| path.is_file())
    });
    by_build_id.or_else(|| {
        let (name, crc) = copy.debug_link.as_ref()?;
        let name = plain(std::ffi::OsStr::from_bytes(name).as_ref())?;
        let mirror = plain(Path::new(&module.path).parent()?.strip_prefix("/").ok()?)?;
        let mut paths = directories.map(|base| base.join(mirror).join(name));
        paths.find(|path| checksum(path) == Some(*crc))
    })
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
fn checksum(path: &Path) -> Option<u32> {
    let mut file = File::open(path)
        .ok()
        .filter(|file| file.metadata().is_ok_and(|it| it.is_file()))?;
    let mut crc = flate2::Crc::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match file.read(&mut buffer).ok()? {
            0 => return Some(crc.sum()),
            read => crc.update(&buffer[..read]),
        }
    }
}
