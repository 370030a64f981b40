//! The parts of debug information in which functions are looked up.
//!
//! Input: an address (8 bytes), the sizes of `.debug_info`, `.debug_line` and `.debug_aranges` (2 bytes each), these
//! sections, and what is left as `.debug_abbrev`.
#![no_main]

mod sections;

use std::ops::Range;

use libfuzzer_sys::fuzz_target;
use otelctx_symbolize::debug_info_parts;

fuzz_target!(|bytes: &[u8]| {
    let Some((head, mut rest)) = bytes.split_first_chunk::<14>() else {
        return;
    };
    let address = u64::from_le_bytes(*head.first_chunk().expect("it has 14 bytes"));
    let size = |index: usize| {
        usize::from(u16::from_le_bytes([
            head[8 + 2 * index],
            head[9 + 2 * index],
        ]))
    };
    let mut take = |size: usize| {
        let (section, left) = rest.split_at(size.min(rest.len()));
        rest = left;
        section
    };
    let [info, line, aranges] = [0, 1, 2].map(|index| take(size(index)));
    let elf = sections::elf(&[
        (".debug_info", info),
        (".debug_line", line),
        (".debug_aranges", aranges),
        (".debug_abbrev", rest),
    ]);
    let file = sections::file_of(&elf);
    let found = debug_info_parts(file, &[address]);
    assert_eq!(debug_info_parts(file, &[address]), found);
    let Some((needed, headers)) = found else {
        return;
    };
    // Six section headers precede them: of none, these four, and the names.
    let start = 64 + 6 * 64;
    let end = start + info.len() as u64;
    let (mut of_info, of_line): (Vec<Range<u64>>, Vec<_>) =
        needed.into_iter().partition(|it| it.start < end);
    for range in of_line {
        assert!(range.start <= range.end && range.end <= end + line.len() as u64);
    }
    // Each unit is needed, or hidden by a header in its own place.
    of_info.sort_by_key(|it| it.start);
    let mut at = start;
    for range in of_info {
        if let Some(offset) = headers.iter().find(|offset| **offset == at) {
            assert!(offset + 24 <= range.start);
        } else {
            assert_eq!(range.start, at);
        }
        assert!(range.start < range.end && range.end <= end);
        at = range.end;
    }
    assert!(at == end || headers.contains(&at) && at + 24 <= end);
});
