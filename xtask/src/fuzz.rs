//! `cargo xtask fuzz [--seconds N] [--keep] [TARGET]`: the targets of `testing/fuzz/`, a workspace of its
//! own.
//!
//! libFuzzer needs no more from rustc than coverage counters, which stable has too; the nightly
//! toolchain, where rustup has it, adds the address sanitizer.

use std::path::PathBuf;
use std::process::{Child, Command};

use anyhow::{Context, Result, bail, ensure};
use fs_err as fs;
use serde_json::Value;

use crate::report::{self, Done, Words, passed, skipped};
use crate::workspace::{cargo, cpus, nightly, packages, root, targets};

/// A workspace of its own.
const MANIFEST: &str = "testing/fuzz/Cargo.toml";
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
pub(crate) fn run(arguments: &[String]) -> Done {
    let (mut seconds, mut keeps, mut target) = (DEFAULT_SECONDS, false, None);
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seconds" => {
                let number = words.next().and_then(|number| number.parse().ok());
                seconds = number.context("--seconds takes a whole number")?;
            }
            "--keep" => keeps = true,
            name => target = Some(name),
        }
    }
    fuzz("release", seconds, keeps, target)
}

/// Runs every target for `seconds`.
pub(crate) fn smoke(seconds: u64) -> Done {
    fuzz("smoke", seconds, false, None)
}

/// Runs the targets, or one, built with a profile. If it `keeps` inputs that reach new code, they go to the committed corpus.
fn fuzz(profile: &str, seconds: u64, keeps: bool, target: Option<&str>) -> Done {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return skipped(format!("fuzzing is set up for {HOST} only"));
    }
    let packages = packages(MANIFEST)?;
    let is_own = |package: &&Value| package["manifest_path"].as_str() == manifest().to_str();
    let package = packages.iter().find(is_own);
    let mut names: Vec<&str> = targets(package.context(MANIFEST)?, "bin").collect();
    names.retain(|name| target.is_none_or(|target| target == *name));
    ensure!(!names.is_empty(), "fuzz/ has no such target");
    let sanitizer = build(profile)?;
    let targets = names.into_iter().map(|name| Target::new(name, profile));
    let targets: Vec<_> = targets.collect();
    let mut failed = Vec::new();
    for batch in targets.chunks(cpus()) {
        // All of a batch is started before the first one is waited for.
        let started = batch.iter().map(|target| target.start(seconds));
        let started: Vec<_> = started.collect();
        for (target, child) in batch.iter().zip(started) {
            if !child?.wait().is_ok_and(|status| status.success()) {
                target.print_log();
                failed.push(target.name);
            } else if keeps {
                target.merge()?;
            }
        }
    }
    if !failed.is_empty() {
        let failed = failed.join(", ");
        bail!("{failed}; inputs are in testing/fuzz/artifacts");
    }
    let count = targets.len();
    passed(format!("{count} targets, {seconds} s each, {sanitizer}"))
}

fn manifest() -> PathBuf {
    root().join(MANIFEST)
}

/// Builds all targets and returns the name of the sanitizer.
fn build(profile: &str) -> Result<&'static str> {
    let has_nightly = report::output(&mut nightly("rustc --version")).is_ok();
    let (mut build, flags, sanitizer) = if has_nightly {
        (
            nightly("cargo"),
            " -Zsanitizer=address",
            "address sanitizer",
        )
    } else {
        (cargo(""), "", "no sanitizer (rustup has no nightly)")
    };
    build.env("RUSTFLAGS", format!("{COVERAGE}{flags}"));
    build.env("CARGO_TARGET_DIR", target_dir());
    build.words("build --quiet --locked --target");
    build.args([HOST, "--profile", profile]);
    report::run(build.arg("--manifest-path").arg(manifest()))?;
    Ok(sanitizer)
}

fn target_dir() -> PathBuf {
    root().join("target/fuzz")
}

/// A target with its program and folders.
struct Target<'t> {
    name: &'t str,
    program: PathBuf,
    committed: PathBuf,
    /// Where new inputs go.
    scratch: PathBuf,
    artifacts: PathBuf,
}

impl<'t> Target<'t> {
    fn new(name: &'t str, profile: &str) -> Self {
        let folder = root().join("testing/fuzz");
        Self {
            name,
            program: target_dir().join(HOST).join(profile).join(name),
            committed: folder.join("corpus").join(name),
            scratch: target_dir().join("corpus").join(name),
            artifacts: folder.join("artifacts").join(name),
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        // Without a leak check: LeakSanitizer attaches to its own process, which containers refuse.
        command.env("ASAN_OPTIONS", "detect_leaks=0");
        command
    }

    fn log(&self) -> PathBuf {
        self.artifacts.join("log")
    }

    fn start(&self, seconds: u64) -> Result<Child> {
        for folder in [&self.committed, &self.artifacts, &self.scratch] {
            fs::create_dir_all(folder)?;
        }
        let mut command = self.command();
        let limits = format!("-timeout={SECONDS_PER_INPUT} -rss_limit_mb={MEMORY_MIB}");
        command
            .arg(format!("-max_total_time={seconds}"))
            .words(&limits);
        command.arg(format!("-artifact_prefix={}/", self.artifacts.display()));
        command.arg(&self.scratch).arg(&self.committed);
        command.stderr(fs::File::create(self.log())?.into_file());
        let (name, log) = (self.name, self.log());
        println!("fuzzing {name} for {seconds} s, log in {}", log.display());
        command.spawn().with_context(|| name.to_owned())
    }

    /// Adds the inputs that reach new code to the committed corpus.
    fn merge(&self) -> Result<()> {
        let mut command = self.command();
        // The fewest inputs that reach every edge; how often they do is not worth a file.
        command.words("-set_cover_merge=1 -use_counters=0");
        report::output(command.arg(&self.committed).arg(&self.scratch)).map(drop)
    }

    /// The end of a failed run's log: the finding and its stack.
    fn print_log(&self) {
        let text = fs::read(self.log()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        println!("{}", lines[lines.len().saturating_sub(60)..].join("\n"));
    }
}
