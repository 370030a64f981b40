//! `record --wall` and `top --wall`: threads that wait, and what they wait for.

use std::path::Path;
use std::process::Command;

use nix::libc;
use serde_json::Value;

use crate::refused::{
    CAP_BPF, CAP_PERFMON, CAP_SYS_ADMIN, drop_capabilities, is_permitted, is_root,
};
use crate::run::{Answer, Scratch, deny_if, given_time, otelctx};
use crate::target::{SPAN, TRACE, Target};
use crate::top::Session;

/// Threads of the scenario `waiting`, of which one has a context.
const THREADS: u64 = 3;
// <linux/bpf.h>
const BPF_LINK_CREATE: u32 = 28;

/// Returns whether waits can be sampled here.
pub(crate) fn can_sample_waits(name: &str) -> bool {
    if !is_root() || !is_permitted(name) {
        return false;
    }
    let scratch = Scratch::new(&format!("waits-possible-{name}"));
    let path = scratch.path("a.otlp");
    let answer = otelctx(&["record", "--wall", "-o", &path, "--", "true"]);
    if answer.status == 2 {
        eprintln!("skipped: {}", answer.stderr);
    }
    answer.status == 0
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

fn share(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value}"))
}

/// Runs `top --json --wall` on a process.
fn tables(pid: &str, arguments: &[&str]) -> Vec<Value> {
    let all = [&["top", "--json", "--wall", "-p", pid], arguments].concat();
    let answer = otelctx(&all).expect(0);
    let tables = answer
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let tables: Vec<Value> = tables.collect();
    tables.iter().for_each(accounts_for_all);
    tables
}

/// Holds that all time of waits is in rows, or hidden, and that no thread waits for longer than the table's time.
fn accounts_for_all(table: &Value) {
    let wall = number(&table["wall_ns"]) as f64;
    let rows = table["rows"].as_array().unwrap();
    for (part, all) in [("queued", "queued_ns"), ("waiting", "waiting_ns")] {
        let sum: f64 = rows.iter().map(|row| share(&row[part]) * wall).sum();
        let all = number(&table["waits"][all]) as f64;
        assert!((sum - all).abs() < 1e3, "{part}: {sum} of {all}: {table:#}");
    }
    for row in rows {
        // A new wait is counted up to the time at which it was read, some microseconds after the scan's.
        let most = number(&row["threads"]) as f64 * 1.01;
        assert!(share(&row["waiting"]) <= most, "{row:#}");
    }
}

fn named<'t>(table: &'t Value, name: &str) -> Option<&'t Value> {
    let rows = table["rows"].as_array().unwrap();
    rows.iter().find(|row| row["name"] == name)
}

/// Returns the table if a row of it waited nearly all the time: it is less if the recorder got no CPU time.
fn with_full(table: Value, name: &str, threads: u64) -> Result<Value, Value> {
    let waiting = named(&table, name).map_or(0.0, |row| share(&row["waiting"]));
    match waiting > 0.95 * threads as f64 {
        true => Ok(table),
        false => Err(table),
    }
}

