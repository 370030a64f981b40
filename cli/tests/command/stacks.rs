//! `otelctx dump --stacks`: the stacks of threads that know their own.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::libc;
use otelctx_fixtures::kernel::Feature;
use otelctx_fixtures::{Compiler, CoreDirectory, Target, wait_until_loaded};
#[cfg(target_arch = "aarch64")]
use otelctx_fixtures::{sampled::Sampled, wait_for_signed_return_address};
use otelctx_reader::remote::{CoreFile, Mapping, Target as _};
use serde_json::{Value, json};

use crate::run::{Answer, given_time, otelctx};
use crate::target::wait_until_asleep;

/// Threads, of which one runs.
const COUNT: usize = 5;
const OPTIMIZED: [&str; 4] = ["-O2", "-fomit-frame-pointer", "-pthread", "-Wl,--build-id"];
const WITH_FRAME_POINTERS: [&str; 5] = [
    "-O0",
    "-g",
    "-fno-omit-frame-pointer",
    "-pthread",
    "-Wl,--build-id",
];

fn program(compiler: &Compiler, flags: &[&str]) -> Option<PathBuf> {
    compiler.program(&["known_stacks.c"], flags)
}

/// Starts the program and waits until all threads but one sleep.
pub(crate) fn start(command: &mut Command) -> Target {
    let target = Target::spawn(command);
    wait_until_asleep(target.pid(), 1);
    assert_eq!(own_stacks(&target).len(), COUNT);
    target
}

/// The functions of each thread as the program names them, innermost first.
pub(crate) fn own_stacks(target: &Target) -> BTreeMap<i64, Vec<String>> {
    let lines = target.lines.iter();
    let words = lines.filter_map(|line| line.strip_prefix("stack "));
    let stack = |words: &str| {
        let mut words = words.split(' ');
        let tid = words.next().unwrap().parse().unwrap();
        (tid, words.map(str::to_owned).collect())
    };
    words.map(stack).collect()
}

/// The functions of a stack that are the program's own, innermost first.
fn functions(stack: &Value, program: &Path) -> Vec<String> {
    let frames = stack["frames"].as_array().unwrap().iter();
    let own = frames.filter(|frame| frame["module"] == json!(program));
    let names = own.map(|frame| frame["function"].as_str().unwrap_or("?").to_owned());
    names.filter(|name| name != "_start").collect()
}

/// Checks that every stack of an answer is complete and the one that the program knows.
pub(crate) fn assert_whole(answer: &Value, program: &Path, expected: &BTreeMap<i64, Vec<String>>) {
    let threads = answer["threads"].as_array().unwrap();
    assert_eq!(threads.len(), COUNT, "{answer}");
    for thread in threads {
        let (tid, stack) = (thread["tid"].as_i64().unwrap(), &thread["stack"]);
        assert!(stack["frames"].is_array(), "{answer}");
        assert_eq!(functions(stack, program), expected[&tid], "{thread}");
        assert_eq!(stack["complete"], true, "{thread}");
        assert!(stack["end"].is_null(), "{thread}");
    }
}

fn dump(pid: i32, more: &[&str]) -> Answer {
    let pid = pid.to_string();
    let arguments = ["dump", &pid, "--stacks"];
    otelctx(&[&arguments, more].concat())
}

/// Returns the number of times that each sleeping thread was put on a CPU.
fn times_run(target: &Target) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", target.pid())).unwrap();
    let paths = tasks.map(|task| task.unwrap().path());
    let read = |path: PathBuf| {
        let read = |name| std::fs::read_to_string(path.join(name)).unwrap();
        read("stat").contains(") S ").then(|| read("schedstat"))
    };
    paths.filter_map(read).collect()
}

#[test]
fn stacks_equal_what_the_threads_know_and_no_sleeping_thread_is_stopped() {
    for compiler in [Compiler::gcc(), Compiler::clang()] {
        let Some(program) = program(&compiler, &OPTIMIZED) else {
            continue;
        };
        let target = start(&mut Command::new(&program));
        let before = times_run(&target);
        let answer = dump(target.pid(), &["--json"]).expect(0).json();
        assert_eq!(times_run(&target), before);
        assert_whole(&answer, &program, &own_stacks(&target));
        assert_eq!(answer["threads_stopped"], 1, "{answer}");
    }
}

/// Returns whether the debug information of this file is in a separate file, compressed.
fn has_compressed_debug_file(path: &str) -> bool {
    let tool = |arguments: &[&str]| {
        let output = Command::new("readelf").args(arguments).output().ok()?;
        String::from_utf8(output.stdout).ok()
    };
    let notes = tool(&["-n", path]).unwrap_or_default();
    let mut lines = notes.lines();
    let id = lines.find_map(|line| line.trim().strip_prefix("Build ID: "));
    let Some((start, rest)) = id.and_then(|id| id.split_at_checked(2)) else {
        return false;
    };
    let file = format!("/usr/lib/debug/.build-id/{start}/{rest}.debug");
    let sections = tool(&["-SW", &file]).unwrap_or_default();
    let info = sections.lines().find(|line| line.contains(" .debug_info "));
    info.is_some_and(|line| line.contains(" C "))
}

