//! Core files made to exhaust their reader: `dump --core` ends, in little memory, and says what it
//! skipped.
//!
//! A test program of its own: the kernel counts the memory of the program that starts a command as
//! the command's.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use nix::libc;
use otelctx_fixtures::{Compiler, CoreDirectory, Target};

/// The most memory that a command may use, in KiB.
const MEMORY: i64 = 64 << 10;
/// The contexts of threads that `dump` keeps, in KiB.
const CONTEXTS: i64 = 24 << 10;
/// Memory that differs from run to run, and the notes of a core with thousands of threads, in KiB.
const NOTES: i64 = 8 << 10;
/// Mappings and segments that a core may have.
const MAX_SEGMENTS: u64 = 1 << 19;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const NT_FILE: u32 = 0x4649_4c45;
/// `struct elf_prstatus` of x86-64: its size, and where the thread id and fs base are.
const STATUS: usize = 336;
const TID: usize = 32;
const FS_BASE: usize = 112 + 21 * 8;

/// Runs `dump --core` with its output in `output`; returns its exit status and the most memory that
/// it had, in KiB.
#[expect(
    clippy::zombie_processes,
    reason = "wait4 does it, and tells the memory"
)]
fn dump(core: &Path, arguments: &[&str], output: &Path) -> (i32, i64) {
    let child = Command::new(env!("CARGO_BIN_EXE_otelctx"))
        .args(["dump", "--core"])
        .arg(core)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(File::create(output).unwrap())
        .spawn()
        .unwrap();
    let mut status = 0;
    // SAFETY: an all-zero rusage is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to values that live through the call.
    let ended = unsafe { libc::wait4(child.id() as i32, &raw mut status, 0, &raw mut usage) };
    assert_eq!(ended, child.id() as i32);
    assert!(libc::WIFEXITED(status), "{status:#x}");
    (libc::WEXITSTATUS(status), usage.ru_maxrss)
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A program header.
fn header(kind: u32, flags: u32, [offset, address, size]: [u64; 3]) -> Vec<u8> {
    let mut bytes = [kind, flags].map(u32::to_le_bytes).concat();
    bytes.extend(words(&[offset, address, 0, size, size, 4096]));
    bytes
}

/// The core file has as many segments as there may be, each the only mapping of a file of its own.
#[test]
fn as_many_files_and_segments_as_there_may_be() {
    let directory = CoreDirectory::new();
    let path = directory.path().join("core");
    let mut out = BufWriter::new(File::create(&path).unwrap());
    let mut write = |bytes: &[u8]| out.write_all(bytes).unwrap();
    // The number of program headers is in the section header behind them.
    let headers_end = 64 + 56 * MAX_SEGMENTS;
    write(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    write(&[[4, 0, 62, 0], [1, 0, 0, 0]].concat());
    write(&words(&[0, 64, headers_end]));
    write(&[0; 4]);
    write(&[64, 56, 0xffff, 0, 0, 0].map(u16::to_le_bytes).concat());
    let files = MAX_SEGMENTS - 1;
    let contents = 16 + 24 * files + 8 * files;
    write(&header(PT_NOTE, 0, [headers_end + 64, 0, 20 + contents]));
    let range = |file: u64| [file << 16, (file << 16) + 0x1000];
    for file in 1..=files {
        write(&header(PT_LOAD, 6, [0, range(file)[0], 0x1000]));
    }
    let mut section = [0; 64];
    section[44..48].copy_from_slice(&(MAX_SEGMENTS as u32).to_le_bytes());
    write(&section);
    write(&[5, contents as u32, NT_FILE].map(u32::to_le_bytes).concat());
    write(b"CORE\0\0\0\0");
    write(&words(&[files, 4096]));
    for file in 1..=files {
        let [start, end] = range(file);
        write(&words(&[start, end, 0]));
    }
    for file in 1..=files {
        write(format!("/{file:06x}\0").as_bytes());
    }
    drop(out);
    let output = directory.path().join("output");
    let (status, peak) = dump(&path, &["--force"], &output);
    let said = fs::read_to_string(&output).unwrap();
    assert_eq!(status, 1, "{said}");
    assert!(
        said.contains("  missing   some notes of the core file"),
        "{said}"
    );
    assert!(peak <= MEMORY, "{peak} KiB");
}

/// Thousands of threads that lead nowhere, in a program whose path is as long as paths are: what is
/// said of each is long.
#[test]
#[cfg(target_arch = "x86_64")]
fn more_to_say_of_threads_than_there_is_room_for() {
    const THREADS: usize = 8_000;
    let sources = ["threads.c", "variable.c", "publish.c", "symbols.c"];
    let flags = ["-DLINKED", "-rdynamic", "-Wl,--build-id"];
    let Some(program) = Compiler::gcc().program(&sources, &flags) else {
        return;
    };
    let directory = CoreDirectory::new();
    let mut long = directory.path().to_path_buf();
    while long.as_os_str().len() < 3500 {
        long.push("d".repeat(250));
    }
    fs::create_dir_all(&long).unwrap();
    long.push("shop");
    otelctx_fixtures::copy_program(program, &long);
    let mut command = Command::new(&long);
    directory.allow(&mut command, u64::MAX);
    let mut target = Target::spawn(&mut command);
    let tid = target.threads[0].tid;
    let Some(path) = directory.crash(&mut target, tid, libc::SIGABRT) else {
        return;
    };
    let output = directory.path().join("output");
    let (_, without) = dump(&path, &[], &output);
    let known = add_lost_threads(&path, THREADS);
    let (status, peak) = dump(&path, &[], &output);
    assert_eq!(status, 1);
    let taken = peak - without;
    // The contexts, and the text of them.
    assert!(taken <= 2 * CONTEXTS + NOTES, "{taken} of {peak} KiB");
    let output = BufReader::new(File::open(&output).unwrap());
    let said = output.lines().map(Result::unwrap);
    let partial = said.take(40).find(|line| line.contains("partial"));
    let of = format!(
        "{},{:03} threads: their contexts take more than 24 MiB",
        (THREADS + known) / 1000,
        (THREADS + known) % 1000
    );
    assert!(
        partial.as_ref().is_some_and(|it| it.contains(&of)),
        "{partial:?}"
    );
}

/// Gives a core as many more threads, whose thread pointers lead nowhere. Returns how many it had.
fn add_lost_threads(core: &Path, threads: usize) -> usize {
    let mut file = File::options().read(true).write(true).open(core).unwrap();
    // The first program header is that of the notes.
    let mut header = [0; 56];
    file.seek(SeekFrom::Start(64)).unwrap();
    file.read_exact(&mut header).unwrap();
    assert_eq!(header[..4], PT_NOTE.to_le_bytes());
    let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap());
    let (offset, size) = (word(8), word(32));
    let mut notes = vec![0; size as usize];
    file.seek(SeekFrom::Start(offset)).unwrap();
    file.read_exact(&mut notes).unwrap();
    let is_status = |it: &&[u8]| it[..20] == *b"\x05\0\0\0\x50\x01\0\0\x01\0\0\0CORE\0\0\0\0";
    let mut lost = notes.windows(20 + STATUS).find(is_status).unwrap().to_vec();
    let known = notes.windows(20 + STATUS).filter(is_status).count();
    lost[20 + FS_BASE..][..8].copy_from_slice(&0x1000_u64.to_le_bytes());
    let end = file.seek(SeekFrom::End(0)).unwrap();
    let mut out = BufWriter::new(&mut file);
    out.write_all(&notes).unwrap();
    for number in 0..threads {
        // Beyond every id of a real thread.
        let tid = i32::MAX - number as i32;
        lost[20 + TID..][..4].copy_from_slice(&tid.to_le_bytes());
        out.write_all(&lost).unwrap();
    }
    out.flush().unwrap();
    drop(out);
    let size = size + (threads * lost.len()) as u64;
    file.seek(SeekFrom::Start(64 + 8)).unwrap();
    file.write_all(&end.to_le_bytes()).unwrap();
    file.seek(SeekFrom::Start(64 + 32)).unwrap();
    file.write_all(&size.to_le_bytes()).unwrap();
    known
}
