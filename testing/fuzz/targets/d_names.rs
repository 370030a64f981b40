//! Demangled names, of D with what is behind its prefix.
//!
//! Input: the name.
#![no_main]

use libfuzzer_sys::fuzz_target;
use otelctx_symbolize::demangled;

/// Maximum length of a demangled name of D, in bytes.
const LIMIT: usize = 64 << 10;

fuzz_target!(|bytes: &[u8]| {
    let Ok(name) = std::str::from_utf8(bytes) else {
        return;
    };
    let mangled = format!("_D{name}");
    let found = demangled(&mangled);
    // What no compiler has made stays as it is. A suffix such as `.cold` is kept.
    assert!(found == mangled || found.len() <= LIMIT + mangled.len() + "[clone ]".len());
    assert!(!found.is_empty());
    assert_eq!(demangled(&mangled), found);
    // Of all other languages.
    assert_eq!(demangled(name), demangled(name));
});