#[test]
fn lines_of_compressed_debug_files_are_read_on_request() {
    let Some(program) = program(&Compiler::gcc(), &OPTIMIZED) else {
        return;
    };
    let target = start(&mut Command::new(&program));
    // The functions of the C library, and those with lines.
    let functions = |more: &[&str]| {
        let arguments = [&["--json"], more].concat();
        let answer = dump(target.pid(), &arguments).expect(0).json();
        let (mut named, mut with_lines, mut path) = (0, 0, String::new());
        let threads = answer["threads"].as_array().unwrap().iter();
        for frame in threads.flat_map(|it| it["stack"]["frames"].as_array().unwrap()) {
            let module = frame["module"].as_str().unwrap_or_default();
            if module.contains("/libc.so") && !frame["function"].is_null() {
                named += 1;
                with_lines += usize::from(!frame["line"].is_null());
                path = module.to_owned();
            }
        }
        (named, with_lines, path)
    };
    let (_, with_lines, path) = functions(&["--lines"]);
    if !has_compressed_debug_file(&path) {
        println!("skipped: the C library has no compressed debug file here");
        return;
    }
    assert!(with_lines > COUNT, "{with_lines} lines");
    let (named, with_lines, _) = functions(&[]);
    assert!(named > COUNT, "{named} functions");
    assert_eq!(with_lines, 0);
    let (_, with_lines, _) = functions(&["--debug-dir", "/usr/lib/debug"]);
    assert!(with_lines > COUNT, "{with_lines} lines");
}

/// Functions sign the addresses that they return to before they save them.
#[test]
#[cfg(target_arch = "aarch64")]
fn signed_return_addresses_lead_to_the_functions_that_the_threads_know() {
    let Some(program) = Sampled::own().signed_known_stacks() else {
        return;
    };
    let target = start(&mut Command::new(&program));
    let signs = wait_for_signed_return_address(target.pid());
    if Feature::SignedReturns.or_skip(signs).is_none() {
        return;
    }
    let answer = dump(target.pid(), &["--json", "--stop-sleeping"]).expect(0);
    assert_whole(&answer.json(), &program, &own_stacks(&target));
}

/// Returns whether a core file's mappings have the vDSO, whose unwind tables are in memory only.
fn has_vdso(path: &Path) -> bool {
    let core = CoreFile::open(path, Path::new("/")).unwrap();
    let mut found = false;
    let visit = &mut |mapping: &Mapping<'_>| {
        found |= mapping.name == b"[vdso]" && mapping.permissions.execute;
        ControlFlow::Continue(())
    };
    core.mappings(visit).unwrap();
    found
}

#[test]
fn stacks_in_a_core_file_are_those_of_the_process() {
    let Some(program) = program(&Compiler::gcc(), &OPTIMIZED) else {
        return;
    };
    let directory = CoreDirectory::new();
    let mut command = Command::new(&program);
    directory.allow(&mut command, u64::MAX);
    let mut target = start(&mut command);
    let mut expected = own_stacks(&target);
    let assert_same = |path: Option<PathBuf>, expected: &BTreeMap<_, _>| {
        let Some(path) = path else { return };
        assert!(has_vdso(&path), "{path:?}");
        let path = path.to_str().unwrap();
        let answer = otelctx(&["dump", "--core", path, "--stacks", "--json"]);
        assert_whole(&answer.expect(0).json(), &program, expected);
    };
    assert_same(directory.gcore(&target), &expected);
    let first = target.pid();
    let crashed = directory.crash(&mut target, first, libc::SIGUSR2);
    let stack = expected.get_mut(&first.into()).unwrap();
    stack.insert(0, "crash".into());
    assert_same(crashed, &expected);
}

/// The kernel does not show the frame pointer of a thread that sleeps.
#[test]
#[cfg(target_arch = "x86_64")]
fn code_with_frame_pointers_is_unwound_where_threads_may_be_stopped() {
    let Some(program) = program(&Compiler::gcc(), &WITH_FRAME_POINTERS) else {
        return;
    };
    let target = start(&mut Command::new(&program));
    let expected = own_stacks(&target);
    let answer = dump(target.pid(), &["--json"]).expect(0).json();
    for thread in answer["threads"].as_array().unwrap() {
        let (tid, stack) = (thread["tid"].as_i64().unwrap(), &thread["stack"]);
        let functions = functions(stack, &program);
        assert!(expected[&tid].starts_with(&functions), "{thread}");
        let is_whole = functions == expected[&tid];
        assert_eq!(stack["complete"], is_whole, "{thread}");
        let end = stack["end"].as_str().unwrap_or_default();
        assert_eq!(end.ends_with(" (--stop-sleeping)"), !is_whole, "{thread}");
    }
    assert_eq!(answer["threads_stopped"], 1, "{answer}");
    let answer = dump(target.pid(), &["--json", "--stop-sleeping"]).expect(0);
    assert_whole(&answer.json(), &program, &expected);
}

