//! `cargo xtask flaky [PATTERN] [N]`: runs tests many times beside a load that takes all CPUs.
//!
//! A test program that has passed is not run again with the same files, so that a long run can be ended and resumed. The
//! pattern can be a filter of nextest, such as `package(otelctx-remote)`: so all tests can run on several days.

use std::process::Child;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use crate::counts::Counts;
use crate::files::write;
use crate::nextest;
use crate::report::{self, Done, Words, command};
use crate::test;
use crate::workspace::{have, target_dir};

/// How often each test runs, without a number.
const REPETITIONS: u32 = 20;
/// What loads the machine.
const LOAD: &str = "stress-ng";

/// Runs the tests whose names match a pattern, or that a filter of nextest selects, or all usual ones.
pub(crate) fn run(arguments: &[String]) -> Done {
    let mut pattern = None;
    let mut repetitions = REPETITIONS;
    for argument in arguments {
        match argument.parse() {
            Ok(0) => bail!("a test runs at least once"),
            Ok(number) => repetitions = number,
            Err(_) if pattern.is_none() => pattern = Some(argument.as_str()),
            Err(_) => bail!("flaky takes a pattern and a number"),
        }
    }
    if !have(LOAD) {
        return report::skipped(format!("no {LOAD}: cargo xtask setup --all"));
    }
    let tests = match pattern {
        None => "all()".to_owned(),
        Some(filter) if filter.contains('(') => filter.to_owned(),
        Some(name) => format!("test({name})"),
    };
    let tests = format!("({tests}) & default()");
    nextest::build(false)?;
    let programs = programs(&tests)?;
    // One that ran in part only is not noted.
    let wanted = test::tree().filter(|_| pattern.is_none());
    let wanted = wanted.map(|tree| format!("{tree} {repetitions}"));
    let (start, mut counts) = (Instant::now(), Counts::default());
    let load = Load::start()?;
    let (mut passed, mut before, mut failed) = (0, 0, Vec::new());
    for program in programs {
        let name = program.replace(['/', ':'], "-");
        let stamp = target_dir().join("tested/flaky").join(name);
        if test::has_passed(&stamp, wanted.as_deref()) {
            before += 1;
            continue;
        }
        let filter = format!("binary_id(={program}) & {tests}");
        let done = nextest::repeated(&filter, repetitions, &mut counts);
        println!("{program}: {repetitions} times: {}", report::line(&done));
        if done.is_err() {
            failed.push(program);
            continue;
        }
        passed += 1;
        if let Some(wanted) = &wanted {
            // Without it, the program runs again.
            let _ = write(&stamp, wanted);
        }
    }
    drop(load);
    let line = format!("{passed} test programs, {repetitions} times; {before} had passed before");
    let done = match &failed[..] {
        [] => report::passed(line),
        failed => Err(anyhow!("{line}; failed: {}", failed.join(", "))),
    };
    // In a table.
    let pattern = pattern.unwrap_or("all tests").replace('|', "\\|");
    let part = format!("flaky {pattern}");
    let seconds = start.elapsed().as_secs();
    let said = format!("{counts}; {}", report::line(&done));
    test::note(&part, &done, &said, seconds);
    done
}

/// The test programs with tests that a filter selects, by nextest's names for them.
fn programs(tests: &str) -> Result<Vec<String>> {
    let mut list = nextest::tool("cargo-nextest");
    list.words("nextest list --workspace --locked --cargo-quiet --message-format=json");
    list.args(["--ignore-default-filter", "-E", tests]);
    let list: Value = serde_json::from_str(&report::output(&mut list)?).context("nextest")?;
    let is_selected = |test: &Value| test["filter-match"]["status"] == "matches";
    let has_tests = |program: &Value| {
        let tests = program["testcases"].as_object();
        tests.is_some_and(|tests| tests.values().any(is_selected))
    };
    let programs = list["rust-suites"].as_object().into_iter().flatten();
    let selected = programs.filter(|(_, program)| has_tests(program));
    Ok(selected.map(|(name, _)| name.clone()).collect())
}

/// A load on all CPUs, until it is dropped.
struct Load(Child);

impl Load {
    fn start() -> Result<Self> {
        let load = command(LOAD).words("--cpu 8 --quiet").spawn();
        Ok(Self(load.context(LOAD)?))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // It ends its own processes when it is asked to end.
        let _ = command("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}
