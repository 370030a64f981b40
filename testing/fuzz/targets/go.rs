//! The names that Go's runtime has of its functions.
//!
//! Input: the addresses of the entry point, of the code, and to look up (8 bytes each), the table.
#![no_main]

use libfuzzer_sys::fuzz_target;
use otelctx_symbolize::go_function;

/// Maximum length of a name, in bytes. Invalid UTF-8 takes three for one.
const LIMIT: usize = 3 * 4096;

fuzz_target!(|bytes: &[u8]| {
    let Some((words, table)) = bytes.split_first_chunk::<24>() else {
        return;
    };
    let word = |index: usize| {
        let word = words[8 * index..].first_chunk().copied();
        u64::from_le_bytes(word.unwrap_or_default())
    };
    let name = || go_function(table, (word(0), word(1)), word(2));
    let found = name();
    assert!(
        found
            .as_ref()
            .is_none_or(|it| !it.is_empty() && it.len() <= LIMIT)
    );
    assert_eq!(name(), found);
});
