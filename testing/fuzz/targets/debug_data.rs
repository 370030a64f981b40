//! The symbols that a file contains in `.gnu_debugdata`, compressed with xz.
//!
//! Input: which of the two (1 byte), an ELF file or the section's contents.
#![no_main]

mod sections;

use libfuzzer_sys::fuzz_target;
use otelctx_symbolize::debug_data_size;

/// Maximum size of the section's file, in bytes.
const LIMIT: u64 = 256 << 20;

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, rest)) = bytes.split_first() else {
        return;
    };
    let made = (kind % 2 == 1).then(|| sections::elf(&[(".gnu_debugdata", rest)]));
    let bytes = made.as_deref().unwrap_or(rest);
    let file = sections::file_of(bytes);
    let size = debug_data_size(file);
    assert!(size.is_none_or(|size| size <= LIMIT));
    assert_eq!(debug_data_size(file), size);
});
