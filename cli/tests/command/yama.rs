//! What each setting of the Yama security module (`kernel.yama.ptrace_scope`) allows, and how a
//! refusal is reported.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::process::CommandExt;

use nix::unistd::geteuid;

use crate::run::{Answer, Scratch, given_time, otelctx};
use crate::sleepers;
use crate::target::Target;
use crate::unprivileged::{Copy, NOBODY};

const SETTING: &str = "/proc/sys/kernel/yama/ptrace_scope";

/// The process that reads.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Reader {
    Root,
    /// An unprivileged user, who reads a process of its own.
    Same,
}

/// The expected end of a refusal, or `None` if reading is permitted.
type Refusal = Option<&'static str>;

/// Rules by setting: what root may, what a user may see of its other processes, what of its children.
const RULES: [(Refusal, Refusal, Refusal); 4] = [
    (None, None, None),
    (
        None,
        Some(
            "it needs the capability CAP_SYS_PTRACE (run as root), or the same user as the process \
             if that is dumpable; kernel.yama.ptrace_scope is 1, so without the capability only \
             the reader's own children can be read (`sysctl kernel.yama.ptrace_scope=0` changes \
             that)",
        ),
        None,
    ),
    (None, Some(ROOT_ONLY), Some(ROOT_ONLY)),
    (
        Some(NOBODY_AT_ALL),
        Some(NOBODY_AT_ALL),
        Some(NOBODY_AT_ALL),
    ),
];
const ROOT_ONLY: &str = "kernel.yama.ptrace_scope is 2, so it needs the capability CAP_SYS_PTRACE (run as \
     root)";
const NOBODY_AT_ALL: &str =
    "kernel.yama.ptrace_scope is 3, so not even root can, until the next boot";

/// Written past the test harness, which would keep it to itself.
fn say(line: &str) {
    writeln!(std::io::stderr().lock(), "yama: {line}").unwrap();
}

/// Asserts that a command answered, or was refused with these two lines.
fn assert_answer(answer: &Answer, refusal: Refusal, headline: &str, what: &str) {
    let mut said = format!("{what}: status {}", answer.status);
    for line in answer.stderr.lines() {
        write!(said, " | {line}").unwrap();
    }
    say(&said);
    let expected = refusal.map(|hint| format!("otelctx: {headline}\n  {hint}\n"));
    assert_eq!(answer.stderr, expected.unwrap_or_default(), "{what}");
}

#[test]
#[ignore = "the last setting stays until the next boot: `cargo xtask kernels` runs it in a machine of its own"]
fn every_setting_allows_what_it_says_and_is_named_when_it_refuses() {
    assert!(geteuid().is_root(), "it changes a setting");
    let copy = Copy::new("yama");
    let target = Target::start_with("shop", |command| {
        command.uid(NOBODY).gid(NOBODY);
    });
    let pid = target.pid();
    let sleepers = sleepers::start();
    for (scope, (root, same, child)) in RULES.into_iter().enumerate() {
        std::fs::write(SETTING, scope.to_string()).unwrap();
        for (reader, refusal) in [(Reader::Root, root), (Reader::Same, same)] {
            let run = |arguments: &[&str]| match reader {
                Reader::Root => otelctx(arguments),
                Reader::Same => copy.run(arguments),
            };
            let name = pid.to_string();
            // They allow what is refused at 1, where only a capability helps at 2.
            if scope <= 1 || refusal.is_none() {
                let what = format!("{scope}, {reader:?}, sleepers");
                sleepers::assert_undisturbed(&sleepers, &run, &what);
                say(&what);
            }
            let what = format!("{scope}, {reader:?}, dump");
            // An emulated machine may need more than the default deadline.
            let answer = run(&["dump", &name, "--json", "--deadline", "60"]);
            let headline = format!("not permitted to read the memory of process {pid}");
            assert_answer(&answer, refusal, &headline, &what);
            match refusal {
                None => {
                    let found = answer.json();
                    let resource = &found["process_context"]["resource"];
                    assert_eq!(
                        (answer.status, &resource["service.name"]),
                        (0, &"shop".into())
                    );
                    assert_eq!(found["threads"].as_array().unwrap().len(), 5, "{found}");
                }
                Some(_) => assert_eq!((answer.status, answer.stdout.as_str()), (2, "")),
            }
            let answer = run(&["ps", "--json"]).expect(0);
            let listing = answer.json();
            let mut processes = listing["processes"].as_array().unwrap().iter();
            let listed = processes.any(|process| process["pid"] == pid);
            let reported = answer.stderr.contains(refusal.unwrap_or("otelctx:"));
            say(&format!(
                "{scope}, {reader:?}, ps: listed {listed}, said so {reported}"
            ));
            let skipped = &listing["skipped"]["not_permitted"];
            match refusal {
                None => assert!(listed, "{answer:?}"),
                Some(_) => {
                    assert!(!listed && reported, "{answer:?}");
                    assert!(skipped.as_u64().unwrap() >= 1, "{answer:?}");
                }
            }
        }
        // Its own child.
        let scratch = Scratch::new("child-yama");
        let (profile, files) = (scratch.path("profile.otlp"), scratch.path("files"));
        let answer = if child.is_none() {
            given_time(|seconds| {
                let record = ["record", "-d", seconds, "-o", &profile, "--", "sh", "-c"];
                let answer = copy.run(&[&record[..], &["while :; do :; done"]].concat());
                // It ends the command with SIGTERM, and exits as that did.
                assert_eq!(answer.status, 128 + 15, "{answer:?}");
                let report = otelctx(&["report", "--json", &profile]).expect(0).json();
                match report["samples"].as_u64() {
                    // The emulated machine was busy.
                    Some(0) => Err(answer),
                    _ => Ok(answer),
                }
            })
        } else {
            // It takes a minute in an emulated machine, but is refused before that.
            copy.run(&["demo", "-d", "1", "--json", "-o", &files])
        };
        let mut said = format!("{scope}, Same, child: status {}", answer.status);
        for line in answer.stderr.lines() {
            write!(said, " | {line}").unwrap();
        }
        say(&said);
        if let Some(hint) = child {
            assert_eq!(
                (answer.status, answer.stdout.as_str()),
                (2, ""),
                "{answer:?}"
            );
            assert_eq!(answer.stderr.lines().nth(1), Some(&*format!("  {hint}")));
        }
    }
}
