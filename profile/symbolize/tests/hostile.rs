//! Hostile files.

mod tools;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use otelctx_symbolize::{Failure, FailureReason, Symbols};
use tools::{Resolved, Scratch, found, instructions, text, tool, truth};

/// One test at a time: in a child forked while another thread holds a lock, it stays locked forever.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A program of one function, `serve`, whose DWARF is `entries` below that function.
fn program(scratch: &Scratch, name: &str, entries: &str) -> PathBuf {
    let source = scratch.0.join(format!("{name}.s"));
    // Abbreviations: 1 the unit, 2 a function, 3 an inlined function with children and no
    // attributes, 4 a function whose name is another entry's.
    let text_of = format!(
        ".file 1 \"a.c\"\n.text\n.globl _start\n.type _start, @function\n_start: nop\n ret\n.size _start, . - _start\n\
         .globl serve\n.type serve, @function\nserve: .loc 1 7\n nop\n nop\n ret\nend: .size serve, . - serve\n\
         .section .debug_abbrev,\"\",@progbits\n\
         .byte 1,0x11,1, 0x11,1, 0x12,1, 0x10,0x17, 0,0\n\
         .byte 2,0x2e,1, 0x03,8, 0x11,1, 0x12,1, 0,0\n\
         .byte 3,0x1d,1, 0,0\n\
         .byte 4,0x2e,0, 0x31,0x13, 0x11,1, 0x12,1, 0,0\n.byte 0\n\
         .section .debug_info,\"\",@progbits\n\
         unit: .4byte unit_end - unit_start\nunit_start: .2byte 4\n.4byte 0\n.byte 8\n\
         .byte 1\n.8byte serve, end\n.4byte lines\n{entries}\n.byte 0\nunit_end:\n\
         .section .debug_line,\"\",@progbits\nlines:\n"
    );
    fs::write(&source, text_of).unwrap();
    let path = scratch.0.join(name);
    tool(
        "gcc",
        &["-nostdlib", "-static", text(&source), "-o", text(&path)],
    );
    path
}

/// `serve`'s instructions, as offsets.
fn serve(path: &Path) -> Vec<u64> {
    let addresses = instructions(path, &["serve"]);
    // A static program's code lies at another address than offset.
    addresses
        .iter()
        .map(|address| address - 0x40_0000)
        .collect()
}

fn reasons(symbols: &Symbols) -> Vec<FailureReason> {
    let reason = |failure: &Failure| failure.reason;
    symbols.failures().iter().map(reason).collect()
}

fn named(name: &str) -> Vec<Resolved> {
    vec![vec![(name.into(), "a.c".into(), 7)]; 3]
}

/// The same without DWARF.
fn of_symbols(name: &str) -> Vec<Resolved> {
    vec![vec![(name.into(), String::new(), 0)]; 3]
}

#[test]
fn entries_nested_deeper_than_any_stack_end_a_child_only() {
    let _alone = alone();
    let scratch = Scratch::new("nested");
    let function = ".byte 2\n.asciz \"serve\"\n.8byte serve, end\n";
    let path = program(
        &scratch,
        "shallow",
        &format!("{function}.fill 10,1,3\n.fill 12,1,0"),
    );
    let mut symbols = Symbols::new();
    assert_eq!(found(&mut symbols, &path, &serve(&path)), named("serve"));
    assert_eq!(symbols.failures(), []);
    let deep = format!("{function}.fill 4000000,1,3\n.fill 4000002,1,0");
    let path = program(&scratch, "deep", &deep);
    let mut symbols = Symbols::new();
    let resolved = found(&mut symbols, &path, &serve(&path));
    assert_eq!(resolved, of_symbols("serve"));
    assert_eq!(reasons(&symbols), [FailureReason::TooLarge]);
}

#[test]
fn a_function_that_is_its_own_origin_is_left_to_the_symbols() {
    let _alone = alone();
    let scratch = Scratch::new("cycle");
    // The entry refers to itself: 32 bytes into the unit.
    let path = program(&scratch, "cycle", ".byte 4\n.4byte 32\n.8byte serve, end");
    let mut symbols = Symbols::new();
    let resolved = found(&mut symbols, &path, &serve(&path));
    assert_eq!(resolved, of_symbols("serve"));
    assert_eq!(symbols.failures(), []);
}

/// A section says how large it is when unpacked.
#[test]
fn a_section_that_says_it_is_giant_ends_a_child_only() {
    let _alone = alone();
    let scratch = Scratch::new("giant");
    let sizes = [6_u64 << 30, 1 << 62, u64::MAX];
    let kinds = ["zlib", "zstd"];
    for (size, kind) in sizes.iter().flat_map(|size| kinds.map(|kind| (size, kind))) {
        let path = program(
            &scratch,
            "giant",
            ".byte 2\n.asciz \"serve\"\n.8byte serve, end\n.fill 9999,1,0",
        );
        let offsets = serve(&path);
        let compress = format!("--compress-debug-sections={kind}");
        tool("objcopy", &[&compress, text(&path)]);
        tools::change_compression(&path, |header| {
            header[8..16].copy_from_slice(&size.to_le_bytes());
        });
        let mut symbols = Symbols::new();
        let resolved = found(&mut symbols, &path, &offsets);
        assert_eq!(resolved, of_symbols("serve"), "{size:#x} {kind}");
        let reasons = reasons(&symbols);
        assert_eq!(reasons, [FailureReason::TooLarge], "{size:#x} {kind}");
    }
}

