//! Making the rows by which stacks are unwound, of files that are installed here.

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use otelctx_fixtures::Compiler;
use otelctx_remote::FileBytes;
use otelctx_remote::elf::{Elf, Source};
use otelctx_unwind::{Dictionary, FileRows, SHARD_ROWS, Shards};

use super::memory::{self, Running};
use crate::row::Report;
use crate::scratch::{self, Directory};

/// Files that are measured one by one.
const FILES: [&str; 7] = [
    "/bin/bash",
    "/usr/bin/python3",
    "/usr/lib/x86_64-linux-gnu/libc.so.6",
    "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
    "/usr/bin/node",
    // With functions in assembly without tables.
    "/usr/lib/x86_64-linux-gnu/libcrypto.so.3",
    "/usr/lib/x86_64-linux-gnu/libgmp.so.10",
];
/// Files whose rows are also made without their tables: each function's by its instructions.
const DECODED: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu/libcrypto.so.3",
    "/usr/lib/x86_64-linux-gnu/libgmp.so.10",
    "/usr/aarch64-linux-gnu/lib/libc.so.6",
    "/usr/aarch64-linux-gnu/lib/libm.so.6",
];
/// Different files whose rows are in memory at the same time.
const MANY: usize = 500;
/// Programs that have them mapped while they are recorded.
const PROGRAMS: usize = 2;
/// A recorder's memory is steady if it stays within this, in MiB, for this long.
const STEADY: f64 = 0.5;
const STEADY_TIME: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(180);
/// A file is made this many times; the median counts.
const TIMES: usize = 5;
/// Bytes of a row: the low half of its address, and the index of its rule.
const ROW: f64 = 4.0;
/// Bytes that a page of 64 KiB has in the index.
const PAGE: f64 = 4.0;
/// No limit: 500 files have 39 MiB of rows at the 99th percentile.
const MAX_SHARDS: u32 = 1000;

pub(crate) fn run(report: &mut Report) {
    report.group("rows");
    let mut files: Vec<PathBuf> = FILES.map(PathBuf::from).into();
    files.extend(compiler());
    files.extend(rust_compiler());
    for path in files.iter().filter(|path| path.exists()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        match measure(path) {
            Ok(made) => made.report(report, &name),
            Err(why) => report.failed(&name, &why),
        }
    }
    for path in DECODED.iter().filter(|path| Path::new(path).exists()) {
        if let Err(why) = by_instructions(report, Path::new(path)) {
            report.failed(path, &why);
        }
    }
    many(report);
}

/// Rows of a file whose tables are withheld.
fn by_instructions(report: &mut Report, path: &Path) -> Result<(), String> {
    let functions = make(path, &Arc::new(Dictionary::new()))?.counts().entries;
    let directory = Directory::new("rows");
    let without_tables = directory.path().join("library");
    let mut bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    withhold_tables(&mut bytes).ok_or("its headers are damaged")?;
    std::fs::write(&without_tables, bytes).map_err(|error| error.to_string())?;
    let time = measure(&without_tables)?.time;
    let name = path.strip_prefix("/usr").unwrap_or(path).display();
    let each = time.as_secs_f64() * 1e6 / functions as f64;
    let what = format!("{name} without its tables: a function");
    report.alone(what, each, "µs", 10.0);
    Ok(())
}

/// Hides the unwind tables of an ELF file: its sections have no names, and the header of the table that is searched is no
/// segment (System V ABI, "ELF Header", "Program Header").
fn withhold_tables(bytes: &mut [u8]) -> Option<()> {
    const GNU_EH_FRAME: [u8; 4] = 0x6474_e550_u32.to_le_bytes();
    let number = |bytes: &[u8], at: usize| {
        let number = bytes.get(at..)?.first_chunk()?;
        Some(usize::from(u16::from_le_bytes(*number)))
    };
    let segments = u64::from_le_bytes(*bytes.get(32..)?.first_chunk()?) as usize;
    let (size, count) = (number(bytes, 54)?, number(bytes, 56)?);
    for index in 0..count {
        let kind = bytes.get_mut(segments + index * size..)?;
        let kind = kind.first_chunk_mut::<4>()?;
        if *kind == GNU_EH_FRAME {
            *kind = [0; 4];
        }
    }
    // Without the section of names, no section has one.
    bytes.get_mut(62..64)?.fill(0);
    Some(())
}

/// Rows of a file.
struct Made {
    rows: usize,
    bytes: f64,
    time: Duration,
}

impl Made {
    fn report(&self, report: &mut Report, name: &str) {
        let rows = self.rows as f64;
        report.alone(format!("{name}: rows"), rows, "rows", None);
        report.alone(format!("{name}: a row"), self.bytes / rows, "B", 4.3);
        let each = self.time.as_secs_f64() * 1e9 / rows;
        report.alone(format!("{name}: making a row"), each, "ns", 150.0);
        let time = self.time.as_secs_f64() * 1e3;
        report.alone(format!("{name}: making its rows"), time, "ms", 150.0);
    }
}

fn make(path: &Path, dictionary: &Arc<Dictionary>) -> Result<FileRows, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let bytes = FileBytes(&file);
    let elf = Elf::read(Source::File(&bytes)).map_err(|error| error.to_string())?;
    let elf = elf.ok_or("not an ELF file")?;
    FileRows::of(&elf, dictionary).map_err(|error| error.to_string())
}

