//! Opening the very file of a module, and what identifies it.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use otelctx_profile::{Identity, SymbolQuery};
use otelctx_remote::{Device, Process, module};
use sha2::{Digest, Sha256};

/// What the head-tail hash takes of each end of a file, in bytes (OpenTelemetry semantic
/// conventions, `process.executable.build_id.htlhash`).
const END: u64 = 4096;
/// Where the kernel shows its notes, among them its build id.
const KERNEL_NOTES: &str = "/sys/kernel/notes";

/// The file of a module: from a process that has it mapped if it still runs, else by its path.
/// Device and inode decide.
pub(crate) fn open(query: SymbolQuery<'_>) -> Option<File> {
    let (module, process) = (query.module, query.process);
    let device = Device {
        major: (module.device >> 32) as u32,
        minor: module.device as u32,
    };
    let mapped = || {
        let range = query.mapping.map(|mapping| (mapping.start, mapping.end))?;
        let target = Process::open(process.pid).ok()?;
        let file = target.mapped_file(range, module.path.as_bytes(), device, module.inode);
        // Another process may have this id by now.
        file.filter(|file| {
            file.metadata()
                .is_ok_and(|found| found.ino() == module.inode)
        })
    };
    mapped().or_else(|| module::open_mapped(Path::new(&module.path), device, module.inode))
}

/// What identifies a module.
pub(crate) fn of(query: SymbolQuery<'_>) -> Identity {
    if query.module.is_kernel() {
        return Identity {
            build_id: kernel_build_id().unwrap_or_default(),
            htlhash: None,
        };
    }
    let file = if query.module.has_file() {
        open(query)
    } else {
        None
    };
    let seen = || file.as_ref().and_then(module::build_id);
    Identity {
        build_id: match &query.module.build_id[..] {
            [] => seen().unwrap_or_default(),
            build_id => build_id.to_vec(),
        },
        htlhash: file.as_ref().and_then(|file| head_tail_hash(file).ok()),
    }
}

fn head_tail_hash(file: &File) -> io::Result<[u8; 16]> {
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
    const NT_GNU_BUILD_ID: u32 = 3;
    let notes = std::fs::read(KERNEL_NOTES).ok()?;
    let mut rest = &notes[..];
    loop {
        let (header, body) = rest.split_at_checked(12)?;
        let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|byte| header[at + byte]));
        let padded = |size: u32| (size as usize).next_multiple_of(4);
        let (name, body) = body.split_at_checked(padded(word(0)))?;
        let (descriptor, following) = body.split_at_checked(padded(word(4)))?;
        if word(8) == NT_GNU_BUILD_ID && name == b"GNU\0" {
            return Some(descriptor.get(..word(4) as usize)?.to_vec());
        }
        rest = following;
    }
}
