//! `otelctx demo`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use serde_json::Value;

use crate::run::{Answer, Scratch, command, otelctx};
use crate::unprivileged::Copy;

/// Time limit on the slowest machine.
const TIMEOUT: Duration = otelctx_fixtures::HANG_TIMEOUT;

/// Returns whether the process has ended, also if nobody has waited for it yet.
fn has_ended(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().unwrap_or_default();
    !Path::new(&format!("/proc/{pid}")).exists() || state.starts_with(['Z', 'X'])
}

fn assert_ends(pid: i32) {
    let deadline = Instant::now() + TIMEOUT;
    while !has_ended(pid) {
        if Instant::now() >= deadline {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            panic!("the service, {pid}, lived on");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The routes in a list of parts or routes.
fn routes(list: &Value) -> Vec<Option<&str>> {
    let list = list.as_array().unwrap();
    list.iter().map(|part| part["route"].as_str()).collect()
}

/// Name and samples of each entry of a list.
fn counts(list: &Value, name: &str) -> BTreeMap<String, u64> {
    let entry = |it: &Value| {
        let name = it[name].as_str().unwrap_or("(none)").to_owned();
        (name, it["samples"].as_u64().unwrap())
    };
    list.as_array().unwrap().iter().map(entry).collect()
}

#[test]
fn what_is_shown_is_what_is_in_the_files() {
    let scratch = Scratch::new("demo-files");
    let directory = scratch.path("a/b");
    let report = otelctx(&["demo", "-d", "2", "--json", "-o", &directory]);
    let report = report.expect(0).json();
    assert_eq!(report["unreadable"], 0);
    let recorded = otelctx(&["report", "--json", &format!("{directory}/profile.otlp")]);
    let recorded = recorded.expect(0).json();
    let samples = report["samples"].as_u64().unwrap();
    assert!(samples > 0, "{report:#}");
    for (shown, written) in [("samples", "samples"), ("with_trace", "with_trace")] {
        assert_eq!(report[shown], recorded[written], "{report:#}");
    }
    assert_eq!(
        counts(&report["routes"], "route"),
        counts(&recorded["by_attribute"], "name")
    );
    assert_eq!(
        counts(&report["traces"], "trace_id"),
        counts(&recorded["by_trace"], "trace_id")
    );
    let named = report["files"].as_array().unwrap();
    let mut named: Vec<&str> = named
        .iter()
        .map(|it| it["path"].as_str().unwrap())
        .collect();
    named.sort_unstable();
    let mut names: Vec<String> = fs::read_dir(&directory)
        .unwrap()
        .map(|it| it.unwrap().path().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    assert_eq!(names, named);
    assert_eq!(names.len(), 5);
    assert_ends(report["pid"].as_i64().unwrap() as i32);
    // A second one does not touch them.
    let answer = otelctx(&["demo", "-d", "60", "-o", &directory]).expect(2);
    assert_eq!(answer.stdout, "");
    assert!(
        answer.stderr.contains("profile.otlp: already exists"),
        "{answer:?}"
    );
}

#[test]
fn every_thread_is_seen_at_its_own_work() {
    let scratch = Scratch::new("demo-threads");
    let directory = scratch.path("files");
    let report = otelctx(&["demo", "-d", "2", "--json", "-o", &directory]);
    let report = report.expect(0).json();
    // Async requests stay off the thread for health checks, and the other way round.
    let threads = report["threads"].as_array().unwrap();
    let mut workers = 0;
    let mut samples = 0;
    for thread in threads {
        let allowed: &[Option<&str>] = match thread["name"].as_str().unwrap() {
            "shop" => &[None],
            "worker-4" => &[None, Some("/health")],
            "worker-1" | "worker-2" | "worker-3" => &[None, Some("/checkout"), Some("/cart")],
            name => panic!("{name}: {report:#}"),
        };
        workers += usize::from(allowed.len() > 1);
        let met = routes(&thread["routes"]);
        assert!(met.iter().all(|it| allowed.contains(it)), "{report:#}");
        let of_routes: u64 = counts(&thread["routes"], "route").values().sum();
        assert_eq!(thread["samples"], of_routes, "{report:#}");
        samples += of_routes;
    }
    assert_eq!(report["samples"], samples, "{report:#}");
    assert!(workers > 0, "{report:#}");
}

/// The demo in a directory, where it has all of its files below it.
fn demo_in(directory: &str, arguments: &[&str]) -> Answer {
    let mut command = command(&[&["demo"], arguments].concat());
    Answer::of(command.current_dir(directory).output().unwrap())
}

#[test]
fn text_says_what_is_recorded_what_was_seen_and_how_to_open_it() {
    let scratch = Scratch::new("demo-text");
    let here = scratch.path("");
    let text = demo_in(&here, &["-d", "1"]).expect(0).stdout;
    let head = "A shop with 4 workers and 3 routes, recorded from outside for 1 s (pid ";
    assert!(text.starts_with(head), "{text}");
    for expected in [
        "  ROUTE ",
        "  /checkout ",
        "  COSTLIEST TRACES ",
        "  THREAD ",
        " being rewritten, 0 unreadable; ",
        "The recording is in otelctx-demo,",
        " report otelctx-demo/profile.otlp\n",
        " go tool pprof -http=: otelctx-demo/profile.pb.gz\n",
        "  profile.json.gz  load it at https://profiler.firefox.com\n",
        "  profile.svg      open it in a browser: file:///",
        "  profile.folded   load it at https://www.speedscope.app\n",
        "Try, in another terminal while ",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    // The next one has a directory of its own.
    let text = demo_in(&here, &["-d", "0.2"]).expect(0).stdout;
    assert!(text.contains("in otelctx-demo-2,"), "{text}");
    assert_eq!(scratch.names(), ["otelctx-demo", "otelctx-demo-2"]);
}

#[test]
fn where_nothing_can_be_written_the_files_are_temporary() {
    let scratch = Scratch::new("demo-elsewhere");
    let copy = Copy::new("demo-temporary");
    let here = scratch.path("here");
    fs::create_dir(&here).unwrap();
    fs::set_permissions(&here, PermissionsExt::from_mode(0o555)).unwrap();
    let mut command = copy.command(&["demo", "-d", "0.2", "--json"]);
    let temporary = scratch.path("temporary");
    fs::create_dir(&temporary).unwrap();
    fs::set_permissions(&temporary, PermissionsExt::from_mode(0o777)).unwrap();
    command.current_dir(&here).env("TMPDIR", &temporary);
    let report = Answer::of(command.output().unwrap()).expect(0).json();
    assert_eq!(report["directory"], format!("{temporary}/otelctx-demo"));
    // One that is asked for is not replaced by another.
    let named = format!("{here}/files");
    let answer = copy.run(&["demo", "-d", "60", "-o", &named]).expect(2);
    assert!(answer.stderr.contains("Permission denied"), "{answer:?}");
    assert_eq!(answer.stdout, "");
}

/// A demo that would go on for minutes, the rest of what it writes, and its service's process.
fn long_demo(directory: &str) -> (Child, BufReader<ChildStdout>, i32) {
    let mut demo = command(&["demo", "--duration", "600", "-o", directory]);
    // A group of its own, as a shell makes one for the command and what it starts.
    let mut demo = demo
        .process_group(0)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut head = String::new();
    let mut stdout = BufReader::new(demo.stdout.take().unwrap());
    stdout.read_line(&mut head).unwrap();
    let (_, pid) = head
        .trim_end()
        .trim_end_matches(')')
        .rsplit_once(' ')
        .unwrap();
    let service: i32 = pid.parse().unwrap();
    assert!(!has_ended(service));
    (demo, stdout, service)
}

#[test]
fn nothing_is_left_when_the_command_is_killed() {
    let scratch = Scratch::new("demo-killed");
    let (mut demo, _, service) = long_demo(&scratch.path("files"));
    kill(Pid::from_raw(demo.id() as i32), Signal::SIGKILL).unwrap();
    let status = demo.wait().unwrap();
    assert_eq!(status.signal(), Some(Signal::SIGKILL as i32));
    assert_ends(service);
}

#[test]
fn an_interrupted_demo_shows_what_it_has_seen() {
    let scratch = Scratch::new("demo-interrupted");
    let directory = scratch.path("files");
    let (mut demo, mut stdout, service) = long_demo(&directory);
    std::thread::sleep(Duration::from_millis(600));
    // As a terminal does it: to all processes of the group.
    killpg(Pid::from_raw(demo.id() as i32), Signal::SIGINT).unwrap();
    let mut text = String::new();
    stdout.read_to_string(&mut text).unwrap();
    assert_eq!(demo.wait().unwrap().code(), Some(0));
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 5);
    for expected in ["  ROUTE ", "  THREAD ", " being rewritten, 0 unreadable; "] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert_ends(service);
}

#[test]
fn a_duration_that_makes_no_sense_is_refused() {
    for duration in ["0", "-1", "x", "inf", "NaN", "1e9"] {
        let argument = format!("--duration={duration}");
        let answer = otelctx(&["demo", &argument]).expect(2);
        assert!(
            answer
                .stderr
                .contains("a number of seconds from 0.1 to 86400"),
            "{answer:?}"
        );
    }
}
