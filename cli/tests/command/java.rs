//! The stacks of a default Java virtual machine, compared with the calls that the program itself prints.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use nix::unistd::geteuid;
use otelctx_fixtures::program_source;
use otelctx_fixtures::tier::usual_or_all;
use serde_json::Value;

use crate::node_frames::{Shown, stacks_with_kinds};
use crate::otlp;
use crate::run::{Scratch, given_time, otelctx};

/// The name of the thread that computes.
const THREAD: &str = "chain";
/// The innermost methods, which compute: their lines change.
const INNERMOST: [&str; 2] = ["Chain.spin", "Chain.step"];
/// What calls them.
const CALLER: &str = "Chain.grow";
/// Part of the reasons why a stack ends in the virtual machine's code.
const GENERATED: &str = "generated code";
/// Part of the reason why a stack has not been walked: on a busy machine, a copy may have no room.
const NOT_READY: &str = "not ready";
/// The options of each way to execute methods: by default, interpreted, with each compiler alone.
const OPTIONS: [&[&str]; 4] = [
    &[],
    &["-Xint"],
    &["-XX:TieredStopAtLevel=1"],
    &["-XX:-TieredCompilation"],
];

/// `chain.java`, which computes until it is dropped.
struct Program {
    child: Child,
    /// The calls as the virtual machine has them, from [`CALLER`] on.
    calls: Vec<Shown>,
}

