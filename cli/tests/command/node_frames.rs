//! The frames of Node.js between those of native code, compared with the calls that the program itself sees.

use std::fs;

use nix::unistd::geteuid;
use opentelemetry_proto::tonic::common::v1::any_value;
use opentelemetry_proto::tonic::profiles::v1development::ProfilesData;
use otelctx_fixtures::{CoreDirectory, Node, Target, program_source};
use serde_json::Value;

use crate::otlp;
use crate::run::{Scratch, given_time, otelctx, top};

/// Functions of V8 that the program calls, and what they are in native code.
const NATIVE: [(&str, &str); 4] = [
    ("replace", "Builtins_StringPrototypeReplace"),
    ("sort", "Builtins_ArrayPrototypeSort"),
    ("parse", "v8::internal::Builtin_JsonParse("),
    ("forEach", "Builtins_ArrayForEach"),
];
/// The function that computes, on any of its lines.
const INNERMOST: &str = "compute";
/// Functions of Node.js itself.
const OWN: &str = "of Node.js";

/// `known_frames.js`, which computes until it is dropped, without any option that concerns names.
struct Program(Target);

impl Program {
    fn start(version: &str) -> Option<Self> {
        let node = Node::with_version(version)?;
        Some(Self(Target::spawn(
            &mut node.command(&[], "known_frames.js"),
        )))
    }

    fn pid(&self) -> String {
        self.0.pid().to_string()
    }

    /// The calls as V8 sees them, innermost first.
    fn calls(&self) -> Vec<String> {
        let lines = self.0.lines.iter();
        let calls = lines.filter_map(|line| line.strip_prefix("frame "));
        let call = |words: &str| {
            let [function, file, line, first_line] = words.split(' ').collect::<Vec<_>>()[..]
            else {
                panic!("{words}")
            };
            match (function, file) {
                (_, "-") => format!("native {function}"),
                (_, file) if file.starts_with("node:") => OWN.to_owned(),
                ("-", file) => {
                    let name = file.rsplit('/').next().unwrap();
                    format!("(anonymous {name}:{first_line}) {file}:{line}")
                }
                (INNERMOST, file) => format!("{INNERMOST} {file}"),
                _ => format!("{function} {file}:{line}"),
            }
        };
        calls.map(call).collect()
    }
}

/// A frame's function, source file (empty if it has none) and line.
pub(crate) type Shown = (String, String, i64);

/// Returns the calls of a stack to compare: functions in JavaScript, and those of [`NATIVE`].
fn calls_of(stack: &[Shown]) -> Vec<String> {
    let call = |(function, file, line): &Shown| {
        if file.starts_with("node:") {
            return Some(OWN.to_owned());
        }
        if function == INNERMOST {
            return Some(format!("{function} {file}"));
        }
        if file.ends_with(".js") {
            return Some(format!("{function} {file}:{line}"));
        }
        let native = NATIVE.iter().find(|(_, name)| function.starts_with(name));
        native.map(|(name, _)| format!("native {name}"))
    };
    stack.iter().filter_map(call).collect()
}

/// The stacks of all samples of the thread with this name.
pub(crate) fn stacks(data: &ProfilesData, thread: &str) -> Vec<Vec<Shown>> {
    let stacks = stacks_with_kinds(data, thread).into_iter();
    let shown = |stack: Vec<(Shown, String)>| stack.into_iter().map(|it| it.0).collect();
    stacks.map(shown).collect()
}

