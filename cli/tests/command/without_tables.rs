//! Stacks of functions that no unwind table describes: the direct caller of each is known.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use otelctx_fixtures::kernel::is_emulated;
use otelctx_fixtures::{Compiler, Target, go_program};
use serde_json::Value;

use crate::run::{Scratch, given_time, otelctx};

/// Samples that are compared of each program and method.
const SAMPLES: u64 = 200;
/// Maximum share of samples whose stack is incomplete: at the start of a process, nothing shows the caller.
const MAX_INCOMPLETE: f64 = 0.02;

/// A function and its callers, outermost first.
type Calls = (&'static str, &'static [&'static str]);

/// Assembly: see programs/without_tables.c.
const ASSEMBLY: [Calls; 6] = [
    ("leaf", &["main", "calls_leaf"]),
    ("pushes", &["main", "calls_pushes"]),
    ("framed", &["main", "calls_framed"]),
    ("late_frame", &["main", "calls_late_frame"]),
    ("aligned", &["main", "calls_aligned"]),
    ("by_another", &["main", "calls_by_another"]),
];
const GO: [Calls; 1] = [(
    "main.leaf",
    &["runtime.goexit", "runtime.main", "main.main", "main.serve"],
)];

/// Checks a stack, outermost function first. Returns the known function in it, if there is one.
fn check<'a>(stack: &[&str], calls: &'a [Calls]) -> Option<&'a str> {
    for (function, callers) in calls {
        // The kernel's functions come after it.
        let Some(at) = stack.iter().position(|name| name == function) else {
            continue;
        };
        let before = stack[..at].strip_suffix(*callers);
        assert!(before.is_some(), "{stack:?}");
        return Some(function);
    }
    None
}

fn start(program: &Path) -> Target {
    Target::spawn(&mut Command::new(program))
}

/// Records a program, and checks each stack.
fn check_recording(target: &Target, name: &str, method: &[&str], calls: &[Calls]) {
    let scratch = Scratch::new(name);
    let (folded, pid) = (scratch.path("a.folded"), target.pid().to_string());
    given_time(|seconds| {
        let arguments = [
            "record", "-F", "999", "-p", &pid, "-d", seconds, "-o", &folded,
        ];
        let answer = otelctx(&[&arguments[..], method].concat()).expect(0);
        let mut seen = BTreeMap::new();
        let (mut recorded, mut incomplete) = (0, 0);
        let text = fs::read_to_string(&folded).unwrap_or_default();
        for line in text.lines() {
            let (stack, count) = line.rsplit_once(' ').unwrap();
            let stack: Vec<&str> = stack.split(';').collect();
            let count = count.parse::<u64>().unwrap();
            recorded += count;
            let is_incomplete = stack.iter().any(|name| name.starts_with("[incomplete"));
            incomplete += if is_incomplete { count } else { 0 };
            if let Some(function) = check(&stack, calls) {
                *seen.entry(function).or_default() += count;
            }
        }
        let all = seen.values().sum::<u64>();
        let is_enough = seen.len() == calls.len() && all >= SAMPLES;
        if is_enough {
            let share = incomplete as f64 / recorded as f64;
            println!("{name}: {incomplete} of {recorded} samples are incomplete");
            assert!(share <= MAX_INCOMPLETE, "{name}: {share}: {text}");
        }
        is_enough.then_some(()).ok_or((seen, answer))
    });
}

/// The same with single stacks.
fn check_dumps(target: &Target, calls: &[Calls]) {
    let pid = target.pid().to_string();
    let mut seen = BTreeMap::new();
    for _ in 0..1000 {
        let answer = otelctx(&["dump", &pid, "--stacks", "--json"])
            .expect(0)
            .json();
        for thread in answer["threads"].as_array().unwrap() {
            let frames = thread["stack"]["frames"].as_array();
            let name = |frame: &Value| frame["function"].as_str().unwrap_or("?").to_owned();
            let names = frames.into_iter().flatten().rev().map(name);
            let names: Vec<String> = names.collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            if let Some(function) = check(&names, calls) {
                assert_eq!(thread["stack"]["complete"], true, "{thread}");
                *seen.entry(function).or_default() += 1_u64;
            }
        }
        if seen.len() == calls.len() && seen.values().sum::<u64>() >= 20 {
            return;
        }
    }
    panic!("{seen:?}");
}