#[test]
fn threads_that_wait_are_shown_with_their_reason_and_since_when() {
    if !can_sample_waits("top") {
        return;
    }
    let target = Target::start("waiting");
    let pid = target.pid().to_string();
    let peer = format!("recv from 127.0.0.1:{}", target.number("port"));
    let table = |group: &'static str, name: &str, threads, more: &[&str]| {
        given_time(|seconds| {
            let arguments = [&["--iterations", "1", "-i", seconds, "-g", group], more].concat();
            with_full(tables(&pid, &arguments).swap_remove(0), name, threads)
        })
    };
    // Threads: idle ones as well.
    let by_thread = table("thread", "at the peer", 1, &[]);
    assert_eq!(by_thread["rows"].as_array().unwrap().len() as u64, THREADS);
    assert_eq!(by_thread["waits"]["hidden_ns"], Value::Null);
    assert_eq!(by_thread["samples"], 0, "{by_thread:#}");
    let row = named(&by_thread, "at the peer").unwrap();
    assert_eq!(
        (&row["trace_id"], &row["span_id"]),
        (&TRACE.into(), &SPAN.into())
    );
    assert_eq!(
        (&row["value"], &row["samples"]),
        (&"/cart".into(), &0.into())
    );
    assert_eq!(
        by_thread["rows"][0], *row,
        "the wait with a context is the first"
    );
    let is_peer = |reason: &Value| reason.as_str().is_some_and(|it| it.starts_with(&peer));
    assert!(is_peer(&row["reason"]), "{row:#}");
    let now = &row["waiting_now"];
    assert_eq!(now["state"], "asleep");
    assert!(is_peer(&now["reason"]), "{row:#}");
    assert!(
        number(&now["for_ns"]) >= number(&by_thread["wall_ns"]),
        "{row:#}"
    );
    let idle = named(&by_thread, "at leisure").unwrap();
    assert_eq!(
        (&idle["reason"], &idle["trace_id"]),
        (&"futex".into(), &Value::Null)
    );
    // In all other rows, idle threads are left out, and counted.
    for (group, name) in [
        ("attribute", "/cart"),
        ("trace", TRACE),
        ("process", "waiting shop"),
        ("service", "waiting shop"),
        ("function", "__libc_recv"),
    ] {
        let table = table(group, name, 1, &[]);
        let rows = table["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 1, "{table:#}");
        assert!(is_peer(&rows[0]["reason"]), "{table:#}");
        assert_eq!(rows[0]["waiting_now"], Value::Null);
        let hidden = number(&table["waits"]["hidden_ns"]) as f64;
        let shown = number(&table["waits"]["waiting_ns"]) as f64;
        assert!(
            (hidden / shown - (THREADS - 1) as f64).abs() < 0.1,
            "{table:#}"
        );
    }
    let with_idle = table("process", "waiting shop", THREADS, &["--idle"]);
    assert_eq!(with_idle["waits"]["hidden_ns"], Value::Null);
    // Selected by thread, and as text.
    let of_one = table("thread", "at leisure", 1, &["--thread", "at leisure"]);
    assert_eq!(of_one["rows"].as_array().unwrap().len(), 1);
    let only = ["top", "--wall-only", "-p", &pid, "--iterations", "1"];
    let text = otelctx(&[&only[..], &["--group", "attribute"]].concat())
        .expect(0)
        .stdout;
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].contains("  queued 0.0 % · waiting "), "{text}");
    assert!(
        lines[0].contains(" % idle, hidden (--idle shows it) · in "),
        "{text}"
    );
    assert!(
        lines[1].starts_with("WAIT %  QUEUE %  http.route  "),
        "{text}"
    );
    assert!(
        lines[2].contains(" /cart ") && lines[2].contains(&peer),
        "{text}"
    );
}

/// The sampler passes on a wait that goes on once a second: each fifth table had all of it.
#[test]
fn a_wait_that_goes_on_is_in_each_table() {
    if !can_sample_waits("steady") {
        return;
    }
    let target = Target::start("waiting");
    let pid = target.pid().to_string();
    given_time(|_| {
        let tables = tables(&pid, &["--iterations", "12", "-i", "0.2"]);
        assert_eq!(tables.len(), 12);
        let full = |table: &Value| with_full(table.clone(), "at the peer", 1).is_ok();
        match tables.iter().all(full) {
            true => Ok(()),
            false => Err(tables),
        }
    });
}

