//! `cargo xtask msrv`: compiles the application crates with an older Rust, and for targets other
//! than the machine's own.
//!
//! The workspace's lints (`clippy::incompatible_msrv`) already refuse library calls newer than
//! each crate's `rust-version`; this compiles with the oldest compiler that is available.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::debian;
use crate::report::{self, Done, Words, command, output};
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
pub(crate) fn run() -> Done {
    let application_crates = format!("-p {}", APPLICATION_CRATES.join(" -p "));
    let (mut done, mut missing) = (Vec::new(), Vec::new());
    match rustup(TOOLS) {
        Some(rustc) => {
            check(&rustc, "--workspace")?;
            done.push(format!("the workspace with {}", version(&rustc)?));
        }
        None => missing.push(format!("tools: rustup has no {TOOLS}, lints only")),
    }
    if let Some(rustc) = rustup(APPLICATIONS) {
        check(&rustc, &application_crates)?;
        done.push(format!("application crates with {}", version(&rustc)?));
    }
    match debian::OLDER.rustc() {
        Ok(rustc) => {
            check(&rustc, &application_crates)?;
            check(&rustc, &format!("-p {}", INTEGRATIONS.join(" -p ")))?;
            done.push(format!("application crates with {}", version(&rustc)?));
            for target in [
                "aarch64-unknown-linux-gnu",
                "i686-unknown-linux-gnu",
                "wasm32-wasip1",
            ] {
                check(&rustc, &format!("{application_crates} --target {target}"))?;
                done.push(target.to_owned());
            }
        }
        Err(why) => {
            let what = "application crates, aarch64, 32 bits and non-Linux";
            missing.push(format!("{what}: {why:#}"));
        }
    }
    if has_target(WITHOUT_ATOMIC_U64) {
        let packages = format!("{application_crates} --target {WITHOUT_ATOMIC_U64}");
        check(Path::new("rustc"), &packages)?;
        done.push(WITHOUT_ATOMIC_U64.to_owned());
    } else {
        missing.push(format!("rustup has no {WITHOUT_ATOMIC_U64}"));
    }
    for line in &missing {
        println!("not compiled: {line}");
    }
    if done.is_empty() {
        return report::skipped(missing.join("; "));
    }
    report::passed(done.join(", "))
}

/// `cargo check` with another compiler, in a target folder of its own.
fn check(rustc: &Path, packages: &str) -> Result<()> {
    let mut check = cargo("check --quiet --locked --target-dir");
    check.arg(root().join("target/msrv")).words(packages);
    check.env("RUSTC", rustc).env_remove("RUSTFLAGS");
    report::run(check.env_remove("RUSTC_WRAPPER"))
}

/// The compiler of a toolchain that rustup already has; this installs none.
fn rustup(toolchain: &str) -> Option<PathBuf> {
    let list = output(&mut command("rustup toolchain list")).ok()?;
    list.lines().find(|line| line.starts_with(toolchain))?;
    let which = format!("rustup which --toolchain {toolchain} rustc");
    Some(output(&mut command(&which)).ok()?.trim().into())
}

/// Whether rustup's current Rust has the standard library of a target.
fn has_target(target: &str) -> bool {
    let list = output(&mut command("rustup target list --installed"));
    list.is_ok_and(|list| list.lines().any(|line| line == target))
}

fn version(rustc: &Path) -> Result<String> {
    let line = output(Command::new(rustc).arg("--version"))?;
    Ok(line.split(' ').take(2).collect::<Vec<_>>().join(" "))
}
