//! Labels of real Go programs, compared with what the programs say.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use otelctx_fixtures::{
    CoreDirectory, GO_VERSIONS, GoBuild, STOP_TIMEOUT, Target, go_package, tier,
};
use otelctx_go::Go;
use otelctx_reader::format::process_context::Value;
use otelctx_reader::remote::CoreFile;
use otelctx_reader::runtime::{Present, RuntimeReading, RuntimeThread, Runtimes, TaskReading};
use otelctx_reader::sample::{Found, NamedFrame};
use otelctx_reader::{Options, Process, Thread};

/// Maximum number of labels, and the length of their values in bytes, that are read.
const MAX_LABELS: usize = 64;
const MAX_VALUE: usize = 256;
/// Number of threads of `labels.go` that say what they have.
const THREADS: usize = 14;

/// Maximum number of times that a thread is read until it runs its goroutine.
const MAX_TRIES: usize = 500;

/// More goroutines than were read once.
const PARKED: usize = 20_000;

/// Ways to build a program.
const STRIPPED: &[&str] = &["-ldflags=-s -w"];
const PIE: &[&str] = &["-buildmode=pie"];
const STRIPPED_PIE: &[&str] = &["-buildmode=pie", "-ldflags=-s -w"];

fn options() -> Options {
    let mut options = Options::default();
    options.runtimes = Runtimes::new(vec![Arc::new(Go::default())]);
    options.stop_timeout = STOP_TIMEOUT;
    options
}

fn open(pid: i32) -> Process {
    let mut process = Process::with_options(pid, options()).unwrap();
    process.context().unwrap();
    process
}

/// What a thread says of itself: its goroutine, and its labels.
fn said(target: &Target, tid: i32) -> Option<(i64, Vec<String>)> {
    let start = format!("thread {tid} ");
    let line = target.lines.iter().find_map(|it| it.strip_prefix(&start))?;
    let (goid, labels) = line.split_once('|').unwrap();
    // Longer values are cut.
    let long = "é".repeat(200);
    let labels = labels.replace(&long, &long[..MAX_VALUE]);
    let labels = labels.split('|').filter(|it| !it.is_empty());
    let mut labels: Vec<_> = labels.map(|it| it.split_once('=').unwrap()).collect();
    labels.sort();
    let labels = labels.iter().map(|(key, value)| format!("{key}={value}"));
    Some((goid.parse().unwrap(), labels.collect()))
}

fn fact(thread: &RuntimeThread, name: &str) -> Option<Value> {
    let mut facts = thread.facts.iter();
    facts
        .find(|(key, _)| key == name)
        .map(|(_, value)| value.clone())
}

/// Compares what was read of a thread with what that says.
fn compare_thread(thread: &RuntimeThread, (goid, labels): &(i64, Vec<String>), name: &str) {
    assert_eq!(fact(thread, "goid"), Some(Value::Int(*goid)), "{name}");
    let read: Vec<String> = match &thread.context {
        Found::Attached(context) => {
            let attributes = context.attributes.iter();
            attributes
                .map(|(key, value)| format!("{key}={value}"))
                .collect()
        }
        Found::Detached => Vec::new(),
        other => panic!("{name}: {other:?}"),
    };
    let skipped = labels.len().saturating_sub(MAX_LABELS);
    let fact = fact(thread, "skipped_labels");
    assert_eq!(
        fact,
        (skipped > 0).then_some(Value::Int(skipped as i64)),
        "{name}"
    );
    if skipped > 0 {
        assert_eq!(read.len(), MAX_LABELS, "{name}");
        assert!(
            read.iter().all(|it| labels.contains(it)),
            "{name}: {read:?}"
        );
    } else {
        assert_eq!(&read, labels, "{name}");
    }
    let has_trace = labels.iter().any(|it| it.starts_with("trace_id="));
    let ids = thread.context.attached().map(|context| {
        let ids = (context.trace_id.to_string(), context.span_id.to_string());
        (!context.trace_id.is_zero()).then_some(ids)
    });
    let expected = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    let expected = has_trace.then(|| (expected.0.to_owned(), expected.1.to_owned()));
    assert_eq!(ids.flatten(), expected, "{name}");
}

