//! `docs/tested.md`: when each part last passed, on which commit and machine.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use super::part::Part;
use crate::counts::Counts;
use crate::report::{self, Outcome, Report};
use crate::workspace::{root, target_dir};

/// The list of runs.
const LIST: &str = "docs/tested.md";

/// Runs a part, notes the run in [`LIST`], and adds its counts. If it `is_resumed`, and the part has passed with the same
/// files, it does not run again.
pub(super) fn run(part: &'static Part, is_resumed: bool, report: &mut Report, counts: &mut Counts) {
    let (tree, stamp) = (tree(), stamp(part.name));
    let passed = fs::read_to_string(&stamp).ok();
    if is_resumed && tree.is_some() && passed == tree {
        report.step(part.name, || {
            Outcome::Passed("passed before with these files".into())
        });
        return;
    }
    let mut own = Counts::default();
    report.step(part.name, || {
        let start = Instant::now();
        let outcome = part.run(&mut own);
        let seconds = start.elapsed().as_secs();
        let said = if own == Counts::default() {
            outcome.to_string()
        } else {
            own.to_string()
        };
        note(part.name, &outcome, &said, seconds);
        // What was skipped may run the next time.
        let is_whole = matches!(&outcome, Outcome::Passed(line) if !line.contains("skipped: "));
        if let (true, Some(tree)) = (is_whole, &tree) {
            let folder = stamp.parent().unwrap_or(&stamp);
            // Without it, the part runs again.
            let _ = fs::create_dir_all(folder).and_then(|()| fs::write(&stamp, tree));
        }
        outcome
    });
    counts.add("", own);
}

fn stamp(part: &str) -> PathBuf {
    target_dir().join("tested").join(part)
}

/// Adds a line to [`LIST`].
pub(crate) fn note(part: &str, outcome: &Outcome, counts: &str, seconds: u64) {
    let verdict = match outcome {
        Outcome::Passed(_) => "passed",
        Outcome::Skipped(_) => "skipped",
        Outcome::Failed(_) => "FAILED",
    };
    let date = said(Command::new("date").args(["-u", "+%F"]));
    let line = format!(
        "| {date} | {} | {} | {part} | {verdict} | {counts} | {} |\n",
        commit(),
        machine(),
        seconds.div_ceil(60)
    );
    let path = root().join(LIST);
    let added = fs::read_to_string(&path).and_then(|text| fs::write(&path, text + &line));
    if let Err(error) = added {
        println!("{}: {error}", path.display());
    }
}

/// What a command prints; empty if it fails.
fn said(command: &mut Command) -> String {
    let said = report::output(command.current_dir(root()));
    said.unwrap_or_default().trim().to_owned()
}

/// Files that differ from the commit, other than the list.
fn changes() -> String {
    let mut git = Command::new("git");
    git.args(["status", "--porcelain", "--", ".", &format!(":!{LIST}")]);
    said(&mut git)
}

/// The abbreviated commit, with a sign if files differ from it.
fn commit() -> String {
    let commit = said(Command::new("git").args(["rev-parse", "--short", "HEAD"]));
    let sign = if changes().is_empty() { "" } else { "+" };
    commit + sign
}

/// Identifies the committed files other than the list; `None` if there are uncommitted changes.
pub(crate) fn tree() -> Option<String> {
    let files = said(Command::new("git").args(["ls-tree", "-r", "HEAD"]));
    if files.is_empty() || !changes().is_empty() {
        return None;
    }
    let mut hasher = DefaultHasher::new();
    for line in files.lines().filter(|line| !line.ends_with(LIST)) {
        line.hash(&mut hasher);
    }
    Some(format!("{:016x}", hasher.finish()))
}

/// The machine, as far as results depend on it.
fn machine() -> String {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let version = kernel.split(['-', '+']).next().unwrap_or_default().trim();
    format!("{}, {cpus} CPUs, Linux {version}", std::env::consts::ARCH)
}
