//! Rows of an ELF file's unwind tables, and a walk over them.
//!
//! Input: the number of words of a stack (1 byte), the words, an ELF file.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use otelctx_remote::elf::{Elf, Source};
use otelctx_remote::memory::Image;
use otelctx_unwind::{
    CodeMap, CodeMapping, Dictionary, FileRows, FileRules, MakeRules, PAGE_SIZE, Registers,
    StackEnd, walk,
};

/// Where the stack is.
const STACK: u64 = 0x7fff_0000_0000;

fuzz_target!(|bytes: &[u8]| {
    let Some((count, rest)) = bytes.split_first() else {
        return;
    };
    let Some((stack, file)) = rest.split_at_checked(8 * usize::from(*count)) else {
        return;
    };
    let mut image = Image::new();
    image.map(0, file);
    let Ok(Some(elf)) = Elf::read(Source::File(&image)) else {
        return;
    };
    let dictionary = Arc::new(Dictionary::new());
    let Ok(rows) = FileRows::of(&elf, &dictionary) else {
        return;
    };
    let table = rows.rows();
    // Four bytes a row, and four a page.
    assert_eq!(table.bytes(), 4 * (table.len() + table.pages() + 1));
    let mut before = None;
    for (address, rule) in table.iter() {
        assert!(before.is_none_or(|before| before < address));
        assert!(usize::from(rule) < dictionary.len());
        assert_eq!(table.rule_at(address), rule);
        before = Some(address);
    }
    let again = FileRows::of(&elf, &dictionary).expect("it was readable");
    assert_eq!(again.rows(), table);
    assert_eq!(again.counts(), rows.counts());

    let words: Vec<u64> = stack
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")))
        .collect();
    let start = table.first_page() * PAGE_SIZE;
    let end = start + table.pages() as u64 * PAGE_SIZE;
    let machine = elf.machine();
    let Some(mut registers) = words
        .first()
        .and_then(|address| Registers::new(machine, *address, STACK))
    else {
        return;
    };
    for (number, value) in words.iter().skip(1).take(32).enumerate() {
        registers.set(number as u8, *value);
    }
    let mut memory = Image::new();
    memory.map_u64(STACK, &words);
    let on_demand = FileRules::of(&elf, &dictionary, MakeRules::OnDemand);
    let both = [Ok(Arc::new(rows).into()), on_demand.map_err(Some)];
    for rules in both {
        let code = CodeMap::of([CodeMapping {
            start,
            end,
            bias: 0,
            rules,
        }]);
        check_walk(&registers, &code, &memory);
    }
});

fn check_walk(registers: &Registers, code: &CodeMap, memory: &Image) {
    let mut frames = Vec::new();
    let end = walk(registers, code, memory, 1000, &mut frames);
    assert!(!frames.is_empty() && frames.len() <= 1000);
    assert_eq!(end == StackEnd::Limit, frames.len() == 1000);
    // All but the first are executable.
    let mut callers = frames.iter().skip(1);
    assert!(callers.all(|it| code.at(it.address - u64::from(it.is_caller)).is_some()));
}
