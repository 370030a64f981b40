//! `cargo xtask test`: sets up, then runs everything there is.

use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use crate::report::{self, Outcome, Report};
use crate::workspace::cargo;
use crate::{
    aarch64, bench, bpf, conformance, footprint, fuzz, kernels, miri, msrv, setup, unprivileged,
};

/// How long each fuzz target runs in CI, and elsewhere.
const FUZZ_SECONDS_CI: u64 = 60;
const FUZZ_SECONDS: u64 = 10;

/// Every step runs, also after a failed one; the summary says what was skipped and why.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let fuzz_seconds = match arguments {
        [] if std::env::var_os("CI").is_some() => FUZZ_SECONDS_CI,
        [] => FUZZ_SECONDS,
        [flag, number] if flag == "--fuzz-seconds" && number.parse::<u64>().is_ok() => {
            number.parse().unwrap_or(FUZZ_SECONDS)
        }
        _ => return Outcome::Failed("test takes nothing, or --fuzz-seconds N".into()),
    };
    let mut counts = Counts::default();
    let mut report = Report::default();
    report.step("setup", setup::run);
    report.step("tests", || workspace(&mut counts));
    report.step("without root", || unprivileged::run(&mut counts));
    report.step("kernel programs", || bpf::run(&["--check".into()]));
    report.step("conformance", || conformance::run(&[]));
    report.step("footprint", footprint::run);
    report.step("instructions", bench::instructions);
    report.step("msrv", msrv::run);
    report.step("aarch64", || aarch64::run(&mut counts));
    report.step("kernels", || kernels::short(&mut counts));
    report.step("miri", miri::run);
    report.step("fuzz", || fuzz::smoke(fuzz_seconds));
    let outcome = report.finish();
    println!("{counts}");
    outcome
}

/// Unit, integration and documentation tests of every package, the benchmarks' programs included.
fn workspace(counts: &mut Counts) -> Outcome {
    let (of_workspace, result) =
        Counts::of(cargo().args(["test", "--workspace", "--locked", "--no-fail-fast"]));
    counts.add(&of_workspace);
    match result {
        Ok(()) => Outcome::Passed(of_workspace.to_string()),
        Err(error) => Outcome::Failed(format!("{of_workspace}: {error}")),
    }
}

/// What test programs say of themselves in their last line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.ignored
        )
    }
}

impl Counts {
    /// Runs a command, passes its standard output on line by line, and counts.
    pub(crate) fn of(command: &mut Command) -> (Self, Result<(), String>) {
        let mut counts = Self::default();
        let fail = |command: &Command, error| format!("{}: {error}", report::shown(command));
        let mut child = match command.stdout(Stdio::piped()).spawn() {
            Ok(child) => child,
            Err(error) => return (counts, Err(fail(command, error))),
        };
        let output = child.stdout.take().map(BufReader::new);
        let mut terminal = std::io::stdout();
        for line in output
            .into_iter()
            .flat_map(|output| output.split(b'\n'))
            .map_while(Result::ok)
        {
            let _ = terminal.write_all(&[&line[..], b"\n"].concat());
            counts.add(&Self::parse(&String::from_utf8_lossy(&line)));
        }
        let result = match child.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("{}: {status}", report::shown(command))),
            Err(error) => Err(fail(command, error)),
        };
        (counts, result)
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }

    /// Zero for any line but libtest's closing one.
    pub(crate) fn parse(line: &str) -> Self {
        let mut counts = Self::default();
        let Some((_, numbers)) = line
            .strip_prefix("test result: ")
            .and_then(|rest| rest.split_once(". "))
        else {
            return counts;
        };
        for part in numbers.split("; ") {
            match part
                .split_once(' ')
                .map(|(number, what)| (number.parse().unwrap_or(0), what))
            {
                Some((number, "passed")) => counts.passed = number,
                Some((number, "failed")) => counts.failed = number,
                Some((number, "ignored")) => counts.ignored = number,
                _ => {}
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_line_of_a_test_program_is_counted() {
        let line = "test result: FAILED. 12 passed; 3 failed; 4 ignored; 0 measured; \
                    5 filtered out; finished in 0.01s";
        assert_eq!(
            Counts::parse(line),
            Counts {
                passed: 12,
                failed: 3,
                ignored: 4
            }
        );
        assert_eq!(Counts::parse("12 passed; 3 failed"), Counts::default());
    }
}
