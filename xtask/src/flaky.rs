//! `cargo xtask flaky [PATTERN] [N]`: runs tests many times beside a load that takes all CPUs.
//!
//! A test program that has passed is not run again with the same files, so that a long run can be ended and resumed.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Instant;

use serde_json::Value;

use crate::counts::Counts;
use crate::nextest::{self, Run};
use crate::report::{self, Outcome};
use crate::test;
use crate::workspace::{have, target_dir};

/// How often each test runs, without a number.
const REPETITIONS: u32 = 20;
/// What loads the machine.
const LOAD: (&str, [&str; 2]) = ("stress-ng", ["--cpu", "8"]);

/// Runs the tests whose names match a pattern, or all usual ones.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let mut pattern = None;
    let mut repetitions = REPETITIONS;
    for argument in arguments {
        match argument.parse() {
            Ok(0) => return Outcome::Failed("a test runs at least once".into()),
            Ok(number) => repetitions = number,
            Err(_) if pattern.is_none() => pattern = Some(argument.as_str()),
            Err(_) => return Outcome::Failed("flaky takes a pattern and a number".into()),
        }
    }
    if !have(LOAD.0) {
        return Outcome::Skipped(format!("no {}: cargo xtask setup --all", LOAD.0));
    }
    repeat(pattern, repetitions).into()
}

fn repeat(pattern: Option<&str>, repetitions: u32) -> Result<Outcome, String> {
    let tests = pattern.map_or_else(|| "all()".into(), |it| format!("test({it})"));
    let tests = format!("{tests} & default()");
    nextest::build(false)?;
    let programs = programs(&tests)?;
    let wanted = test::tree().map(|tree| format!("{tree} {repetitions}"));
    let (start, mut counts) = (Instant::now(), Counts::default());
    let load = Load::start()?;
    let (mut passed, mut before, mut failed) = (0, 0, Vec::new());
    for program in programs {
        let stamp = stamp(&program);
        let has_passed = fs::read_to_string(&stamp).ok();
        if pattern.is_none() && wanted.is_some() && has_passed == wanted {
            before += 1;
            continue;
        }
        let filter = format!("binary_id(={program}) & {tests}");
        match Run::repeated(&filter, repetitions).run_built(&mut counts) {
            Ok(outcome) => {
                println!("{program}: {repetitions} times: {outcome}");
                passed += 1;
                if let (None, Some(wanted)) = (pattern, &wanted) {
                    let folder = stamp.parent().unwrap_or(&stamp);
                    // Without it, the program runs again.
                    let _ = fs::create_dir_all(folder).and_then(|()| fs::write(&stamp, wanted));
                }
            }
            Err(why) => {
                println!("{program}: FAILED: {why}");
                failed.push(program);
            }
        }
    }
    drop(load);
    let line = format!("{passed} test programs, {repetitions} times; {before} had passed before");
    let outcome = if failed.is_empty() {
        Outcome::Passed(line)
    } else {
        Outcome::Failed(format!("{line}; failed: {}", failed.join(", ")))
    };
    let part = format!("flaky {}", pattern.unwrap_or("all tests"));
    let seconds = start.elapsed().as_secs();
    test::note(&part, &outcome, &format!("{counts}; {outcome}"), seconds);
    Ok(outcome)
}

/// The test programs with tests that a filter selects, by nextest's names for them.
fn programs(tests: &str) -> Result<Vec<String>, String> {
    let mut list = nextest::tool("cargo-nextest");
    list.args([
        "nextest",
        "list",
        "--workspace",
        "--locked",
        "--cargo-quiet",
    ]);
    list.args([
        "--message-format=json",
        "--ignore-default-filter",
        "-E",
        tests,
    ]);
    let text = report::output(&mut list)?;
    let list: Value = serde_json::from_str(&text).map_err(|error| format!("nextest: {error}"))?;
    let is_selected = |test: &Value| test["filter-match"]["status"] == "matches";
    let has_tests = |program: &Value| {
        let tests = program["testcases"].as_object();
        tests.is_some_and(|tests| tests.values().any(is_selected))
    };
    let programs = list["rust-suites"].as_object().into_iter().flatten();
    let selected = programs.filter(|(_, program)| has_tests(program));
    Ok(selected.map(|(name, _)| name.clone()).collect())
}

fn stamp(program: &str) -> PathBuf {
    let name = program.replace(['/', ':'], "-");
    target_dir().join("tested/flaky").join(name)
}

/// A load on all CPUs, until it is dropped.
struct Load(Child);

impl Load {
    fn start() -> Result<Self, String> {
        let child = Command::new(LOAD.0).args(LOAD.1).arg("--quiet").spawn();
        let child = child.map_err(|error| format!("{}: {error}", LOAD.0))?;
        Ok(Self(child))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // It ends its own processes when it is asked to end.
        let pid = self.0.id().to_string();
        let _ = Command::new("kill").arg(pid).status();
        let _ = self.0.wait();
    }
}
