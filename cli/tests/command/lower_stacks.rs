//! Stacks that lead to a stack at a lower address, whose frame pointers are all that leads there.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use otelctx_fixtures::kernel::is_emulated;
use otelctx_fixtures::sampled::Sampled;
use otelctx_fixtures::{Target, program_source};
use serde_json::Value;

use crate::run::{Scratch, given_time, otelctx};

/// See programs/lower_stacks.c, and profile/sampler/tests/lower_stacks.rs for samples.
#[test]
fn dumps_lead_through_lower_stacks_to_the_start() {
    let Some(program) = Sampled::own().lower_stacks() else {
        return;
    };
    for (order, is_complete) in [("3120", true), ("01234", true), ("012345", false)] {
        let target = Target::spawn(Command::new(&program).arg(order));
        let pid = target.pid().to_string();
        let answer = otelctx(&["dump", &pid, "--stacks", "--json"]);
        let answer = answer.expect(0).json();
        let stack = &answer["threads"][0]["stack"];
        let frames = stack["frames"].as_array().unwrap().iter();
        let name = |frame: &Value| frame["function"].as_str().unwrap_or("?").to_owned();
        let names: Vec<String> = frames.map(name).collect();
        let mut expected = vec!["work".to_owned()];
        for _ in order.chars() {
            expected.extend(["?", "on_stack"].map(String::from));
        }
        if is_complete {
            expected.push("main".to_owned());
            assert_eq!(names.get(..expected.len()), Some(&expected[..]));
        } else {
            // Four changes to a lower stack, and the code that makes the fifth one.
            assert_eq!(names, expected[..10]);
        }
        assert_eq!(stack["complete"], is_complete, "{answer}");
    }
}

/// Calls of `busy:call/1` in a whole stack of its process (programs/busy.erl).
const DEPTH: usize = 21;
/// Maximum share of incomplete samples: a process whose memory was just moved, or the scheduler takes.
const MAX_INCOMPLETE: f64 = 0.03;
/// Ends of stacks before the program's unwind tables are converted.
const EARLY: [&str; 2] = ["not ready yet", "walked by frame pointers"];

/// The runtime is written in C, and runs on the stack of its thread: the frame pointer leads to that of the process.
#[test]
fn stacks_of_erlang_reach_the_start_through_its_runtime() {
    if is_emulated() || cfg!(not(target_arch = "x86_64")) {
        return eprintln!("skipped: was tried with Erlang on x86-64 alone");
    }
    let scratch = Scratch::new("erlang");
    let source = program_source("busy.erl");
    let compiled = Command::new("erlc")
        .arg("-o")
        .arg(scratch.path(""))
        .arg(source)
        .status();
    if !compiled.is_ok_and(|status| status.success()) {
        return eprintln!("skipped: there is no Erlang");
    }
    let folder = scratch.path("");
    let mut command = Command::new("erl");
    command.args([
        "+JPperf", "true", "-noshell", "-pa", &folder, "-run", "busy", "start",
    ]);
    let target = Target::spawn(&mut command);
    let pid = target.pid().to_string();
    for method in [&[][..], &["--ptrace"]] {
        given_time(|seconds| {
            let folded = scratch.path("a.folded");
            let record = [
                "record", "-F", "999", "-p", &pid, "-d", seconds, "-o", &folded,
            ];
            otelctx(&[&record[..], method].concat()).expect(0);
            check(&fs::read_to_string(&folded).unwrap_or_default())
        });
    }
}

/// Checks the stacks of schedulers. An error if there are too few.
fn check(text: &str) -> Result<(), String> {
    let (mut incomplete, mut all) = (0, 0);
    let mut seen = BTreeMap::<&str, u64>::new();
    for line in text.lines().filter(|it| it.contains("_scheduler;")) {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        let stack: Vec<&str> = stack.split(';').collect();
        let count = count.parse::<u64>().unwrap();
        let mark = stack.iter().find(|name| name.starts_with("[incomplete"));
        // The process has just started.
        if mark.is_some_and(|mark| EARLY.iter().any(|early| mark.contains(early))) {
            continue;
        }
        all += count;
        if mark.is_some() {
            incomplete += count;
            continue;
        }
        let Some(first) = stack.iter().position(|name| *name == "busy:call/1") else {
            continue;
        };
        let calls = stack[first..].iter();
        let depth = calls.take_while(|name| **name == "busy:call/1").count();
        let Some(called) = stack.get(first + depth) else {
            // It calls itself, or returns.
            assert!(depth <= DEPTH, "{stack:?}");
            continue;
        };
        // What C is called through, and what is written in Erlang.
        let is_c = ["global::call_bif_shared", "global::call_light_bif_shared"].contains(called);
        let is_erlang = called.starts_with("lists:");
        if is_c || is_erlang {
            let name = if is_c { "C" } else { "Erlang" };
            *seen.entry(name).or_default() += count;
            let expected = (stack[2], stack[first - 1], depth);
            let start = "erts_beamasm:normal_exit/0-CodeInfoPrologue";
            assert_eq!(expected, (start, "busy:serve/0", DEPTH), "{stack:?}");
        }
    }
    println!("{seen:?}, {incomplete} of {all} incomplete");
    if seen.len() < 2 || seen.values().any(|count| *count < 50) {
        return Err(text.to_owned());
    }
    let share = incomplete as f64 / all as f64;
    assert!(share <= MAX_INCOMPLETE, "{share}: {text}");
    Ok(())
}
