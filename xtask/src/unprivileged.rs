//! The tests again, as a user without privileges: part of `cargo xtask test`.
//!
//! Runs the test programs that root built, as the user `nobody`, in the checkout. Tests that need
//! root skip with a line. What they compile goes into a folder that `nobody` owns; cargo itself is
//! usually in root's home: tests that call it use what root has built, or skip too.
//!
//! A checkout below a directory that only root may enter (`/root`, a private temporary directory)
//! is visible at the same path in a mount namespace for the tests.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::counts::{self, Counts};
use crate::report::{self, Outcome};
use crate::workspace::{TestProgram, have, is_root, root, test_programs};

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

/// Test programs that do not run. Some build hundreds of programs, which differ by linker and access model, not by user.
/// Others read files, send to a server of their own, run the package's tests in each Node.js, or sample a runtime's programs,
/// which root does without eBPF, too. The 10,000 dumps of `eintr` and the unit tests of `otelctx_python` repeat at length
/// what other programs here cover.
const SAME_FOR_ALL: [&str; 17] = [
    "chains",
    "contexts",
    "eintr",
    "handlers",
    "recompiled",
    "matrix",
    "mix",
    "nodes",
    "otelctx_python",
    "programs",
    "links",
    "symbols",
    "exact",
    "faults",
    "real_collector",
    "report",
    "viewers",
];

/// Tests of the command that do not run: they need a server of their own, too.
const SKIPPED: [&str; 2] = ["debuginfod::", "send::"];

/// Runs all test programs, also after one has failed.
pub(crate) fn run(counts: &mut Counts) -> Outcome {
    if !is_root() {
        return Outcome::Skipped("the tests above ran without root already".into());
    }
    if !have("setpriv") {
        return Outcome::Skipped("no setpriv (package util-linux)".into());
    }
    run_as_nobody(counts).into()
}

impl TestProgram {
    /// Where cargo builds to: the program is `TARGET/debug/deps/NAME`.
    fn target(&self) -> &Path {
        self.executable.ancestors().nth(3).unwrap_or(root())
    }

    /// Directories that `nobody` must enter to reach the checkout and the program, but may not.
    fn closed(&self) -> BTreeSet<&Path> {
        let needed = [root(), self.target()];
        needed.into_iter().filter_map(closed_ancestor).collect()
    }

    fn as_nobody(&self, home: &Path) -> Command {
        let closed = self.closed();
        let mut command = if closed.is_empty() {
            Command::new("sh")
        } else {
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh"]);
            command
        };
        // `sh -c SCRIPT NAME ARGUMENTS`: paths are arguments, never part of the script.
        command.args(["-euc", SHOW, "sh"]);
        command.args([home, root(), self.target()]);
        command.arg(closed.len().to_string()).args(closed);
        command.args(["setpriv", "--reuid=65534", "--regid=65534"]);
        command.args(["--clear-groups", "--inh-caps=-all"]);
        command.args(["--bounding-set=-all", "--no-new-privs"]);
        command.arg(&self.executable).current_dir(&self.package);
        command.args(SKIPPED.iter().flat_map(|test| ["--skip", *test]));
        command.env("CARGO_MANIFEST_DIR", &self.package);
        command.env_remove("CARGO").env("CARGO_TARGET_DIR", home);
        command
            .env("HOME", home)
            .env("TMPDIR", home)
            .env("USER", "nobody");
        command
    }
}

fn run_as_nobody(counts: &mut Counts) -> Result<Outcome, String> {
    let programs = programs()?;
    if programs.iter().any(|program| !program.closed().is_empty())
        && report::output(Command::new("unshare").args(["--mount", "true"])).is_err()
    {
        let why = "others may not enter the checkout, and a mount namespace is refused";
        return Ok(Outcome::Skipped(why.into()));
    }
    let home = Home::new()?;
    if let Some(program) = programs.first() {
        home.link_fixtures(program.target());
    }
    let (total, failed) = counts::of_programs(&programs, |program| program.as_nobody(&home.0));
    let said = total.to_string();
    counts.add("without root", total);
    if failed.is_empty() {
        Ok(Outcome::Passed(format!(
            "{said} in {} test programs",
            programs.len()
        )))
    } else {
        Err(format!("{said}: {}", failed.join(", ")))
    }
}

/// Cargo's arguments for all packages except [`EXCLUDED`].
pub(crate) fn packages() -> Vec<&'static str> {
    let excluded = EXCLUDED.iter().flat_map(|package| ["--exclude", package]);
    ["--workspace"].into_iter().chain(excluded).collect()
}

/// The programs that `cargo test` would run.
fn programs() -> Result<Vec<TestProgram>, String> {
    let mut programs = test_programs(&packages())?;
    programs.retain(|program| !SAME_FOR_ALL.contains(&&*program.name));
    Ok(programs)
}

/// A folder that belongs to `nobody`, removed at the end.
struct Home(PathBuf);

impl Home {
    fn new() -> Result<Self, String> {
        let path = PathBuf::from(format!("/tmp/otelctx-nobody-{}", std::process::id()));
        let fail = |error| format!("{}: {error}", path.display());
        fs::create_dir(&path).map_err(fail)?;
        chown(&path, Some(NOBODY), Some(NOBODY)).map_err(fail)?;
        Ok(Self(path))
    }

    /// Links what root's tests have compiled, so that it is not compiled again. On another file system it is.
    fn link_fixtures(&self, target: &Path) {
        let (built, own) = (target.join("fixtures"), self.0.join("fixtures"));
        let _ = report::output(Command::new("cp").arg("-al").arg(built).arg(&own)).and_then(|_| {
            chown(&own, Some(NOBODY), Some(NOBODY)).map_err(|error| error.to_string())
        });
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Covers each closed folder with an open, empty one that holds only the checkout and the target
/// folder, entry by entry: their own folders may be closed too.
/// Arguments: HOME CHECKOUT TARGET COUNT CLOSED… COMMAND…
const SHOW: &str = r#"
home=$1 checkout=$2 target=$3 count=$4
shift 4
if [ "$count" -gt 0 ]; then
    mkdir -p "$home/checkout" "$home/target"
    mount --bind "$checkout" "$home/checkout"
    mount --bind "$target" "$home/target"
    while [ "$count" -gt 0 ]; do
        mount -t tmpfs -o mode=755 otelctx "$1"
        shift
        count=$((count - 1))
    done
    show() {
        mkdir -p "$2"
        for entry in "$1"/* "$1"/.[!.]*; do
            place=$2/${entry##*/}
            if [ -d "$entry" ]; then mkdir -p "$place"; else : >> "$place"; fi
            mount --bind "$entry" "$place"
        done
    }
    show "$home/checkout" "$checkout"
    case $target in "$checkout"/*) ;; *) show "$home/target" "$target" ;; esac
    cd "$PWD"
fi
exec "$@"
"#;

/// The outermost folder on the way to `path`, itself included, that others may not enter.
fn closed_ancestor(path: &Path) -> Option<&Path> {
    let mut above: Vec<_> = path.ancestors().collect();
    above.reverse();
    above.into_iter().find(|folder| {
        fs::metadata(folder).is_ok_and(|status| status.permissions().mode() & 0o001 == 0)
    })
}
