//! The names of the stubs in procedure linkage tables.
//!
//! Input: an address (8 bytes), an ELF file.
#![no_main]

#[expect(dead_code, reason = "the file is the input itself")]
mod sections;

use libfuzzer_sys::fuzz_target;
use otelctx_symbolize::stub_name;

/// Maximum length of a name, in bytes. Invalid UTF-8 takes three for one, and `@plt` is added.
const LIMIT: usize = 3 * 4096 + 4;

fuzz_target!(|bytes: &[u8]| {
    let Some((address, bytes)) = bytes.split_first_chunk() else {
        return;
    };
    let address = u64::from_le_bytes(*address);
    let file = sections::file_of(bytes);
    let name = stub_name(file, address);
    let is_bounded = |it: &String| it.ends_with("@plt") && it.len() <= LIMIT;
    assert!(name.as_ref().is_none_or(is_bounded));
    assert_eq!(stub_name(file, address), name);
});
