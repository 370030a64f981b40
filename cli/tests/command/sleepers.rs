//! `otelctx dump` of threads that sleep: none is stopped, and none runs because of it.

use std::os::unix::process::CommandExt;

use nix::libc;
use nix::unistd::geteuid;

use crate::run::{Answer, otelctx};
use crate::target::{Target, wait_until_asleep};
use crate::unprivileged::{Copy, NOBODY};

/// Threads beside the first.
const COUNT: usize = 100;

/// Threads of user `nobody`, or of who the test is if that is not root, that all sleep. Any process of that
/// user may trace them while `kernel.yama.ptrace_scope` is 1.
pub(crate) fn start() -> Target {
    let target = Target::start_with("crowd", |command| {
        command.arg(COUNT.to_string());
        if geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        let allow = || {
            // SAFETY: takes no pointer. It fails where there is no such restriction.
            unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
            Ok(())
        };
        // SAFETY: it makes one system call.
        unsafe { command.pre_exec(allow) };
    });
    wait_until_asleep(target.pid(), 0);
    target
}

/// A file in `/proc` of each thread.
fn files(target: &Target, name: &str) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", target.pid())).unwrap();
    let read = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join(name)).unwrap();
    tasks.map(|task| read(task.unwrap())).collect()
}

/// Context switches of each thread, and how often it was put on a CPU.
fn switches(target: &Target) -> Vec<String> {
    let status = files(target, "status").into_iter().map(|status| {
        let lines = status.lines().filter(|line| line.contains("ctxt_switches"));
        lines.collect()
    });
    status.chain(files(target, "schedstat")).collect()
}

/// Has `run` run `otelctx dump`, and asserts that every thread was read and none noticed.
pub(crate) fn assert_undisturbed(target: &Target, run: &dyn Fn(&[&str]) -> Answer, what: &str) {
    let before = switches(target);
    let pid = target.pid().to_string();
    let answer = run(&["dump", &pid, "--json", "--deadline", "60"]).expect(0);
    assert_eq!(switches(target), before, "{what}");
    let answer = answer.json();
    assert_eq!(answer["threads_stopped"], 0, "{what}: {answer}");
    let threads = answer["threads"].as_array().unwrap();
    let attached = threads.iter().filter(|it| it["context"].is_object());
    assert_eq!(attached.count(), COUNT, "{what}: {answer}");
}

#[test]
fn as_root_and_as_the_same_user_they_are_undisturbed() {
    let target = start();
    let run = |arguments: &[&str]| otelctx(arguments);
    assert_undisturbed(&target, &run, "as the test");
    let copy = Copy::new("sleepers");
    let run = |arguments: &[&str]| copy.run(arguments);
    assert_undisturbed(&target, &run, "as the same user");
}
