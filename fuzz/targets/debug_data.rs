//! The symbols that a file contains in `.gnu_debugdata`, compressed with xz.
//!
//! Input: which of the two (1 byte), an ELF file or the section's contents.
#![no_main]

mod sections;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use nix::sys::memfd::{MFdFlags, memfd_create};
use otelctx_symbolize::debug_data_size;

/// Maximum size of the section's file, in bytes.
const LIMIT: u64 = 256 << 20;

/// A file that costs no disk.
static FILE: LazyLock<File> = LazyLock::new(|| {
    File::from(memfd_create(c"debug_data", MFdFlags::empty()).expect("a memfd is to be had"))
});

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, rest)) = bytes.split_first() else {
        return;
    };
    let made = (kind % 2 == 1).then(|| sections::elf(&[(".gnu_debugdata", rest)]));
    let bytes = made.as_deref().unwrap_or(rest);
    FILE.set_len(0).expect("a memfd can be written");
    FILE.write_all_at(bytes, 0).expect("a memfd can be written");
    let size = debug_data_size(&FILE);
    assert!(size.is_none_or(|size| size <= LIMIT));
    assert_eq!(debug_data_size(&FILE), size);
});
