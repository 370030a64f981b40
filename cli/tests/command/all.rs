//! `otelctx dump --all`. Other tests run beside these: only the own targets' lines are compared.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::Value;

use crate::run::{Answer, command, otelctx};
use crate::target::{SPAN, TRACE, Target};

/// The lines of an answer, each one JSON value.
fn lines(answer: &Answer) -> Vec<Value> {
    let lines = answer.stdout.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn line(lines: &[Value], pid: i32) -> Option<&Value> {
    let mut own = lines.iter().filter(|line| line["pid"] == pid);
    let line = own.next();
    assert_eq!(own.next(), None);
    line
}

#[test]
fn each_publishing_process_has_the_line_that_its_own_dump_has() {
    let (shop, silent) = (Target::start("shop"), Target::start("silent"));
    let (broken, hostile) = (Target::start("newer_version"), Target::start("hostile"));
    for arguments in [&["dump", "--all"][..], &["dump", "--all", "--json"]] {
        // What others publish at the same time is broken for a part.
        let answer = otelctx(arguments).expect(1);
        let lines = lines(&answer);
        for target in [&shop, &broken, &hostile] {
            let pid = target.pid();
            let own = otelctx(&["dump", &pid.to_string(), "--json"]).json();
            assert_eq!(line(&lines, pid), Some(&own));
        }
        let own = line(&lines, shop.pid()).unwrap();
        let threads = own["threads"].as_array().unwrap();
        let worker = threads.iter().find(|it| it["name"] == "worker-1").unwrap();
        assert_eq!(worker["context"]["trace_id"], TRACE);
        assert_eq!(worker["context"]["span_id"], SPAN);
        assert_eq!(line(&lines, silent.pid()), None);
        assert!(lines.is_sorted_by_key(|line| line["pid"].as_i64()));
    }
}

#[test]
fn a_process_in_the_memory_of_another_is_marked() {
    let target = Target::start("vm_child");
    let (parent, child) = (target.pid(), target.number("child"));
    let lines = lines(&otelctx(&["dump", "--all"]));
    let marks = [parent, child].map(|pid| &line(&lines, pid).unwrap()["shares_memory_with"]);
    // The one with the lower id has its line first.
    let (first, second) = if parent < child { (0, 1) } else { (1, 0) };
    assert_eq!(marks[first], &Value::Null);
    assert_eq!(marks[second], &Value::from([parent, child][first]));
}

/// A process that ends meanwhile is one that was there, or was not.
#[test]
fn processes_that_come_and_go_harm_no_other_line() {
    let shop = Target::start("shop");
    let mut dump = command(&["dump", "--all"]);
    let mut dump = dump
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let fleeting: Vec<Target> = (0..8).map(|_| Target::start("shop")).collect();
    let stdout = BufReader::new(dump.stdout.take().unwrap());
    drop(fleeting);
    let lines: Vec<Value> = stdout
        .lines()
        .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
        .collect();
    assert!(dump.wait().unwrap().code().unwrap() < 2);
    let own = line(&lines, shop.pid()).unwrap();
    assert_eq!(own["process_context"]["resource"]["service.name"], "shop");
    for line in &lines {
        let reported = ["process_context", "error"]
            .iter()
            .any(|it| line.get(it).is_some());
        assert!(reported, "{line}");
    }
}

#[test]
fn one_process_or_all() {
    for arguments in [
        &["dump", "--all", "1"][..],
        &["dump", "--all", "--core", "core"],
        &["dump"],
        &["dump", "1", "--deadline", "0"],
    ] {
        otelctx(arguments).expect(2);
    }
}