#[test]
fn a_terminal_shows_waits_and_opens_a_row_of_them() {
    if !can_sample_waits("terminal") {
        return;
    }
    let target = Target::start("waiting");
    let peer = format!("recv from 127.0.0.1:{}", target.number("port"));
    let mut session = Session::top(&target, &["--wall"], 160, 24);
    let lines = session.wait("its row", |lines| {
        let is_row = |line: &String| line.contains("at the peer") && line.contains(&peer);
        lines.iter().any(is_row)
    });
    let row = lines
        .iter()
        .find(|line| line.contains("at the peer"))
        .unwrap();
    for part in ["waiting shop", "/cart", "since ", TRACE] {
        assert!(row.contains(part), "{part}: {lines:#?}");
    }
    assert!(lines[2].starts_with("RUN %  "), "{lines:#?}");
    session.press("s");
    session.wait_for("order: queue");
    session.press("s");
    session.wait_for("order: wait");
    session.press("/recv from\r");
    session.wait("the peer's row alone", |lines| {
        let rows = lines[3..].iter().filter(|line| line.contains("since "));
        rows.count() == 1 && lines[3].contains("at the peer")
    });
    session.press("\r");
    session.wait("its waits", |lines| {
        let has = |text: &str| lines.iter().any(|line| line.contains(text));
        lines[2].starts_with("at the peer: ")
            && lines[3].contains("  SHARE  REASON")
            && lines[4].contains(&peer)
            && has("  SELF  FUNCTION")
            && has(&format!("{TRACE}  /cart"))
    });
    session.press("\x1bg");
    let lines = session.wait("by route", |lines| {
        lines[0].contains(" % idle, hidden (--idle shows it) · ") && lines[3].contains(" /cart ")
    });
    assert!(lines[2].contains("http.route  THREADS"), "{lines:#?}");
    session.press("q");
    session.ends();
}

#[test]
fn a_recording_says_how_long_threads_waited() {
    if !can_sample_waits("record") {
        return;
    }
    let target = Target::start("waiting");
    let scratch = Scratch::new("waits-record");
    let path = scratch.path("a.otlp");
    let pid = target.pid().to_string();
    let record = |arguments: &[&str]| {
        let all = [&["record", "-p", &pid, "-o", &path, "-d", "1"], arguments].concat();
        otelctx(&all).expect(0)
    };
    for option in ["--wall", "--wall-only"] {
        let answer = record(&[option, "--json"]);
        assert_eq!(
            answer.stderr, "",
            "waits have contexts, and nothing is missing"
        );
        let json = answer.json();
        let waits = &json["waits"];
        assert_eq!(
            (&json["samples"], &json["with_context"]),
            (&0.into(), &0.into())
        );
        assert_eq!(
            (&json["processes"], &waits["queued_ns"]),
            (&1.into(), &0.into())
        );
        let asleep = number(&waits["asleep_ns"]);
        assert!(
            asleep > 0 && asleep <= THREADS * number(&json["duration_ns"]) * 101 / 100,
            "{json:#}"
        );
        let with_context = number(&waits["with_context_ns"]);
        assert!(
            with_context.abs_diff(asleep / THREADS) < asleep / 100,
            "{json:#}"
        );
        assert!(
            number(&waits["read"]) >= THREADS && number(&waits["samples"]) >= THREADS,
            "{json:#}"
        );
        for (name, value) in [
            ("thrown_away", 0),
            ("lost", 0),
            ("frequency", 49),
            ("frequency_asked", 49),
        ] {
            assert_eq!(waits[name], value, "{name}: {json:#}");
        }
        assert_eq!(
            waits["running_ns"].is_null(),
            option == "--wall-only",
            "{json:#}"
        );
    }
    let text = record(&["--wall=7"]).stdout;
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("0 samples of 1 process in "), "{text}");
    assert!(
        lines[1].starts_with("  time of threads: 0.0 s running, 0.0 s queued, "),
        "{text}"
    );
    assert!(
        lines[1].ends_with(" waits read, 0 thrown away, 0 lost"),
        "{text}"
    );
    // What is selected of nothing but waits.
    let answer = record(&["--wall", "--thread", "no such thread", "--json"]);
    let left_out = number(&answer.json()["waits"]["not_selected"]);
    assert!(left_out >= THREADS, "{answer:?}");
    assert!(
        answer
            .stderr
            .contains(&format!("none of 0 samples and {left_out} of waits")),
        "{answer:?}"
    );
    let answer = record(&["--kind", "queued", "--function", "no such function"]);
    let lines: Vec<&str> = answer.stdout.lines().collect();
    assert!(
        lines[1].starts_with("  time of threads: 0.0 s queued; "),
        "{answer:?}"
    );
    let line = lines[2].strip_prefix("  not selected: ").unwrap();
    let left_out = line.strip_suffix(" samples of waits").unwrap();
    assert!(
        answer
            .stderr
            .contains(&format!("none of 0 samples and {left_out} of waits")),
        "{answer:?}"
    );
    let answer = record(&["--wall", "--gil"]);
    assert!(
        answer
            .stderr
            .contains("is one of an interpreter with a GIL"),
        "{answer:?}"
    );
}