/// Reads a thread while it runs its goroutine.
fn running(thread: &Thread<'_>, present: &[Present]) -> RuntimeThread {
    let read = (0..MAX_TRIES).find_map(|_| {
        // On a busy machine, a thread may not stop in time.
        let state = thread.state(present, None).ok()?;
        let [RuntimeReading { thread: read, .. }] = &state.runtimes[..] else {
            panic!("{state:?}")
        };
        let read = read.clone().unwrap();
        // Go may just interrupt a goroutine that has run for 10 ms.
        let runs = fact(&read, "goid").is_some();
        (!runs).then(|| std::thread::sleep(Duration::from_millis(10)));
        runs.then_some(read)
    });
    read.expect("it runs its goroutine")
}

/// Compares each thread with what the program says about it.
fn compare(mut process: Process, target: &Target, version: &str, name: &str) {
    let present = process.runtimes().unwrap();
    let [go] = &present[..] else {
        panic!("{name}: {present:?}")
    };
    let facts = go.process.as_ref().unwrap().facts();
    let version = Value::String(format!("go{version}"));
    assert_eq!(facts, [("version".to_owned(), version)], "{name}");
    let mut compared = 0;
    for thread in process.threads().unwrap() {
        let Some(said) = said(target, thread.tid()) else {
            continue;
        };
        compare_thread(&running(&thread, &present), &said, name);
        compared += 1;
    }
    assert_eq!(compared, THREADS, "{name}");
}

fn build(version: &str, cgo: bool, flags: &[&str]) -> Option<PathBuf> {
    let build = GoBuild {
        version,
        architecture: "",
        cgo,
        flags,
    };
    build.build("labels.go")
}

#[test]
fn labels_of_each_version_are_what_the_program_says() {
    for version in GO_VERSIONS {
        for flags in [&[], STRIPPED, PIE, STRIPPED_PIE] {
            let Some(program) = build(version, false, flags) else {
                continue;
            };
            let target = Target::spawn(&mut Command::new(program));
            let name = format!("Go {version}, {flags:?}");
            compare(open(target.pid()), &target, version, &name);
        }
    }
}

#[test]
fn labels_of_programs_with_c_code_and_of_libraries_are_read() {
    const LIBRARY: &[&str] = &["-buildmode=c-shared", "-ldflags=-s -w"];
    for version in ["1.21.13", "1.24.13", "1.26.8"] {
        for flags in [STRIPPED, STRIPPED_PIE, LIBRARY] {
            let Some(program) = build(version, true, flags) else {
                continue;
            };
            let mut command = Command::new(&program);
            if flags == LIBRARY {
                command = Command::new("python3");
                let start = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).go_main()";
                command.arg("-c").arg(start).arg(&program);
            }
            let target = Target::spawn(&mut command);
            let name = format!("Go {version} with C code, {flags:?}");
            compare(open(target.pid()), &target, version, &name);
        }
    }
}

/// Reads the goroutines that no thread runs.
fn tasks(target: &Target) -> TaskReading {
    let mut options = options();
    options.tasks = true;
    let mut process = Process::with_options(target.pid(), options).unwrap();
    process.context().unwrap();
    let present = process.runtimes().unwrap();
    process.tasks(&present, None).remove(0)
}

#[test]
fn goroutines_that_no_thread_runs_have_their_labels_and_functions() {
    for (index, version) in GO_VERSIONS.into_iter().enumerate() {
        let mut builds = vec![(false, &[][..]), (false, STRIPPED), (false, STRIPPED_PIE)];
        // By another linker.
        let linked = [(true, STRIPPED), (true, STRIPPED_PIE)];
        builds.extend(tier::usual_or_all(&linked[index % 2..][..1], &linked));
        for (cgo, flags) in builds {
            let Some(program) = build(version, cgo, flags) else {
                continue;
            };
            let target = Target::spawn(&mut Command::new(program));
            let name = format!("Go {version}, cgo {cgo}, {flags:?}");
            let line = target.lines.iter();
            let mut goid = line.filter_map(|it| it.strip_prefix("parked 0 ")?.split('|').next());
            let goid: u64 = goid.next_back().unwrap().parse().unwrap();
            let tasks = tasks(&target).tasks.unwrap();
            // Goroutines on threads are not among them, unless Go has just interrupted one.
            let on_threads = target.lines.iter().filter(|it| it.starts_with("thread "));
            for line in on_threads {
                let goid = line.split(['|', ' ']).nth(2).unwrap().parse();
                let task = tasks.iter().find(|it| Ok(it.id) == goid);
                assert!(task.is_none_or(|it| !it.facts.is_empty()), "{name}: {line}");
            }
            let parked = tasks.iter().find(|it| it.id == goid).unwrap();
            let context = parked.context.attached().unwrap();
            let trace = context.trace_id.to_string();
            assert_eq!(trace, "4bf92f3577b34da6a3ce929d0e0e4736", "{name}");
            assert_eq!(context.attributes.len(), 3, "{name}");
            let state = ("state".to_owned(), Value::String("waiting".into()));
            assert_eq!(parked.facts, [state], "{name}");
            let functions: Vec<&str> = parked.frames.iter().map(NamedFrame::name).collect();
            // The compiler's names of closures have changed since.
            let expected = [
                "runtime.gopark",
                "runtime.chanrecv",
                "runtime.chanrecv1",
                "main.park",
                functions[4],
                "runtime/pprof.Do",
                functions[6],
                "runtime.goexit",
            ];
            assert_eq!(functions, expected, "{name}");
            assert!(
                functions[4].starts_with("main.main.func"),
                "{name}: {functions:?}"
            );
            assert!(!parked.is_truncated, "{name}");
            // The line with the channel that it waits for.
            let source = include_str!("../../../../testing/fixtures/programs/labels.go");
            let line = source
                .lines()
                .position(|it| it.contains("<-make(chan bool)"));
            let park = &parked.frames[3];
            assert_eq!(Some(park.line as usize), line.map(|it| it + 1), "{name}");
            assert!(park.file.ends_with("/labels.go"), "{name}: {}", park.file);
        }
    }
}

