//! `cargo xtask test`: installs what is missing, then runs every test and check of the usual targets; with `--all`,
//! those of all targets.

mod part;
mod tested;

use crate::counts::Counts;
use crate::nextest::{self, Run};
use crate::report::{self, Outcome, Report};
use crate::workspace::cargo;
use crate::{bench, bpf, footprint, node, python, setup};

use part::{PARTS, Part};
pub(crate) use tested::{note, tree};

/// How many of the slowest tests are printed.
const SLOWEST: usize = 20;

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let mut parts = None;
    let mut is_resumed = false;
    for argument in arguments {
        match argument.as_str() {
            "--all" => parts = Some(PARTS.iter().collect()),
            "--resume" => is_resumed = true,
            other => match other.strip_prefix("--all=").map(part::named) {
                Some(Ok(named)) => parts = Some(named),
                Some(Err(error)) => return Outcome::Failed(error),
                None => {
                    return Outcome::Failed("test takes --all[=PART,…] and --resume".into());
                }
            },
        }
    }
    let mut counts = Counts::default();
    let mut report = Report::default();
    let ran: Vec<_> = parts
        .iter()
        .flatten()
        .map(|part: &&Part| part.name)
        .collect();
    match parts {
        None if is_resumed => return Outcome::Failed("--resume goes with --all".into()),
        None => usual(&mut report, &mut counts),
        Some(parts) => {
            report.step("setup", || setup::run(setup::Tier::All));
            for part in parts {
                tested::run(part, is_resumed, &mut report, &mut counts);
            }
        }
    }
    let outcome = report.finish();
    println!("\nslowest tests");
    for (test, seconds) in counts.slowest(SLOWEST) {
        println!("  {seconds:>6.1} s  {test}");
    }
    println!("\nnot tested");
    for part in PARTS.iter().filter(|part| !ran.contains(&part.name)) {
        println!("  {} (cargo xtask test --all={})", part.what, part.name);
    }
    for line in counts.untested() {
        println!("  {line}");
    }
    println!("\n{counts}");
    for failure in counts.failures() {
        println!("failed: {failure}");
    }
    outcome
}

/// Runs the tests on the usual targets.
fn usual(report: &mut Report, counts: &mut Counts) {
    report.step_beside(
        "setup",
        || setup::run(setup::Tier::Usual),
        |report| report.step("build", || nextest::build_tests().into()),
    );
    // The tests use the package that it builds.
    report.step("node", || node::run(&["--native".into()]));
    report.step("tests", || Run::usual().run(counts));
    report.step("documentation", || documentation(counts));
    report.step("features", || features(counts));
    report.step("python", || python::run(python::Selection::Usual, counts));
    report.step("artifacts", || part::joined(artifacts()));
}

/// Checks of what is committed and of what applications carry: eBPF objects, dependencies, instruction counts.
fn artifacts() -> Vec<Outcome> {
    vec![
        bpf::run(&["--check".into()]),
        footprint::run(),
        bench::instructions(),
    ]
}

/// The examples in the documentation.
fn documentation(counts: &mut Counts) -> Outcome {
    let arguments = ["--workspace", "--doc", "--locked", "--no-fail-fast"];
    libtest(&arguments, &[], counts)
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
    // The hooks of tokio, which is built again for them.
    let tokio = [
        ("RUSTFLAGS", "--cfg tokio_unstable"),
        ("CARGO_TARGET_DIR", "target/tokio"),
    ];
    let runs: [(&[&str], &[_]); 4] = [
        (&["--features", ""], &[]),
        (&["--features", "opentelemetry_0_29"], &[]),
        (&["--features", "tokio", "--test", "tokio_tasks"], &tokio),
        (
            &[
                "--features",
                "tokio,opentelemetry_0_33",
                "--test",
                "tokio_with_observer",
            ],
            &tokio,
        ),
    ];
    for (arguments, variables) in runs {
        let arguments = [&TRACING[..], arguments].concat();
        if let Outcome::Failed(error) = libtest(&arguments, variables, counts) {
            return Outcome::Failed(error);
        }
    }
    Outcome::Passed("without OpenTelemetry, with 0.29 to 0.32, and with tokio's hooks".into())
}

/// Runs `cargo test`, and adds the counts.
fn libtest(arguments: &[&str], variables: &[(&str, &str)], counts: &mut Counts) -> Outcome {
    let mut command = cargo();
    command.arg("test").args(arguments);
    command.envs(variables.iter().copied());
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => return Outcome::Failed(format!("{}: {error}", report::shown(&command))),
    };
    report::print(&[&output.stdout[..], &output.stderr].concat());
    let found = Counts::of_libtest(&String::from_utf8_lossy(&output.stdout));
    let said = found.to_string();
    counts.add("", found);
    if output.status.success() {
        Outcome::Passed(said)
    } else {
        Outcome::Failed(format!("{}: {said}", report::shown(&command)))
    }
}