#[test]
fn callers_of_assembly_without_tables_are_not_skipped() {
    if cfg!(not(target_arch = "x86_64")) {
        return eprintln!("skipped: instructions are decoded on x86-64 alone");
    }
    let flags = ["-O1", "-fno-omit-frame-pointer"];
    let Some(program) = Compiler::gcc().program(&["without_tables.c"], &flags) else {
        return;
    };
    let target = start(&program);
    check_recording(&target, "assembly", &[], &ASSEMBLY);
    check_recording(&target, "assembly", &["--ptrace"], &ASSEMBLY);
    check_dumps(&target, &ASSEMBLY);
}

/// Go compresses the tables that it writes for debuggers, and leaves them out of stripped programs.
#[test]
fn callers_of_functions_of_go_are_not_skipped() {
    if is_emulated() {
        return eprintln!("skipped: an emulated machine takes minutes for Go's compiler");
    }
    let compressed: [&[&str]; 4] = [
        &[],
        &["-ldflags=-s -w"],
        &["-ldflags=-compressdwarf=false"],
        &["-buildmode=pie"],
    ];
    for flags in compressed {
        let Some(program) = go_program("leaf.go", flags) else {
            return;
        };
        let target = start(&program);
        check_recording(&target, "go-leaf", &[], &GO);
        check_recording(&target, "go-leaf", &["--ptrace"], &GO);
        check_dumps(&target, &GO);
    }
}

/// Where the stacks of Go's runtime begin: of goroutines, of threads, and of the scheduler after a goroutine was put aside.
const STARTS_OF_GO: [&str; 5] = [
    "runtime.goexit",
    "runtime.mstart",
    "runtime.mcall",
    "runtime.newstack",
    "_rt0_amd64_linux",
];

/// The runtime goes from the stack of a goroutine to that of its thread, and back.
#[test]
fn stacks_of_go_reach_their_start_through_those_of_its_runtime() {
    if is_emulated() || cfg!(not(target_arch = "x86_64")) {
        return eprintln!("skipped: takes Go's compiler, and reads instructions of x86-64");
    }
    for flags in [
        &[][..],
        &["-ldflags=-s -w"],
        &["-ldflags=-compressdwarf=false"],
    ] {
        let Some(program) = go_program("collecting.go", flags) else {
            return;
        };
        let target = start(&program);
        let pid = target.pid().to_string();
        for method in [&[][..], &["--ptrace"]] {
            check_stacks_of_go(&pid, method);
        }
    }
}

fn check_stacks_of_go(pid: &str, method: &[&str]) {
    let scratch = Scratch::new("go-stacks");
    let folded = scratch.path("a.folded");
    given_time(|seconds| {
        let arguments = [
            "record", "-F", "999", "-p", pid, "-d", seconds, "-o", &folded,
        ];
        otelctx(&[&arguments[..], method].concat()).expect(0);
        let text = fs::read_to_string(&folded).unwrap_or_default();
        let (mut crossed, mut incomplete, mut all) = (0, 0, 0);
        for line in text.lines() {
            let (stack, count) = line.rsplit_once(' ').unwrap();
            let stack: Vec<&str> = stack.split(';').collect();
            let count = count.parse::<u64>().unwrap();
            all += count;
            if stack.iter().any(|name| name.starts_with("[incomplete")) {
                // Nothing leads from the scheduler's stack to the function whose stack grows or is preempted.
                let is_known = stack
                    .iter()
                    .any(|name| name.starts_with("runtime.morestack"));
                incomplete += if is_known { 0 } else { count };
                continue;
            }
            let plain = |name: &&str| name.strip_suffix(".abi0").unwrap_or(name).to_owned();
            let names: Vec<String> = stack.iter().map(plain).collect();
            let first = names
                .iter()
                .position(|name| STARTS_OF_GO.contains(&&**name));
            assert!(first.is_some_and(|first| first <= 3), "{names:?}");
            // The program's own goroutine.
            if let Some(at) = names.iter().position(|name| name.starts_with("main.")) {
                let begin = ["runtime.goexit", "runtime.main", "main.main"];
                assert!(
                    names[..=at].ends_with(&begin.map(String::from)),
                    "{names:?}"
                );
            }
            if names.iter().any(|name| name == "runtime.systemstack") {
                crossed += count;
            }
        }
        if crossed < 50 {
            return Err(text);
        }
        let share = incomplete as f64 / all as f64;
        println!("{incomplete} of {all} samples are incomplete, {crossed} in systemstack");
        assert!(share <= MAX_INCOMPLETE, "{share}: {text}");
        Ok(())
    });
}
