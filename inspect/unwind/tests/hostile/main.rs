//! Files that are made to take time, memory or other files' room, and files that are damaged.

mod elf;

use std::fs::File;
use std::sync::Arc;

use otelctx_remote::elf::{Elf, FileBytes, Source};
use otelctx_unwind::{
    Cfa, Dictionary, Error, FileRows, FrameRule, MAX_RULES, ReturnAddress, Rule, Saved,
};

use elf::{CODE, Image, Section, Table};

/// `DW_CFA_advance_loc` by one byte, `DW_CFA_def_cfa_offset`, `DW_CFA_remember_state`
const ADVANCE: u8 = 0x41;
const OFFSET: u8 = 0x0e;
const REMEMBER: u8 = 0x0a;

fn read(file: &File, dictionary: &Arc<Dictionary>) -> Result<FileRows, Error> {
    let bytes = FileBytes(file);
    let elf = Elf::read(Source::File(&bytes))
        .expect("the headers are sound")
        .expect("ELF");
    FileRows::of(&elf, dictionary)
}

fn rows(table: Table) -> Result<FileRows, Error> {
    read(&Image::new(table).file(), &Arc::new(Dictionary::new()))
}

/// The CFA is `offset` bytes above the stack pointer.
fn above(offset: i32) -> Rule {
    Rule::Frame(FrameRule {
        cfa: Cfa::Register {
            register: 7,
            offset,
        },
        frame_pointer: Saved::Same,
        base: Saved::Unknown,
        return_address: ReturnAddress::AtCfa(-8),
    })
}

/// An unsigned LEB128 number of five bytes.
fn number(value: u32) -> [u8; 5] {
    std::array::from_fn(|index| {
        let more = if index < 4 { 0x80 } else { 0 };
        (value >> (7 * index)) as u8 & 0x7f | more
    })
}

#[test]
fn a_function_has_its_rules_and_nothing_else_has() {
    for section in Section::each() {
        let mut table = Table::new(section);
        let common = table.common(&[]);
        table.function(
            common,
            CODE + 16,
            32,
            &[ADVANCE, OFFSET, 16, ADVANCE, OFFSET, 24],
        );
        let rows = rows(table).unwrap();
        for (at, rule) in [
            (0, Rule::Gap),
            (CODE + 15, Rule::Gap),
            (CODE + 16, above(8)),
            (CODE + 17, above(16)),
            (CODE + 18, above(24)),
            (CODE + 47, above(24)),
            (CODE + 48, Rule::Gap),
            (u64::MAX, Rule::Gap),
        ] {
            assert_eq!(rows.rule_at(at), rule, "{at:#x}");
        }
        assert_eq!(rows.rows().len(), 4);
    }
}

#[test]
fn alignment_between_functions_takes_no_row_and_a_hole_does() {
    for section in Section::each() {
        let mut table = Table::new(section);
        let common = table.common(&[]);
        table.function(common, CODE, 1, &[]);
        table.function(common, CODE + 16, 1, &[]);
        table.function(common, CODE + 33, 1, &[]);
        let rows = rows(table).unwrap();
        assert_eq!(rows.rule_at(CODE + 15), above(8));
        assert_eq!(rows.rule_at(CODE + 17), Rule::Gap);
        assert_eq!(rows.rows().len(), 4);
    }
}

#[test]
fn a_table_cut_anywhere_keeps_what_comes_before() {
    for section in Section::each() {
        let mut table = Table::new(section);
        let common = table.common(&[]);
        let second = table.function(common, CODE, 16, &[ADVANCE, OFFSET, 16]);
        let end = table.function(common, CODE + 64, 16, &[ADVANCE, OFFSET, 32]);
        for length in 0..table.bytes.len() {
            let rows = rows(Table {
                section,
                bytes: table.bytes[..length].to_vec(),
            });
            if length < end {
                // Less than the length and the id of an entry is nothing.
                let is_nothing = length < 4 || (second..second + 4).contains(&length);
                let expected = match is_nothing {
                    true => Error::NoTables,
                    false => Error::Damaged { entries: 0 },
                };
                assert_eq!(rows.unwrap_err(), expected, "{length}");
                continue;
            }
            let rows = rows.unwrap_or_else(|error| panic!("{length}: {error}"));
            assert_eq!(rows.rule_at(CODE + 1), above(16));
            assert_eq!(rows.rule_at(CODE + 65), Rule::Gap);
            assert_eq!(
                rows.counts().truncated,
                u64::from(length >= end + 4),
                "{length}"
            );
        }
        assert!(second < end);
    }
}

