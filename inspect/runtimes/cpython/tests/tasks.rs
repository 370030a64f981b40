//! Suspended tasks of real interpreters, compared with what the program knows of itself.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use otelctx_fixtures::python::Interpreter;
use otelctx_fixtures::{CoreDirectory, STOP_TIMEOUT, Target};
use otelctx_python::Python;
use otelctx_reader::format::process_context::Value;
use otelctx_reader::remote::CoreFile;
use otelctx_reader::runtime::{Runtimes, Task, TaskReading};
use otelctx_reader::{Options, Process};

const VERSIONS: [&str; 9] = [
    "3.7", "3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14", "3.15",
];

const SIGABRT: i32 = 6;

/// A task by the program's own account, and as it was read: its ID, name, state, and the ID and name of what
/// it awaits, the IDs of the tasks that await it; then its frames.
type ExpectedTask = ([String; 6], Vec<[String; 4]>);

fn options() -> Options {
    let mut options = Options::default();
    options.runtimes = Runtimes::new(vec![Arc::new(Python::default())]);
    options.tasks = true;
    options.stop_timeout = STOP_TIMEOUT;
    options
}

fn truth(target: &Target) -> Vec<ExpectedTask> {
    let mut tasks: Vec<ExpectedTask> = Vec::new();
    for line in &target.lines {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        match &words[0][..] {
            "task" => tasks.push((words[1..].to_vec().try_into().unwrap(), Vec::new())),
            "frame" => {
                let frame = words[1..].to_vec().try_into().unwrap();
                tasks.last_mut().unwrap().1.push(frame);
            }
            _ => panic!("{line}"),
        }
    }
    tasks.sort();
    tasks
}

fn word(text: &str) -> String {
    match text {
        "" => "-".to_owned(),
        text => text.replace(' ', "_"),
    }
}

fn texts(task: &Task) -> ExpectedTask {
    assert!(!task.is_truncated, "{task:?}");
    let fact = |name: &str| {
        let fact = task.facts.iter().find(|(key, _)| key == name);
        fact.map_or("-".to_owned(), |(_, value)| match value {
            Value::String(text) => word(text),
            Value::Int(number) => number.to_string(),
            Value::Array(items) => {
                let items = items.iter().map(|it| match it {
                    Value::Int(number) => number.to_string(),
                    other => panic!("{other:?}"),
                });
                items.collect::<Vec<_>>().join(",")
            }
            other => panic!("{other:?}"),
        })
    };
    let names = ["name", "state", "awaits_id", "awaits", "awaited_by_ids"].map(fact);
    let [name, state, awaits_id, awaits, awaited_by] = names;
    let frames = task.frames.iter().map(|frame| {
        [
            word(&frame.function),
            word(&frame.qualified_name),
            frame.file.clone(),
            frame.line.to_string(),
        ]
    });
    (
        [
            task.id.to_string(),
            name,
            state,
            awaits_id,
            awaits,
            awaited_by,
        ],
        frames.collect(),
    )
}

fn read(process: &mut Process) -> TaskReading {
    let runtimes = process.runtimes().unwrap();
    process.threads().unwrap();
    process.tasks(&runtimes, None).remove(0)
}

fn compare(mut process: Process, interpreter: &Interpreter, truth: &[ExpectedTask]) {
    let reading = read(&mut process);
    assert_eq!(reading.missing, None, "{interpreter:?}");
    assert!(!reading.is_truncated);
    let mut found: Vec<ExpectedTask> = reading.tasks.unwrap().iter().map(texts).collect();
    found.sort();
    assert_eq!(found, truth, "{interpreter:?}");
    let with_frames = found.iter().filter(|(_, frames)| frames.len() > 1);
    assert!(with_frames.count() >= 7, "{interpreter:?}");
}

/// Numbers of coroutines: some chains are kept as a whole, of some both ends, and of one the outermost ones.
const LONG: [&str; 6] = ["5", "200", "512", "513", "2000", "4500"];

