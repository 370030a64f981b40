//! `otelctx dump --no-stop`. Needs the right to use eBPF, and Linux 5.18.

use std::fs;

use nix::unistd::geteuid;
use serde_json::Value;

use crate::run::{Answer, Scratch, command, otelctx, under_strace};
use crate::target::Target;
use crate::unprivileged::Copy;

/// Runs `dump --no-stop` with these arguments. Returns `None`, and prints a line, where a permission
/// or the kernel is missing.
pub(crate) fn no_stop(arguments: &[&str]) -> Option<Answer> {
    let answer = otelctx(&[&["dump", "--no-stop"], arguments].concat());
    if answer.status == 2 && answer.stderr.contains("eBPF") {
        assert_eq!(answer.stdout, "");
        eprintln!("skipped: {}", answer.stderr.trim_end());
        return None;
    }
    Some(answer)
}

#[test]
fn what_is_read_without_stopping_is_what_is_read_of_stopped_threads() {
    for kind in ["shop", "busy"] {
        let target = Target::start(kind);
        let pid = target.pid().to_string();
        let Some(answer) = no_stop(&[&pid, "--json"]) else {
            return;
        };
        let mut running = answer.expect(0).json();
        let mut stopped = otelctx(&["dump", &pid, "--json"]).expect(0).json();
        let object = running.as_object_mut().unwrap();
        assert_eq!(object.remove("stopped"), Some(Value::Bool(false)));
        assert_eq!(object.remove("threads_stopped"), Some(0.into()));
        let other = stopped.as_object_mut().unwrap();
        assert_eq!(other.remove("stopped"), None);
        assert!(other.remove("threads_stopped").is_some());
        assert!(!running["threads"].as_array().unwrap().is_empty());
        assert_eq!(running, stopped);
        let text = no_stop(&[&pid]).unwrap().expect(0).stdout;
        assert!(
            text.contains("  read      while the threads ran: each record was read twice, "),
            "{text}"
        );
        let all = no_stop(&["--all"]).unwrap();
        let mut lines = all.stdout.lines();
        let own = lines.find(|line| line.starts_with(&format!("{{\"pid\":{pid},")));
        let mut own: Value = serde_json::from_str(own.unwrap()).unwrap();
        let own_fields = own.as_object_mut().unwrap();
        own_fields.remove("stopped").unwrap();
        own_fields.remove("threads_stopped").unwrap();
        assert_eq!(own, stopped);
    }
}

#[test]
fn no_thread_is_traced() {
    // Its threads run.
    let target = Target::start("busy");
    let pid = target.pid().to_string();
    if no_stop(&[&pid]).is_none() {
        return;
    }
    let scratch = Scratch::new("no-stop");
    let file = scratch.path("calls");
    for (arguments, traces) in [
        (&["dump", &pid, "--no-stop"][..], false),
        (&["dump", &pid], true),
    ] {
        let dump = command(arguments);
        let Some(mut strace) = under_strace(&dump, "trace=ptrace", file.as_ref()) else {
            return;
        };
        assert!(strace.output().unwrap().status.success());
        let calls = fs::read_to_string(&file).unwrap();
        assert_eq!(calls.contains("ptrace("), traces, "{calls}");
    }
}

#[test]
fn a_process_without_contexts_is_shown_as_it_is() {
    let pid = std::process::id().to_string();
    let Some(answer) = no_stop(&[&pid, "--json"]) else {
        return;
    };
    let answer = answer.expect(0).json();
    assert!(answer["process_context"].is_null() && answer["thread_context"].is_null());
    assert!(
        answer["threads"]
            .as_array()
            .unwrap()
            .iter()
            .all(|it| it["context"].is_null())
    );
}

#[test]
fn where_ebpf_is_refused_nothing_is_stopped_instead() {
    if !geteuid().is_root() {
        // What it takes may have been granted.
        return;
    }
    let copy = Copy::new("no-stop");
    let pid = std::process::id().to_string();
    for arguments in [
        vec!["dump", "--no-stop", &pid],
        vec!["dump", "--no-stop", "--all"],
    ] {
        let answer = copy.run(&arguments).expect(2);
        assert_eq!(answer.stdout, "");
        let lines: Vec<&str> = answer.stderr.lines().collect();
        assert_eq!(lines.len(), 2, "{answer:?}");
        assert!(
            lines[0].starts_with("otelctx: the threads cannot be read without stopping them: "),
            "{answer:?}"
        );
        assert!(
            lines[0].contains("setcap cap_bpf,cap_perfmon,"),
            "{answer:?}"
        );
        assert!(
            lines[1].starts_with("  it needs Linux 5.18; without --no-stop, "),
            "{answer:?}"
        );
    }
    let answer = otelctx(&["dump", "--no-stop", "--core", "/dev/null"]).expect(2);
    assert!(answer.stderr.contains("cannot be used with"), "{answer:?}");
}