#[test]
fn spans_of_other_tracers_are_theirs() {
    for tracer in ["datadog", "datadog-spans", "grafana"] {
        let Some(program) = go_package("publish/go/tests/tracers", "publish/go/tests") else {
            return;
        };
        let target = Target::spawn(Command::new(program).arg(tracer));
        let line = target
            .lines
            .iter()
            .find_map(|it| it.strip_prefix("thread "));
        let [tid, trace, span] = line.unwrap().split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line:?}")
        };
        let mut process = open(target.pid());
        let present = process.runtimes().unwrap();
        let threads = process.threads().unwrap();
        let is_it = |it: &&Thread<'_>| it.tid().to_string() == tid;
        let read = running(threads.iter().find(is_it).unwrap(), &present);
        let context = read.context.attached().unwrap();
        let ids = [context.trace_id.to_string(), context.span_id.to_string()];
        assert_eq!(ids, [trace, span], "{tracer}: {context:?}");
    }
}

/// Regression: 16,384 were read, and each had frames of its own.
#[test]
fn all_goroutines_of_a_busy_server_are_read_and_share_their_frames() {
    let build = GoBuild {
        version: GO_VERSIONS[GO_VERSIONS.len() - 1],
        architecture: "",
        cgo: false,
        flags: &[],
    };
    let Some(program) = build.build("goroutines.go") else {
        return;
    };
    let target = Target::spawn(Command::new(program).arg(PARKED.to_string()));
    let reading = tasks(&target);
    assert!(!reading.is_truncated && reading.missing.is_none());
    let (mut numbers, mut stacks) = (BTreeSet::new(), Vec::new());
    for task in reading.tasks.unwrap() {
        let Some(context) = task.context.attached() else {
            continue;
        };
        let [(name, number)] = &context.attributes[..] else {
            panic!("{context:?}");
        };
        assert_eq!(name, "number");
        assert!(numbers.insert(number.parse::<usize>().unwrap()));
        assert!(task.frames.iter().any(|it| it.name() == "main.park"));
        stacks.push(task.frames);
    }
    assert!(numbers.into_iter().eq(0..PARKED));
    let is_first = |it: &Arc<[NamedFrame]>| Arc::ptr_eq(it, &stacks[0]);
    let shared = stacks.iter().filter(|it| is_first(it)).count();
    // Most wait in the channel; the others have not come there yet.
    assert!(shared > PARKED / 2, "{shared}");
}

#[test]
fn core_files_have_the_labels_of_threads() {
    let directory = CoreDirectory::new();
    for version in ["1.23.12", "1.26.8"] {
        let Some(program) = build(version, false, STRIPPED) else {
            continue;
        };
        // A goroutine that Go has just interrupted would remain so in a core file.
        let mut command = Command::new(program);
        let target =
            Target::spawn(command.envs([("GODEBUG", "asyncpreemptoff=1"), ("GOMAXPROCS", "4")]));
        let Some(core) = directory.gcore(&target) else {
            return;
        };
        let core = CoreFile::open(&core, Path::new("/")).unwrap();
        let mut process = Process::of_target(core, options());
        process.context().unwrap();
        compare(process, &target, version, "core file");
    }
}
