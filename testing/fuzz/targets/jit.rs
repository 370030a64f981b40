//! Names of generated code: a perf map or a jitdump file.
//!
//! Input: which of the two (1 byte), how many bytes were there when it was read first (2 bytes), the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use otelctx_sampler::announced_functions;
use otelctx_sampler::sample::Frame;

/// Functions that are kept.
const LIMIT: usize = 100;
/// Longer lines and records are read in part.
const MAX_ENTRY: usize = 8 << 10;
/// Maximum length of a name, in bytes. Each byte that is not UTF-8 becomes three.
const MAX_NAME: usize = 3 << 10;

fuzz_target!(|bytes: &[u8]| {
    let Some(([kind, low, high], file)) = bytes.split_first_chunk() else {
        return;
    };
    let is_dump = kind % 2 == 1;
    let whole = announced_functions(file, is_dump, 0, LIMIT);
    assert!(whole.len() <= LIMIT);
    let mut end = 0;
    for (start, behind, frame) in &whole {
        assert!(end <= *start && start < behind);
        end = *behind;
        let Frame::Named(named) = frame else {
            panic!("{frame:?}")
        };
        for text in [&named.function, &named.qualified_name, &named.file] {
            assert!(text.len() <= MAX_NAME);
        }
    }
    if file.len() <= MAX_ENTRY {
        let cut = u16::from_le_bytes([*low, *high]).into();
        assert_eq!(announced_functions(file, is_dump, cut, LIMIT), whole);
    }
});