#[test]
fn entries_that_refer_to_no_common_one_are_damaged_and_others_are_not() {
    for section in Section::each() {
        let mut table = Table::new(section);
        let common = table.common(&[]);
        let function = table.function(common, CODE, 16, &[]);
        // Itself; another function; outside; in the middle of the common entry.
        let body = [&(CODE + 64).to_le_bytes()[..], &16_u64.to_le_bytes()].concat();
        for to in [table.bytes.len(), function, 1 << 30, common + 1] {
            table.entry(table.reference(to), &body);
        }
        table.function(common, CODE + 128, 16, &[]);
        let rows = rows(table).unwrap();
        assert_eq!(rows.counts().damaged, 4);
        assert_eq!(rows.counts().entries, 6);
        assert_eq!(rows.rule_at(CODE), above(8));
        assert_eq!(rows.rule_at(CODE + 64), Rule::Gap);
        assert_eq!(rows.rule_at(CODE + 128), above(8));
    }
}

#[test]
fn damaged_instructions_leave_a_gap_behind_them() {
    for section in Section::each() {
        let mut table = Table::new(section);
        let common = table.common(&[]);
        // More states than are remembered; an unknown instruction; a state that was not remembered.
        let damaged: [&[u8]; 3] = [&[REMEMBER; 20], &[0x3f], &[0x0b]];
        for (index, code) in damaged.iter().enumerate() {
            let code = [
                &[ADVANCE, OFFSET, 16, ADVANCE],
                *code,
                &[ADVANCE, OFFSET, 24],
            ]
            .concat();
            table.function(common, CODE + 64 * index as u64, 32, &code);
        }
        let rows = rows(table).unwrap();
        assert_eq!(rows.counts().damaged, 3);
        for index in 0..3 {
            let start = CODE + 64 * index;
            assert_eq!(rows.rule_at(start), above(8));
            assert_eq!(rows.rule_at(start + 1), above(16));
            assert_eq!(rows.rule_at(start + 2), Rule::Gap);
            assert_eq!(rows.rule_at(start + 31), Rule::Gap);
        }
    }
}

#[test]
fn a_file_of_nothing_but_damage_says_so() {
    for section in Section::each() {
        let mut table = Table::new(section);
        table.entry(77, &[0; 16]);
        let error = rows(table).unwrap_err();
        assert_eq!(error, Error::Damaged { entries: 1 });
        assert_eq!(rows(Table::new(section)).unwrap_err(), Error::NoTables);
    }
}

#[test]
fn of_functions_that_overlap_the_one_that_starts_first_has_the_code() {
    for section in Section::each() {
        let mut table = Table::new(section);
        let common = table.common(&[]);
        for index in 0..1000_u64 {
            let code = [OFFSET, 16 + index as u8 % 8 * 8];
            table.function(common, CODE + index, 100, &code);
        }
        table.function(common, CODE, 100, &[OFFSET, 8]);
        let rows = rows(table).unwrap();
        assert_eq!(rows.rule_at(CODE), above(16));
        assert_eq!(rows.rule_at(CODE + 99), above(16));
        // The next one with bytes of its own.
        assert_eq!(rows.rule_at(CODE + 100), above(24));
        assert_eq!(rows.rule_at(CODE + 1098), above(16 + 999 % 8 * 8));
        assert_eq!(rows.rule_at(CODE + 1099), Rule::Gap);
        assert_eq!(rows.counts().overlapping, 1000);
    }
}

#[test]
fn a_large_common_entry_that_thousands_share_is_a_limit() {
    for section in Section::each() {
        let mut table = Table::new(section);
        let common = table.common(&vec![0; 1 << 20]);
        for index in 0..1000 {
            table.function(common, CODE + 16 * index, 16, &[]);
        }
        let error = rows(table).unwrap_err();
        let what = "bytes of unwind instructions";
        assert_eq!(
            error,
            Error::Limit {
                what,
                limit: 64 << 20
            }
        );
    }
}

