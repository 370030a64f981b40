//! Making the rows by which stacks are unwound, of files that are installed here.

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use otelctx_remote::FileBytes;
use otelctx_remote::elf::{Elf, Source};
use otelctx_unwind::{Dictionary, FileRows, SHARD_ROWS, Shards};

use crate::row::Report;

/// Files that are measured one by one.
const FILES: [&str; 5] = [
    "/bin/bash",
    "/usr/bin/python3",
    "/usr/lib/x86_64-linux-gnu/libc.so.6",
    "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
    "/usr/bin/node",
];
/// Different files whose rows are in memory at the same time.
const MANY: usize = 500;
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
    many(report);
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
    let (mut seen, mut made, mut pages) = (HashSet::new(), 0, 0);
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
            if made == MANY || !facts.is_file() || !seen.insert((facts.dev(), facts.ino())) {
                continue;
            }
            if let Ok(file) = make(&path, &dictionary)
                && let Some(placed) = layout.place(file.rows())
            {
                made += 1;
                pages += placed.pages.len();
            }
        }
    }
    if made < MANY {
        return report.skipped(&work, &format!("only {made} are installed"));
    }
    let shards = f64::from(layout.used()) * f64::from(SHARD_ROWS) * ROW;
    let kernel = (shards + PAGE * pages as f64) / f64::from(1 << 20);
    report.alone(format!("{work}, in the kernel"), kernel, "MiB", 60.0);
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
