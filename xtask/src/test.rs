//! `cargo xtask test`: installs what is missing, then runs every test and check.

use std::process::Command;

use crate::counts::{self, Counts, Output};
use crate::report::{self, Outcome, Report};
use crate::workspace::{cargo, test_programs};
use crate::{
    aarch64, bench, bpf, footprint, fuzz, kernels, miri, msrv, node, package, python, setup,
    unprivileged,
};

/// Seconds for each fuzz target without `--fuzz-seconds`.
const FUZZ_SECONDS: u64 = 3;

/// Runs every step, even after one has failed; the summary lists what was skipped and why.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let fuzz_seconds = match arguments {
        [] => FUZZ_SECONDS,
        [flag, number] if flag == "--fuzz-seconds" && number.parse::<u64>().is_ok() => {
            number.parse().unwrap_or(FUZZ_SECONDS)
        }
        _ => return Outcome::Failed("test takes no argument, or --fuzz-seconds N".into()),
    };
    let mut counts = Counts::default();
    let mut report = Report::default();
    // It waits for downloads most of its time.
    report.step_beside("setup", setup::run, |report| report.step("build", build));
    // The tests use the package that it builds.
    report.step("node", || node::run(&[]));
    // The emulator and the other tests wait for some of their time, which is each other's then.
    let mut emulated = Counts::default();
    let aarch64 = || aarch64::run(aarch64::Selection::Short, &aarch64::USUAL, &mut emulated);
    report.step_beside("aarch64", aarch64, |report| {
        report.step("tests", || workspace(&mut counts));
        report.step("features", || features(&mut counts));
        report.step("without root", || unprivileged::run(&mut counts));
        // These wait for some of their time, too.
        let mut booted = Counts::default();
        let kernels = || kernels::short(&mut booted);
        report.step_beside("kernels", kernels, |report| {
            report.step("python", || python::run(&mut counts));
        });
        counts.add("", booted);
        report.step("kernel programs", || bpf::run(&["--check".into()]));
        report.step("footprint", footprint::run);
        report.step("instructions", bench::instructions);
        report.step("msrv", msrv::run);
        report.step("package", package::run);
        report.step("miri", miri::run);
        report.step("fuzz", || fuzz::smoke(fuzz_seconds));
    });
    counts.add("", emulated);
    let outcome = report.finish();
    for line in counts.untested() {
        println!("not tested: {line}");
    }
    println!("{counts}");
    for failure in counts.failures() {
        println!("failed: {failure}");
    }
    outcome
}

/// Builds the test programs.
fn build() -> Outcome {
    match test_programs(&["--workspace"]) {
        Ok(programs) => Outcome::Passed(format!("{} test programs", programs.len())),
        Err(error) => Outcome::Failed(error),
    }
}

/// Tests of the layer for `tracing` without OpenTelemetry and with the oldest version, and the versions
/// between. The tests of the workspace have it with the newest.
fn features(counts: &mut Counts) -> Outcome {
    const TRACING: [&str; 3] = ["--package", "otelctx-tracing", "--locked"];
    let between = "opentelemetry_0_30,opentelemetry_0_31,opentelemetry_0_32";
    let mut check = cargo();
    check.args(["check", "--quiet"]).args(TRACING);
    if let Err(error) = report::run(check.args(["--features", between])) {
        return Outcome::Failed(error);
    }
    for features in ["", "opentelemetry_0_29"] {
        let mut command = cargo();
        command.arg("test").args(TRACING);
        command.args(["--features", features, "--", "--show-output"]);
        if let Err(error) = counted(&mut command, counts) {
            return Outcome::Failed(format!("otelctx-tracing with {features:?}: {error}"));
        }
    }
    // The hooks of tokio, which is built again for them.
    for (features, test) in [
        ("tokio", "tokio_tasks"),
        ("tokio,opentelemetry_0_33", "tokio_with_observer"),
    ] {
        let mut command = cargo();
        command.arg("test").args(TRACING);
        command.args(["--features", features, "--test", test]);
        command.args(["--target-dir", "target/tokio", "--", "--show-output"]);
        command.env("RUSTFLAGS", "--cfg tokio_unstable");
        if let Err(error) = counted(&mut command, counts) {
            return Outcome::Failed(format!("otelctx-tracing, {test}: {error}"));
        }
    }
    Outcome::Passed("without OpenTelemetry, with 0.29 to 0.32, and with tokio's hooks".into())
}

/// Runs tests, and adds their counts.
fn counted(command: &mut Command, counts: &mut Counts) -> Result<(), String> {
    let (output, result) = Output::of(command);
    counts.add("", output.counts);
    result
}

/// Unit, integration and documentation tests of every package, the benchmarks' programs included.
fn workspace(counts: &mut Counts) -> Outcome {
    let programs = match test_programs(&["--workspace"]) {
        Ok(programs) => programs,
        Err(error) => return Outcome::Failed(error),
    };
    let used = kernels::list_fixtures();
    let (mut total, mut failed) = counts::of_programs(&programs, |program| {
        let mut command = program.command();
        command.envs(used.clone());
        command
    });
    kernels::fixtures_are_listed();
    let mut documentation = cargo();
    documentation.args(["test", "--workspace", "--doc", "--locked", "--no-fail-fast"]);
    if let Err(error) = counted(&mut documentation, &mut total) {
        failed.push(error);
    }
    let said = total.to_string();
    counts.add("", total);
    if failed.is_empty() {
        Outcome::Passed(said)
    } else {
        Outcome::Failed(format!("{said}: {}", failed.join(", ")))
    }
}
