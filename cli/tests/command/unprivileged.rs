//! Unprivileged users: a message names what is refused, and what would allow it.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::libc;
use nix::unistd::geteuid;

use crate::run::{Answer, Scratch, deny, given_time, with_default_signals};

/// ID of the user `nobody`.
pub(crate) const NOBODY: u32 = 65_534;

/// The command where any user can run it. Removed when dropped.
pub(crate) struct Copy(PathBuf);

impl Copy {
    pub(crate) fn new(name: &str) -> Self {
        Self::of(Path::new(env!("CARGO_BIN_EXE_otelctx")), name)
    }

    /// Creates a copy of another program.
    pub(crate) fn of(program: &Path, name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("otelctx-{name}-{}", std::process::id()));
        // By another process: a child that another test forks meanwhile would hold the file open
        // for writing, and it could not be executed (ETXTBSY).
        let mut copy = Command::new("cp");
        copy.arg(program);
        assert!(copy.arg(&path).status().unwrap().success());
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the command with these arguments as `nobody`, or as the user of the test if not root.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.0);
        command.args(arguments).current_dir("/");
        with_default_signals(&mut command);
        if geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }

    /// Runs it so.
    pub(crate) fn run(&self, arguments: &[&str]) -> Answer {
        Answer::of(self.command(arguments).output().unwrap())
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns whether process 1 belongs to another user, as it does outside very small containers.
fn init_is_foreign() -> bool {
    use std::os::unix::fs::MetadataExt;
    let owner = std::fs::metadata("/proc/1").map(|it| it.uid());
    owner.is_ok_and(|owner| geteuid().is_root() || owner != geteuid().as_raw())
}

#[test]
fn a_refused_process_names_the_missing_capability() {
    if !init_is_foreign() {
        return;
    }
    let copy = Copy::new("refused");
    for arguments in [["dump", "1"], ["check", "1"]] {
        let answer = copy.run(&arguments).expect(2);
        assert_eq!(answer.stdout, "");
        let lines: Vec<&str> = answer.stderr.lines().collect();
        assert_eq!(lines.len(), 2, "{answer:?}");
        assert!(
            lines[0].starts_with("otelctx: not permitted to read "),
            "{answer:?}"
        );
        assert!(lines[0].ends_with(" of process 1"), "{answer:?}");
        assert!(lines[1].contains("CAP_SYS_PTRACE"), "{answer:?}");
    }
}

#[test]
fn refused_processes_are_counted_in_one_message() {
    if !init_is_foreign() {
        return;
    }
    let answer = Copy::new("counted").run(&["ps", "--json"]).expect(0);
    let skipped = answer.json()["skipped"]["not_permitted"].as_u64().unwrap();
    assert!(skipped >= 1);
    let lines: Vec<&str> = answer.stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{answer:?}");
    assert!(lines[0].starts_with(&format!("otelctx: {skipped} process")));
    assert!(lines[0].ends_with(" could not be inspected: permission denied"));
    assert!(lines[1].contains("CAP_SYS_PTRACE"), "{answer:?}");
}

#[test]
fn processes_that_dump_all_may_not_inspect_are_counted() {
    if !init_is_foreign() {
        return;
    }
    let copy = Copy::new("all");
    let skipped = copy.run(&["ps", "--json"]).expect(0).json()["skipped"]["not_permitted"].take();
    let answer = copy.run(&["dump", "--all"]);
    let lines: Vec<&str> = answer.stderr.lines().collect();
    let end = " could not be inspected: permission denied";
    let at = lines.iter().position(|line| line.ends_with(end)).unwrap();
    assert!(skipped.as_u64().unwrap() >= 1);
    assert!(
        lines[at].starts_with("otelctx: ") && lines[at].contains(" process"),
        "{answer:?}"
    );
    assert!(lines[at + 1].contains("CAP_SYS_PTRACE"), "{answer:?}");
}

#[test]
fn a_demo_that_may_not_trace_says_so() {
    let copy = Copy::new("denied");
    let mut command = copy.command(&["demo", "--duration", "60", "--json"]);
    // As the sandboxes of some container engines do.
    deny(&mut command, libc::SYS_ptrace, libc::EPERM);
    let answer = Answer::of(command.output().unwrap()).expect(2);
    assert_eq!(answer.stdout, "");
    let lines: Vec<&str> = answer.stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{answer:?}");
    assert!(
        lines[0].starts_with("otelctx: not permitted to stop a thread of process "),
        "{answer:?}"
    );
    assert!(lines[1].contains("CAP_SYS_PTRACE"), "{answer:?}");
}

#[test]
fn the_demo_needs_no_rights() {
    let copy = Copy::new("demo");
    let scratch = Scratch::new("demo-nobody");
    let directory = scratch.path("files");
    given_time(|seconds| {
        let answer = copy.run(&["demo", "-d", seconds, "--json", "-o", &directory]);
        let report = answer.expect(0).json();
        assert_eq!(report["unreadable"], 0, "{report:#}");
        assert_eq!(report["files"].as_array().unwrap().len(), 5);
        match report["samples"].as_u64() {
            Some(0) => Err(report),
            _ => Ok(()),
        }
    });
}

/// They were counted as lost, and `record` said that the machine was overloaded.
#[test]
fn samples_of_processes_that_may_not_be_traced_are_skipped_and_counted() {
    if !geteuid().is_root() {
        return eprintln!("skipped: needs a process of another user");
    }
    let (copy, scratch) = (Copy::new("not-traceable"), Scratch::new("skipped-samples"));
    let directory = Path::new(&scratch.path("")).to_owned();
    std::os::unix::fs::chown(&directory, Some(NOBODY), Some(NOBODY)).unwrap();
    let run = |arguments: &str| {
        // In a PID namespace of its own, where nothing else runs.
        let mut unshare = Command::new("unshare");
        unshare.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
        let own = format!("setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups");
        let script = format!(
            "(while :; do :; done) & {own} {} {arguments}",
            copy.path().display()
        );
        unshare.args(["sh", "-c", &script]).current_dir(&directory);
        with_default_signals(&mut unshare);
        Answer::of(unshare.output().unwrap())
    };
    given_time(|seconds| {
        let answer = run(&format!("record --all --json -o a.folded -d {seconds}"));
        let answer = answer.expect(0);
        let counts = &answer.json()["counts"];
        assert_eq!(answer.json()["samples"], 0, "{answer:?}");
        assert_eq!(counts["lost"], 0, "{answer:?}");
        // The loop may have had no CPU.
        if counts["not_traceable"] == 0 {
            return Err(answer);
        }
        let why = "no samples: the processes that were running cannot be traced";
        assert!(answer.stderr.contains(why), "{answer:?}");
        Ok(())
    });
    given_time(|seconds| {
        let answer = run(&format!("top --iterations 1 -i {seconds}")).expect(0);
        assert!(!answer.stdout.contains(" lost"), "{answer:?}");
        match answer.stdout.contains(" not traceable\n") {
            true => Ok(()),
            false => Err(answer),
        }
    });
}
