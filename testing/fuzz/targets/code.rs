//! Rules that are made of instructions, of functions without unwind tables.
//!
//! Input: the architecture (1 byte), the offset of the entry point (2 bytes), the
//! number of symbols (1 byte) and their offsets in the code (2 bytes each), the code.
#![no_main]

#[expect(dead_code, reason = "the file has a segment and symbols")]
mod sections;

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use otelctx_remote::FileBytes;
use otelctx_remote::a64::Instruction;
use otelctx_remote::elf::{Elf, Source};
use otelctx_unwind::{Dictionary, FileRows, UnwindTables};

/// The address of the code.
const START: u64 = 0x1000;
/// Machines, by ELF's numbers: x86-64, aarch64.
const MACHINES: [u16; 2] = [62, 183];

/// Takes bytes from the front.
fn take<'a>(bytes: &mut &'a [u8], size: usize) -> Option<&'a [u8]> {
    let (taken, left) = bytes.split_at_checked(size)?;
    *bytes = left;
    Some(taken)
}

fn number(bytes: &mut &[u8]) -> Option<u64> {
    let bytes = take(bytes, 2)?;
    Some(u16::from_le_bytes([bytes[0], bytes[1]]).into())
}

/// An ELF file with one segment of code, and symbols of functions in it.
fn file(machine: u16, entry: u64, symbols: &[u64], code: &[u8]) -> Vec<u8> {
    const HEADER: u64 = 64;
    const SEGMENT: u64 = 56;
    const SECTION: u64 = 64;
    const SYMBOL: u64 = 24;
    let table = HEADER + SEGMENT + 3 * SECTION;
    let names = table + SYMBOL * (symbols.len() as u64 + 1);
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    let words = |file: &mut Vec<u8>, words: &[(u64, usize)]| {
        for (value, size) in words {
            file.extend_from_slice(&value.to_le_bytes()[..*size]);
        }
    };
    let offset = names + 1;
    // e_type and e_machine to e_entry, e_phoff, e_shoff, e_flags, sizes and counts
    words(
        &mut file,
        &[(3, 2), (machine.into(), 2), (1, 4), (entry, 8), (HEADER, 8)],
    );
    words(
        &mut file,
        &[
            (HEADER + SEGMENT, 8),
            (0, 4),
            (HEADER, 2),
            (SEGMENT, 2),
            (1, 2),
        ],
    );
    words(&mut file, &[(SECTION, 2), (3, 2), (2, 2)]);
    // PT_LOAD, readable and executable
    let size = code.len() as u64;
    words(
        &mut file,
        &[
            (1, 4),
            (5, 4),
            (offset, 8),
            (START, 8),
            (START, 8),
            (size, 8),
            (size, 8),
            (1, 8),
        ],
    );
    file.resize((HEADER + SEGMENT + SECTION) as usize, 0);
    // SHT_SYMTAB with its strings, SHT_STRTAB
    let table_size = SYMBOL * (symbols.len() as u64 + 1);
    words(
        &mut file,
        &[
            (0, 4),
            (2, 4),
            (0, 8),
            (0, 8),
            (table, 8),
            (table_size, 8),
            (2, 4),
            (1, 4),
            (8, 8),
            (SYMBOL, 8),
        ],
    );
    words(
        &mut file,
        &[
            (0, 4),
            (3, 4),
            (0, 8),
            (0, 8),
            (names, 8),
            (1, 8),
            (0, 4),
            (0, 4),
            (1, 8),
            (0, 8),
        ],
    );
    words(&mut file, &[(0, 8); 3]);
    for symbol in symbols {
        // STT_FUNC, global, in a section
        words(
            &mut file,
            &[
                (0, 4),
                (0x12, 1),
                (0, 1),
                (1, 2),
                (START + symbol, 8),
                (0, 8),
            ],
        );
    }
    file.push(0);
    file.extend_from_slice(code);
    file
}

fn run(bytes: &[u8]) -> Option<()> {
    let mut bytes = bytes;
    let machine = MACHINES[usize::from(take(&mut bytes, 1)?[0]) % 2];
    let entry = START + number(&mut bytes)?;
    let count = take(&mut bytes, 1)?[0];
    let symbols: Option<Vec<u64>> = (0..count).map(|_| number(&mut bytes)).collect();
    let words = bytes.as_chunks().0.iter().zip(0..);
    for (word, index) in words {
        let _ = Instruction::decode(u32::from_le_bytes(*word), u64::MAX - 16 + 4 * (index % 8));
    }
    let file = sections::file_of(&file(machine, entry, &symbols?, bytes));
    let contents = FileBytes(file);
    let elf = Elf::read(Source::File(&contents)).ok()??;
    let tables = UnwindTables::read(&elf).ok()?;
    let make = || tables.rows(&Arc::new(Dictionary::new())).ok();
    let rules = |rows: &FileRows| -> Vec<_> {
        let end = START + bytes.len() as u64;
        (START.saturating_sub(16)..end + 16)
            .map(|at| rows.rule_at(at))
            .collect()
    };
    let (first, second) = (make(), make());
    assert_eq!(first.as_ref().map(rules), second.as_ref().map(rules));
    Some(())
}

fuzz_target!(|bytes: &[u8]| {
    let _ = run(bytes);
});
