//! The tests again, as a user without privileges: part of `cargo xtask test`.
//!
//! Runs the test programs that root built, as the user `nobody`, in the checkout. Tests that need
//! root skip with a line. What they compile goes into a folder that `nobody` owns; cargo itself is
//! usually in root's home: tests that call it use what root has built, or skip too.
//!
//! A checkout below a directory that only root may enter (`/root`, a private temporary directory)
//! is visible at the same path in a mount namespace for the tests.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use fs_err as fs;
use fs_err::os::unix::fs::chown;

use crate::counts::Counts;
use crate::nextest;
use crate::report::{Done, Words, command, output, skipped};
use crate::workspace::{cargo, find, have, is_root, root, target_dir};

/// The user and group `nobody`, on every Linux.
const NOBODY: u32 = 65534;

/// Packages whose tests inspect no process, so that the user makes no difference.
const EXCLUDED: [&str; 5] = [
    "xtask",
    "otelctx-bench",
    "otelctx-counted",
    "otelctx-conformance",
    "otelctx-format",
];

/// Filter of the tests that are skipped as `nobody`, because their result does not depend on the user. Some build hundreds of programs, which differ by linker and access model, not by user.
/// Others read files, send to a server of their own, run the tests of a package in each Node.js or in Go, or sample a runtime's programs,
/// which root does without eBPF, too. The 10,000 dumps of `eintr` and the unit tests of `otelctx_python` repeat at length
/// what other programs here cover.
///
/// Tests of the command that need a server of their own do not run, either.
const SAME_FOR_ALL: &str = "binary(/^(chains|contexts|eintr|go_modules|handlers|recompiled|matrix|mix|nodes|otelctx_python|programs\
    |links|symbols|exact|faults|real_collector|collected_spans|queue_collector|report|viewers)$/) | test(/^(agent|debuginfod|send)::/)";

/// Runs all test programs, also after one has failed.
pub(crate) fn run(counts: &mut Counts) -> Done {
    if !is_root() {
        return skipped("the tests above ran without root already");
    }
    if !have("setpriv") {
        return skipped("no setpriv (package util-linux)");
    }
    let target = fs::canonicalize(target_dir())?;
    // Directories that `nobody` must enter to reach the checkout and the programs, but may not.
    let needed = [root(), &target].into_iter();
    let closed: BTreeSet<_> = needed.filter_map(closed_ancestor).collect();
    if !closed.is_empty() && output(&mut command("unshare --mount true")).is_err() {
        return skipped("others may not enter the checkout, and a mount namespace is refused");
    }
    nextest::build_command()?;
    let home = Home::new()?;
    home.link_fixtures(&target);
    let tool = home.prepare()?;
    // `sh -c SCRIPT NAME ARGUMENTS`: paths are arguments, never part of the script.
    let shell = if closed.is_empty() {
        "sh -euc"
    } else {
        "unshare --mount sh -euc"
    };
    let mut tests = command(shell);
    tests.args([include_str!("unprivileged/show.sh"), "sh"]);
    tests.args([&home.0, root(), &target]);
    tests.arg(closed.len().to_string()).args(&closed);
    tests.words("setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all");
    tests.words("--bounding-set=-all --no-new-privs");
    tests.arg(tool).words("nextest run");
    tests.arg("--cargo-metadata").arg(home.0.join(METADATA));
    tests.arg("--binaries-metadata").arg(home.0.join(PROGRAMS));
    tests.arg("--config-file").arg(home.0.join(OPTIONS));
    tests.words("--ignore-default-filter -E");
    tests.arg(format!("not ({SAME_FOR_ALL})"));
    tests.current_dir(root()).env_remove("CARGO");
    tests.env("CARGO_TARGET_DIR", &home.0);
    tests.env("HOME", &home.0).env("TMPDIR", &home.0);
    tests.env("USER", "nobody");
    tests.env(nextest::ALL.0, nextest::ALL.1);
    tests.env(nextest::BUILT, "1");
    let report_file = home.0.join("nextest/default/junit.xml");
    let mut own = Counts::default();
    let done = nextest::run(&mut tests, &report_file, &mut own);
    counts.add("without root", own);
    done
}

/// Files in the home of `nobody`: what cargo says of the workspace, what nextest says of the test programs, and options.
const METADATA: &str = "metadata.json";
const PROGRAMS: &str = "programs.json";
const OPTIONS: &str = "nextest.toml";

/// Cargo's arguments for all packages except [`EXCLUDED`].
pub(crate) fn packages() -> Vec<&'static str> {
    let excluded = EXCLUDED.iter().flat_map(|package| ["--exclude", package]);
    ["--workspace"].into_iter().chain(excluded).collect()
}

/// A folder that belongs to `nobody`, removed at the end.
struct Home(PathBuf);

impl Home {
    fn new() -> Result<Self> {
        let home = Self(format!("/tmp/otelctx-nobody-{}", std::process::id()).into());
        fs::create_dir(&home.0)?;
        chown(&home.0, Some(NOBODY), Some(NOBODY))?;
        Ok(home)
    }

    /// Writes what nextest asks cargo for, which is out of the user's reach, and returns a copy of nextest.
    fn prepare(&self) -> Result<PathBuf> {
        let mut metadata = cargo("metadata --format-version=1 --locked --all-features");
        fs::write(self.0.join(METADATA), output(&mut metadata)?)?;
        let mut list = nextest::tool("cargo-nextest");
        list.words("nextest list --cargo-quiet --locked --message-format=json");
        list.arg("--list-type=binaries-only").args(packages());
        fs::write(self.0.join(PROGRAMS), output(&mut list)?)?;
        let options = fs::read_to_string(root().join(".config/nextest.toml"))?;
        let store = format!("store.dir = {:?}\n{options}", self.0.join("nextest"));
        fs::write(self.0.join(OPTIONS), store)?;
        let tool = self.0.join("cargo-nextest");
        let installed = find(nextest::tool("cargo-nextest").get_program());
        fs::copy(installed.context("no cargo-nextest")?, &tool)?;
        Ok(tool)
    }

    /// Links what root's tests have compiled, so that it is not compiled again. On another file system it is.
    fn link_fixtures(&self, target: &Path) {
        let own = self.0.join("fixtures");
        if output(command("cp -al").arg(target.join("fixtures")).arg(&own)).is_ok() {
            let _ = chown(&own, Some(NOBODY), Some(NOBODY));
        }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The outermost folder on the way to `path`, itself included, that others may not enter.
fn closed_ancestor(path: &Path) -> Option<&Path> {
    let mut above: Vec<_> = path.ancestors().collect();
    above.reverse();
    let is_closed = |folder: &&Path| {
        fs::metadata(folder).is_ok_and(|status| status.permissions().mode() & 0o001 == 0)
    };
    above.into_iter().find(is_closed)
}