/// Holes are not copied, and a file that is larger than any disk is no error.
#[test]
fn a_file_of_a_tebibyte_is_read_where_it_matters() {
    let _alone = alone();
    let scratch = Scratch::new("hole");
    let path = program(
        &scratch,
        "hole",
        ".byte 2\n.asciz \"serve\"\n.8byte serve, end",
    );
    let file = fs::File::options().write(true).open(&path).unwrap();
    if file.set_len(1 << 40).is_err() {
        println!("skipped: no file is so large here");
        return;
    }
    let mut symbols = Symbols::new();
    assert_eq!(found(&mut symbols, &path, &serve(&path)), named("serve"));
    assert_eq!(symbols.failures(), []);
}

#[test]
fn wherever_a_file_is_cut_or_changed_there_is_an_answer() {
    let _alone = alone();
    let scratch = Scratch::new("cut");
    let path = program(
        &scratch,
        "cut",
        ".byte 2\n.asciz \"serve\"\n.8byte serve, end",
    );
    let (whole, offsets) = (fs::read(&path).unwrap(), serve(&path));
    let names = |symbols: &mut Symbols| {
        let resolved = found(symbols, &path, &offsets);
        assert_eq!(resolved.len(), 3);
        resolved
            .iter()
            .all(|resolved| resolved.is_empty() || resolved[0].0 == "serve")
    };
    for length in (0..whole.len()).step_by(97) {
        fs::write(&path, &whole[..length]).unwrap();
        assert!(names(&mut Symbols::new()), "{length} bytes");
    }
    for at in (0..whole.len()).step_by(61) {
        let mut changed = whole.clone();
        changed[at] ^= 0xff;
        fs::write(&path, changed).unwrap();
        // Another name may be what was changed.
        found(&mut Symbols::new(), &path, &offsets);
    }
}

#[test]
fn a_fifo_and_a_directory_in_the_place_of_a_file_are_left_alone() {
    let _alone = alone();
    let scratch = Scratch::new("fifo");
    for make in ["mkfifo", "mkdir"] {
        let path = scratch.0.join(make);
        tool(make, &[text(&path)]);
        let mut symbols = Symbols::new();
        assert_eq!(
            found(&mut symbols, &path, &[0, 1]),
            vec![Resolved::new(); 2]
        );
    }
}

/// The resolution of a file's functions, for the test below.
#[test]
fn decodes_a_file_that_is_named_in_the_environment() {
    let _alone = alone();
    let Some(path) = std::env::var_os("OTELCTX_TEST_DECODE") else {
        return;
    };
    let path = PathBuf::from(path);
    let addresses = instructions(&path, &["serve"]);
    let resolved = found(&mut Symbols::new(), &path, &addresses);
    let _ = writeln!(
        std::io::stderr(),
        "resolved {}",
        resolved == truth(&path, &addresses)
    );
}

/// If it were mapped, who can write to it could end the recorder by cutting it short.
#[test]
fn a_targets_file_is_never_mapped() {
    let _alone = alone();
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: what a child opens that must not be traced is shown to root alone");
        return;
    }
    let scratch = Scratch::new("mapped");
    let source = scratch.0.join("target.c");
    fs::write(
        &source,
        "int serve(void) { return 1; }\nint main(void) { return serve(); }\n",
    )
    .unwrap();
    let path = scratch.0.join("target");
    tool("gcc", &["-O0", "-g", text(&source), "-o", text(&path)]);
    let calls = scratch.0.join("calls");
    let output = Command::new("strace")
        .args(["-f", "-y", "-e", "trace=mmap,openat,execve", "-o"])
        .arg(&calls)
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "decodes_a_file_that_is_named_in_the_environment",
            "--nocapture",
        ])
        .env("OTELCTX_TEST_DECODE", &path)
        .output();
    let Ok(output) = output else {
        println!("skipped: there is no strace");
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("ptrace") {
        println!("skipped: {said}");
        return;
    }
    assert!(said.contains("resolved true"), "{said}");
    let calls = fs::read_to_string(calls).unwrap();
    // objdump and addr2line, which resolved the truth, are other programs.
    let others: Vec<&str> = calls
        .lines()
        .filter(|line| line.contains("execve(") && !line.contains("hostile"))
        .map(|line| line.split(' ').next().unwrap())
        .collect();
    let own = calls
        .lines()
        .filter(|line| !others.contains(&line.split(' ').next().unwrap()));
    let with = |call: &str, file: &str| {
        own.clone()
            .filter(|line| line.contains(call) && line.contains(file))
            .count()
    };
    assert_eq!(with("mmap(", text(&path)), 0, "{calls}");
    assert!(with("openat(", text(&path)) > 0, "{calls}");
    // The copy, which has no name.
    let names = ["(deleted)>", "/#", "/memfd:otelctx"];
    let copies = names.map(|name| with("mmap(", name));
    assert!(copies.iter().sum::<usize>() > 0, "{calls}");
}
