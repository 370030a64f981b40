//! Python frames in `otelctx dump`.

use otelctx_fixtures::Target;
use otelctx_fixtures::python::Interpreter;
use serde_json::{Value, json};

use crate::run::otelctx;

fn start() -> Option<Target> {
    let interpreter = Interpreter::with_version("3.12").into_iter().next()?;
    Some(interpreter.start("interpreted.py"))
}

/// The threads by the program's own account: ID, address of the thread state, frames.
fn truth(target: &Target) -> Vec<(i32, String, Vec<Value>)> {
    let mut threads: Vec<(i32, String, Vec<Value>)> = Vec::new();
    for line in &target.lines {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["state", tid, state] => {
                threads.push((tid.parse().unwrap(), state.to_owned(), Vec::new()));
            }
            ["frame", _, function, qualname, file, line] => {
                let line: u32 = line.parse().unwrap();
                let mut frame = json!({"function": function, "file": file, "line": line});
                if qualname != "-" {
                    frame["qualname"] = qualname.into();
                }
                threads.last_mut().unwrap().2.push(frame);
            }
            _ => panic!("{line}"),
        }
    }
    assert_eq!(threads.len(), 3);
    threads
}

#[test]
fn dump_shows_the_frames_of_each_thread_and_who_holds_the_gil() {
    let Some(target) = start() else { return };
    let pid = target.pid().to_string();
    let answer = otelctx(&["dump", "--json", "--deadline", "30", &pid]).json();
    assert_eq!(answer["threads_stopped"], 0);
    let version = &answer["runtimes"]["cpython"]["version"];
    let text = otelctx(&["dump", "--deadline", "30", &pid]).stdout;
    for (index, (tid, state, frames)) in truth(&target).into_iter().enumerate() {
        let threads = answer["threads"].as_array().unwrap();
        let thread = threads.iter().find(|it| it["tid"] == tid).unwrap();
        let (holds_gil, source) = (index == 0, "tss");
        let expected = json!({"version": version, "holds_gil": holds_gil, "thread_state": state,
            "source": source, "frames": frames});
        assert_eq!(thread["cpython"], expected);
        let mut expected = format!(
            "\n  thread {tid}  cpython  holds_gil={holds_gil}  thread_state={state}  source={source}\n"
        );
        for frame in &frames {
            let text = |key: &str| frame[key].as_str().unwrap();
            let (name, file, line) = (text("qualname"), text("file"), &frame["line"]);
            expected += &format!("    {name}  {file}:{line}\n");
        }
        assert!(text.contains(&expected), "{expected}{text}");
    }
}

/// Each call of the interpreter is replaced by the frames that it executes, with C functions between
/// them.
#[test]
fn stacks_have_python_frames_in_place_of_the_interpreter() {
    let versions = ["2.7", "3.6", "3.10", "3.11", "3.12", "3.13", "3.14", "3.15"];
    for interpreter in versions.iter().flat_map(|it| Interpreter::with_version(it)) {
        let target = interpreter.start("interpreted.py");
        let pid = target.pid().to_string();
        let arguments = [
            "dump",
            "--stacks",
            "--stop-sleeping",
            "--json",
            "--deadline",
            "60",
            &pid,
        ];
        let answer = otelctx(&arguments).json();
        for (tid, _, frames) in truth(&target) {
            let threads = answer["threads"].as_array().unwrap();
            let thread = threads.iter().find(|it| it["tid"] == tid).unwrap();
            let stack = &thread["stack"];
            assert_eq!(stack["complete"], true, "{interpreter:?} {stack:#}");
            let stack = stack["frames"].as_array().unwrap();
            let is_python = |frame: &&Value| frame["runtime"] == "cpython";
            let python = stack.iter().filter(is_python).map(|frame| {
                let mut frame = frame.clone();
                frame.as_object_mut().unwrap().remove("runtime");
                frame
            });
            assert_eq!(python.collect::<Vec<_>>(), frames, "{interpreter:?}");
            // C functions start the thread.
            assert_eq!(
                stack.last().unwrap().get("runtime"),
                None,
                "{interpreter:?}"
            );
            let position = |name| stack.iter().position(|frame| frame["function"] == name);
            if let (Some(wait), Some(pay)) = (position("wait"), position("pay")) {
                // sorted() calls a function, and is called by one.
                let between = stack[wait..pay]
                    .iter()
                    .map(|frame| frame.get("runtime").is_some());
                let between: Vec<bool> = between.collect();
                // The function that waits, and its caller.
                let python = between.iter().filter(|is_python| **is_python).count();
                assert_eq!(
                    (python, between.last()),
                    (2, Some(&false)),
                    "{interpreter:?}"
                );
            }
        }
    }
}
