//! The system calls that a watch of many processes makes.

use std::env;
use std::process::Command;
use std::time::Duration;

use otelctx_fixtures::{Compiler, Target, system_calls};
use otelctx_track::Watch;

/// The processes for the program below to poll, and how often.
const PIDS: &str = "OTELCTX_TEST_PIDS";
const POLLS: &str = "OTELCTX_TEST_POLLS";

fn start() -> Option<Target> {
    let program = Compiler::gcc().program::<&str>(&["mappings.c"], &[])?;
    Some(Target::spawn(&mut Command::new(program)))
}

/// This program once more, which only runs `polls`.
fn polls_of(pids: &[i32], polls: i64) -> Command {
    let pids: Vec<String> = pids.iter().map(i32::to_string).collect();
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args([
            "--exact",
            "polls",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(PIDS, pids.join(","))
        .env(POLLS, polls.to_string());
    command
}

#[test]
fn a_poll_is_one_system_call_for_each_process() {
    let [
        Some(silent),
        Some(mut publisher),
        Some(mut broken),
        Some(mut headless),
    ] = [start(), start(), start(), start()]
    else {
        return;
    };
    publisher.command("publish shop");
    broken.command("publish shop");
    broken.command("damage");
    headless.command("leave");
    let targets = [silent, publisher, broken, headless];
    let pids = targets.each_ref().map(Target::pid);
    for chosen in [&pids[..], &pids[..1], &pids[1..2], &pids[2..3], &pids[3..]] {
        let count = |polls: i64| system_calls::count(polls_of(chosen, polls)).unwrap();
        // The scans at the beginning take some of the rest.
        let calls = (count(3000) - count(0)) as f64 / 3000.0;
        // A process without a context takes none while it waits for its second scan: on a busy machine,
        // where the first one took long, that may be for all of the polls.
        let with_context = chosen.iter().filter(|pid| pids[1..3].contains(pid)).count();
        let expected = with_context as f64 - 0.1..chosen.len() as f64 + 0.1;
        assert!(expected.contains(&calls), "{chosen:?}: {calls}");
    }
}

#[test]
#[ignore = "the other process of a test"]
fn polls() {
    let mut watch = Watch::default().rescan_interval(Duration::MAX);
    let polls = env::var(POLLS).map_or(0, |polls| polls.parse().unwrap());
    let pids = env::var(PIDS).unwrap_or_default();
    let pids = pids.split(',').filter_map(|pid| pid.parse().ok());
    let mut pids: Vec<i32> = pids.collect();
    // The kernel's numbers wrap around.
    pids.sort_unstable();
    for _ in 0..polls {
        watch.poll_these(&pids);
    }
}
