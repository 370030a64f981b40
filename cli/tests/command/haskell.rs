//! Stacks of GHC's code, which has a stack of its own.

use std::fs;
use std::process::Command;

use otelctx_fixtures::kernel::is_emulated;
use otelctx_fixtures::{Target, program_source};

use crate::run::{Scratch, given_time, otelctx};

/// The functions of programs/Calls.hs, outermost first.
const CALLS: [&str; 3] = ["loop", "text", "tree"];

/// Returns whether a stack is of the innermost function, and checks its callers.
fn check(stack: &[&str]) -> bool {
    // GHC makes a function of its own of what is strict: `$wtree` for `tree`.
    let is = |name: &str, function: &str| {
        let name = name
            .strip_prefix("Main_")
            .and_then(|it| it.strip_suffix("_info"));
        name.is_some_and(|name| name.strip_prefix("zdw").unwrap_or(name) == function)
    };
    let Some(at) = stack.iter().position(|name| is(name, "tree")) else {
        return false;
    };
    // The function has just been called, by a jump: its caller is known by the return address that is on the stack.
    let callers = &stack[at.saturating_sub(2)..=at];
    let is_right = callers.len() == 3 && callers.iter().zip(CALLS).all(|(name, it)| is(name, it));
    assert!(is_right, "{stack:?}");
    true
}

/// The entry of each function in the tables ends with its first block.
#[test]
fn callers_of_functions_of_ghc_are_known() {
    if is_emulated() || cfg!(not(target_arch = "x86_64")) {
        return eprintln!("skipped: was tried with GHC on x86-64 alone");
    }
    let scratch = Scratch::new("haskell");
    let (source, program) = (scratch.path("Calls.hs"), scratch.path("calls"));
    fs::copy(program_source("Calls.hs"), &source).unwrap();
    let mut compile = Command::new("ghc");
    compile.args(["-g", "-O1", "-v0", "-o", &program, &source]);
    if !compile.status().is_ok_and(|status| status.success()) {
        return eprintln!("skipped: there is no GHC");
    }
    let target = Target::spawn(&mut Command::new(&program));
    let pid = target.pid().to_string();
    for method in [&[][..], &["--ptrace"]] {
        given_time(|seconds| {
            let folded = scratch.path("a.folded");
            let record = [
                "record", "-F", "499", "-p", &pid, "-d", seconds, "-o", &folded,
            ];
            otelctx(&[&record[..], method].concat()).expect(0);
            let text = fs::read_to_string(&folded).unwrap_or_default();
            let (mut right, mut all) = (0, 0);
            for line in text.lines() {
                let (stack, count) = line.rsplit_once(' ').unwrap();
                let stack: Vec<&str> = stack.split(';').collect();
                let count = count.parse::<u64>().unwrap();
                // Debian's runtime has no tables, so that no stack of the program's code is complete.
                if check(&stack) {
                    assert!(stack.iter().any(|name| name.starts_with("[incomplete")));
                    right += count;
                }
                all += count;
            }
            println!("{right} of {all} samples have the function and its callers");
            (right >= 50).then_some(()).ok_or(text)
        });
    }
    let mut seen = 0;
    for _ in 0..100 {
        let answer = otelctx(&["dump", &pid, "--stacks", "--json"]);
        let answer = answer.expect(0).json();
        let threads = answer["threads"].as_array().unwrap();
        for thread in threads {
            let frames = thread["stack"]["frames"].as_array();
            let name =
                |frame: &serde_json::Value| frame["function"].as_str().unwrap_or("?").to_owned();
            let names: Vec<String> = frames.into_iter().flatten().rev().map(name).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            seen += u64::from(check(&names));
        }
        if seen >= 10 {
            return;
        }
    }
    panic!("{seen}");
}
