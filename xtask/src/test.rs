//! `cargo xtask test`: installs what is missing, then runs every test and check of the usual targets; with `--all`,
//! those of all targets.

mod part;
mod tested;

use anyhow::{Context, bail, ensure};

use crate::counts::Counts;
use crate::nextest;
use crate::report::{self, Done, Report, Words};
use crate::workspace::cargo;
use crate::{bench, bpf, footprint, node, python, setup};

use part::{PARTS, Part};
pub(crate) use tested::{has_passed, note, tree};

/// How many of the slowest tests are printed.
const SLOWEST: usize = 20;

pub(crate) fn run(arguments: &[String]) -> Done {
    let mut parts: Option<Vec<&Part>> = None;
    let mut is_resumed = false;
    for argument in arguments {
        match (argument.as_str(), argument.strip_prefix("--all=")) {
            ("--all", _) => parts = Some(PARTS.iter().collect()),
            ("--resume", _) => is_resumed = true,
            (_, Some(names)) => parts = Some(part::named(names)?),
            _ => bail!("test takes --all[=PART,…] and --resume"),
        }
    }
    let mut counts = Counts::default();
    let mut report = Report::default();
    if let Some(parts) = &parts {
        report.step("setup", || setup::run(true));
        for part in parts {
            tested::run(part, is_resumed, &mut report, &mut counts);
        }
    } else {
        ensure!(!is_resumed, "--resume goes with --all");
        usual(&mut report, &mut counts);
    }
    let done = report.finish();
    println!("\nslowest tests");
    for (test, seconds) in counts.slowest(SLOWEST) {
        println!("  {seconds:>6.1} s  {test}");
    }
    println!("\nnot tested");
    let ran = |part: &Part| parts.iter().flatten().any(|it| it.name == part.name);
    for part in PARTS.iter().filter(|part| !ran(part)) {
        println!("  {} (cargo xtask test --all={})", part.what, part.name);
    }
    for line in counts.untested() {
        println!("  {line}");
    }
    println!("\n{counts}");
    for failure in counts.failures() {
        println!("failed: {failure}");
    }
    done
}

/// Runs the tests on the usual targets.
fn usual(report: &mut Report, counts: &mut Counts) {
    report.step_beside(
        "setup",
        || setup::run(false),
        |report| report.step("build", nextest::build_tests),
    );
    // The tests use the package that it builds.
    report.step("node", || node::run(&["--native".into()]));
    report.step("tests", || nextest::usual(counts));
    report.step("documentation", || documentation(counts));
    report.step("features", || features(counts));
    report.step("python", || python::run(false, counts));
    report.step("artifacts", || report::joined(artifacts()));
}

/// Checks of what is committed and of what applications carry: eBPF objects, dependencies, instruction counts.
fn artifacts() -> Vec<Done> {
    vec![bpf::run(true), footprint::run(), bench::instructions()]
}

/// The examples in the documentation.
fn documentation(counts: &mut Counts) -> Done {
    libtest("--workspace --doc --locked --no-fail-fast", &[], counts)
}

/// Tests of the layer for `tracing` without OpenTelemetry and with the oldest version, and the versions
/// between; and that the command compiles without TLS. The tests of the workspace have it with the newest.
fn features(counts: &mut Counts) -> Done {
    const TRACING: &str = "--package otelctx-tracing --locked --features=";
    let between = "opentelemetry_0_30,opentelemetry_0_31,opentelemetry_0_32";
    report::run(cargo("check --quiet").words(&format!("{TRACING}{between}")))?;
    report::run(&mut cargo(
        "check --quiet --locked --package otelctx-cli --no-default-features",
    ))?;
    // The hooks of tokio, which is built again for them.
    let tokio = [
        ("RUSTFLAGS", "--cfg tokio_unstable"),
        ("CARGO_TARGET_DIR", "target/tokio"),
    ];
    let runs: [(&str, &[_]); 4] = [
        ("", &[]),
        ("opentelemetry_0_29", &[]),
        ("tokio --test tokio_tasks", &tokio),
        (
            "tokio,opentelemetry_0_33 --test tokio_with_observer",
            &tokio,
        ),
    ];
    for (features, variables) in runs {
        libtest(&format!("{TRACING}{features}"), variables, counts)?;
    }
    report::passed("without OpenTelemetry, with 0.29 to 0.32, and with tokio's hooks")
}

/// Runs `cargo test`, and adds the counts.
fn libtest(arguments: &str, variables: &[(&str, &str)], counts: &mut Counts) -> Done {
    let mut command = cargo("test");
    command.words(arguments).envs(variables.iter().copied());
    let output = command.output().with_context(|| report::shown(&command))?;
    report::print(&[&output.stdout[..], &output.stderr].concat());
    let found = Counts::of_libtest(&String::from_utf8_lossy(&output.stdout));
    let said = found.to_string();
    counts.add("", found);
    ensure!(
        output.status.success(),
        "{}: {said}",
        report::shown(&command)
    );
    report::passed(said)
}
