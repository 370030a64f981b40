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
    let programs = programs()?;
    let tree = test::tree();
    let load = Load::start()?;
    let (mut passed, mut before, mut failed) = (0, 0, Vec::new());
    for program in programs {
        let stamp = stamp(&program);
        let wanted = tree.as_ref().map(|tree| format!("{tree} {repetitions}"));
        let has_passed = fs::read_to_string(&stamp).ok();
        if pattern.is_none() && wanted.is_some() && has_passed == wanted {
            before += 1;
            continue;
        }
        let tests = pattern.map_or_else(|| "all()".into(), |it| format!("test({it})"));
        let filter = format!("binary_id(={program}) & {tests} & default()");
        let (start, mut counts) = (Instant::now(), Counts::default());
        let outcome = Run::repeated(&filter, repetitions).run(&mut counts);
        if counts == Counts::default() && !matches!(outcome, Outcome::Failed(_)) {
            continue;
        }
        println!("{program}: {outcome}");
        match outcome {
            Outcome::Failed(why) => failed.push(format!("{program}: {why}")),
            _ => {
                passed += 1;
                if let (None, Some(wanted)) = (pattern, wanted) {
                    let folder = stamp.parent().unwrap_or(&stamp);
                    // Without it, the program runs again.
                    let _ = fs::create_dir_all(folder).and_then(|()| fs::write(&stamp, wanted));
                }
            }
        }
        let seconds = start.elapsed().as_secs();
        println!("{program}: {repetitions} times in {seconds} s");
    }
    drop(load);
    let line = format!("{passed} test programs, {repetitions} times; {before} had passed before");
    if failed.is_empty() {
        Ok(Outcome::Passed(line))
    } else {
        Err(format!("{line}; failed: {}", failed.join("; ")))
    }
}

/// The test programs by nextest's names for them.
fn programs() -> Result<Vec<String>, String> {
    let mut list = nextest::tool("cargo-nextest");
    list.args([
        "nextest",
        "list",
        "--workspace",
        "--locked",
        "--cargo-quiet",
    ]);
    list.args(["--list-type=binaries-only", "--message-format=json"]);
    let text = report::output(&mut list)?;
    let list: Value = serde_json::from_str(&text).map_err(|error| format!("nextest: {error}"))?;
    let programs = list["rust-binaries"].as_object();
    Ok(programs
        .into_iter()
        .flat_map(|it| it.keys().cloned())
        .collect())
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