impl Program {
    /// `None`, with a line, without a Java that runs source files.
    fn start(options: &[&str]) -> Option<Self> {
        let mut command = Command::new("java");
        // Else it leaves out the calls through lambdas.
        command.args(["-XX:+UnlockDiagnosticVMOptions", "-XX:+ShowHiddenFrames"]);
        command.args(options).arg(program_source("chain.java"));
        // Fewer calls are compiled by no compiler.
        command.arg(if options == ["-Xint"] { "10" } else { "3000" });
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(mut child) = command.spawn() else {
            eprintln!("skipped: java is not installed");
            return None;
        };
        let output = child.stdout.take().unwrap();
        let lines = BufReader::new(output).lines().map(Result::unwrap);
        let lines: Vec<_> = lines.take_while(|line| line != "ready").collect();
        let calls = lines.iter().filter_map(|line| call(line));
        let calls: Vec<_> = calls.skip_while(|call| call.0 != CALLER).collect();
        if calls.is_empty() {
            eprintln!("skipped: java cannot run source files");
        }
        let program = Self { child, calls };
        (!program.calls.is_empty()).then_some(program)
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Panics unless the methods of a stack, innermost first, are the program's calls.
    fn assert_calls(&self, stack: &[Shown], what: &str) {
        let outer = stack.iter().position(|frame| frame.0 == CALLER);
        let (inner, outer) = stack.split_at(outer.unwrap_or_else(|| panic!("{what}: {stack:#?}")));
        assert_eq!(outer, self.calls, "{what}");
        let is_innermost = |frame: &Shown| INNERMOST.contains(&frame.0.as_str()) && frame.2 > 0;
        assert!(inner.iter().all(is_innermost), "{what}: {inner:#?}");
        assert!((1..=2).contains(&inner.len()), "{what}: {inner:#?}");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Converts a line of the program: what differs in each run is left out.
fn call(line: &str) -> Option<Shown> {
    let words: Vec<_> = line.strip_prefix("frame ")?.split(' ').collect();
    let [class, method, file, number] = words[..] else {
        panic!("{line}")
    };
    let class = match class.split_once("$$Lambda") {
        Some((class, _)) => format!("{class}$$Lambda"),
        None => class.split(['/', '+']).next().unwrap().to_owned(),
    };
    let file = if file == "null" { "" } else { file };
    let number: i64 = number.parse().unwrap();
    Some((format!("{class}.{method}"), file.to_owned(), number.max(0)))
}

/// The methods of the thread's stack in an answer of `dump`, and why it ends if it is not complete.
fn dumped(answer: &Value) -> (Vec<Shown>, Option<String>) {
    let threads = answer["threads"].as_array().unwrap();
    let thread = threads.iter().find(|it| it["name"] == THREAD).unwrap();
    let stack = &thread["stack"];
    let frames = stack["frames"].as_array().unwrap().iter();
    let methods = frames.filter(|it| it["runtime"] == "jvm" && !it["qualname"].is_null());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let shown = |it: &Value| {
        let line = it["line"].as_i64().unwrap_or_default();
        (text(&it["qualname"]), text(&it["file"]), line)
    };
    let end = (stack["complete"] != true).then(|| text(&stack["end"]));
    (methods.map(shown).collect(), end)
}

#[test]
fn dump_shows_the_methods_of_java_with_their_lines_in_the_order_of_their_calls() {
    let mut incomplete = BTreeMap::new();
    let dumps = usual_or_all(4, 50);
    for options in OPTIONS {
        let Some(program) = Program::start(options) else {
            return;
        };
        let mut complete = 0;
        // Each stops the thread at another instruction.
        for _ in 0..dumps {
            let pid = program.pid();
            let answer = otelctx(&["dump", &pid, "--stacks", "--json", "--deadline", "60"]);
            let answer = answer.expect(0).json();
            assert_eq!(answer["runtimes"]["jvm"]["error"], Value::Null);
            let (methods, end) = dumped(&answer);
            match end {
                Some(end) => *incomplete.entry(end).or_insert(0) += 1,
                None => {
                    program.assert_calls(&methods, &format!("{options:?}"));
                    complete += 1;
                }
            }
        }
        assert!(complete > 0, "{options:?}: {incomplete:#?}");
    }
    // At some instructions, the caller is not known.
    let generated = incomplete.iter().filter(|it| it.0.contains(GENERATED));
    let generated: usize = generated.map(|it| it.1).sum();
    let is_rare = generated <= 2 + OPTIONS.len() * dumps / 50;
    assert!(is_rare, "{incomplete:#?}");
}

/// Records the program, and compares the stack of each sample of its thread.
fn assert_recorded(options: &[&str], how: &[&str]) {
    let Some(program) = Program::start(options) else {
        return;
    };
    let scratch = Scratch::new(&format!("java{}", how.concat()));
    let path = scratch.path("a.otlp");
    given_time(|seconds| {
        let pid = program.pid();
        let arguments = ["record", "-p", &pid, "-d", seconds, "-o", &path];
        otelctx(&[&arguments, how].concat()).expect(0);
        let stacks = stacks_with_kinds(&otlp::read(&path), THREAD);
        let (mut whole, mut incomplete) = (0, BTreeMap::new());
        for stack in &stacks {
            // All that are of Java, but for the stubs of the virtual machine.
            let is_method =
                |(frame, kind): &&(Shown, String)| kind == "jvm" && frame.0.contains('.');
            let methods = stack.iter().filter(is_method).map(|it| it.0.clone());
            let methods: Vec<Shown> = methods.collect();
            let mut names = stack.iter().map(|frame| &frame.0.0);
            match names.find(|name| name.starts_with("[incomplete: ")) {
                Some(end) => *incomplete.entry(end.clone()).or_insert(0) += 1,
                None => {
                    program.assert_calls(&methods, &format!("{options:?} {how:?}"));
                    whole += 1;
                }
            }
        }
        let walked = incomplete.iter().filter(|it| !it.0.contains(NOT_READY));
        let ended: usize = walked.map(|it| it.1).sum();
        let generated = incomplete.iter().filter(|it| it.0.contains(GENERATED));
        let generated: usize = generated.map(|it| it.1).sum();
        let is_enough = whole > 50 && 100 * generated <= 5 * (whole + ended);
        is_enough.then_some(()).ok_or((whole, incomplete))
    });
}

#[test]
fn samples_have_the_methods_of_java_with_their_lines_in_the_order_of_their_calls() {
    if !geteuid().is_root() {
        return eprintln!("skipped: needs root");
    }
    for options in OPTIONS {
        assert_recorded(options, &[]);
    }
}

#[test]
fn samples_with_ptrace_have_the_methods_of_java() {
    for options in [OPTIONS[0], OPTIONS[1]] {
        assert_recorded(options, &["--ptrace"]);
    }
}
