//! `otelctx symbolize`: names for a recording without names.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use otelctx_fixtures::Compiler;
use serde_json::json;

use crate::run::{Answer, Scratch, given_time, otelctx};

/// Functions of the program, of which one is always on the stack.
const FUNCTIONS: [&str; 2] = ["main", "fibonacci"];

/// A program that is killed when dropped.
struct Program(Child);

impl Program {
    fn start(path: &str) -> Self {
        let mut command = Command::new(path);
        command.args(["1000000000", "r"]).stdin(Stdio::null());
        Self(command.stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The functions in a recording.
fn functions(file: &str) -> Vec<String> {
    let report = otelctx(&["report", file, "--json"]).expect(0).json();
    let functions = report["by_function"].as_array().unwrap().iter();
    let name = |it: &serde_json::Value| it["name"].as_str().unwrap().to_owned();
    functions.map(name).collect()
}

fn symbolize(file: &str, output: &str, more: &[&str]) -> Answer {
    let mut arguments = vec!["symbolize", file, "-o", output];
    arguments.extend(more);
    otelctx(&arguments).expect(0)
}

fn assert_named(file: &str) {
    let found = functions(file);
    for function in FUNCTIONS {
        assert!(found.iter().any(|it| it == function), "{found:?}");
    }
}

#[test]
fn a_recording_gets_its_names_from_the_recorded_files_only() {
    let flags = ["-O2", "-fno-omit-frame-pointer", "-Wl,--build-id"];
    let Some(built) = Compiler::gcc().program(&["stacks.c"], &flags) else {
        return;
    };
    let scratch = Scratch::new("symbolize");
    let (program, file) = (scratch.path("program"), scratch.path("profile.otlp"));
    let (named, files) = (scratch.path("named.otlp"), scratch.path("files"));
    fs::copy(&built, &program).unwrap();
    let running = Program::start(&program);
    let pid = running.0.id().to_string();
    given_time(|seconds| {
        let record = [
            "record",
            "-p",
            &pid,
            "-d",
            seconds,
            "--no-symbols",
            "-o",
            &file,
        ];
        otelctx(&record).expect(0);
        let found = functions(&file);
        assert!(!found.iter().any(|it| FUNCTIONS.contains(&it.as_str())));
        // The stacks may end before it.
        match found.contains(&program) {
            true => Ok(()),
            false => Err(found),
        }
    });
    let text = symbolize(&file, &named, &[]).stdout;
    assert!(text.starts_with("named "), "{text}");
    assert!(!text.contains("not found"), "{text}");
    assert_named(&named);
    // Replaced: the process still has it mapped.
    fs::remove_file(&program).unwrap();
    fs::copy("/bin/true", &program).unwrap();
    let answer = symbolize(&file, &named, &["--json"]).json();
    assert_eq!(answer["missing"], json!([]), "{answer}");
    assert_eq!(answer["file"], json!(named), "{answer}");
    assert_named(&named);
    drop(running);
    let answer = symbolize(&file, &named, &["--json"]).json();
    assert_eq!(answer["missing"][0]["path"], json!(program), "{answer}");
    let found = functions(&named);
    assert!(!found.iter().any(|it| FUNCTIONS.contains(&it.as_str())));
    let text = symbolize(&file, &named, &[]).stdout;
    let line = format!("\n  not found  {program}, build ID ");
    assert!(text.contains(&line), "{text}");
    fs::create_dir(&files).unwrap();
    fs::copy(built, Path::new(&files).join("program")).unwrap();
    let text = otelctx(&["symbolize", &file, "--debug-dir", &files]);
    assert!(!text.expect(0).stdout.contains("not found"));
    assert_named(&file);
}

#[test]
fn what_is_no_recording_of_this_command_is_refused() {
    let scratch = Scratch::new("symbolize-other");
    let file = scratch.path("other.otlp");
    fs::write(&file, "{}").unwrap();
    let answer = otelctx(&["symbolize", &file]).expect(2);
    assert!(answer.stderr.contains("it is JSON"), "{answer:?}");
    assert_eq!(fs::read(&file).unwrap(), b"{}");
}