/// What a kind of time needs is sampled, and nothing else is kept.
#[test]
fn samples_are_selected_by_kind() {
    if !can_sample_waits("kinds") {
        return;
    }
    let target = Target::start("waiting");
    let scratch = Scratch::new("waits-kinds");
    let (path, pid) = (scratch.path("a.otlp"), target.pid().to_string());
    let times = |kind: &str, seconds: &str| {
        let arguments = ["record", "--kind", kind, "-p", &pid, "-o", &path];
        let recorded = otelctx(&[&arguments[..], &["-d", seconds]].concat()).expect(0);
        if recorded.stderr.contains("no samples") {
            return Err(recorded);
        }
        let all = ["report", &path, "--idle", "--json"];
        let kinds = ["--kind", "running", "--kind", "queued", "--kind", "waiting"];
        let json = otelctx(&[&all[..], &kinds].concat()).expect(0).json();
        Ok(["running_ns", "queued_ns", "waiting_ns"].map(|name| number(&json[name])))
    };
    let [running, queued, waiting] = given_time(|seconds| times("waiting", seconds));
    assert_eq!((running, queued), (0, 0));
    assert!(waiting > 0);
    assert!(times("running", "0.2").is_err(), "no thread runs");
    let top = ["top", "--json", "--iterations", "1", "-p", &pid];
    let table = |kind| otelctx(&[&top[..], &["--kind", kind]].concat()).expect(0);
    let waits = |kind| table(kind).json()["waits"].clone();
    assert!(number(&waits("waiting")["waiting_ns"]) > 0);
    assert_eq!(waits("queued")["waiting_ns"], 0);
    assert_eq!(waits("running"), Value::Null);
}

