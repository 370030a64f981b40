//! `cargo xtask fuzz [--seconds N] [--keep] [TARGET]`: the targets of `testing/fuzz/`, a workspace of its
//! own.
//!
//! libFuzzer needs no more from rustc than coverage counters, which stable has too; the nightly
//! toolchain, where rustup has it, adds the address sanitizer.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use crate::report::{self, Outcome};
use crate::workspace::{cargo, metadata, nightly, root};

const HOST: &str = "x86_64-unknown-linux-gnu";
/// The flags that `cargo fuzz` passes: edge counters with their table of addresses, and comparisons.
const COVERAGE: &str = "--cfg fuzzing -Cdebug-assertions -Ccodegen-units=1 -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";
/// An input that takes longer is a finding: decoders are bounded.
const SECONDS_PER_INPUT: u32 = 5;
/// Memory limit of a target, in MiB; decoders allocate up to named limits of 1 MiB each.
const MEMORY_MIB: u32 = 1024;
/// Seconds for each target without `--seconds`: enough to see that it runs.
const DEFAULT_SECONDS: u64 = 10;

/// Runs each target, as many at a time as there are cores.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let mut options = Options {
        profile: "release",
        seconds: DEFAULT_SECONDS,
        keep: false,
        target: None,
    };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seconds" => match words.next().map(|number| number.parse()) {
                Some(Ok(seconds)) => options.seconds = seconds,
                _ => return Outcome::Failed("--seconds takes a whole number".into()),
            },
            "--keep" => options.keep = true,
            name => options.target = Some(name.to_owned()),
        }
    }
    fuzz(&options).into()
}

/// Runs every target for `seconds`.
pub(crate) fn smoke(seconds: u64) -> Outcome {
    fuzz(&Options {
        profile: "smoke",
        seconds,
        keep: false,
        target: None,
    })
    .into()
}

struct Options {
    /// What the targets are built with.
    profile: &'static str,
    seconds: u64,
    /// Add inputs that reach new code to the committed corpus.
    keep: bool,
    target: Option<String>,
}

fn fuzz(options: &Options) -> Result<Outcome, String> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return Ok(Outcome::Skipped(format!(
            "fuzzing is set up for {HOST} only"
        )));
    }
    let folder = root().join("testing/fuzz");
    let manifest = folder.join("Cargo.toml");
    if !manifest.is_file() {
        return Ok(Outcome::Skipped(
            "there is no testing/fuzz/Cargo.toml".into(),
        ));
    }
    let mut targets = target_names(&manifest)?;
    if let Some(name) = &options.target {
        targets.retain(|target| target == name);
    }
    if targets.is_empty() {
        return Err("fuzz/ has no such target".into());
    }
    let sanitizer = build(&manifest, options.profile)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut failed = Vec::new();
    for batch in targets.chunks(cores) {
        // All of a batch is started before the first one is waited for.
        let started: Vec<_> = batch
            .iter()
            .map(|target| start(&folder, target, options))
            .collect();
        for (target, child) in batch.iter().zip(started) {
            if !child?.wait().is_ok_and(|status| status.success()) {
                print_log(&log(&folder, target));
                failed.push(target.clone());
            } else if options.keep {
                merge(&folder, target, options.profile)?;
            }
        }
    }
    if failed.is_empty() {
        let (count, seconds) = (targets.len(), options.seconds);
        Ok(Outcome::Passed(format!(
            "{count} targets, {seconds} s each, {sanitizer}"
        )))
    } else {
        Err(format!(
            "{}; inputs are in testing/fuzz/artifacts",
            failed.join(", ")
        ))
    }
}

fn target_names(manifest: &Path) -> Result<Vec<String>, String> {
    let metadata = metadata(manifest)?;
    let root = &metadata["resolve"]["root"];
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let package = packages.into_iter().find(|package| &package["id"] == root);
    let targets = package
        .and_then(|package| package["targets"].as_array())
        .into_iter()
        .flatten();
    let programs = targets.filter(|target| target["kind"][0] == "bin");
    Ok(programs
        .filter_map(|target| Some(target["name"].as_str()?.to_owned()))
        .collect())
}

/// Builds all targets and returns the name of the sanitizer.
fn build(manifest: &Path, profile: &str) -> Result<&'static str, String> {
    let has_nightly = report::output(nightly("rustc").arg("--version")).is_ok();
    let (mut command, flags, sanitizer) = if has_nightly {
        (
            nightly("cargo"),
            format!("{COVERAGE} -Zsanitizer=address"),
            "address sanitizer",
        )
    } else {
        (
            cargo(),
            COVERAGE.to_owned(),
            "no sanitizer (rustup has no nightly)",
        )
    };
    command
        .env("RUSTFLAGS", flags)
        .env("CARGO_TARGET_DIR", target_dir());
    command.args([
        "build",
        "--profile",
        profile,
        "--quiet",
        "--locked",
        "--target",
        HOST,
    ]);
    report::run(command.arg("--manifest-path").arg(manifest))?;
    Ok(sanitizer)
}

fn target_dir() -> PathBuf {
    root().join("target/fuzz")
}

fn program(target: &str, profile: &str) -> Command {
    let mut command = Command::new(target_dir().join(HOST).join(profile).join(target));
    // Without a leak check: LeakSanitizer attaches to its own process, which containers refuse.
    command.env("ASAN_OPTIONS", "detect_leaks=0");
    command
}

/// Where new inputs go, beside the committed ones in `testing/fuzz/corpus/TARGET`.
fn scratch(target: &str) -> PathBuf {
    target_dir().join("corpus").join(target)
}

fn log(folder: &Path, target: &str) -> PathBuf {
    folder.join("artifacts").join(target).join("log")
}

fn start(folder: &Path, target: &str, options: &Options) -> Result<Child, String> {
    let committed = folder.join("corpus").join(target);
    let artifacts = folder.join("artifacts").join(target);
    let scratch = scratch(target);
    for folder in [&committed, &artifacts, &scratch] {
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    let log = log(folder, target);
    let output = fs::File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
    let mut command = program(target, options.profile);
    command
        .arg(format!("-max_total_time={}", options.seconds))
        .arg(format!("-timeout={SECONDS_PER_INPUT}"))
        .arg(format!("-rss_limit_mb={MEMORY_MIB}"))
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .arg(scratch)
        .arg(committed)
        .stderr(output);
    println!(
        "fuzzing {target} for {} s, log in {}",
        options.seconds,
        log.display()
    );
    command
        .spawn()
        .map_err(|error| format!("{target}: {error}"))
}

/// Adds the inputs that reach new code to the committed corpus.
fn merge(folder: &Path, target: &str, profile: &str) -> Result<(), String> {
    let mut command = program(target, profile);
    command
        // The fewest inputs that reach every edge; how often they do is not worth a file.
        .args(["-set_cover_merge=1", "-use_counters=0"])
        .arg(folder.join("corpus").join(target))
        .arg(scratch(target));
    report::output(&mut command).map(drop)
}

/// The end of a failed run's log: the finding and its stack.
fn print_log(log: &Path) {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(60)..]
        .iter()
        .for_each(|line| println!("{line}"));
}
