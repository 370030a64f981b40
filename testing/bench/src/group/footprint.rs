//! Build times and sizes. Everything is built from scratch in a new directory, which takes a minute
//! or two: this group runs only when named.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::row::Report;
use crate::scratch::{self, Directory};

const KIB: f64 = 1024.0;
const MIB: f64 = 1024.0 * KIB;
/// Builds of the publisher; the median is reported.
const BUILDS: usize = 3;

const WITHOUT: &str = "fn main() { println!(\"{}\", std::process::id()); }\n";
const WITH: &str = r#"
use otelctx::{Key, ProcessContext, Context};

static ROUTE: Key = Key::new("http.route");

fn main() {
    let _process = ProcessContext::detect().with_service_name("shop").publish().expect("published");
    let mut record = Context::new([1; 16], [2; 8]).unwrap().with_sampled(true).with_attribute(&ROUTE, "/cart");
    let _attached = record.attach();
    println!("{}", std::process::id());
}
"#;

pub(crate) fn run(report: &mut Report) {
    report.group("footprint");
    for measure in [tree, publisher, command] {
        if let Err(why) = measure(report) {
            report.failed("build", &why);
        }
    }
}

/// The publisher's dependency tree, itself and build dependencies included.
fn tree(report: &mut Report) -> Result<(), String> {
    let mut command = scratch::cargo();
    command
        .args([
            "tree",
            "--locked",
            "-p",
            "otelctx",
            "--edges",
            "normal,build",
        ])
        .args(["--target", "all", "--prefix", "none", "--format", "{p}"]);
    let tree = scratch::output(&mut command)?;
    let lines: BTreeSet<&str> = tree.lines().filter(|line| !line.is_empty()).collect();
    let name = |line: &&str| line.split(' ').next().map(str::to_owned);
    let crates: BTreeSet<String> = lines.iter().filter_map(name).collect();
    let macros = lines
        .iter()
        .filter(|line| line.contains("(proc-macro)"))
        .count();
    report.alone(
        "crates in the publisher's tree",
        crates.len() as f64,
        "crates",
        5.0,
    );
    report.alone("procedural macros among them", macros as f64, "crates", 0.0);
    Ok(())
}

/// A program that publishes, adds a key and attaches, compared with an empty one.
fn publisher(report: &mut Report) -> Result<(), String> {
    let scratch = Directory::new("footprint");
    let dependency = format!(
        "otelctx = {{ path = {:?} }}\n",
        scratch::root().join("publish/otelctx")
    );
    let with = Program::write(scratch.path(), "with", &dependency, WITH)?;
    let without = Program::write(scratch.path(), "without", "", WITHOUT)?;
    let mut seconds = Vec::new();
    for _ in 0..BUILDS {
        let with = with.build()?;
        // The time of a program without dependencies is not the publisher's.
        seconds.push(with - without.build()?);
    }
    seconds.sort_by(f64::total_cmp);
    report.alone(
        "building the publisher as a dependency",
        seconds[BUILDS / 2],
        "s",
        4.0,
    );
    let added = (with.size()? - without.size()?) / KIB;
    report.alone("added to a stripped release program", added, "KiB", 60.0);
    Ok(())
}

/// A package with one program.
struct Program {
    directory: PathBuf,
    name: &'static str,
}

impl Program {
    fn write(
        scratch: &Path,
        name: &'static str,
        dependencies: &str,
        source: &str,
    ) -> Result<Self, String> {
        let directory = scratch.join(name);
        let write = || {
            std::fs::create_dir_all(directory.join("src"))?;
            let manifest = format!(
                "[package]\nname = {name:?}\nversion = \"0.0.0\"\nedition = \"2021\"\n\n\
                 [dependencies]\n{dependencies}\n[profile.release]\nstrip = true\n\n[workspace]\n"
            );
            std::fs::write(directory.join("Cargo.toml"), manifest)?;
            std::fs::write(directory.join("src/main.rs"), source)?;
            // The workspace's versions, which are already downloaded.
            let lock = scratch::root().join("Cargo.lock");
            std::fs::copy(lock, directory.join("Cargo.lock")).map(drop)
        };
        write().map_err(|error: std::io::Error| format!("{}: {error}", directory.display()))?;
        Ok(Self { directory, name })
    }

    /// Builds it from scratch; returns the seconds it took.
    fn build(&self) -> Result<f64, String> {
        let _ = std::fs::remove_dir_all(self.directory.join("target"));
        let mut command = scratch::cargo();
        command.current_dir(&self.directory);
        command.args(["build", "--release", "--offline"]);
        build(&mut command, &self.directory.join("target"))
    }

    fn size(&self) -> Result<f64, String> {
        size(&self.directory.join("target/release").join(self.name))
    }
}

/// The command with default features, TLS included, as the README builds it, and without them.
fn command(report: &mut Report) -> Result<(), String> {
    let scratch = Directory::new("command");
    let features = [
        ("default", None, Some(230.0)),
        ("no", Some("--no-default-features"), None),
    ];
    for (name, argument, bound) in features {
        let target = scratch.path().join(name);
        let mut command = scratch::cargo();
        command
            .args(["build", "--release", "--locked"])
            .args(argument);
        let before = cpu_time();
        let seconds = build(&mut command, &target)?;
        let work = format!("cargo build --release from scratch, {name} features");
        let took = cpu_time() - before;
        report.alone(format!("{work}, CPU time"), took, "s", bound);
        report.alone(work, seconds, "s", None);
        let built = target.join("release/otelctx");
        // Its symbols are kept for profiles of its demo.
        let stripped = scratch.path().join("stripped");
        let mut strip = Command::new("strip");
        let strip = strip.arg("-o").arg(&stripped).arg(&built).status();
        if !strip.is_ok_and(|status| status.success()) {
            return Err("strip (binutils) does not strip the command".into());
        }
        for (what, file) in [("command", &built), ("stripped command", &stripped)] {
            let work = format!("size of the {what}, {name} features");
            report.alone(work, size(file)? / MIB, "MiB", None);
        }
    }
    Ok(())
}

/// Builds into `target`; returns the seconds it took.
fn build(command: &mut Command, target: &Path) -> Result<f64, String> {
    command.env("CARGO_TARGET_DIR", target);
    // As on a machine with default settings.
    command
        .env_remove("CARGO_INCREMENTAL")
        .env_remove("RUSTFLAGS");
    let start = Instant::now();
    scratch::output(command)?;
    Ok(start.elapsed().as_secs_f64())
}

/// CPU time of ended children and their descendants, in seconds.
fn cpu_time() -> f64 {
    // SAFETY: an all-zero rusage is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: usage lives through the call, which fails for no other reason.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
    [usage.ru_utime, usage.ru_stime]
        .iter()
        .map(|time| time.tv_sec as f64 + time.tv_usec as f64 / 1e6)
        .sum()
}

fn size(file: &Path) -> Result<f64, String> {
    let metadata =
        std::fs::metadata(file).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(metadata.len() as f64)
}
