//! The symbols that a file contains in `.gnu_debugdata`, compressed with xz.
//!
//! Input: which of the two (1 byte), an ELF file or the section's contents.
#![no_main]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use nix::sys::memfd::{MFdFlags, memfd_create};
use otelctx_symbolize::debug_data_size;

/// Maximum size of the section's file, in bytes.
const LIMIT: u64 = 256 << 20;
const NAMES: &[u8] = b"\0.gnu_debugdata\0.names\0";
/// Size of an ELF header and of a section's header, in bytes.
const SIZES: [u64; 2] = [64, 64];

/// A file that costs no disk.
static FILE: LazyLock<File> = LazyLock::new(|| {
    File::from(memfd_create(c"debug_data", MFdFlags::empty()).expect("a memfd is to be had"))
});

/// An ELF file of x86-64 with this section and that of the names.
fn elf(section: &[u8]) -> Vec<u8> {
    let [header, entry] = SIZES;
    let contents = header + 3 * entry;
    let names = contents + section.len() as u64;
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    let word = |file: &mut Vec<u8>, value: u64, size: usize| {
        file.extend_from_slice(&value.to_le_bytes()[..size]);
    };
    // e_type: ET_DYN, e_machine, e_version, e_entry, e_phoff, e_shoff, e_flags, e_ehsize, e_phentsize, e_phnum, e_shentsize,
    // e_shnum, e_shstrndx
    let fields = [
        (3, 2),
        (62, 2),
        (1, 4),
        (0, 8),
        (0, 8),
        (header, 8),
        (0, 4),
        (header, 2),
        (56, 2),
        (0, 2),
        (entry, 2),
        (3, 2),
        (2, 2),
    ];
    for (value, size) in fields {
        word(&mut file, value, size);
    }
    file.resize((header + entry) as usize, 0);
    // SHT_PROGBITS and SHT_STRTAB.
    for (name, kind, offset, length) in
        [(1, 1, contents, section.len()), (16, 3, names, NAMES.len())]
    {
        // sh_name, sh_type, sh_flags, sh_addr, sh_offset, sh_size, sh_link and sh_info, sh_addralign, sh_entsize
        let fields = [name | kind << 32, 0, 0, offset, length as u64, 0, 1, 0];
        for field in fields {
            word(&mut file, field, 8);
        }
    }
    file.extend_from_slice(section);
    file.extend_from_slice(NAMES);
    file
}

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, rest)) = bytes.split_first() else {
        return;
    };
    let made = (kind % 2 == 1).then(|| elf(rest));
    let bytes = made.as_deref().unwrap_or(rest);
    FILE.set_len(0).expect("a memfd can be written");
    FILE.write_all_at(bytes, 0).expect("a memfd can be written");
    let size = debug_data_size(&FILE);
    assert!(size.is_none_or(|size| size <= LIMIT));
    assert_eq!(debug_data_size(&FILE), size);
});