/// Does the same, with the kind of each frame, empty for native ones.
pub(crate) fn stacks_with_kinds(data: &ProfilesData, thread: &str) -> Vec<Vec<(Shown, String)>> {
    let dictionary = data.dictionary.as_ref().unwrap();
    let text = |index: i32| dictionary.string_table[index as usize].clone();
    let is_of_thread = |attributes: &[i32]| {
        attributes.iter().any(|index| {
            let attribute = &dictionary.attribute_table[*index as usize];
            text(attribute.key_strindex) == "thread.name"
                && format!("{:?}", attribute.value).contains(&format!("\"{thread}\""))
        })
    };
    let shown = |location: &i32| {
        let location = &dictionary.location_table[*location as usize];
        let Some(line) = location.lines.first() else {
            return <(Shown, String)>::default();
        };
        let function = &dictionary.function_table[line.function_index as usize];
        let file = text(function.filename_strindex);
        let attributes = location.attribute_indices.iter();
        let mut attributes = attributes.map(|it| &dictionary.attribute_table[*it as usize]);
        let kind = attributes.find(|it| text(it.key_strindex) == "profile.frame.type");
        let kind = kind.and_then(|it| it.value.as_ref()?.value.clone());
        let kind = match kind {
            Some(any_value::Value::StringValue(kind)) => kind,
            _ => String::new(),
        };
        let shown = (text(function.name_strindex), file, line.line);
        (shown, kind)
    };
    let mut found = Vec::new();
    for resource in &data.resource_profiles {
        let scopes = resource.scope_profiles.iter();
        for sample in scopes
            .flat_map(|it| &it.profiles)
            .flat_map(|it| &it.samples)
        {
            if is_of_thread(&sample.attribute_indices) {
                let stack = &dictionary.stack_table[sample.stack_index as usize];
                let stack: Vec<_> = stack.location_indices.iter().map(shown).collect();
                found.extend(sample.timestamps_unix_nano.iter().map(|_| stack.clone()));
            }
        }
    }
    found
}

/// Returns whether a stack is from before the runtime was known, which names functions.
fn is_early(stack: &[Shown]) -> bool {
    stack.iter().any(|(function, ..)| is_unnamed(function))
}

fn is_unnamed(function: &str) -> bool {
    const INTERPRETER: &str = "Builtins_InterpreterEntryTrampoline";
    function.starts_with("[JavaScript") || function == INTERPRETER
}

#[test]
fn samples_have_the_functions_of_javascript_between_those_of_v8_in_the_order_of_their_calls() {
    if !geteuid().is_root() {
        return eprintln!("skipped: needs root");
    }
    for version in ["22", "24", "26"] {
        let Some(program) = Program::start(version) else {
            continue;
        };
        let calls = program.calls();
        assert_eq!(calls[0].split(' ').next(), Some("compute"), "{calls:#?}");
        let scratch = Scratch::new("node-frames");
        let path = scratch.path("a.otlp");
        given_time(|seconds| {
            let pid = program.pid();
            let arguments = [
                "record", "-p", &pid, "-F", "499", "-d", seconds, "-o", &path,
            ];
            otelctx(&arguments).expect(0);
            let thread = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
            let stacks = stacks(&otlp::read(&path), thread.trim_end());
            let mut named = 0;
            for stack in stacks.iter().filter(|stack| !is_early(stack)) {
                let found = calls_of(stack);
                // The tables of the program were not read yet: it has the innermost frames.
                if stack.last().is_none_or(|it| it.0 != "_start") {
                    assert!(calls.starts_with(&found), "{version}: {stack:#?}");
                    continue;
                }
                assert_eq!(found, calls, "{version}: {stack:#?}");
                named += 1;
            }
            println!("{version}: {named} of {} samples", stacks.len());
            let is_enough = named >= 20 && named * 2 >= stacks.len();
            is_enough.then_some(()).ok_or((named, stacks.len()))
        });
    }
}

/// The main thread's frames, of a dump of the process, or of its core file.
fn dumped(program: &Program, target: &[&str]) -> Vec<Shown> {
    let answer = otelctx(&[&["dump", "--stacks", "--json"], target].concat()).json();
    let threads = answer["threads"].as_array().unwrap();
    let main = threads.iter().find(|it| it["tid"] == program.0.pid());
    let stack = &main.unwrap()["stack"];
    assert_eq!(stack["complete"], true, "{stack:#}");
    let shown = |frame: &Value| {
        let text = |name: &str| frame[name].as_str().unwrap_or_default().to_owned();
        let line = frame["line"].as_i64().unwrap_or_default();
        (text("function"), text("file"), line)
    };
    let frames = stack["frames"].as_array().unwrap();
    frames.iter().map(shown).collect()
}

#[test]
fn dump_shows_the_functions_of_javascript_in_the_order_of_their_calls() {
    for version in ["22", "24", "26"] {
        let Some(program) = Program::start(version) else {
            continue;
        };
        let stack = dumped(&program, &[&program.pid()]);
        assert_eq!(calls_of(&stack), program.calls(), "{version}: {stack:#?}");
    }
}

