//! `otelctx dump --tasks`: asyncio's tasks, of threads that sleep in the event loop or run.

use std::collections::HashMap;

use otelctx_fixtures::Target;
use otelctx_fixtures::python::Interpreter;
use serde_json::{Value, json};

use crate::run::otelctx;

fn interpreters() -> impl Iterator<Item = Interpreter> {
    let versions = ["3.7", "3.10", "3.12", "3.14"];
    versions.into_iter().flat_map(Interpreter::with_version)
}

/// The tasks as JSON, by the program's own account.
fn truth(target: &Target) -> Vec<Value> {
    let mut tasks: Vec<Value> = Vec::new();
    for line in &target.lines {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["task", id, name, state, awaits_id, awaits, awaited_by] => {
                let id: u64 = id.parse().unwrap();
                let mut task = json!({"id": id, "state": state, "context": null, "frames": []});
                if let Ok(awaits_id) = awaits_id.parse::<u64>() {
                    task["awaits_id"] = awaits_id.into();
                }
                if awaited_by != "-" {
                    let ids = awaited_by.split(',').map(|id| id.parse::<u64>().unwrap());
                    task["awaited_by_ids"] = ids.collect();
                }
                for (key, name) in [("name", name), ("awaits", awaits)] {
                    if name != "-" {
                        task[key] = name.replace('_', " ").into();
                    }
                }
                tasks.push(task);
            }
            ["frame", function, qualname, file, line] => {
                let line: u32 = line.parse().unwrap();
                let mut frame = json!({"function": function, "file": file, "line": line});
                if qualname != "-" {
                    frame["qualname"] = qualname.into();
                }
                let frames = tasks.last_mut().unwrap()["frames"].as_array_mut();
                frames.unwrap().push(frame);
            }
            _ => panic!("{line}"),
        }
    }
    let names: HashMap<Value, Value> = tasks.iter().map(name_by_id).collect();
    for task in &mut tasks {
        if let Some(ids) = task["awaited_by_ids"].as_array() {
            task["awaited_by"] = ids.iter().map(|id| names[id].clone()).collect();
        } else {
            task.as_object_mut().unwrap().remove("awaited_by_ids");
        }
    }
    tasks.sort_by_key(|task| task["id"].as_u64());
    tasks
}

fn name_by_id(task: &Value) -> (Value, Value) {
    (task["id"].clone(), task["name"].clone())
}

fn shown(answer: &Value) -> Vec<Value> {
    assert_eq!(answer["tasks_missing"], Value::Null);
    let mut tasks = answer["tasks"]["cpython"].as_array().unwrap().clone();
    for task in &mut tasks {
        // As the program's words.
        for key in ["name", "awaits"] {
            if let Some(name) = task[key].as_str() {
                task[key] = name.replace('_', " ").into();
            }
        }
        for name in task
            .get_mut("awaited_by")
            .into_iter()
            .flat_map(Value::as_array_mut)
            .flatten()
        {
            *name = name.as_str().unwrap().replace('_', " ").into();
        }
    }
    tasks.sort_by_key(|task| task["id"].as_u64());
    tasks
}

/// The event loop sleeps until a timeout ends, which a stop would restart: it is not stopped.
#[test]
fn tasks_of_a_sleeping_event_loop_are_shown() {
    for interpreter in interpreters() {
        let target = interpreter.start("tasks.py");
        let pid = target.pid().to_string();
        let answer = otelctx(&["dump", "--tasks", "--json", &pid]).json();
        let truth = truth(&target);
        assert_eq!(shown(&answer), truth, "{interpreter:?}");
        let text = otelctx(&["dump", "--tasks", &pid]).stdout;
        let (id, awaits) = (&truth[0]["id"], &truth[0]["awaits"]);
        let start = format!("\n  task {id}  cpython  ");
        let line = text
            .split(&start)
            .nth(1)
            .unwrap_or_else(|| panic!("{text}"));
        let line = line.lines().next().unwrap().replace('_', " ");
        let mut end = format!("awaits={}", awaits.as_str().unwrap());
        if let Some(names) = truth[0]["awaited_by"].as_array() {
            let list = |values: &[Value]| {
                let texts = values
                    .iter()
                    .map(|it| it.as_str().map_or(it.to_string(), str::to_owned));
                texts.collect::<Vec<_>>().join(", ")
            };
            let ids = truth[0]["awaited_by_ids"].as_array().unwrap();
            end += &format!(
                "  awaited by ids=[{}]  awaited by=[{}]",
                list(ids),
                list(names)
            );
        }
        assert!(line.ends_with(&format!("{end}  none attached")), "{line}");
        // Nothing is stopped for what was not asked for.
        let answer = otelctx(&["dump", "--json", &pid]).json();
        assert_eq!(answer["tasks"], Value::Null);
    }
}

/// The frames of a suspended task, or none of one that runs. None has those of another.
#[test]
fn tasks_that_run_all_the_time_have_no_wrong_frames() {
    const TASKS: usize = 200;
    for interpreter in interpreters() {
        let mut command = interpreter.command("many_tasks.py");
        let target = Target::spawn(command.args([&TASKS.to_string(), "busy"]));
        let pid = target.pid().to_string();
        for _ in 0..10 {
            let answer = otelctx(&["dump", "--tasks", "--json", &pid]).json();
            let Some(tasks) = answer["tasks"]["cpython"].as_array() else {
                // It did not stop in time.
                assert!(answer["tasks"]["cpython"]["error"].is_string(), "{answer}");
                continue;
            };
            let mut whole = 0;
            for task in tasks {
                let frames = task["frames"].as_array().unwrap().iter();
                let names: Vec<&str> = frames.map(|it| it["function"].as_str().unwrap()).collect();
                match (task["state"].as_str().unwrap(), &names[..]) {
                    ("ready", ["__sleep0", "sleep", "inner", "outer"]) => whole += 1,
                    // The ones that the program starts and awaits.
                    ("ready", ["sleep"] | ["__sleep0", "sleep"])
                    | ("waiting", ["main"])
                    | ("running", []) => {}
                    // Between its creation and its first step, or in the step that ends it.
                    ("ready", ["main"]) => {}
                    other => panic!("{interpreter:?}: {other:?}"),
                }
            }
            let is_incomplete = answer["tasks_missing"]["cpython"].is_string();
            assert!(whole + 1 >= TASKS || is_incomplete, "{whole}");
        }
    }
}

#[test]
fn tasks_are_not_read_without_stops() {
    for interpreter in Interpreter::with_version("3.12") {
        let target = interpreter.start("tasks.py");
        let pid = target.pid().to_string();
        let run = otelctx(&["dump", "--tasks", "--no-stop", "--json", &pid]);
        if run.stdout.is_empty() {
            eprintln!("skipped: no permission for eBPF");
            return;
        }
        let error = "the process has to be stopped for that";
        assert_eq!(run.json()["tasks"], json!({"cpython": {"error": error}}));
    }
}
