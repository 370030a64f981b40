//! `otelctx dump --core`: what it says of a core is what it says of the process.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use otelctx_fixtures::{Compiler, CoreDirectory, Target};
use serde_json::{Value, json};

use crate::run::otelctx;

const SIGABRT: i32 = 6;

/// A program that publishes, with threads.
fn target(directory: &CoreDirectory) -> Option<(Target, PathBuf)> {
    let sources = ["threads.c", "variable.c", "publish.c", "symbols.c"];
    let flags = ["-DLINKED", "-rdynamic", "-Wl,--build-id"];
    let program = Compiler::gcc().program(&sources, &flags)?;
    let mut command = Command::new(&program);
    directory.allow(&mut command, u64::MAX);
    Some((Target::spawn(&mut command), program))
}

fn dump(path: &Path, status: i32) -> Value {
    let path = path.to_str().unwrap();
    otelctx(&["dump", "--core", path, "--json"])
        .expect(status)
        .json()
}

/// The contexts, by thread.
fn contexts(answer: &Value) -> Vec<(i64, Value)> {
    let threads = answer["threads"].as_array().unwrap().iter();
    let mut contexts: Vec<_> = threads
        .map(|thread| (thread["tid"].as_i64().unwrap(), thread["context"].clone()))
        .collect();
    contexts.sort_by_key(|(tid, _)| *tid);
    contexts
}

#[test]
fn a_core_says_what_the_process_said() {
    let directory = CoreDirectory::new();
    let Some((mut target, _)) = target(&directory) else {
        return;
    };
    let pid = target.pid();
    let live = otelctx(&["dump", &pid.to_string(), "--json"])
        .expect(0)
        .json();
    let attached = contexts(&live)
        .iter()
        .filter(|(_, it)| !it.is_null())
        .count();
    assert_eq!(attached, 2);
    let gcore = directory.gcore(&target);
    let crashed = target.threads[0].tid;
    let kernel = directory.crash(&mut target, crashed, SIGABRT);
    let ends = [
        (gcore, Value::Null, Value::Null),
        (kernel, json!("SIGABRT"), json!(crashed)),
    ];
    for (path, signal, thread) in ends {
        let Some(path) = path else { continue };
        let answer = dump(&path, 0);
        for field in ["pid", "process_context", "thread_context"] {
            assert_eq!(answer[field], live[field]);
        }
        assert_eq!(contexts(&answer), contexts(&live));
        assert_eq!(
            answer["core"],
            json!({"file": path, "signal": signal, "crashed_thread": thread, "missing": []})
        );
        assert!(answer["threads"][0]["name"].is_null());
    }
}

#[test]
fn text_shows_which_thread_crashed() {
    let directory = CoreDirectory::new();
    let Some((mut target, _)) = target(&directory) else {
        return;
    };
    let worker = target.threads[1].clone();
    assert!(worker.attached.is_some());
    let Some(path) = directory.crash(&mut target, worker.tid, SIGABRT) else {
        return;
    };
    let path = path.to_str().unwrap();
    let text = otelctx(&["dump", "--core", path]).expect(0).stdout;
    let end = format!("{path}, ended by SIGABRT in thread {}", worker.tid);
    assert!(text.contains(&end), "{text}");
    let truth = worker.attached.unwrap();
    let line = text
        .lines()
        .find(|line| line.contains("SIGABRT  "))
        .unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    let (tid, name) = (worker.tid.to_string(), format!("worker={}", worker.name));
    assert_eq!(
        words,
        [&tid, "SIGABRT", &truth.trace_id, &truth.span_id, &name]
    );
}

#[test]
fn what_is_missing_is_said_and_is_a_problem() {
    let directory = CoreDirectory::new();
    let Some((mut target, program)) = target(&directory) else {
        return;
    };
    let tid = target.threads[0].tid;
    let Some(path) = directory.crash(&mut target, tid, SIGABRT) else {
        return;
    };
    let nowhere = directory.path().join("nowhere");
    let arguments = ["dump", "--core", path.to_str().unwrap(), "--sysroot"];
    let answer = otelctx(&[&arguments[..], &[nowhere.to_str().unwrap()]].concat()).expect(2);
    let none = format!(
        "otelctx: {}: not a readable directory: No such file",
        nowhere.display()
    );
    assert!(answer.stderr.starts_with(&none), "{answer:?}");

    fs::create_dir(&nowhere).unwrap();
    let [file, root] = [&path, &nowhere].map(|path| path.to_str().unwrap());
    let arguments = ["dump", "--core", file, "--sysroot", root, "--json"];
    let answer = otelctx(&arguments).expect(1).json();
    let missing = answer["core"]["missing"].as_array().unwrap();
    let missing: Vec<&str> = missing.iter().filter_map(Value::as_str).collect();
    let program = program.to_str().unwrap();
    let known = missing.iter().find(|it| it.starts_with(program)).unwrap();
    assert!(known.contains("no file with its build ID"), "{known}");

    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let answer = dump(&path, 1);
    let missing = answer["core"]["missing"][0].as_str().unwrap();
    let sizes = format!("it has {} of ", bytes.len() / 2);
    assert!(missing.contains(&sizes), "{missing}");
}

/// A core that names no files says so once; one without threads does not say how it ended.
#[test]
fn what_the_notes_lack_is_said_once() {
    let directory = CoreDirectory::new();
    let Some((mut target, _)) = target(&directory) else {
        return;
    };
    let tid = target.threads[0].tid;
    let Some(path) = directory.crash(&mut target, tid, SIGABRT) else {
        return;
    };
    let mut bytes = fs::read(&path).unwrap();
    // The type of the note with the names, and the owner behind it.
    let names = bytes.windows(9).position(|it| it == b"ELIFCORE\0");
    bytes[names.unwrap()] = b'X';
    fs::write(&path, &bytes).unwrap();
    let answer = dump(&path, 1);
    let missing = answer["core"]["missing"].as_array().unwrap();
    assert_eq!(missing.len(), 1, "{missing:?}");
    let sentence = missing[0].as_str().unwrap();
    assert!(sentence.starts_with("the core file does not name all files"));
    assert_eq!(answer["core"]["signal"], "SIGABRT");

    // Up to the first of the notes: the headers alone.
    let count = u16::from_le_bytes([bytes[56], bytes[57]]);
    fs::write(&path, &bytes[..64 + 56 * usize::from(count)]).unwrap();
    let text = otelctx(&["dump", "--core", path.to_str().unwrap()]).expect(1);
    let end = "core, it is unknown how the process ended\n";
    assert!(text.stdout.contains(end), "{text:?}");
}

#[test]
fn what_is_no_core_cannot_be_read() {
    let answer = otelctx(&["dump", "--core", "/proc/self/exe"]).expect(2);
    assert_eq!(answer.stdout, "");
    let program = "not a readable core file: it is a program or a library";
    assert!(answer.stderr.contains(program), "{answer:?}");
    for arguments in [&["dump"][..], &["dump", "1", "--core", "core"]] {
        otelctx(arguments).expect(2);
    }
}
