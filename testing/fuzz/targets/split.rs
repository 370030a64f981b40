//! Debug information in several files: a program, and its `.dwo` or `.dwp` file.
//!
//! Input: an address (8 bytes), which of both files it is (1 byte), the sizes of the first five sections of the program and
//! of the first four of the other file (2 bytes each), and the sections.
#![no_main]

mod sections;

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use otelctx_symbolize::functions_in_several_files;

/// Sections of the program.
const OWN: [&str; 6] = [
    ".debug_info",
    ".debug_addr",
    ".debug_str",
    ".debug_rnglists",
    ".debug_line",
    ".debug_abbrev",
];
/// Sections of the other file.
const OTHER: [&str; 5] = [
    ".debug_info.dwo",
    ".debug_abbrev.dwo",
    ".debug_str.dwo",
    ".debug_str_offsets.dwo",
    ".debug_cu_index",
];
/// Maximum number of functions at an address.
const LIMIT: usize = 1024;

/// A directory in memory, for this process.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let path = Path::new("/dev/shm").join(format!("otelctx-split-{}", std::process::id()));
    std::fs::create_dir_all(&path).expect("/dev/shm can be written");
    path
});

fuzz_target!(|bytes: &[u8]| {
    let Some((address, rest)) = bytes.split_first_chunk() else {
        return;
    };
    let Some((kind, mut rest)) = rest.split_first() else {
        return;
    };
    let mut sizes = [0; OWN.len() + OTHER.len() - 2];
    for size in &mut sizes {
        let Some((word, left)) = rest.split_first_chunk() else {
            return;
        };
        (*size, rest) = (usize::from(u16::from_le_bytes(*word)), left);
    }
    let mut take = |size: usize| {
        let (section, left) = rest.split_at(size.min(rest.len()));
        rest = left;
        section
    };
    let (own, other) = sizes.split_at(OWN.len() - 1);
    let mut contents: Vec<&[u8]> = own.iter().map(|size| take(*size)).collect();
    let mut of_other: Vec<&[u8]> = other.iter().map(|size| take(*size)).collect();
    // Abbreviations are what both cannot be without.
    let (abbreviations, index) = rest.split_at(rest.len() / 2);
    contents.push(abbreviations);
    of_other.push(index);
    let with_names = |names: &[&'static str], contents: Vec<&[u8]>| {
        let sections: Vec<_> = names.iter().copied().zip(contents).collect();
        sections::elf(&sections)
    };
    let name = if kind % 2 == 0 {
        "a.dwo"
    } else {
        "program.dwp"
    };
    let path = FOLDER.join(name);
    std::fs::write(&path, with_names(&OTHER, of_other)).expect("/dev/shm can be written");
    let own = with_names(&OWN, contents);
    let file = sections::file_of(&own);
    let address = u64::from_le_bytes(*address);
    let find = || functions_in_several_files(file, "/nowhere/program", address, &FOLDER);
    let found = find();
    assert!(
        found
            .as_ref()
            .is_none_or(|functions| functions.len() <= LIMIT)
    );
    assert_eq!(find(), found);
    let _ = std::fs::remove_file(path);
});