#[test]
fn ten_million_rows_are_a_limit() {
    for section in Section::each() {
        let mut table = Table::new(section);
        let common = table.common(&[]);
        let code: Vec<u8> = [ADVANCE, OFFSET, 16, ADVANCE, OFFSET, 24].repeat(1000);
        for index in 0..5001 {
            table.function(common, CODE + 2000 * index, 2000, &code);
        }
        let error = rows(table).unwrap_err();
        assert_eq!(
            error,
            Error::Limit {
                what: "different rows",
                limit: 4 << 20
            }
        );
        // The same where rows say the same.
        let mut table = Table::new(section);
        let common = table.common(&[]);
        for index in 0..2501 {
            table.function(common, CODE + 2000 * index, 2000, &[ADVANCE; 2000]);
        }
        let error = rows(table).unwrap_err();
        assert_eq!(
            error,
            Error::Limit {
                what: "rows",
                limit: 5_000_000
            }
        );
    }
}

#[test]
fn a_file_cannot_fill_the_dictionary_for_others() {
    for section in Section::each() {
        let dictionary = Arc::new(Dictionary::new());
        let code: Vec<u8> = (0..40_000)
            .flat_map(|offset| [&[ADVANCE, OFFSET][..], &number(1000 + offset)].concat())
            .collect();
        let mut table = Table::new(section);
        let common = table.common(&[]);
        table.function(common, CODE, 40_001, &code);
        let rows = read(&Image::new(table).file(), &dictionary).unwrap();
        assert!(dictionary.len() < MAX_RULES / 4, "{}", dictionary.len());
        // The rule of the common entry is one of those. Every dictionary has two rules.
        assert_eq!(
            rows.counts().dictionary_full,
            40_001 - (dictionary.len() as u64 - 2)
        );
        // The frame pointer would lead past callers.
        assert_eq!(rows.rule_at(CODE + 40_000), Rule::Unsupported);
        assert_eq!(rows.rule_at(CODE + 1), above(1000));

        let mut table = Table::new(section);
        let common = table.common(&[]);
        table.function(common, CODE, 16, &[OFFSET, 0x7f]);
        let rows = read(&Image::new(table).file(), &dictionary).unwrap();
        assert_eq!(rows.rule_at(CODE), above(127));
    }
}

#[test]
fn sizes_that_headers_claim_allocate_nothing() {
    for section in Section::each() {
        let mut image = Image::new(Table::new(section));
        image.size = Some(1 << 40);
        let error = read(&image.file(), &Arc::new(Dictionary::new())).unwrap_err();
        let what = section.bytes();
        assert_eq!(
            error,
            Error::Limit {
                what,
                limit: 64 << 20
            }
        );

        let mut table = Table::new(section);
        let common = table.common(&[]);
        table.function(common, CODE, 16, &[]);
        let mut image = Image::new(table);
        image.code.push((CODE + (1 << 33), 4096));
        let error = read(&image.file(), &Arc::new(Dictionary::new())).unwrap_err();
        assert_eq!(
            error,
            Error::Limit {
                what: "bytes of code",
                limit: 1 << 32
            }
        );
        image.code = vec![(u64::MAX - 4096, 4096)];
        let error = read(&image.file(), &Arc::new(Dictionary::new())).unwrap_err();
        assert!(matches!(error, Error::Elf(_)), "{error}");
    }
}

#[test]
fn code_that_is_not_executable_gets_no_rules() {
    for section in Section::each() {
        let mut table = Table::new(section);
        let common = table.common(&[]);
        table.function(common, 0, 16, &[]);
        table.function(common, CODE, 16, &[]);
        table.function(common, CODE + (1 << 30) - 8, 1 << 40, &[]);
        table.function(common, CODE + 64, u64::MAX, &[]);
        let rows = rows(table).unwrap();
        assert_eq!(rows.counts().misplaced, 1);
        assert_eq!(rows.counts().damaged, 1);
        assert_eq!(rows.rule_at(0), Rule::Gap);
        assert_eq!(rows.rule_at(CODE + (1 << 30) - 1), above(8));
        assert_eq!(rows.rule_at(CODE + (1 << 30)), Rule::Gap);
    }
}
