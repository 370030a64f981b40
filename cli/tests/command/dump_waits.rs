//! `otelctx dump --waits`.

use std::process::Command;

use otelctx_fixtures::{Compiler, Target};
use serde_json::{Value, json};

use crate::no_stop::no_stop;
use crate::run::otelctx;
use crate::target::wait_until_asleep;

/// A program whose threads wait for locks, and the IDs of one of them and of the holder.
fn start() -> Option<(Target, i32, i32)> {
    let program = Compiler::gcc().program(&["lock_waits.c"], &["-pthread"])?;
    let target = Target::spawn(&mut Command::new(program));
    wait_until_asleep(target.pid(), 0);
    let line = target
        .lines
        .iter()
        .find(|line| line.ends_with("mutex normal"));
    let ids: Vec<i32> = line
        .unwrap()
        .split(' ')
        .filter_map(|word| word.parse().ok())
        .collect();
    Some((target, ids[0], ids[1]))
}

fn wait_of(answer: &Value, tid: i32) -> &Value {
    let threads = answer["threads"].as_array().unwrap();
    let thread = threads.iter().find(|thread| thread["tid"] == tid);
    &thread.unwrap()["wait"]
}

#[test]
fn each_sleeping_thread_says_what_it_waits_for() {
    let Some((target, waiter, holder)) = start() else {
        return;
    };
    let pid = target.pid().to_string();
    let lock = format!("lock held by thread {holder}");
    let by_lock = json!({"call": "futex", "text": lock, "holder": holder});
    let own = std::fs::read_to_string("/proc/self/comm").unwrap();
    let test = std::process::id();
    let pipe = format!("read pipe from {test} ({})", own.trim());
    let by_pipe = json!({"call": "read", "text": pipe, "peer": {"pid": test, "name": own.trim()}});

    let answer = otelctx(&["dump", &pid, "--waits", "--json"])
        .expect(0)
        .json();
    assert_eq!(wait_of(&answer, waiter), &by_lock);
    assert_eq!(wait_of(&answer, target.pid()), &by_pipe);
    let threads = answer["threads"].as_array().unwrap();
    assert!(threads.iter().all(|thread| thread.get("stack").is_none()));
    assert!(threads.iter().all(|thread| thread.get("wait").is_some()));

    let with_stacks = otelctx(&["dump", &pid, "--waits", "--stacks", "--json"])
        .expect(0)
        .json();
    assert_eq!(wait_of(&with_stacks, waiter), &by_lock);
    let threads = with_stacks["threads"].as_array().unwrap();
    assert!(threads.iter().all(|thread| thread.get("stack").is_some()));

    let without = otelctx(&["dump", &pid, "--json"]).expect(0).json();
    assert_eq!(wait_of(&without, waiter), &Value::Null);

    let text = otelctx(&["dump", &pid, "--waits"]).expect(0).stdout;
    let row = |tid: i32| {
        let rows = text.lines().map(str::trim_start);
        let mut own = rows.filter(|row| row.starts_with(&format!("{tid} ")));
        own.next().unwrap_or_else(|| panic!("{text}")).to_owned()
    };
    assert!(row(waiter).ends_with(&format!("  {lock}")), "{text}");
    assert!(row(target.pid()).ends_with(&format!("  {pipe}")), "{text}");

    if let Some(answer) = no_stop(&[&pid, "--waits", "--json"]) {
        assert_eq!(wait_of(&answer.expect(0).json(), waiter), &by_lock);
    }
}

#[test]
fn a_thread_that_runs_waits_for_nothing() {
    let target = crate::target::Target::start("busy");
    let pid = target.pid().to_string();
    let answer = otelctx(&["dump", &pid, "--waits", "--json"])
        .expect(0)
        .json();
    let threads = answer["threads"].as_array().unwrap();
    let is_waiting = |thread: &&Value| thread.get("wait").is_some();
    assert!(
        threads.iter().filter(is_waiting).count() < threads.len(),
        "{answer}"
    );
}
