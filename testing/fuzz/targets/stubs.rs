//! The functions that the stubs in procedure linkage tables call.
//!
//! Input: an address (8 bytes), an ELF file.
#![no_main]

#[expect(dead_code, reason = "the file is the input itself")]
mod sections;

use libfuzzer_sys::fuzz_target;
use otelctx_symbolize::called_by_stub;

/// Maximum length of a name, in bytes. Invalid UTF-8 takes three for one.
const LIMIT: usize = 3 * 4096;

fuzz_target!(|bytes: &[u8]| {
    let Some((address, bytes)) = bytes.split_first_chunk() else {
        return;
    };
    let address = u64::from_le_bytes(*address);
    let file = sections::file_of(bytes);
    let name = called_by_stub(file, address);
    assert!(name.as_ref().is_none_or(|it| it.len() <= LIMIT));
    assert_eq!(called_by_stub(file, address), name);
});
