//! Rules compared with what binutils' readelf makes of the same tables, on both architectures.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use otelctx_fixtures::{Compiler, DEBUG_FRAME, rust_program};
use otelctx_remote::Machine;
use otelctx_remote::elf::{Elf, FileBytes, Source};
use otelctx_unwind::{Cfa, Dictionary, FileRows, FrameRule, ReturnAddress, Rule, Saved};

/// A register's DWARF number by the name that readelf gives it.
fn number(machine: Machine, name: &str) -> u8 {
    const X86_64: [&str; 17] = [
        "rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12",
        "r13", "r14", "r15", "rip",
    ];
    match machine {
        Machine::X86_64 => X86_64
            .iter()
            .position(|it| *it == name)
            .expect("a register") as u8,
        _ if name == "sp" => 31,
        _ => name
            .strip_prefix('x')
            .expect("a register")
            .parse()
            .expect("a number"),
    }
}

/// `rsp+8`
fn base_and_offset(machine: Machine, text: &str) -> Option<(u8, i32)> {
    let at = text.find(['+', '-'])?;
    Some((number(machine, &text[..at]), text[at..].parse().ok()?))
}

/// The rows that were compared.
#[derive(Debug, Default)]
struct Tally {
    frames: u64,
    /// Those of `.debug_frame`.
    debug_frames: u64,
    /// Rows with expressions, or those of signal frames.
    special: u64,
}

fn compare(path: &Path) -> Option<Tally> {
    let file = File::open(path).expect("the file");
    let bytes = FileBytes(&file);
    let elf = Elf::read(Source::File(&bytes))
        .expect("sound headers")
        .expect("ELF");
    let machine = elf.machine();
    let rows = FileRows::of(&elf, &Arc::new(Dictionary::new())).expect("tables");
    assert_eq!(rows.counts().damaged, 0, "{path:?}");
    let mut readelf = Command::new("readelf");
    let output = readelf
        .args(["--debug-dump=frames-interp", "--wide"])
        .arg(path)
        .output();
    let Ok(output) = output else {
        eprintln!("skipped: readelf is not installed");
        return None;
    };
    let text = String::from_utf8(output.stdout).expect("ASCII");

    let mut tally = Tally::default();
    let mut columns: Vec<String> = Vec::new();
    // Common entries that are about signal frames, and the current entry.
    let mut commons: HashMap<String, (bool, u8)> = HashMap::new();
    let (mut is_signal, mut column) = (false, 0);
    let (mut is_function, mut is_debug_frame) = (false, false);
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [offset, _, _, "CIE", augmentation, .., column] => {
                let column = column.trim_start_matches("ra=").parse().expect("a number");
                commons.insert((*offset).to_owned(), (augmentation.contains('S'), column));
                is_function = false;
            }
            [_, _, _, "FDE", common, ..] => {
                let common = common.trim_start_matches("cie=");
                (is_signal, column) = commons[common];
                is_function = true;
            }
            ["Contents", "of", "the", section, "section:"] => {
                is_debug_frame = *section == ".debug_frame";
                commons.clear();
            }
            ["LOC", rest @ ..] => columns = rest.iter().map(|it| (*it).to_owned()).collect(),
            [address, cells @ ..] if is_function && cells.len() >= columns.len() => {
                let Ok(address) = u64::from_str_radix(address, 16) else {
                    continue;
                };
                // `r9 (r9)` is two words.
                let cells: Vec<&str> = cells
                    .iter()
                    .filter(|it| !it.starts_with('('))
                    .copied()
                    .collect();
                let cell = |name: &str| {
                    let column = columns.iter().position(|it| it == name);
                    column.and_then(|it| cells.get(it)).copied().unwrap_or("u")
                };
                let rule = rows.rule_at(address);
                if is_signal {
                    assert!(
                        matches!(rule, Rule::Context { signal: true, .. }),
                        "{rule:?}"
                    );
                    tally.special += 1;
                    continue;
                }
                let (frame_pointer, return_address) = match machine {
                    Machine::X86_64 => (cell("rbp"), cell("ra")),
                    _ => (cell("x29"), cell("ra")),
                };
                let Some((register, offset)) = base_and_offset(machine, cell("CFA")) else {
                    tally.special += 1;
                    continue;
                };
                let Rule::Frame(found) = rule else {
                    // readelf shows undefined and unspecified registers alike.
                    let is_end = rule == Rule::End && return_address == "u";
                    assert!(
                        is_end || cell("rsp") != "u",
                        "{path:?} {address:#x} {rule:?}: {line}"
                    );
                    tally.special += 1;
                    continue;
                };
                if cell("rsp") != "u" {
                    tally.special += 1;
                    continue;
                }
                assert_eq!(
                    found.cfa,
                    Cfa::Register { register, offset },
                    "{path:?}: {line}"
                );
                check(
                    (machine, column),
                    found,
                    offset,
                    frame_pointer,
                    return_address,
                    line,
                );
                tally.frames += 1;
                tally.debug_frames += u64::from(is_debug_frame);
            }
            _ => {}
        }
    }
    Some(tally)
}

