//! Names of PHP's compiled code, which worker processes share.

use std::fs;
use std::process::Command;

use otelctx_fixtures::{Target, program_source};

use crate::run::{Scratch, given_time, otelctx};

/// opcache.jit_debug: announces the names of functions for perf(1).
const ANNOUNCES: &str = "opcache.jit_debug=0x10";

/// Starts programs/forked.php. `None`, with a line, without PHP or its compiler.
fn start() -> Option<Target> {
    let settings = [
        "zend_extension=opcache",
        "opcache.enable_cli=1",
        "opcache.jit_buffer_size=16M",
        "opcache.jit=function",
        ANNOUNCES,
    ];
    let mut command = Command::new("php");
    command.arg("-n");
    for setting in settings {
        command.args(["-d", setting]);
    }
    let mut can_compile = Command::new(command.get_program());
    can_compile.args(command.get_args());
    let script =
        "exit(opcache_get_status()['jit']['on'] && function_exists('pcntl_fork') ? 0 : 1);";
    let status = can_compile.args(["-r", script]).output();
    if !status.is_ok_and(|it| it.status.success()) {
        eprintln!("skipped: there is no PHP with opcache's compiler and pcntl");
        return None;
    }
    command.arg(program_source("forked.php"));
    Some(Target::spawn(&mut command))
}

/// The parent has opened the map, and its child writes to it as well.
#[test]
fn code_of_a_forked_process_has_the_names_in_its_parents_map() {
    let Some(target) = start() else { return };
    let (parent, scratch) = (target.pid(), Scratch::new("php"));
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
    let children = children.unwrap();
    let child = children.trim();
    assert!(!fs::exists(format!("/tmp/perf-{child}.map")).unwrap());
    for method in [&[][..], &["--ptrace"]] {
        given_time(|seconds| {
            let folded = scratch.path("a.folded");
            let record = [
                "record", "-F", "499", "-p", child, "-d", seconds, "-o", &folded,
            ];
            otelctx(&[&record[..], method].concat()).expect(0);
            let text = fs::read_to_string(&folded).unwrap_or_default();
            for unnamed in ["[PHP]", "zero"] {
                assert!(!text.contains(unnamed), "{text}");
            }
            let of_function = text.lines().filter(|line| line.contains(";JIT$leaf"));
            let counts = of_function.map(|line| line.rsplit_once(' ').unwrap().1);
            let samples: u64 = counts.map(|count| count.parse::<u64>().unwrap()).sum();
            (samples >= 50).then_some(()).ok_or(text)
        });
    }
    for _ in 0..100 {
        let answer = otelctx(&["dump", child, "--stacks"]).expect(0);
        if answer.stdout.contains("JIT$leaf") {
            return;
        }
        assert!(!answer.stdout.contains("[PHP]"), "{}", answer.stdout);
    }
    panic!("the function never runs");
}
