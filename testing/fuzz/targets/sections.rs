//! ELF files that are made of sections.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::LazyLock;

use nix::sys::memfd::{MFdFlags, memfd_create};

/// A file that costs no disk.
static FILE: LazyLock<File> = LazyLock::new(|| {
    File::from(memfd_create(c"input", MFdFlags::empty()).expect("a memfd is to be had"))
});

/// The file, with these contents alone.
pub(crate) fn file_of(bytes: &[u8]) -> &'static File {
    FILE.set_len(0).expect("a memfd can be written");
    FILE.write_all_at(bytes, 0).expect("a memfd can be written");
    &FILE
}

/// Size of an ELF header and of a section's header, in bytes.
const SIZES: [u64; 2] = [64, 64];

/// An ELF file of x86-64 with these sections, and one with their names at its end.
pub(crate) fn elf(sections: &[(&str, &[u8])]) -> Vec<u8> {
    let [header, entry] = SIZES;
    let count = sections.len() as u64 + 2;
    let mut contents = header + count * entry;
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
        (count, 2),
        (count - 1, 2),
    ];
    for (value, size) in fields {
        word(&mut file, value, size);
    }
    file.resize((header + entry) as usize, 0);
    let mut names = vec![0];
    let mut section = |file: &mut Vec<u8>, name: u64, kind: u64, length: usize| {
        // sh_name, sh_type, sh_flags, sh_addr, sh_offset, sh_size, sh_link and sh_info, sh_addralign, sh_entsize
        let fields = [name | kind << 32, 0, 0, contents, length as u64, 0, 1, 0];
        for field in fields {
            word(file, field, 8);
        }
        contents += length as u64;
    };
    for (name, bytes) in sections {
        // SHT_PROGBITS
        section(&mut file, names.len() as u64, 1, bytes.len());
        names.extend_from_slice(name.as_bytes());
        names.push(0);
    }
    // SHT_STRTAB
    section(&mut file, 0, 3, names.len());
    for (_, bytes) in sections {
        file.extend_from_slice(bytes);
    }
    file.extend_from_slice(&names);
    file
}
