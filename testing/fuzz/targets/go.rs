//! The functions of a Go program: their names and the sizes of their stacks.
//!
//! Input: the addresses of the entry point, of the code, and to look up (8 bytes each), the table.
#![no_main]

use std::ops::ControlFlow;

use libfuzzer_sys::fuzz_target;
use otelctx_remote::elf::GoTable;

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
    let Some(table) = GoTable::parse(table.to_vec(), word(0), word(1)) else {
        return;
    };
    let found = table.function_at(word(2));
    assert!(found.is_none_or(|it| it.range().contains(&word(2))));
    let mut end = 0;
    for function in table.functions().take(64) {
        assert!(function.name().len() <= LIMIT);
        let range = function.range();
        assert!(end <= range.start && range.start <= range.end);
        end = range.end;
        let mut last = None;
        function.stack_sizes(&mut |address, size| {
            assert!(range.contains(&address) && size >= 0);
            assert!(last.is_none_or(|last| last < address));
            last = Some(address);
            ControlFlow::Continue(())
        });
    }
});