fn measure(path: &Path) -> Result<Made, String> {
    let mut times = Vec::new();
    let mut made = (0, 0.0);
    for _ in 0..TIMES {
        let dictionary = Arc::new(Dictionary::new());
        let start = Instant::now();
        let file = make(path, &dictionary)?;
        times.push(start.elapsed());
        let rows = file.rows();
        made = (
            rows.len(),
            ROW * rows.len() as f64 + PAGE * rows.pages() as f64,
        );
    }
    times.sort();
    Ok(Made {
        rows: made.0,
        bytes: made.1,
        time: times[TIMES / 2],
    })
}

/// Rows of many files, as the recorder places them in the kernel's memory.
fn many(report: &mut Report) {
    let work = format!("{MANY} different files");
    let (dictionary, mut layout) = (Arc::new(Dictionary::new()), Shards::new(MAX_SHARDS));
    let (mut seen, mut made, mut pages) = (HashSet::new(), Vec::new(), 0);
    for directory in [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/bin",
        "/usr/sbin",
        "/usr/lib",
    ] {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
            let Ok(facts) = std::fs::metadata(&path) else {
                continue;
            };
            let is_new = facts.is_file() && seen.insert((facts.dev(), facts.ino()));
            if made.len() == MANY || !is_new {
                continue;
            }
            if let Ok(file) = make(&path, &dictionary)
                && let Some(placed) = layout.place(file.rows())
            {
                made.push(path);
                pages += placed.pages.len();
            }
        }
    }
    if made.len() < MANY {
        return report.skipped(&work, &format!("only {} are installed", made.len()));
    }
    let shards = f64::from(layout.used()) * f64::from(SHARD_ROWS) * ROW;
    let kernel = (shards + PAGE * pages as f64) / f64::from(1 << 20);
    report.alone(format!("{work}, in the kernel"), kernel, "MiB", 60.0);
    if let Err(why) = in_recorder(report, &work, &made, kernel) {
        report.failed(&work, &why);
    }
}

/// What a recorder needs for the rows of these files, which are of `kernel` MiB.
fn in_recorder(
    report: &mut Report,
    work: &str,
    files: &[PathBuf],
    kernel: f64,
) -> Result<(), String> {
    let without = recorded(&[], 0.0)?;
    if without.both <= without.user {
        report.skipped(work, "eBPF is not permitted");
        return Ok(());
    }
    let with = recorded(files, kernel)?;
    let user = with.user - without.user;
    report.alone(format!("{work}, in user space"), user, "MiB", None);
    let work = format!("{work}, kernel and user");
    report.alone(&work, with.both - without.both, "MiB", 60.0);
    // Including what starting takes for a moment, before there are rows.
    let largest = with.largest - without.both;
    report.alone(format!("{work}, at most"), largest, "MiB", 60.0);
    Ok(())
}

/// Memory of a recorder, in MiB.
struct Memory {
    /// Anonymous pages of its processes.
    user: f64,
    /// The same, and its maps in the kernel.
    both: f64,
    /// The largest of those since it started.
    largest: f64,
}

/// The memory of recording programs that have these files mapped, once that is steady and its maps in the kernel
/// are of at least `rows` MiB.
fn recorded(files: &[PathBuf], rows: f64) -> Result<Memory, String> {
    let program = Compiler::gcc().program::<&str>(&["many_files.c"], &[]);
    let program = program.ok_or("there is no gcc")?;
    let chunks = files.chunks(MANY / PROGRAMS).map(<[_]>::to_vec);
    let mut chunks: Vec<Vec<PathBuf>> = chunks.collect();
    chunks.resize(PROGRAMS, Vec::new());
    let start = |paths: &Vec<PathBuf>| Running::start(Command::new(&program).args(paths));
    let running: Vec<Running> = chunks.iter().map(start).collect::<Result<_, _>>()?;
    let pids: Vec<String> = running.iter().map(|it| it.pid().to_string()).collect();
    let directory = Directory::new("rows");
    let mut command = Command::new(scratch::otelctx()?);
    command.args(["record", "-p", &pids.join(","), "-o"]);
    let recorder = Running::start(command.arg(directory.path().join("profile.otlp")))?;
    let begin = Instant::now();
    let (mut largest, mut steady) = (0.0_f64, (begin, 0.0));
    loop {
        std::thread::sleep(Duration::from_millis(50));
        let pids = memory::processes(recorder.pid())?.into_iter();
        let user = pids.map(memory::anonymous_pss).sum::<f64>();
        let maps = memory::kernel_maps(recorder.pid());
        let both = user + maps;
        largest = largest.max(both);
        if (both - steady.1).abs() > STEADY {
            steady = (Instant::now(), both);
        }
        if maps >= rows && user > 0.0 && steady.0.elapsed() > STEADY_TIME {
            return Ok(Memory {
                user,
                both,
                largest,
            });
        }
        if begin.elapsed() > TIMEOUT {
            return Err(format!("{user} MiB and {maps} MiB of maps are not steady"));
        }
    }
}

/// The C compiler's own program.
fn compiler() -> Option<PathBuf> {
    let output = Command::new("gcc").arg("-print-prog-name=cc1").output();
    Some(String::from_utf8(output.ok()?.stdout).ok()?.trim().into())
}

/// The library that the Rust compiler consists of: the largest at hand.
fn rust_compiler() -> Option<PathBuf> {
    let output = Command::new("rustc").args(["--print", "sysroot"]).output();
    let sysroot = String::from_utf8(output.ok()?.stdout).ok()?;
    let mut entries = std::fs::read_dir(Path::new(sysroot.trim()).join("lib")).ok()?;
    let is_driver = |path: &PathBuf| path.to_string_lossy().contains("librustc_driver");
    entries.find_map(|entry| Some(entry.ok()?.path()).filter(is_driver))
}
