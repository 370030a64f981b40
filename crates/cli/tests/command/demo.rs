//! `otelctx demo`.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use serde_json::Value;

use crate::run::{command, not_ignoring_interrupts, otelctx};

/// On the slowest machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Whether the process has ended; that nobody has waited for it yet does not count.
fn has_ended(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().unwrap_or_default();
    !Path::new(&format!("/proc/{pid}")).exists() || state.starts_with(['Z', 'X'])
}

fn assert_ends(pid: i32) {
    let deadline = Instant::now() + PATIENCE;
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

#[test]
fn every_thread_is_seen_at_its_own_work() {
    let report = otelctx(&["demo", "--duration", "2", "--json"])
        .expect(0)
        .json();
    assert_eq!(report["unreadable"], 0);
    let cpu = report["cpu_ms"].as_f64().unwrap();
    let list = report["routes"].as_array().unwrap();
    let sum: f64 = list.iter().map(|it| it["cpu_ms"].as_f64().unwrap()).sum();
    assert!(cpu > 0.0 && (sum - cpu).abs() < 1e-6 * cpu, "{report:#}");
    let shares: f64 = list.iter().map(|it| it["share"].as_f64().unwrap()).sum();
    assert!((shares - 1.0).abs() < 1e-6, "{report:#}");
    for route in list {
        assert_eq!(
            route["route"].is_null(),
            route["costliest_trace"].is_null(),
            "{report:#}"
        );
    }
    // Async requests stay off the thread for health checks, and the other way round.
    let threads = report["threads"].as_array().unwrap();
    let names: Vec<&str> = threads
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        ["shop", "worker-1", "worker-2", "worker-3", "worker-4"]
    );
    for thread in threads {
        let allowed: &[Option<&str>] = match thread["name"].as_str().unwrap() {
            "shop" => &[None],
            "worker-4" => &[None, Some("/health")],
            _ => &[None, Some("/checkout"), Some("/cart")],
        };
        assert!(
            routes(&thread["routes"])
                .iter()
                .all(|it| allowed.contains(it)),
            "{report:#}"
        );
        assert!(thread["looks"].as_u64().unwrap() > 0, "{report:#}");
    }
    assert_ends(report["pid"].as_i64().unwrap() as i32);
}

#[test]
fn text_says_what_is_watched_and_what_was_seen() {
    let text = otelctx(&["demo", "--duration", "1"]).expect(0).stdout;
    let head = "A shop with 4 workers and 3 routes, watched from outside for 1 s (pid ";
    assert!(text.starts_with(head), "{text}");
    for expected in [
        "  ROUTE ",
        "  /checkout ",
        "  THREAD ",
        "  worker-4 ",
        " looks, every one readable; ",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

/// A demo that would go on for minutes, the rest of what it writes, and its service's process.
fn long_demo() -> (Child, BufReader<ChildStdout>, i32) {
    let mut demo = command(&["demo", "--duration", "600"]);
    not_ignoring_interrupts(&mut demo);
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
    let (mut demo, _, service) = long_demo();
    kill(Pid::from_raw(demo.id() as i32), Signal::SIGKILL).unwrap();
    let status = demo.wait().unwrap();
    assert_eq!(status.signal(), Some(Signal::SIGKILL as i32));
    assert_ends(service);
}

#[test]
fn an_interrupted_demo_shows_what_it_has_seen() {
    let (mut demo, mut stdout, service) = long_demo();
    std::thread::sleep(Duration::from_millis(300));
    // As a terminal does it: to all processes of the group.
    killpg(Pid::from_raw(demo.id() as i32), Signal::SIGINT).unwrap();
    let mut text = String::new();
    stdout.read_to_string(&mut text).unwrap();
    assert_eq!(demo.wait().unwrap().code(), Some(0));
    for expected in ["  ROUTE ", "  worker-4 ", " looks, every one readable; "] {
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
