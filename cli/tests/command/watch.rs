//! `otelctx ps --watch`. Other tests run beside these: only the own targets' lines are compared.

use std::io::{BufRead, BufReader, Lines, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::run::{command, temporary, under_strace};
use crate::target::Target;

/// The command, running. Dropping it ends it.
struct Watch {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Watch {
    fn start(arguments: &[&str]) -> Self {
        let mut all = vec!["ps", "--watch", "--interval", "0.1"];
        all.extend(arguments);
        Self::run(command(&all))
    }

    fn run(mut command: Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// The next event of this process. A busy machine takes longer, but not forever.
    fn event(&mut self, pid: i32) -> Value {
        loop {
            let line = self.lines.next().expect("it goes on").unwrap();
            let event: Value = serde_json::from_str(&line).unwrap();
            if event["pid"] == pid {
                return event;
            }
        }
    }

    /// The same in short.
    fn event_and_service(&mut self, pid: i32) -> (String, Value) {
        let mut event = self.event(pid);
        (
            event["event"].as_str().unwrap().to_owned(),
            event["service"].take(),
        )
    }

    fn interrupt(&self) {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGINT).unwrap();
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn every_event_of_a_process_is_reported_once() {
    let mut changing = Target::start("changing");
    let there = Target::start("shop");
    let pid = changing.pid();
    let mut watch = Watch::start(&["--json"]);
    let event = watch.event(there.pid());
    let time = event["time"].as_str().unwrap();
    assert!(
        time.starts_with("20") && time.ends_with('Z') && time.len() == 24,
        "{time}"
    );
    let mut rest = event.clone();
    rest.as_object_mut()
        .unwrap()
        .retain(|key, _| key != "time" && key != "comm");
    assert_eq!(
        rest,
        json!({
            "event": "present",
            "pid": there.pid(),
            "service": "shop",
            "language": "rust",
            "schema": "tlsdesc_v1_dev",
            "keys": 2,
            "threads": 5,
            "unreadable": null,
        })
    );
    let expected = |event: &str, service: &str| (event.to_owned(), Value::from(service));
    // Late, for it was there before.
    changing.send("publish late");
    assert_eq!(watch.event_and_service(pid), expected("published", "late"));
    changing.send("update new");
    assert_eq!(watch.event_and_service(pid), expected("updated", "new"));
    changing.send("withdraw");
    assert_eq!(watch.event_and_service(pid), expected("withdrawn", "new"));
    changing.send("publish again");
    assert_eq!(watch.event_and_service(pid), expected("published", "again"));
    changing.send("exec");
    let (mut event, mut service) = watch.event_and_service(pid);
    if event == "withdrawn" {
        // It was polled between the exec and its publishing.
        assert_eq!(service, "again");
        (event, service) = watch.event_and_service(pid);
    }
    assert_eq!((event, service), expected("published", "shop"));
    let new = Target::start("no_schema");
    let event = watch.event(new.pid());
    assert_eq!(
        (&event["event"], &event["service"]),
        (&"published".into(), &"quiet".into())
    );
    assert!(
        event["unreadable"].as_str().unwrap().contains("no schema"),
        "{event}"
    );
    let broken = Target::start("newer_version");
    let event = watch.event(broken.pid());
    assert_eq!(event["event"], "broken");
    assert!(
        event["unreadable"].as_str().unwrap().contains("version 3"),
        "{event}"
    );
    drop(changing);
    assert_eq!(watch.event_and_service(pid), expected("ended", "shop"));
}

#[test]
fn text_has_a_line_for_each_event() {
    let there = Target::start("shop");
    let mut watch = Watch::start(&[]);
    let mut line = |what: &dyn Fn(&[&str]) -> bool| {
        loop {
            let line = watch.lines.next().unwrap().unwrap();
            let words: Vec<&str> = line.split_whitespace().collect();
            if what(&words) {
                return words.into_iter().map(str::to_owned).collect::<Vec<_>>();
            }
        }
    };
    let head = line(&|_| true);
    let columns = [
        "TIME", "EVENT", "PID", "SERVICE", "LANGUAGE", "SCHEMA", "KEYS", "THREADS",
    ];
    assert_eq!(head, columns);
    let pid = there.pid().to_string();
    let present = line(&|words| words.get(2) == Some(&pid.as_str()));
    assert_eq!(present[0].split(':').count(), 3);
    let rest = ["present", &pid, "shop", "rust", "tlsdesc_v1_dev", "2", "5"];
    assert_eq!(present[1..], rest);
    drop(there);
    let ended = line(&|words| words.get(2) == Some(&pid.as_str()));
    assert_eq!(ended[1..4], ["ended", &pid, "shop"]);
    // Nothing is left of it that could be checked.
    let broken = Target::start("newer_version");
    let pid = broken.pid().to_string();
    let words_of_line = line(&|words| words.get(2) == Some(&pid.as_str()));
    assert_eq!(words_of_line[1], "broken");
    assert_eq!(words_of_line[words_of_line.len() - 2..], ["fix", "it"]);
    drop(broken);
    let ended = line(&|words| words.get(2) == Some(&pid.as_str()));
    assert_eq!(ended[1], "ended");
    assert!(!ended.contains(&"fix".to_owned()), "{ended:?}");
}

#[test]
fn it_ends_cleanly_when_interrupted_or_not_read_any_more() {
    let there = Target::start("shop");
    let mut watch = Watch::start(&["--json"]);
    watch.event(there.pid());
    watch.interrupt();
    assert_eq!(watch.child.wait().unwrap().code(), Some(0));
    let mut rest = String::new();
    watch
        .child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut rest)
        .unwrap();
    assert!(!rest.contains("panicked"), "{rest}");

    let mut watch = command(&["ps", "--watch", "--json", "--interval", "0.1"]);
    let mut watch = watch
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    drop(watch.stdout.take());
    // Without an event that would be written.
    assert_eq!(watch.wait().unwrap().code(), Some(0));
}

/// A process to which nothing happens costs one read, whether it publishes or not.
#[test]
fn a_poll_is_one_system_call_a_process() {
    let targets = ["shop", "silent", "no_schema"].map(Target::start);
    let ps = command(&["ps", "--watch", "--json", "--interval", "0.1"]);
    let file = temporary("polls");
    let Some(strace) = under_strace(&ps, "trace=all", &file) else {
        return;
    };
    let mut watch = Watch::run(strace);
    watch.event(targets[0].pid());
    let deadline = Instant::now() + otelctx_fixtures::HANG_TIMEOUT;
    loop {
        let calls = std::fs::read_to_string(&file).unwrap();
        // A wait ends a poll. What takes long is done by and by, so that not every poll is quiet.
        let polls: Vec<&str> = calls.split("ppoll(").collect();
        let whole = polls.iter().skip(1).rev().skip(1);
        if whole.filter(|poll| is_quiet(poll, &targets)).count() >= 5 {
            break;
        }
        assert!(Instant::now() < deadline, "{calls}");
        std::thread::sleep(Duration::from_millis(20));
    }
    let tracee = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", watch.child.id()));
    kill(
        Pid::from_raw(tracee.unwrap().trim().parse().unwrap()),
        Signal::SIGINT,
    )
    .unwrap();
    watch.child.wait().unwrap();
    std::fs::remove_file(&file).unwrap();
}

/// Returns whether a poll made one read of each target and nothing else.
fn is_quiet(poll: &str, targets: &[Target]) -> bool {
    targets.iter().all(|target| {
        let own = format!("</proc/{}/", target.pid());
        let mut calls = poll.lines().filter(|call| call.contains(&own));
        let read = calls.next().is_some_and(|call| call.contains(" pread64("));
        read && calls.next().is_none()
    })
}
