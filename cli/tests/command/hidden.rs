//! `/proc` that hides the processes of other users: proc(5), hidepid.

use std::process::Command;

use nix::unistd::geteuid;

use crate::run::{Answer, Scratch};
use crate::unprivileged::{Copy, NOBODY};

/// Runs the command as `nobody` below such a `/proc`. `None`, with a line, where none can be mounted.
fn run(copy: &Copy, option: &str, arguments: &[&str]) -> Option<Answer> {
    let script = format!(
        "mount -t proc -o hidepid={option} proc /proc || exit 99; \
         exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups \"$0\" \"$@\""
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &script]).arg(copy.path());
    let output = command.args(arguments).current_dir("/").output().unwrap();
    if output.status.code() == Some(99) {
        eprintln!("skipped: /proc cannot be mounted with hidepid={option}");
        return None;
    }
    Some(Answer::of(output))
}

#[test]
fn hidden_processes_are_no_missing_ones() {
    if !geteuid().is_root() {
        eprintln!("skipped: only root can mount /proc");
        return;
    }
    let copy = Copy::new("hidden");
    let scratch = Scratch::new("hidden-files");
    let path = scratch.path("a.otlp");
    let exists = "otelctx: process 1 exists, but /proc hides it (it is mounted with hidepid)\n";
    let all = "otelctx: /proc hides the processes of other users (it is mounted with hidepid)\n";
    for option in ["2", "invisible"] {
        for (arguments, said, status) in [
            (&["dump", "1"][..], exists, 2),
            (&["check", "1"], exists, 2),
            (&["record", "-o", &path, "-p", "1"], exists, 2),
            (&["top", "1"], exists, 2),
            (&["ps"], all, 0),
            (&["ps", "--all", "--json"], all, 0),
            (&["dump", "--all"], all, 0),
            (
                &["record", "--all", "--ptrace", "-d", "0.1", "-o", &path],
                all,
                0,
            ),
            (&["record", "--name", "no-such-name", "-o", &path], all, 2),
            (
                &["top", "--ptrace", "--iterations", "1", "-i", "0.1"],
                all,
                0,
            ),
        ] {
            let Some(answer) = run(&copy, option, arguments) else {
                return;
            };
            let answer = answer.expect(status);
            assert_eq!(answer.stderr.matches("hidepid").count(), 1, "{answer:?}");
            assert!(answer.stderr.contains(said), "{answer:?}");
            let hint = "run as root, or as a member of the group";
            assert!(answer.stderr.contains(hint), "{answer:?}");
            assert!(!answer.stderr.contains("does not exist"), "{answer:?}");
        }
        let answer = run(&copy, option, &["dump", "99999999"]).unwrap().expect(2);
        assert!(
            answer.stderr.contains("does not exist, or has exited"),
            "{answer:?}"
        );
    }
    // Where nothing is hidden, nothing is said.
    for option in ["0", "1"] {
        let answer = run(&copy, option, &["ps"]).unwrap();
        assert!(!answer.stderr.contains("hidepid"), "{answer:?}");
    }
}
