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

use crate::counts::Counts;
use crate::nextest;
use crate::report::{self, Outcome};
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
/// Others read files, send to a server of their own, run the package's tests in each Node.js, or sample a runtime's programs,
/// which root does without eBPF, too. The 10,000 dumps of `eintr` and the unit tests of `otelctx_python` repeat at length
/// what other programs here cover.
///
/// Tests of the command that need a server of their own do not run, either.
const SAME_FOR_ALL: &str = "binary(/^(chains|contexts|eintr|handlers|recompiled|matrix|mix|nodes|otelctx_python|programs\
    |links|symbols|exact|faults|real_collector|report|viewers)$/) | test(/^(debuginfod|send)::/)";

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

/// Directories that `nobody` must enter to reach the checkout and the programs, but may not.
fn closed(target: &Path) -> BTreeSet<&Path> {
    let needed = [root(), target];
    needed.into_iter().filter_map(closed_ancestor).collect()
}

fn run_as_nobody(counts: &mut Counts) -> Result<Outcome, String> {
    let target = target_dir();
    let target =
        fs::canonicalize(&target).map_err(|error| format!("{}: {error}", target.display()))?;
    let closed = closed(&target);
    if !closed.is_empty()
        && report::output(Command::new("unshare").args(["--mount", "true"])).is_err()
    {
        let why = "others may not enter the checkout, and a mount namespace is refused";
        return Ok(Outcome::Skipped(why.into()));
    }
    nextest::build_command()?;
    let home = Home::new()?;
    home.link_fixtures(&target);
    let tool = home.prepare()?;
    let mut command = Command::new(if closed.is_empty() { "sh" } else { "unshare" });
    if !closed.is_empty() {
        command.args(["--mount", "sh"]);
    }
    // `sh -c SCRIPT NAME ARGUMENTS`: paths are arguments, never part of the script.
    command.args(["-euc", SHOW, "sh"]);
    command.args([&home.0, root(), &target]);
    command.arg(closed.len().to_string()).args(&closed);
    command.args(["setpriv", "--reuid=65534", "--regid=65534"]);
    command.args(["--clear-groups", "--inh-caps=-all"]);
    command.args(["--bounding-set=-all", "--no-new-privs"]);
    command.arg(tool).args(["nextest", "run"]);
    for (flag, file) in [
        ("--cargo-metadata", METADATA),
        ("--binaries-metadata", PROGRAMS),
        ("--config-file", OPTIONS),
    ] {
        command.arg(flag).arg(home.0.join(file));
    }
    command.args(["--ignore-default-filter", "-E"]);
    command.arg(format!("not ({SAME_FOR_ALL})"));
    command.current_dir(root());
    command.env_remove("CARGO").env("CARGO_TARGET_DIR", &home.0);
    command.env("HOME", &home.0).env("TMPDIR", &home.0);
    command
        .env("USER", "nobody")
        .env(nextest::ALL.0, nextest::ALL.1);
    command.env("OTELCTX_BUILT", "1");
    let report_file = home.0.join("nextest/default/junit.xml");
    let mut own = Counts::default();
    let outcome = nextest::run(&mut command, &report_file, &mut own);
    counts.add("without root", own);
    outcome
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
    fn new() -> Result<Self, String> {
        let path = PathBuf::from(format!("/tmp/otelctx-nobody-{}", std::process::id()));
        let fail = |error| format!("{}: {error}", path.display());
        fs::create_dir(&path).map_err(fail)?;
        chown(&path, Some(NOBODY), Some(NOBODY)).map_err(fail)?;
        Ok(Self(path))
    }

    /// Writes what nextest asks cargo for, which is out of the user's reach, and returns a copy of nextest.
    fn prepare(&self) -> Result<PathBuf, String> {
        let fail = |error| format!("{}: {error}", self.0.display());
        let mut metadata = cargo();
        metadata.args([
            "metadata",
            "--format-version=1",
            "--locked",
            "--all-features",
        ]);
        fs::write(self.0.join(METADATA), report::output(&mut metadata)?).map_err(fail)?;
        let mut list = nextest::tool("cargo-nextest");
        list.args([
            "nextest",
            "list",
            "--cargo-quiet",
            "--locked",
            "--message-format=json",
        ]);
        list.arg("--list-type=binaries-only").args(packages());
        fs::write(self.0.join(PROGRAMS), report::output(&mut list)?).map_err(fail)?;
        let options = fs::read_to_string(root().join(".config/nextest.toml")).map_err(fail)?;
        let store = format!("store.dir = {:?}\n{options}", self.0.join("nextest"));
        fs::write(self.0.join(OPTIONS), store).map_err(fail)?;
        let tool = self.0.join("cargo-nextest");
        let installed =
            find(nextest::tool("cargo-nextest").get_program()).ok_or("no cargo-nextest")?;
        fs::copy(installed, &tool).map_err(fail)?;
        Ok(tool)
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