/// Each `inner7` is called by `made7` alone. Both are made and collected while their stacks are copied, walked and named.
#[test]
fn functions_that_come_and_go_are_called_by_their_own_callers_in_samples() {
    if !geteuid().is_root() {
        return eprintln!("skipped: needs root");
    }
    for version in ["22", "24", "26"] {
        let Some(node) = Node::with_version(version) else {
            continue;
        };
        let mut command = node.program();
        command.arg(program_source("js_stacks.js"));
        let target = Target::spawn(command.args(["never", "churn"]));
        let (pid, scratch) = (target.pid().to_string(), Scratch::new("node-churn"));
        let path = scratch.path("a.folded");
        given_time(|seconds| {
            let arguments = [
                "record", "-F", "499", "-p", &pid, "-d", seconds, "-o", &path,
            ];
            otelctx(&arguments).expect(0);
            let folded = fs::read_to_string(&path).unwrap();
            let mut calls = 0;
            for line in folded.lines() {
                let stack: Vec<&str> = line.rsplit_once(' ').unwrap().0.split(';').collect();
                for pair in stack.windows(2) {
                    let number = pair[1].strip_prefix("inner");
                    let is_number = |it: &&str| it.parse::<u32>().is_ok();
                    let Some(number) = number.filter(is_number) else {
                        continue;
                    };
                    let is_named = !is_unnamed(pair[0]);
                    let is_its = pair[0] == format!("made{number}");
                    assert!(is_its || !is_named, "{version}: {line}");
                    calls += usize::from(is_its);
                }
            }
            println!("{version}: {calls} calls");
            (calls >= 10).then_some(()).ok_or(calls)
        });
    }
}

/// A stack of a wait is walked like that of a sample, while its thread sleeps.
#[test]
fn waits_have_the_functions_of_javascript() {
    if !geteuid().is_root() {
        return eprintln!("skipped: needs root");
    }
    for version in ["22", "24", "26"] {
        let Some(node) = Node::with_version(version) else {
            continue;
        };
        let target = Target::spawn(&mut node.command(&[], "js_waits.js"));
        let (pid, scratch) = (target.pid().to_string(), Scratch::new("node-waits"));
        let path = scratch.path("a.folded");
        given_time(|seconds| {
            let arguments = ["record", "--wall", "-p", &pid, "-d", seconds, "-o", &path];
            otelctx(&arguments).expect(0);
            let folded = fs::read_to_string(&path).unwrap();
            let waits = folded.lines().filter(|it| it.contains("AtomicsWait"));
            let mut waits = waits.filter(|it| !it.contains("Builtins_InterpreterEntryTrampoline"));
            let named = waits.find(|it| it.contains(";loop;checkout;pause;"));
            named.map(|_| ()).ok_or(folded)
        });
    }
}

#[test]
fn a_core_file_has_the_functions_of_javascript() {
    for version in ["22", "24", "26"] {
        let Some(program) = Program::start(version) else {
            continue;
        };
        let directory = CoreDirectory::new();
        let Some(core) = directory.gcore(&program.0) else {
            continue;
        };
        let stack = dumped(&program, &["--core", core.to_str().unwrap()]);
        assert_eq!(calls_of(&stack), program.calls(), "{version}: {stack:#?}");
    }
}

/// The names are the same as those of `record`.
#[test]
fn top_shows_functions_of_javascript_by_their_names() {
    let Some(program) = Program::start("24") else {
        return;
    };
    let pid = program.pid();
    given_time(|seconds| {
        let picture = top(&pid, "function", seconds);
        let rows = picture["rows"].as_array().unwrap();
        let samples = |row: &Value| row["samples"].as_u64().unwrap();
        let named = rows.iter().find(|row| row["name"] == "compute");
        let (named, all) = (named.map_or(0, samples), rows.iter().map(samples).sum());
        // Others are of the compiler's threads, or from before its code was announced.
        let is_named: bool = named >= 5 && named * 2 >= all;
        is_named.then_some(()).ok_or(picture)
    });
}
