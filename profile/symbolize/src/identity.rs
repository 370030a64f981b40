//! Opens the file of a module, and identifies it.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use object::elf::{self, FileHeader64};
use object::read::elf::NoteIterator;
use otelctx_remote::{Device, Process, module};
use otelctx_sample::{Identity, Module, SymbolQuery};
use sha2::{Digest, Sha256};

/// Number of bytes of each end of a file in the head-tail hash (OpenTelemetry semantic conventions,
/// `process.executable.build_id.htlhash`).
const END: u64 = 4096;
/// The kernel's notes, which include its build ID.
const KERNEL_NOTES: &str = "/sys/kernel/notes";

/// Opens the file of a module: `kept`, the one that its process has mapped, or the one at its path. It
/// must have the module's build ID, or without one its device and inode.
pub(crate) fn open(query: SymbolQuery<'_>, kept: Option<&File>) -> Option<File> {
    let (module, path) = (query.module, Path::new(&query.module.path));
    let kept = || {
        let is_same = |file: &&File| module::build_id(file).is_some_and(|it| it == module.build_id);
        let file = kept.filter(|file| module.build_id.is_empty() || is_same(file));
        file?.try_clone().ok()
    };
    let mapped = || {
        let range = query.mapping.map(|mapping| (mapping.start, mapping.end))?;
        let target = Process::open(query.process.pid).ok()?;
        let name = module.path.as_bytes();
        if !module.build_id.is_empty() {
            return target.mapped_file_by_build_id(range, name, &module.build_id);
        }
        let file = target.mapped_file(range, name, device(module), module.inode);
        // Another process may have this ID now.
        let is_it = |file: &File| file.metadata().is_ok_and(|it| it.ino() == module.inode);
        file.filter(is_it)
    };
    let at_path = || match &module.build_id[..] {
        [] => module::open_mapped(path, device(module), module.inode),
        build_id => module::open_by_build_id(path, build_id),
    };
    kept().or_else(mapped).or_else(at_path)
}

fn device(module: &Module) -> Device {
    Device {
        major: (module.device >> 32) as u32,
        minor: module.device as u32,
    }
}

/// The identity of a module.
pub(crate) fn of(query: SymbolQuery<'_>, kept: Option<&File>) -> Identity {
    if query.module.is_kernel() {
        return Identity {
            build_id: kernel_build_id().unwrap_or_default(),
            htlhash: None,
        };
    }
    let mut identity = Identity::by_build_id(query.module);
    if query.module.has_file()
        && let Some(file) = open(query, kept)
    {
        if identity.build_id.is_empty() {
            identity.build_id = module::build_id(&file).unwrap_or_default();
        }
        identity.htlhash = head_tail_hash(&file).ok();
    }
    identity
}

pub(crate) fn head_tail_hash(file: &File) -> io::Result<[u8; 16]> {
    let size = file.metadata()?.len();
    let length = size.min(END);
    let mut end = vec![0; length as usize];
    let mut hash = Sha256::new();
    for offset in [0, size - length] {
        file.read_exact_at(&mut end, offset)?;
        hash.update(&end);
    }
    hash.update(size.to_be_bytes());
    let digest = hash.finalize();
    let mut id = [0; 16];
    id.copy_from_slice(&digest[..16]);
    Ok(id)
}

/// The descriptor of NT_GNU_BUILD_ID among the kernel's notes (elf(5), "Notes").
fn kernel_build_id() -> Option<Vec<u8>> {
    let bytes = std::fs::read(KERNEL_NOTES).ok()?;
    let endian = object::NativeEndian;
    let notes = NoteIterator::<FileHeader64<object::NativeEndian>>::new(endian, 4, &bytes);
    let mut notes = notes.ok()?;
    while let Some(note) = notes.next().ok()? {
        if note.n_type(endian) == elf::NT_GNU_BUILD_ID && note.name() == elf::ELF_NOTE_GNU {
            return Some(note.desc().to_vec());
        }
    }
    None
}
