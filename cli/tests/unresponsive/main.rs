//! Targets a page of whose memory never comes, or all of which come slowly, because the server of the
//! file that they show does so: every command ends, says which process it is, and has the others'
//! answers.
//!
//! A test program of its own: other tests inspect all processes, too, and would wait.

mod server;

use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Duration;

use otelctx_fixtures::{Compiler, Target};
use serde_json::Value;

use server::Server;

/// A command that takes longer hangs: such a command waits for 2 s.
const TIMEOUT: Duration = otelctx_fixtures::HANG_TIMEOUT;

/// Runs commands at the same time; `None` if one of them hangs.
fn run(commands: &[&[&str]]) -> Option<Vec<Output>> {
    let outputs = commands.iter().map(|arguments| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_otelctx"));
        command.args(*arguments).stdin(Stdio::null());
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || sender.send(command.output().unwrap()));
        receiver
    });
    let outputs: Vec<_> = outputs.collect();
    let outputs = outputs.iter().map(|it| it.recv_timeout(TIMEOUT).ok());
    outputs.collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn target(trap: &str, server: &Server) -> Option<Target> {
    let sources = ["hostile.c", "variable.c", "publish.c"];
    let program = Compiler::gcc().program(&sources, &["-DLINKED", "-rdynamic", "-ldl"])?;
    let mut target = Command::new(program);
    target.args([trap.as_ref(), "".as_ref(), server.file().as_os_str()]);
    Some(Target::spawn(&mut target))
}

/// The processes of one test are no targets of the other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Each page is a sign that the reader goes on, and there are many: after its deadline it has some time
/// for what it has begun, and no more.
#[test]
fn pages_that_come_slowly_keep_no_command() {
    let _guard = ONE_AT_A_TIME.lock();
    let Some(server) = Server::start(Some(Duration::from_millis(700))) else {
        return;
    };
    let Some(target) = target("payload-slow", &server) else {
        return;
    };
    let pid = target.pid().to_string();
    // On a busy machine the deadline may come before the first page is reached.
    let (output, said) = (0..20)
        .map(|_| run(&[&["dump", "--deadline", "1", &pid]]).expect("it does not hang"))
        .map(|outputs| (outputs[0].clone(), text(&outputs[0].stderr)))
        .find(|(_, said)| !said.contains("the deadline left no time"))
        .unwrap();
    let expected = format!("otelctx: process {pid} did not respond within 11 s (");
    assert!(said.starts_with(&expected), "{said}");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_page_that_never_comes_keeps_no_command() {
    let _guard = ONE_AT_A_TIME.lock();
    let Some(server) = Server::start(None) else {
        return;
    };
    let Some(first) = target("honest", &server) else {
        return;
    };
    let payload = target("payload-no-server", &server).unwrap();
    let record = target("record-no-server", &server).unwrap();
    let last = target("honest", &server).unwrap();
    let pids = [&first, &payload, &record, &last].map(|it| it.pid().to_string());
    let [_, of_payload, _, _] = &pids;
    let outputs = run(&[
        &["dump", "--json", of_payload],
        &["check", of_payload],
        &["ps", "--json"],
    ]);
    // Not before `ps` has ended: a process that waits for the page of a record may block others from all of
    // that process's memory, which is locked meanwhile.
    let all = run(&[&["dump", "--all"]]);
    // Nothing that waits for a page ends before: not the targets either, when they are killed.
    drop(server);
    let outputs = outputs.expect("no command hangs");
    let [dump, check, ps] = &outputs[..] else {
        panic!("three commands");
    };
    let all = &all.expect("it does not hang")[0];
    let why = |pid: &str| {
        format!(
            "process {pid} did not respond within 2 s (its memory may be backed by an unresponsive \
             file server)"
        )
    };
    for (output, pid) in [(dump, of_payload), (check, of_payload)] {
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert_eq!(text(&output.stdout), "");
        let said = text(&output.stderr);
        let expected = format!(
            "otelctx: {}\n  check the FUSE or network file server ",
            why(pid)
        );
        assert!(said.starts_with(&expected), "{said}");
    }

    assert_eq!(ps.status.code(), Some(0), "{ps:?}");
    let listing: Value = serde_json::from_slice(&ps.stdout).unwrap();
    let rows = listing["processes"].as_array().unwrap();
    for target in [&first, &record, &last] {
        let row = rows.iter().find(|row| row["pid"] == target.pid());
        let row = row.unwrap_or_else(|| panic!("{} of {pids:?}: {ps:?}", target.pid()));
        assert_eq!(row["unreadable"], Value::Null);
    }
    let failed = listing["skipped"]["failed"].as_array().unwrap();
    let expected = serde_json::json!({"pid": payload.pid(), "error": why(of_payload)});
    assert!(failed.contains(&expected), "{failed:?}");
    assert!(text(&ps.stderr).contains(&why(of_payload)), "{ps:?}");

    assert_eq!(all.status.code(), Some(1), "{all:?}");
    let lines = text(&all.stdout);
    let lines = lines.lines().map(|it| serde_json::from_str(it).unwrap());
    let lines: Vec<Value> = lines.collect();
    let line = |target: &Target| lines.iter().find(|line| line["pid"] == target.pid());
    for target in [&first, &last] {
        let threads = line(target).unwrap()["threads"].as_array().unwrap();
        let attached = threads
            .iter()
            .filter(|it| it["context"]["trace_id"].is_string());
        assert_eq!(attached.count(), 2);
    }
    for target in [&payload, &record] {
        let error = Value::from(why(&target.pid().to_string()));
        assert_eq!(line(target).unwrap()["error"], error);
    }
}