/// Files are the same that a report of the recording writes.
#[test]
fn files_of_a_recording_have_the_selected_kinds_together() {
    if !can_sample_waits("files-of-kinds") {
        return;
    }
    let (busy, waiting) = (Target::start("busy"), Target::start("waiting"));
    let scratch = Scratch::new("waits-files-of-kinds");
    let path = |name: &str| scratch.path(name);
    let pids = [busy.pid(), waiting.pid()].map(|pid| pid.to_string());
    let kinds = ["--kind", "running", "--kind", "waiting"];
    let files = |names: [&str; 2]| names.map(|name| format!("-o{}", path(name)));
    let [graph, stacks] = files(["a.svg", "a.folded"]);
    let recording = path("a.otlp");
    given_time(|seconds| {
        let mut arguments = vec!["record", "-d", seconds, "-p", &pids[0], "-p", &pids[1]];
        arguments.extend(["-o", &recording, &graph, &stacks]);
        arguments.extend(kinds);
        otelctx(&arguments).expect(0);
        let json = otelctx(&[&["report", "--json", &recording], &kinds[..]].concat());
        let json = json.expect(0).json();
        let times = ["running_ns", "waiting_ns"].map(|name| number(&json[name]));
        if times.contains(&0) {
            Err(json)
        } else {
            Ok(())
        }
    });
    let [other_graph, other_stacks] = files(["b.svg", "b.folded"]);
    let report = ["report", &recording, &other_graph, &other_stacks];
    otelctx(&[&report, &kinds[..]].concat()).expect(0);
    let content = |name| std::fs::read_to_string(path(name)).unwrap();
    assert_eq!(content("a.folded"), content("b.folded"));
    let boxes = |name| {
        let content = content(name);
        let lines = content
            .lines()
            .filter(|it| it.contains("class=\"box ") || it.contains("class=\"title\""));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(boxes("a.svg"), boxes("b.svg"));
}

/// Samples of waits are in none of the counters.
#[test]
fn samples_on_a_cpu_are_counted_alone() {
    if !can_sample_waits("counts") {
        return;
    }
    let target = Target::start("busy");
    let scratch = Scratch::new("waits-counts");
    let path = scratch.path("a.otlp");
    let pid = target.pid().to_string();
    let json = given_time(|seconds| {
        let arguments = [
            "record", "--wall", "-p", &pid, "-o", &path, "-d", seconds, "--json",
        ];
        let json = otelctx(&arguments).expect(0).json();
        match number(&json["with_context"]) {
            0 => Err(json),
            _ => Ok(json),
        }
    });
    let counts = &json["counts"];
    let outcomes = ["attached", "detached", "not_published", "invalid"];
    let outcomes: u64 = outcomes.iter().map(|name| number(&counts[name])).sum();
    let steps = counts["unreadable"].as_object().unwrap();
    let all = outcomes + steps.values().map(number).sum::<u64>();
    assert_eq!(json["samples"], all, "{json:#}");
    assert_eq!(json["with_context"], counts["attached"]);
    assert_eq!(json["gil"]["none"], all);
    let running = all * number(&json["period_ns"]);
    assert_eq!(json["waits"]["running_ns"], running);
    // The main thread waits.
    assert!(number(&json["waits"]["samples"]) > 0, "{json:#}");
}

#[test]
fn where_waits_cannot_be_sampled_it_says_why() {
    let target = Target::start("waiting");
    let scratch = Scratch::new("waits-refused");
    let path = scratch.path("a.otlp");
    let pid = target.pid().to_string();
    let record = ["record", "-d", "60", "-o", &path];
    let top = ["top", "--iterations", "1"];
    let refused = |arguments: &[&str], prepare: &dyn Fn(&mut Command)| {
        for option in ["--wall", "--wall-only"] {
            for verb in [&record[..], &top[..]] {
                let mut command = Command::new(env!("CARGO_BIN_EXE_otelctx"));
                command.args(verb).arg(option).args(arguments);
                prepare(&mut command);
                let answer = Answer::of(command.output().unwrap()).expect(2);
                let lines: Vec<&str> = answer.stderr.lines().collect();
                assert_eq!(lines.len(), 2, "{answer:?}");
                let why = lines[0].split_once("threads that wait cannot be ");
                let why = why.and_then(|(_, why)| why.split_once(": "));
                assert!(why.is_some(), "{answer:?}");
                assert_eq!(answer.stdout, "");
                assert!(!Path::new(&path).exists());
                assert!(check(why.unwrap().1, lines[1]), "{answer:?}");
            }
        }
    };
    let answer = otelctx(&["top", "--idle", "-p", &pid]).expect(2);
    assert!(answer.stderr.contains("required arguments"), "{answer:?}");
    if !can_sample_waits("refused") {
        return;
    }
    refused(&["--all"], &|command| {
        deny_if(command, libc::SYS_bpf, BPF_LINK_CREATE, libc::ENOSYS);
    });
}

/// Holds what is said where the kernel refuses the program.
fn check(why: &str, hint: &str) -> bool {
    let usual = "  --wall needs eBPF and Linux 5.18; without it, threads that run are sampled";
    why.contains("does not accept the eBPF program: ") && hint == usual
}

#[test]
fn without_ebpf_waits_are_scanned_through_the_files_of_threads() {
    if !is_root() {
        return;
    }
    let target = Target::start("waiting");
    let scratch = Scratch::new("waits-files");
    let path = scratch.path("a.otlp");
    let pid = target.pid().to_string();
    let record = |arguments: &[&str], prepare: &dyn Fn(&mut Command)| {
        given_time(|seconds| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_otelctx"));
            let usual = ["record", "--wall", "-p", &pid, "-o", &path, "--json"];
            command.args(usual).args(["-d", seconds]).args(arguments);
            prepare(&mut command);
            let answer = Answer::of(command.output().unwrap()).expect(0);
            let lines = &answer.stderr;
            assert!(
                lines.contains("waits are scanned 5 times a second at most"),
                "{answer:?}"
            );
            let waits = &answer.json()["waits"];
            match number(&waits["with_context_ns"]) {
                0 => Err(answer),
                _ => Ok(()),
            }
        });
    };
    record(&["--ptrace"], &|_| {});
    record(&[], &|command| {
        drop_capabilities(command, &[CAP_SYS_ADMIN, CAP_BPF, CAP_PERFMON]);
    });
}