/// What a task of a chain shows: of a long one both ends, and what is missing between or beyond them.
fn kept(functions: &[&str]) -> Vec<String> {
    const MOST: usize = 512;
    const OUTERMOST: usize = 32;
    const WALKED: usize = 4096;
    let beyond = functions.len().saturating_sub(WALKED);
    let known = &functions[beyond..];
    let mut kept: Vec<String> = known.iter().map(|it| (*it).to_owned()).collect();
    if known.len() > MOST {
        let end = known.len() - OUTERMOST;
        let start = MOST - OUTERMOST;
        let plural = if end - start == 1 { "" } else { "s" };
        let number = (end - start).to_string();
        let number = match number.split_at(number.len().saturating_sub(3)) {
            ("", number) => number.to_owned(),
            (thousands, rest) => format!("{thousands},{rest}"),
        };
        let marker = format!("[{number} frame{plural} omitted]");
        kept.splice(start..end, [marker]);
    }
    if beyond > 0 {
        let marker = "[incomplete: inner frames unknown, more than 4,096]";
        kept.insert(0, marker.to_owned());
    }
    kept
}

#[test]
fn long_chains_keep_both_ends() {
    for interpreter in interpreters() {
        let target = Target::spawn(interpreter.command("long_tasks.py").args(LONG));
        let mut process = Process::with_options(target.pid(), options()).unwrap();
        let reading = read(&mut process);
        assert_eq!(reading.missing, None, "{interpreter}");
        let tasks = reading.tasks.unwrap();
        let mut chains = 0;
        for line in &target.lines {
            let functions: Vec<&str> = line.split(' ').skip(2).collect();
            let outermost = functions.last();
            let is_it = |task: &&Task| {
                let last = task.frames.last();
                last.is_some_and(|it| Some(&&*it.function) == outermost)
            };
            let task = tasks.iter().find(is_it);
            let task = task.unwrap_or_else(|| panic!("{interpreter}: no task of {outermost:?}"));
            let frames = task.frames.iter().map(|it| it.function.clone());
            let frames: Vec<String> = frames.collect();
            assert_eq!(frames, kept(&functions), "{interpreter}");
            assert_eq!(task.is_truncated, functions.len() > 4096, "{interpreter}");
            chains += 1;
        }
        // 3.13 limits calls of C by C: of some kinds, it has no long chains.
        assert!(chains >= 3 * LONG.len() / 2 + 5, "{interpreter}: {chains}");
    }
}

fn interpreters() -> impl Iterator<Item = Interpreter> {
    VERSIONS.iter().flat_map(|it| Interpreter::with_version(it))
}

#[test]
fn tasks_have_the_frames_and_states_that_the_program_knows() {
    for interpreter in interpreters() {
        let mut command = interpreter.command("tasks.py");
        let target = Target::spawn(command.arg("blocks"));
        let process = Process::with_options(target.pid(), options()).unwrap();
        compare(process, &interpreter, &truth(&target));
    }
}

#[test]
fn a_core_file_has_the_tasks_that_the_process_had() {
    for interpreter in interpreters() {
        let directory = CoreDirectory::new();
        let mut command = interpreter.command("tasks.py");
        command.arg("blocks");
        directory.allow(&mut command, u64::MAX);
        let mut target = Target::spawn(&mut command);
        let pid = target.pid();
        let Some(core) = directory.crash(&mut target, pid, SIGABRT) else {
            return;
        };
        let core = CoreFile::open(&core, Path::new("/")).unwrap();
        let process = Process::of_target(core, options());
        compare(process, &interpreter, &truth(&target));
    }
}

