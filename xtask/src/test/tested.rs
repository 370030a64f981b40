//! `docs/tested.md`: when each part last passed, on which commit and machine.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use fs_err as fs;

use super::part::Part;
use crate::counts::Counts;
use crate::files::write;
use crate::report::{self, Done, Outcome, Report, command};
use crate::workspace::{cpus, git, root, target_dir};

/// The list of runs.
const LIST: &str = "docs/tested.md";

/// Runs a part, notes the run in [`LIST`], and adds its counts. If it `is_resumed`, and the part has passed with the same
/// files, it does not run again.
pub(super) fn run(part: &'static Part, is_resumed: bool, report: &mut Report, counts: &mut Counts) {
    let tree = tree();
    let stamp = target_dir().join("tested").join(part.name);
    if is_resumed && has_passed(&stamp, tree.as_deref()) {
        let passed = || report::passed("passed before with these files");
        return report.step(part.name, passed);
    }
    let mut own = Counts::default();
    report.step(part.name, || {
        let start = Instant::now();
        let done = part.run(&mut own);
        let seconds = start.elapsed().as_secs();
        let said = if own == Counts::default() {
            report::line(&done)
        } else {
            own.to_string()
        };
        note(part.name, &done, &said, seconds);
        // What was skipped may run the next time.
        let is_whole = matches!(&done, Ok(Outcome::Passed(line)) if !line.contains("skipped: "));
        if let (true, Some(tree)) = (is_whole, &tree) {
            // Without it, the part runs again.
            let _ = write(&stamp, tree);
        }
        done
    });
    counts.add("", own);
}

/// Whether a stamp says that these files have passed.
pub(crate) fn has_passed(stamp: &Path, files: Option<&str>) -> bool {
    files.is_some() && fs::read_to_string(stamp).ok().as_deref() == files
}

/// Adds a line to [`LIST`].
pub(crate) fn note(part: &str, done: &Done, counts: &str, seconds: u64) {
    let verdict = match done {
        Ok(Outcome::Passed(_)) => "passed",
        Ok(Outcome::Skipped(_)) => "skipped",
        Err(_) => "FAILED",
    };
    let (date, commit, machine) = (said(&mut command("date -u +%F")), commit(), machine());
    let minutes = seconds.div_ceil(60);
    let line =
        format!("| {date} | {commit} | {machine} | {part} | {verdict} | {counts} | {minutes} |\n");
    let path = root().join(LIST);
    let added = fs::read_to_string(&path).and_then(|text| fs::write(&path, text + &line));
    if let Err(error) = added {
        println!("{error}");
    }
}

/// What a command prints; empty if it fails.
fn said(command: &mut Command) -> String {
    report::output(command)
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// Files that differ from the commit, other than the list.
fn changes() -> String {
    said(git("status --porcelain -- .").arg(format!(":!{LIST}")))
}

/// The abbreviated commit, with a sign if files differ from it.
fn commit() -> String {
    let sign = if changes().is_empty() { "" } else { "+" };
    said(&mut git("rev-parse --short HEAD")) + sign
}

/// Identifies the committed files other than the list; `None` if there are uncommitted changes.
pub(crate) fn tree() -> Option<String> {
    let files = said(&mut git("ls-tree -r HEAD"));
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
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let version = kernel.split(['-', '+']).next().unwrap_or_default().trim();
    let (architecture, cpus) = (std::env::consts::ARCH, cpus());
    format!("{architecture}, {cpus} CPUs, Linux {version}")
}
