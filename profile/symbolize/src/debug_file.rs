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
use crate::decompress;

/// Directories in which distributions install them (gdb's manual, "Debugging Information in
/// Separate Files").
pub(crate) const DIRECTORIES: [&str; 2] = ["/usr/lib/debug", "/usr/local/lib/debug"];

/// Maximum size of a debug file beside a module, in bytes; larger ones are not decoded either.
pub(crate) const MAX_SIZE: u64 = 4 << 30;

/// The places in which the debug file of a module is searched.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// By its build ID.
    by_build_id: Vec<PathBuf>,
    /// By the name in its debug link, with the checksum in that.
    by_link: Vec<PathBuf>,
    checksum: u32,
    /// The module itself with its symbols, by its path or file name, if it has the build ID.
    with_symbols: Vec<PathBuf>,
    /// By the name in its debug link, in its own directory and in `.debug` below that.
    beside: Vec<PathBuf>,
}

impl Places {
    /// The places in these directories and then in [`DIRECTORIES`]: by build ID, and by debug link in the directory
    /// that mirrors the module's own. In `directories`, also by that name alone, and the module itself.
    pub(crate) fn of(copy: &Copy, of: &Module, directories: &[PathBuf]) -> Self {
        let defaults = DIRECTORIES.map(PathBuf::from);
        let all = || directories.iter().chain(&defaults);
        let mut places = Self::default();
        if let Some(name) = build_id_name(&of.build_id) {
            let name = format!("{name}.debug");
            places.by_build_id = all().map(|base| base.join(&name)).collect();
        }
        let own = Path::new(&of.path);
        let path = own.strip_prefix("/").ok().and_then(plain);
        if let Some((name, checksum)) = link(copy) {
            places.checksum = checksum;
            if let Some(mirror) = path.and_then(Path::parent) {
                let mirrored = all().map(|base| base.join(mirror).join(name));
                let alone = directories.iter().map(|base| base.join(name));
                places.by_link = mirrored.chain(alone).collect();
            }
            if let Some(folder) = own.parent().filter(|_| own.is_absolute()) {
                places.beside = vec![folder.join(name), folder.join(".debug").join(name)];
            }
        }
        if !of.build_id.is_empty() {
            let names = [path, path.and_then(Path::file_name).map(Path::new)];
            let names = names.into_iter().flatten();
            let in_all = |name| directories.iter().map(move |base| base.join(name));
            places.with_symbols = names.flat_map(in_all).collect();
        }
        places
    }

    /// All of them, in the order in which they are searched.
    pub(crate) fn all(&self) -> impl Iterator<Item = &PathBuf> {
        let trusted = self.by_build_id.iter().chain(&self.by_link);
        trusted.chain(&self.with_symbols).chain(&self.beside)
    }

    /// Finds the debug file in the directories that belong to this machine.
    pub(crate) fn find(&self, of: &Module) -> Option<PathBuf> {
        let mut by_build_id = self.by_build_id.iter();
        let by_build_id = by_build_id.find(|path| path.is_file());
        let has_checksum = |path: &&PathBuf| {
            let file = module::open_regular(path).ok().flatten();
            file.is_some_and(|file| checksum(&file) == Some(self.checksum))
        };
        let by_link = || self.by_link.iter().find(has_checksum);
        let is_it = |path: &&PathBuf| module::open_by_build_id(path, &of.build_id).is_some();
        let with_symbols = || self.with_symbols.iter().find(is_it);
        let found = by_build_id.or_else(by_link).or_else(with_symbols);
        found.cloned()
    }

    /// Opens the debug file beside the module, if the build ID and the checksum match. The target may have put it there:
    /// only a copy of it is decoded.
    pub(crate) fn open_beside(&self, query: SymbolQuery<'_>) -> Option<File> {
        let build_id = &query.module.build_id;
        // Read first: nothing is read of files of size 0, such as those in /proc, or of another kind.
        let belongs = |file: &File| {
            let size = file.metadata().map_or(u64::MAX, |it| it.len());
            let has_build_id = || module::build_id(file).unwrap_or_default() == *build_id;
            (1..=MAX_SIZE).contains(&size)
                && has_build_id()
                && (!build_id.is_empty() || starts_as_elf(file))
                && checksum(file) == Some(self.checksum)
        };
        let files = self.beside.iter().flat_map(|path| open_both(path, query));
        files.into_iter().find(belongs)
    }
}

/// A debug file that was found.
#[derive(Debug)]
pub(crate) enum DebugFile {
    /// Of this machine: it is decoded where it is.
    InPlace(PathBuf),
    Copied(Copy),
}

impl DebugFile {
    /// Copies the file at `path`, which belongs to this machine, if it has to be changed to be decoded.
    pub(crate) fn at(path: PathBuf) -> Option<Self> {
        let file = module::open_regular(&path).ok()??;
        if decompress::is_needed(&file) {
            return Some(Self::Copied(Copy::of(&file, None).ok()?));
        }
        Some(Self::InPlace(path))
    }

    /// Its path, for this process only.
    pub(crate) fn path(&self) -> PathBuf {
        match self {
            Self::InPlace(path) => path.clone(),
            Self::Copied(copy) => copy.path(),
        }
    }
}

/// Opens the regular files at an absolute path, as the process of a query sees it and as this one does.
fn open_both(path: &Path, query: SymbolQuery<'_>) -> impl Iterator<Item = File> {
    let process = Process::open(query.process.pid).ok();
    let relative = path.strip_prefix("/").ok();
    let in_process = process.and_then(|it| it.open_own_file(relative?));
    let here = module::open_regular(path).ok().flatten();
    in_process.into_iter().chain(here)
}

pub(crate) fn starts_as_elf(file: &File) -> bool {
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
