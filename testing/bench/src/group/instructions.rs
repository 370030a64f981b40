//! Instruction counts of operations (callgrind, fixed inputs), compared with the counts recorded in
//! `testing/bench/instructions.json`.
//!
//! The counts depend on the compiler and the C library, whose versions are recorded with them. With
//! other versions there is nothing to compare.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::path::PathBuf;
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::pair::Pair;
use crate::row::Report;
use crate::{machine, scratch};

/// Upper bound on the ratio of a count to the recorded one.
const BOUND: f64 = 1.01;
/// The function of the package `otelctx-counted` whose instructions are counted.
const FUNCTION: &str = "otelctx_bench_counted";
pub(crate) const NO_VALGRIND: &str = "there is no valgrind here";

/// The contents of `testing/bench/instructions.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Recorded {
    toolchain: String,
    /// Instructions for doing each work once.
    instructions: BTreeMap<String, f64>,
}

pub(crate) fn run(report: &mut Report) {
    report.group("instructions");
    if !has_valgrind() {
        return report.skipped("every operation", NO_VALGRIND);
    }
    let recorded = if report.write { None } else { recorded(report) };
    let works = build().and_then(|program| scratch::output(&mut Command::new(program)));
    let works = match works {
        Ok(works) => works,
        Err(why) => return report.failed("build", &why),
    };
    let mut counts = BTreeMap::new();
    for work in works.lines() {
        match count(work) {
            Ok(Some(instructions)) => {
                let before = recorded
                    .as_ref()
                    .and_then(|recorded| recorded.instructions.get(work));
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
        eprintln!("to record a justified increase: cargo xtask bench instructions --write");
    }
    if report.write {
        let recorded = Recorded {
            toolchain: toolchain(),
            instructions: counts,
        };
        let text = serde_json::to_string_pretty(&recorded).expect("its keys are strings");
        if let Err(error) = std::fs::write(path(), text + "\n") {
            report.failed("write", &error.to_string());
        }
    }
}

/// The recorded counts, if they are of this toolchain.
fn recorded(report: &mut Report) -> Option<Recorded> {
    let read = std::fs::read_to_string(path()).map_err(|error| error.to_string());
    let recorded = read.and_then(|text| {
        serde_json::from_str::<Recorded>(&text).map_err(|error| error.to_string())
    });
    match recorded {
        Ok(recorded) if recorded.toolchain == toolchain() => Some(recorded),
        Ok(recorded) => {
            let why = format!(
                "the recorded counts are of {}, this is {}",
                recorded.toolchain,
                toolchain()
            );
            report.skipped("comparison", &why);
            None
        }
        Err(why) => {
            report.failed("recorded counts", &why);
            None
        }
    }
}

fn path() -> PathBuf {
    scratch::root().join("testing/bench/instructions.json")
}

/// What the counts depend on: the compiler, and the C library's copying and allocating.
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
    if !has_valgrind() {
        return Ok(None);
    }
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
        // The plainest copying functions, on every CPU.
        .env(
            "GLIBC_TUNABLES",
            "glibc.cpu.hwcaps=-AVX_Usable,-AVX2_Usable,-AVX2,-AVX,-ERMS,-FSRM",
        );
    let times = scratch::output(&mut command)?.trim().parse::<f64>();
    let times = times.map_err(|error| error.to_string())?;
    let text = std::fs::read_to_string(&file).map_err(|error| error.to_string())?;
    let total: Option<f64> = text
        .lines()
        .find_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok());
    match total {
        Some(total) if total > 0.0 => Ok(Some(total / times)),
        _ => Err(format!(
            "callgrind did not find {FUNCTION} in the program: was it stripped?"
        )),
    }
}

/// Builds the program whose instructions are counted, unless it is up to date.
///
/// It is one codegen unit: how more units would be divided, and with it what is inlined, depends on
/// symbol hashes and so on the path of the checkout.
fn build() -> Result<PathBuf, String> {
    let whole = [
        "--config",
        "profile.release.codegen-units=1",
        "--config",
        "profile.release.lto=\"fat\"",
    ];
    let program = ["-p", "otelctx-counted"];
    let files = scratch::cargo_build(&[&whole[..], &program].concat())?;
    let program = files
        .into_iter()
        .find(|path| path.ends_with("otelctx-counted"));
    program.ok_or("cargo built no program".into())
}

pub(crate) fn has_valgrind() -> bool {
    Command::new("valgrind").arg("--version").output().is_ok()
}
