//! How many instructions the work takes, as callgrind counts them on pinned inputs, against the
//! counts noted in `bench/instructions.json`.
//!
//! The counts are of one compiler and one C library, which are noted along: another compiler
//! makes other code, so under another one there is nothing to compare.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::path::PathBuf;
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::pair::Pair;
use crate::row::Report;
use crate::{machine, scratch};

/// The most that a count may be of the noted one.
const BOUND: f64 = 1.01;
/// The function of `bin/counted.rs` whose instructions are counted.
const FUNCTION: &str = "otelctx_bench_counted";
pub(crate) const NO_VALGRIND: &str = "there is no valgrind here";

/// The contents of `bench/instructions.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Noted {
    toolchain: String,
    /// Instructions for doing each work once.
    instructions: BTreeMap<String, f64>,
}

pub(crate) fn run(report: &mut Report) {
    report.group("instructions");
    let noted = if report.write { None } else { noted(report) };
    let works = build().and_then(|program| scratch::output(&mut Command::new(program)));
    let works = match works {
        Ok(works) => works,
        Err(why) => return report.failed("build", &why),
    };
    let mut counts = BTreeMap::new();
    for work in works.lines() {
        match count(work) {
            Ok(Some(instructions)) => {
                let before = noted
                    .as_ref()
                    .and_then(|noted| noted.instructions.get(work));
                match before {
                    Some(before) => {
                        let bound = report.check.then_some(BOUND);
                        let pair = Pair::of(instructions, *before);
                        report.pair(work, pair, "instructions", bound);
                    }
                    None => report.alone(work, instructions, "instructions", None),
                }
                counts.insert(work.to_owned(), instructions);
            }
            Ok(None) => return report.skipped(work, NO_VALGRIND),
            Err(why) => return report.failed(work, &why),
        }
    }
    if report.check && !report.holds() {
        eprintln!("a rise with a reason is noted by: cargo xtask bench instructions --write");
    }
    if report.write {
        let noted = Noted {
            toolchain: toolchain(),
            instructions: counts,
        };
        let text = serde_json::to_string_pretty(&noted).expect("its keys are strings");
        if let Err(error) = std::fs::write(path(), text + "\n") {
            report.failed("write", &error.to_string());
        }
    }
}

/// The noted counts, if they are of this toolchain.
fn noted(report: &mut Report) -> Option<Noted> {
    let read = std::fs::read_to_string(path()).map_err(|error| error.to_string());
    let noted = read
        .and_then(|text| serde_json::from_str::<Noted>(&text).map_err(|error| error.to_string()));
    match noted {
        Ok(noted) if noted.toolchain == toolchain() => Some(noted),
        Ok(noted) => {
            let why = format!(
                "the noted counts are of {}, this is {}",
                noted.toolchain,
                toolchain()
            );
            report.skipped("comparison", &why);
            None
        }
        Err(why) => {
            report.failed("noted counts", &why);
            None
        }
    }
}

fn path() -> PathBuf {
    scratch::root().join("bench/instructions.json")
}

/// What decides about the counts: the compiler, and the C library's copying and allocating.
fn toolchain() -> String {
    // SAFETY: returns a static string.
    let libc = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
    format!(
        "{}, glibc {}, {}",
        machine::rustc(),
        libc.to_string_lossy(),
        std::env::consts::ARCH
    )
}

/// Counts the instructions for doing a work once; `None` where there is no valgrind.
pub(crate) fn count(work: &str) -> Result<Option<f64>, String> {
    let scratch = scratch::Directory::new("callgrind");
    let file = scratch.path().join("out");
    let program = build()?;
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--quiet", "--collect-atstart=no"])
        .arg(format!("--toggle-collect={FUNCTION}"))
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(program)
        .arg(work)
        .env_clear()
        // The plainest copying functions, whatever the processor has.
        .env(
            "GLIBC_TUNABLES",
            "glibc.cpu.hwcaps=-AVX_Usable,-AVX2_Usable,-AVX2,-AVX,-ERMS,-FSRM",
        );
    let times = match scratch::output(&mut command) {
        Err(_) if !is_installed() => return Ok(None),
        Err(why) => return Err(why),
        Ok(text) => text.trim().parse::<f64>(),
    };
    let times = times.map_err(|error| error.to_string())?;
    let text = std::fs::read_to_string(&file).map_err(|error| error.to_string())?;
    let total: Option<f64> = text
        .lines()
        .find_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok());
    match total {
        Some(total) if total > 0.0 => Ok(Some(total / times)),
        _ => Err(format!("callgrind counted nothing in {FUNCTION}")),
    }
}

/// Builds the program that does what is counted; cargo remembers that it did.
///
/// All of it as one unit: how cargo's profile would divide it up, and with it what is inlined,
/// depends on the symbols' hashes and so on where the checkout lies.
fn build() -> Result<PathBuf, String> {
    let whole = [
        "--config",
        "profile.release.codegen-units=1",
        "--config",
        "profile.release.lto=\"fat\"",
    ];
    let program = ["-p", "otelctx-bench", "--bin", "counted"];
    let files = scratch::cargo_build(&[&whole[..], &program].concat())?;
    let program = files.into_iter().find(|path| path.ends_with("counted"));
    program.ok_or("cargo built no program".into())
}

fn is_installed() -> bool {
    Command::new("valgrind").arg("--version").output().is_ok()
}
