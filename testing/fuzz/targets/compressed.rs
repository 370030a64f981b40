//! Compressed sections of debug information.
//!
//! Input: the size that the section has when it is decompressed (2 bytes), how it is compressed (1 byte), and its contents.
#![no_main]

mod sections;

use std::io::Read;

use libfuzzer_sys::fuzz_target;
use otelctx_symbolize::{decompress_in_place, section_contents};

/// Maximum size of the contents, in bytes.
const LIMIT: u64 = 32 << 10;
/// Where the flags of the first section are, and `SHF_COMPRESSED`.
const FLAGS: usize = 64 + 64 + 8;
const COMPRESSED: u64 = 1 << 11;
const NAME: &str = ".debug_info";

fuzz_target!(|bytes: &[u8]| {
    let Some(([low, high, kind], rest)) = bytes.split_first_chunk() else {
        return;
    };
    let size = u16::from_le_bytes([*low, *high]);
    // Elf64_Chdr: ELFCOMPRESS_ZLIB or ELFCOMPRESS_ZSTD, the size, the alignment
    let mut section = Vec::new();
    for word in [u64::from(kind % 3), size.into(), 1] {
        section.extend_from_slice(&word.to_le_bytes());
    }
    section.extend_from_slice(rest);
    let mut elf = sections::elf(&[(NAME, &section)]);
    elf[FLAGS..FLAGS + 8].copy_from_slice(&COMPRESSED.to_le_bytes());
    let file = sections::file_of(&elf);
    let found = section_contents(file, NAME, LIMIT);
    let is_whole = |found: &Vec<u8>| found.len() == usize::from(size);
    assert!(found.as_ref().is_none_or(is_whole));
    assert_eq!(section_contents(file, NAME, LIMIT), found);
    // In a copy, where what is damaged or of another kind stays as it is. An empty section is behind the end of the file then.
    if size > 0 && decompress_in_place(file) {
        let mut copy = Vec::new();
        let mut after = file;
        std::io::Seek::rewind(&mut after).expect("a memfd can be read");
        after.read_to_end(&mut copy).expect("a memfd can be read");
        assert!(copy.len() <= elf.len() + 16 + usize::from(size));
        assert_eq!(section_contents(file, NAME, LIMIT), found);
    }
});