/// They are found in time that grows with their number, not with its square.
#[test]
fn ten_thousand_tasks_are_read() {
    for interpreter in interpreters() {
        let mut command = interpreter.command("many_tasks.py");
        let target = Target::spawn(command.arg("10000"));
        let mut process = Process::with_options(target.pid(), options()).unwrap();
        let start = Instant::now();
        let reading = read(&mut process);
        eprintln!("{} {:?}", interpreter.version, start.elapsed());
        assert_eq!((reading.missing, reading.is_truncated), (None, false));
        let tasks = reading.tasks.unwrap();
        assert_eq!(tasks.len(), 10_001, "{interpreter:?}");
        let complete = tasks.iter().filter(|task| {
            let names: Vec<&str> = task.frames.iter().map(|it| &*it.function).collect();
            names == ["inner", "outer"]
        });
        assert_eq!(complete.count(), 10_000, "{interpreter:?}");
    }
}

/// Tasks beyond the maximum are counted.
#[test]
fn tasks_that_await_one_are_counted() {
    for version in ["3.14", "3.15"] {
        for interpreter in Interpreter::with_version(version) {
            for count in [1, 64, 65, 100, 1000] {
                let mut command = interpreter.command("many_tasks.py");
                let target = Target::spawn(command.args([&count.to_string(), "awaited"]));
                let mut process = Process::with_options(target.pid(), options()).unwrap();
                let reading = read(&mut process);
                assert_eq!(reading.missing, None);
                let tasks = reading.tasks.unwrap();
                assert_eq!(tasks.len(), 2 * count + 1);
                let awaited = tasks.iter().filter_map(|task| {
                    let fact = |name| task.facts.iter().find(|(key, _)| key == name);
                    let (_, ids) = fact("awaited_by_ids")?;
                    Some((ids.clone(), fact("awaited_by_omitted").cloned()))
                });
                let awaited: Vec<_> = awaited.collect();
                let [(Value::Array(ids), omitted)] = &awaited[..] else {
                    panic!("{awaited:?}")
                };
                // Those of a large set are in the part of it that is read.
                let least = if count < 200 { count.min(64) } else { 1 };
                assert!((least..=64).contains(&ids.len()), "{ids:?}");
                let omitted = omitted.as_ref().map_or(&Value::Int(0), |(_, value)| value);
                assert_eq!(omitted, &Value::Int((count - ids.len()) as i64));
                let known = |id: &Value| tasks.iter().any(|it| *id == Value::Int(it.id as i64));
                assert!(ids.iter().all(known));
            }
        }
    }
}

/// Not those of a task that is not asyncio's own, or of a version of which nothing is known.
#[test]
fn tasks_that_are_not_known_are_an_error_and_never_none() {
    for interpreter in interpreters() {
        let mut command = interpreter.command("many_tasks.py");
        let target = Target::spawn(command.args(["3", "python"]));
        let mut process = Process::with_options(target.pid(), options()).unwrap();
        let error = read(&mut process).tasks.unwrap_err().to_string();
        let expected = "tasks of the class Task are not asyncio's own, and 3 more like this";
        assert_eq!(error, expected, "{interpreter:?}");
    }
    let versions = [
        ("3.6", "where 3.6 keeps its tasks is not known"),
        (
            "3.13t",
            "where free-threaded builds keep their tasks is not known",
        ),
    ];
    for (version, expected) in versions {
        for interpreter in Interpreter::with_version(version) {
            let target = interpreter.start("crowd.py");
            let mut process = Process::with_options(target.pid(), options()).unwrap();
            let error = read(&mut process).tasks.unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}

#[test]
fn a_program_without_asyncio_has_no_tasks() {
    for version in ["2.7", "3.7", "3.12", "3.14", "3.15"] {
        for interpreter in Interpreter::with_version(version) {
            let target = interpreter.start("crowd.py");
            let mut process = Process::with_options(target.pid(), options()).unwrap();
            let reading = read(&mut process);
            assert_eq!((reading.tasks, reading.missing), (Ok(Vec::new()), None));
        }
    }
}