#[test]
fn text_has_a_line_for_each_function() {
    let Some(program) = program(&Compiler::gcc(), &OPTIMIZED) else {
        return;
    };
    let target = start(&mut Command::new(&program));
    let text = dump(target.pid(), &[]).expect(0).stdout;
    let module = program.file_name().unwrap().to_str().unwrap();
    for (tid, functions) in own_stacks(&target) {
        let name = format!("/proc/{}/task/{tid}/comm", target.pid());
        let name = std::fs::read_to_string(name).unwrap();
        let head = format!("\n  thread {tid}  stack of {name}");
        let start = text.find(&head).unwrap();
        let stack = text[start + 1..].split("\n\n").next().unwrap();
        let mut lines = stack.lines();
        for function in functions {
            let expected = format!("    {function} ({module})");
            assert!(lines.any(|line| line == expected), "{function}: {stack}");
        }
    }
}

#[test]
fn without_stops_the_stacks_of_sleeping_threads_are_read() {
    let Some(program) = program(&Compiler::gcc(), &OPTIMIZED) else {
        return;
    };
    let target = start(&mut Command::new(&program));
    let answer = dump(target.pid(), &["--json", "--no-stop"]);
    let refused = match answer.status {
        2 => Err(answer.stderr.clone()),
        _ => Ok(()),
    };
    if Feature::Ebpf.or_skip(refused).is_none() {
        return;
    }
    let answer = answer.expect(0).json();
    let expected = own_stacks(&target);
    let mut whole = 0;
    for thread in answer["threads"].as_array().unwrap() {
        let (tid, stack) = (thread["tid"].as_i64().unwrap(), &thread["stack"]);
        if expected[&tid][0] == "in_loop" {
            let error = "the thread was running: try without --no-stop";
            assert_eq!(stack["error"], error, "{thread}");
        } else {
            assert_eq!(functions(stack, &program), expected[&tid], "{thread}");
            whole += 1;
        }
    }
    assert_eq!(whole, COUNT - 1, "{answer}");
}

/// The program's first thread runs in one function after the other, at one address.
#[test]
fn generated_code_has_the_names_that_its_runtime_announces() {
    let Some(program) = Compiler::gcc().program(&["generated.c"], &["-O1"]) else {
        return;
    };
    for by in ["map", "dump"] {
        let names: Vec<String> = given_time(|seconds| {
            let running = generating(&program, by, seconds);
            let mut names = Vec::new();
            while names.len() < 3 {
                let answer = dump(running.0.id() as i32, &["--json"]);
                // It has ended.
                if answer.status != 0 {
                    break;
                }
                let answer = answer.json();
                let frame = &answer["threads"][0]["stack"]["frames"][0];
                if let Some(name) = frame["function"].as_str()
                    && name.starts_with("generated_")
                {
                    assert_eq!(frame["module"], Value::Null, "{frame}");
                    names.push(name.to_owned());
                }
            }
            match names.len() {
                0 => Err("no stack in generated code"),
                _ => Ok(names),
            }
        });
        let mut sorted = names.clone();
        sorted.sort();
        // The later the dump, the later the function.
        assert_eq!(names, sorted, "{by}");
    }
}

/// Code that was generated by a runtime that announces nothing, and is not known.
#[test]
fn generated_code_without_a_name_is_anonymous() {
    let Some(program) = Compiler::gcc().program(&["generated.c"], &["-O1"]) else {
        return;
    };
    let text = given_time(|seconds| {
        let running = generating(&program, "none", seconds);
        for _ in 0..10 {
            let text = dump(running.0.id() as i32, &[]).stdout;
            if text.lines().any(|line| line.ends_with(" ([anon])")) {
                return Ok(text);
            }
        }
        Err("no stack in generated code")
    });
    assert!(!text.contains("generated_"), "{text}");
}

/// Starts a program that generates ten functions and runs in each for this long.
fn generating(program: &Path, by: &str, seconds: &str) -> Running {
    let milliseconds = seconds.parse::<f64>().unwrap() * 1000.0;
    let mut command = Command::new(program);
    command.args([by, &milliseconds.to_string()]);
    let running = Running(command.stdout(Stdio::null()).spawn().unwrap());
    wait_until_loaded(running.0.id() as i32);
    running
}

/// A program that is killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
