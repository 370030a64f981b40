//! `otelctx ps`. Other tests run beside these: only the own targets' lines are compared.

use std::fs;

use serde_json::{Value, json};

use crate::run::otelctx;
use crate::target::Target;

/// The row of a process, if it has one.
fn row(listing: &Value, pid: i32) -> Option<Value> {
    let rows = listing["processes"].as_array().unwrap();
    rows.iter().find(|row| row["pid"] == pid).cloned()
}

#[test]
fn publishing_processes_are_listed_and_others_are_not() {
    let shop = Target::start("shop");
    let silent = Target::start("silent");
    let listing = otelctx(&["ps", "--json"]).expect(0).json();
    let mut shown = row(&listing, shop.pid()).unwrap();
    assert!(shown["comm"].take().is_string());
    assert_eq!(
        shown,
        json!({
            "pid": shop.pid(),
            "comm": null,
            "service": "shop",
            "language": "rust",
            "schema": "tlsdesc_v1_dev",
            "keys": 2,
            "threads": 5,
            "unreadable": null,
        })
    );
    assert_eq!(row(&listing, silent.pid()), None);

    let answer = otelctx(&["ps"]).expect(0);
    let text = &answer.stdout;
    let pid = shop.pid().to_string();
    let words = |line: &str| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        words(text.lines().next().unwrap()),
        ["PID", "SERVICE", "LANGUAGE", "SCHEMA", "KEYS", "THREADS"]
    );
    let line = text.lines().find(|line| words(line)[0] == pid);
    assert_eq!(
        words(line.unwrap_or_else(|| panic!("{answer:?}"))),
        [&pid, "shop", "rust", "tlsdesc_v1_dev", "2", "5"]
    );
}

#[test]
fn processes_that_publish_nothing_are_listed_when_asked_for() {
    let named = Target::start_with("silent", |command| {
        command.env("OTEL_SERVICE_NAME", "shop");
    });
    let nameless = Target::start("silent");
    let published = Target::start("shop");
    let listing = otelctx(&["ps", "--all", "--json"]).expect(0).json();
    let shown = row(&listing, named.pid()).unwrap();
    assert_eq!(shown["service"], "shop");
    assert_eq!(shown["service_detected"], true);
    assert_eq!(shown["schema"], Value::Null);
    let shown = row(&listing, nameless.pid()).unwrap();
    assert_eq!(shown["service"], Value::Null);
    assert_eq!(shown.get("service_detected"), None);
    let shown = row(&listing, published.pid()).unwrap();
    assert_eq!(shown["service"], "shop");
    assert_eq!(shown.get("service_detected"), None);
    // A kernel thread, except in a container.
    assert_eq!(row(&listing, 2), None);

    let answer = otelctx(&["ps", "--all"]).expect(0);
    let cells = |first: &str| {
        let mut rows = answer.stdout.lines();
        let row = rows.find(|row| row.split_whitespace().next() == Some(first));
        let row = row.unwrap_or_else(|| panic!("{answer:?}"));
        row.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        cells("PID"),
        [
            "PID", "NAME", "SERVICE", "LANGUAGE", "SCHEMA", "KEYS", "THREADS"
        ]
    );
    for (process, service, rest) in [
        (&named, "(shop)", ["-", "-", "-", "1"]),
        (&nameless, "-", ["-", "-", "-", "1"]),
        (&published, "shop", ["rust", "tlsdesc_v1_dev", "2", "5"]),
    ] {
        let pid = process.pid().to_string();
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
        let expected = [&[&pid, name.trim_end(), service][..], &rest].concat();
        assert_eq!(cells(&pid), expected, "{answer:?}");
    }
}

#[test]
fn threads_with_a_trace_are_counted_when_asked_for() {
    let target = Target::start("shop");
    let listing = otelctx(&["ps", "--json", "--threads"]).expect(0).json();
    // worker-1 and worker-4; the record of worker-3 has no trace.
    assert_eq!(
        row(&listing, target.pid()).unwrap()["threads_with_trace"],
        2
    );
    let answer = otelctx(&["ps", "--threads"]).expect(0);
    let text = &answer.stdout;
    let pid = target.pid().to_string();
    let line = text
        .lines()
        .find(|line| line.trim_start().starts_with(&pid));
    let line = line.unwrap_or_else(|| panic!("{answer:?}"));
    assert!(line.ends_with("  5, 2 with a trace"), "{answer:?}");
}

#[test]
fn what_can_not_be_read_is_shown_with_the_reason() {
    for (scenario, service, why) in [
        ("newer_version", Value::Null, "version 3"),
        ("no_schema", "quiet".into(), "no schema"),
        (
            "other_schema",
            "strange".into(),
            "unsupported schema future_v9",
        ),
        ("bad_key_map", "odd".into(), "array"),
    ] {
        let target = Target::start(scenario);
        let listing = otelctx(&["ps", "--json"]).expect(0).json();
        let shown = row(&listing, target.pid()).unwrap();
        assert_eq!(shown["service"], service);
        let reported = shown["unreadable"].as_str().unwrap();
        assert!(reported.contains(why), "{reported}");
        let text = otelctx(&["ps"]).expect(0).stdout;
        let line = format!(
            "{reported}; `{} check {}` says how to fix it",
            env!("CARGO_BIN_EXE_otelctx"),
            target.pid()
        );
        assert!(text.contains(&line), "{text}");
    }
}

#[test]
fn an_address_space_is_listed_once() {
    let target = Target::start("vm_child");
    let child = target.number("child");
    let listing = otelctx(&["ps", "--json"]).expect(0).json();
    let shown = [target.pid(), child].map(|pid| row(&listing, pid));
    let (shown, other) = match shown {
        [Some(parent), None] => (parent, child),
        [None, Some(child)] => (child, target.pid()),
        both => panic!("{both:?}"),
    };
    assert_eq!(shown["service"], "parent");
    assert_eq!(shown["shares_memory_with"], json!([other]));
}

#[test]
fn processes_with_too_many_mappings_are_named() {
    let target = Target::start("shop");
    let answer = otelctx(&["ps", "--json", "--max-mappings", "3"]).expect(0);
    let listing = answer.json();
    assert_eq!(row(&listing, target.pid()), None);
    let skipped = listing["skipped"]["too_many_mappings"].as_array().unwrap();
    assert!(skipped.contains(&target.pid().into()));
    assert!(answer.stderr.contains("with more than 3 mappings: "));
}
