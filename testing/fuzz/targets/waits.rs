//! What explains why a thread waits: links of descriptors, tables of sockets, addresses, names.
//!
//! Input: which decoder (1 byte), what it reads.
#![no_main]

use libfuzzer_sys::fuzz_target;
use otelctx_waits::untrusted::{KINDS, decode};

/// Maximum length of a name in characters, if each is written as its number: `\\u{10ffff}`.
const MAX_NAME: usize = 256 * 10;

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, rest)) = bytes.split_first() else {
        return;
    };
    let kind = kind % KINDS;
    let decoded = decode(kind, rest);
    assert_eq!(decode(kind, rest), decoded);
    if kind == KINDS - 1 {
        assert!(!decoded.contains(char::is_control));
        assert!(decoded.chars().count() <= MAX_NAME);
        // What is plain already stays as it is.
        if decoded.chars().count() <= 256 {
            assert_eq!(decode(kind, decoded.as_bytes()), decoded);
        }
    }
});
