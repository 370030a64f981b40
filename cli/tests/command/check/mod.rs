//! `otelctx check`: files of compilers that are not ours, and running processes.

mod files;
mod fixes;
mod interpreters;
mod processes;
mod runtimes;
mod truth;

use std::path::{Path, PathBuf};
use std::process::Command;

use otelctx_fixtures::Compiler;
use serde_json::Value;

use crate::run::{Answer, otelctx};

pub(crate) fn check(target: impl AsRef<Path>) -> Answer {
    otelctx(&[Path::new("check"), target.as_ref(), Path::new("--json")])
}

/// The findings in their order: id, level, and the access model with what it was relaxed from.
fn findings(answer: &Answer) -> Vec<String> {
    let answer = answer.json();
    let list = answer["findings"].as_array().unwrap();
    let text = |it: &Value| it.as_str().unwrap().to_owned();
    let finding = |it: &Value| {
        let mut words = vec![text(&it["level"]), text(&it["id"])];
        words.extend(it["access"].as_str().map(str::to_owned));
        words.extend(
            it["relaxed_from"]
                .as_str()
                .map(|from| format!("from {from}")),
        );
        words.extend(it["storage"].as_str().map(str::to_owned));
        words.join(" ")
    };
    list.iter().map(finding).collect()
}

/// Exactly these findings, and what follows from them.
#[track_caller]
fn assert_findings(answer: &Answer, expected: &[&str]) {
    assert_eq!(findings(answer), expected, "{}", answer.stdout);
    let readable = !expected.iter().any(|it| it.starts_with("problem"));
    assert_eq!(answer.json()["readable"], readable);
    assert_eq!(answer.status, i32::from(!readable));
    assert_eq!(answer.stderr, "");
    // Every problem says what to do.
    for finding in answer.json()["findings"].as_array().unwrap() {
        assert!(
            finding["level"] != "problem" || finding["hint"].is_string(),
            "{finding}"
        );
    }
}

/// The text of the finding with this id.
fn text(answer: &Answer, id: &str) -> String {
    finding(answer, id)["text"].as_str().unwrap().to_owned()
}

/// The finding with this id.
#[track_caller]
fn finding(answer: &Answer, id: &str) -> Value {
    let answer = answer.json();
    let list = answer["findings"].as_array().unwrap();
    let found = list.iter().find(|it| it["id"] == id);
    found
        .unwrap_or_else(|| panic!("no {id} in {answer:#}"))
        .clone()
}

fn program(compiler: Compiler, flags: &[&str]) -> Option<PathBuf> {
    let mut all = vec!["-DLINKED"];
    all.extend(flags);
    compiler.program(&["threads.c", "variable.c"], &all)
}

/// A library of this C code.
fn compile(name: &str, code: &str, flags: &[&str]) -> Option<PathBuf> {
    let source = source(name, code);
    let mut all = vec!["-w"];
    all.extend(flags);
    Compiler::gcc().library(&[source.to_str().unwrap()], &all)
}

/// An object file of this C code, by this compiler.
fn object(compiler: &str, name: &str, code: &str, flags: &[&str]) -> PathBuf {
    let source = source(name, code);
    let object = source.with_extension("o");
    let mut command = Command::new(compiler);
    command.args(flags).args(["-O2", "-c", "-o"]);
    let status = command.arg(&object).arg(source).status();
    assert!(status.unwrap().success(), "{command:?}");
    object
}

fn source(name: &str, code: &str) -> PathBuf {
    let source = otelctx_fixtures::directory().join(format!("check-{name}.c"));
    // Another test program may be writing the same.
    let partial = source.with_extension(std::process::id().to_string());
    std::fs::write(&partial, code).unwrap();
    std::fs::rename(partial, &source).unwrap();
    source
}