fn check(
    (machine, column): (Machine, u8),
    found: FrameRule,
    height: i32,
    frame_pointer: &str,
    return_address: &str,
    line: &str,
) {
    let offset = |text: &str| text.strip_prefix('c').and_then(|it| it.parse::<i32>().ok());
    match offset(return_address) {
        Some(offset) => assert_eq!(found.return_address, ReturnAddress::AtCfa(offset), "{line}"),
        None if return_address == "u" => {
            assert_eq!(machine, Machine::Aarch64, "{line}");
            assert_eq!(
                found.return_address,
                ReturnAddress::Register(column),
                "{line}"
            );
        }
        None => assert!(
            matches!(found.return_address, ReturnAddress::Register(_)),
            "{line}"
        ),
    }
    match (offset(frame_pointer), found.frame_pointer) {
        (Some(offset), Saved::AtCfa(found)) => assert_eq!(found, offset, "{line}"),
        // Restored already, and below the stack pointer.
        (Some(offset), Saved::Same) => assert!(height + offset < 0, "{line}"),
        (Some(_), other) => panic!("{other:?}: {line}"),
        (None, Saved::Same) => assert!(matches!(frame_pointer, "u" | "s"), "{line}"),
        (None, Saved::AtCfa(_)) => panic!("{line}"),
        (None, _) => assert!(
            frame_pointer.contains("exp") || frame_pointer.starts_with('r'),
            "{line}"
        ),
    }
}

#[test]
fn rules_of_x86_64_programs_match_readelf() {
    let mut files = vec![
        PathBuf::from("/lib/x86_64-linux-gnu/libc.so.6"),
        PathBuf::from("/lib64/ld-linux-x86-64.so.2"),
        PathBuf::from("/usr/lib/x86_64-linux-gnu/libstdc++.so.6"),
        PathBuf::from("/bin/bash"),
    ];
    files.retain(|file| file.exists());
    if cfg!(target_arch = "x86_64") {
        let flags = ["-fomit-frame-pointer"];
        files.extend(Compiler::gcc().program(&["stacks.c"], &flags));
        files.extend(Compiler::clang().program(&["stacks.c"], &flags));
        files.extend(rust_program("stacks.rs", &["-O"]));
    }
    for file in files {
        let Some(tally) = compare(&file) else { return };
        println!("{file:?}: {tally:?}");
        assert!(
            tally.frames > 50 && tally.special < tally.frames / 10,
            "{file:?} {tally:?}"
        );
    }
}

#[test]
fn rules_of_aarch64_programs_match_readelf() {
    let flags = ["-fomit-frame-pointer", "-static"];
    let protected = ["-mbranch-protection=standard", "-static"];
    let files = [
        Compiler::aarch64_gcc().program(&["stacks.c"], &flags),
        Compiler::aarch64_gcc().program(&["stacks.c"], &protected),
        Compiler::aarch64_gcc().program(&["stacks.c"], &["-O0"]),
    ];
    for file in files.into_iter().flatten() {
        let Some(tally) = compare(&file) else { return };
        println!("{file:?}: {tally:?}");
        assert!(
            tally.frames > 50 && tally.special < tally.frames / 10,
            "{file:?} {tally:?}"
        );
    }
}

/// The program's own functions have no entries in `.eh_frame`, which has those of the C library's start files.
#[test]
fn rules_of_debug_frame_match_readelf() {
    let flags = [&["-fomit-frame-pointer"][..], &DEBUG_FRAME].concat();
    let mut files = vec![Compiler::aarch64_gcc().program(&["stacks.c"], &flags)];
    if cfg!(target_arch = "x86_64") {
        files.push(Compiler::gcc().program(&["stacks.c"], &flags));
        files.push(Compiler::clang().program(&["stacks.c"], &flags));
    }
    for file in files.into_iter().flatten() {
        let Some(tally) = compare(&file) else { return };
        println!("{file:?}: {tally:?}");
        assert!(
            tally.debug_frames > 50 && tally.frames - tally.debug_frames < 30,
            "{file:?} {tally:?}"
        );
    }
}
