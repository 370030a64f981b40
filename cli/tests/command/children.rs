//! Processes that others have started before the command: a server's workers, a wrapper's program.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::otlp;
use crate::run::{Scratch, given_time, otelctx};
use crate::target::{Target, program};

/// A shell, as a file of this name, that starts targets of this scenario by the script.
fn shell(scratch: &Scratch, name: &str, script: &str) -> Target {
    let shell = scratch.path(name);
    fs::copy("/bin/sh", &shell).unwrap();
    Target::start_program_with(Path::new(&shell), "-c", |command| {
        command.arg(script).arg(program());
    })
}

/// Scripts for one child, for a grandchild, and for two children, with their numbers.
const FAMILIES: [(&str, usize); 3] = [
    (r#""$0" busy; true"#, 1),
    (r#"sh -c '"$0" busy; true' "$0"; true"#, 1),
    (
        r#"exec 3<&0; "$0" shop | { while read -r line && [ "$line" != ready ]; do :; done; exec "$0" busy <&3; }"#,
        2,
    ),
];

/// All processes that a process has started, and theirs.
fn descendants(pid: i32) -> BTreeSet<i32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let children = children.split_whitespace().map(|it| it.parse().unwrap());
    let children: BTreeSet<i32> = children.collect();
    let theirs = children.iter().flat_map(|pid| descendants(*pid));
    children.iter().copied().chain(theirs).collect()
}

/// The descendants that publish.
fn publishers(pid: i32) -> BTreeSet<i32> {
    let comm = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
    let mut found = descendants(pid);
    found.retain(|pid| comm(pid) == "target\n");
    found
}

#[test]
fn children_that_run_already_are_recorded() {
    let scratch = Scratch::new("children-record");
    let path = scratch.path("a.otlp");
    for (index, (script, _)) in FAMILIES.into_iter().enumerate() {
        let name = format!("master-{index}");
        let target = shell(&scratch, &name, script);
        let pid = target.pid().to_string();
        let children = descendants(target.pid());
        for (selector, methods) in [
            (["-p", &pid], &[None, Some("--ptrace")][..]),
            (["--name", &name], &[None]),
        ] {
            for method in methods {
                let record = |seconds: &str, more: &[&str]| {
                    let all = ["record", "-d", seconds, "-o", &path];
                    let more = more.iter().copied().chain(*method);
                    let all: Vec<&str> = all.into_iter().chain(selector).chain(more).collect();
                    otelctx(&all).expect(0)
                };
                given_time(|seconds| {
                    let answer = record(seconds, &[]);
                    let traced = otelctx(&["report", "--json", &path]).json()["with_trace"].clone();
                    match traced.as_u64() {
                        Some(1..) => Ok(()),
                        _ => Err(answer),
                    }
                });
                fs::remove_file(&path).unwrap();
                // The shell waits.
                let answer = record("0.3", &["--no-children"]);
                assert!(answer.stdout.starts_with("0 samples "), "{answer:?}");
                let list: Vec<String> = children.iter().map(ToString::to_string).collect();
                let (children, are) = match list.len() {
                    1 => ("child process", "is"),
                    _ => ("child processes", "are"),
                };
                let (number, list) = (list.len(), list.join(", "));
                let hint = format!(
                    "  {number} {children} ({list}) {are} not recorded: omit --no-children\n"
                );
                let hint = answer.stderr.contains(&hint);
                assert_eq!(hint, selector[0] == "-p", "{answer:?}");
                fs::remove_file(&path).unwrap();
            }
        }
        let seen = given_time(|seconds| {
            let top = ["top", "--json", "-p", &pid, "--iterations", "1"];
            let top = otelctx(&[&top[..], &["-i", seconds, "--group", "process"]].concat());
            let top = top.expect(0).json();
            let rows = top["rows"].as_array().unwrap().clone();
            if rows.is_empty() { Err(top) } else { Ok(rows) }
        });
        let family = publishers(target.pid());
        let is_of_family = |row: &Value| family.contains(&(row["pid"].as_i64().unwrap() as i32));
        assert!(seen.iter().any(is_of_family), "{seen:?}");
    }
}

/// A shell that starts the recorder is among its targets.
#[test]
fn this_command_is_not_among_the_children() {
    let scratch = Scratch::new("children-own");
    let path = scratch.path("a.otlp");
    let script = r#"while :; do :; done & "$0" record -p $$ -d 0.5 -o "$1"; kill $!"#;
    for method in ["", " --ptrace"] {
        let mut shell = std::process::Command::new("sh");
        let script = script.replace(" -d", &format!("{method} -d"));
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_otelctx")]);
        let output = shell.arg(&path).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let recorded = otlp::read(&path);
        let strings = &recorded.dictionary.unwrap().string_table;
        assert!(!strings.iter().any(|it| it == "otelctx"), "{strings:?}");
    }
}

#[test]
fn children_are_dumped() {
    let scratch = Scratch::new("children-dump");
    for (script, number) in FAMILIES {
        let target = shell(&scratch, "sh", script);
        let pid = target.pid().to_string();
        let answer = otelctx(&["dump", "--children", "--json", &pid]).expect(0);
        let lines = answer.stdout.lines();
        let lines: Vec<Value> = lines.map(|it| serde_json::from_str(it).unwrap()).collect();
        let pids = lines.iter().map(|it| it["pid"].as_i64().unwrap() as i32);
        let mut expected = vec![target.pid()];
        expected.extend(descendants(target.pid()));
        assert_eq!(pids.collect::<Vec<_>>(), expected);
        let publishing = lines.iter().filter(|it| !it["process_context"].is_null());
        assert_eq!(publishing.count(), number);
        let text = otelctx(&["dump", &pid, "--children"]).expect(0).stdout;
        assert_eq!(
            text.matches("publishes no process context").count(),
            lines.len() - number
        );
        assert_eq!(text.matches("  resource  ").count(), number, "{text}");
        // The process alone.
        let alone = otelctx(&["dump", "--json", &pid]).expect(0).json();
        assert_eq!(alone["pid"], target.pid());
    }
}

/// Of shells and of programs that start themselves again, as those of PyInstaller.
#[test]
fn wrappers_lead_to_the_processes_that_publish() {
    let scratch = Scratch::new("children-wrapper");
    for (script, number) in FAMILIES {
        let target = shell(&scratch, "sh", script);
        let pid = target.pid().to_string();
        let publishing: Vec<i32> = publishers(target.pid()).into_iter().collect();
        assert_eq!(publishing.len(), number);
        let said = match publishing[..] {
            [one] => format!("its child process {one} publishes one"),
            [one, other] => format!("its 2 child processes publish one each: {one}, {other}"),
            _ => unreachable!(),
        };
        let answer = otelctx(&["check", &pid]).expect(1);
        let first = publishing[0];
        assert!(
            answer
                .stdout
                .contains(&format!("it publishes no process context; {said}\n"))
        );
        assert!(
            answer.stdout.contains(&format!(" check {first}`\n")),
            "{answer:?}"
        );
        assert!(!answer.stdout.contains("otel_thread_ctx_v1"), "{answer:?}");
        let answer = otelctx(&["dump", &pid]).expect(0);
        let said = format!("process {pid} publishes no context; {said}\n");
        assert!(answer.stderr.contains(&said), "{answer:?}");
        assert!(
            answer
                .stderr
                .contains(&format!(" dump {first}` shows it\n")),
            "{answer:?}"
        );
    }
}
