//! `cargo xtask msrv`: compiles the application crates with an older Rust, and for targets other
//! than the machine's own.
//!
//! The workspace's lints (`clippy::incompatible_msrv`) already refuse library calls newer than
//! each crate's `rust-version`; this compiles with the oldest compiler that is available.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::debian;
use crate::report::{self, Outcome};
use crate::workspace::{APPLICATION_CRATES, INTEGRATIONS, cargo, root};

/// The minimum that the application crates state in their `rust-version`.
const APPLICATIONS: &str = "1.82";
/// A Linux target without 64-bit atomics, where the publisher compiles to no-ops as well. rustup's
/// current Rust has its standard library after `rustup target add`.
const WITHOUT_ATOMIC_U64: &str = "powerpc-unknown-linux-gnu";
/// The minimum of the tools (`rust-version` of the workspace).
const TOOLS: &str = "1.88";

/// Compiles the application crates with Rust 1.82, or the next newer one that is available, also
/// for aarch64, for 32 bits and for a target that is not Linux (where the publisher compiles to no-ops).
pub(crate) fn run() -> Outcome {
    compile().into()
}

fn compile() -> Result<Outcome, String> {
    let mut done = Vec::new();
    let mut missing = Vec::new();
    match rustup(TOOLS) {
        Some(rustc) => {
            check(&rustc, &["--workspace"], None)?;
            done.push(format!("the workspace with {}", version(&rustc)?));
        }
        None => missing.push(format!("tools: rustup has no {TOOLS}, lints only")),
    }
    if let Some(rustc) = rustup(APPLICATIONS) {
        check(&rustc, &application_crates(), None)?;
        done.push(format!("application crates with {}", version(&rustc)?));
    }
    match debian::OLDER.rustc() {
        Ok(rustc) => {
            check(&rustc, &application_crates(), None)?;
            check(&rustc, &integrations(), None)?;
            done.push(format!("application crates with {}", version(&rustc)?));
            for target in [
                "aarch64-unknown-linux-gnu",
                "i686-unknown-linux-gnu",
                "wasm32-wasip1",
            ] {
                check(&rustc, &application_crates(), Some(target))?;
                done.push(target.to_owned());
            }
        }
        Err(why) => missing.push(format!(
            "application crates, aarch64, 32 bits and non-Linux: {why}"
        )),
    }
    if has_target(WITHOUT_ATOMIC_U64) {
        check(
            Path::new("rustc"),
            &application_crates(),
            Some(WITHOUT_ATOMIC_U64),
        )?;
        done.push(WITHOUT_ATOMIC_U64.to_owned());
    } else {
        missing.push(format!("rustup has no {WITHOUT_ATOMIC_U64}"));
    }
    missing
        .iter()
        .for_each(|line| println!("not compiled: {line}"));
    if done.is_empty() {
        return Ok(Outcome::Skipped(missing.join("; ")));
    }
    Ok(Outcome::Passed(done.join(", ")))
}

fn application_crates() -> Vec<&'static str> {
    packages(&APPLICATION_CRATES)
}

fn integrations() -> Vec<&'static str> {
    packages(&INTEGRATIONS)
}

fn packages(names: &[&'static str]) -> Vec<&'static str> {
    names.iter().flat_map(|name| ["-p", *name]).collect()
}

/// `cargo check` with another compiler, in a target folder of its own.
fn check(rustc: &Path, packages: &[&str], target: Option<&str>) -> Result<(), String> {
    let mut command = cargo();
    command
        .env("RUSTC", rustc)
        .env_remove("RUSTFLAGS")
        .env_remove("RUSTC_WRAPPER");
    command
        .args(["check", "--quiet", "--locked", "--target-dir"])
        .arg(root().join("target/msrv"));
    command.args(packages);
    if let Some(target) = target {
        command.args(["--target", target]);
    }
    report::run(&mut command)
}

/// The compiler of a toolchain that rustup already has; this installs none.
fn rustup(toolchain: &str) -> Option<PathBuf> {
    let which = ["which", "--toolchain", toolchain, "rustc"];
    let list = report::output(Command::new("rustup").args(["toolchain", "list"])).ok()?;
    list.lines().find(|line| line.starts_with(toolchain))?;
    let path = report::output(Command::new("rustup").args(which)).ok()?;
    Some(path.trim().into())
}

/// Whether rustup's current Rust has the standard library of a target.
fn has_target(target: &str) -> bool {
    let list = report::output(Command::new("rustup").args(["target", "list", "--installed"]));
    list.is_ok_and(|list| list.lines().any(|line| line == target))
}

fn version(rustc: &Path) -> Result<String, String> {
    let line = report::output(Command::new(rustc).arg("--version"))?;
    Ok(line.split(' ').take(2).collect::<Vec<_>>().join(" "))
}
