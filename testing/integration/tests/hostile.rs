//! Malformed process contexts get a clear answer, in bounded memory and time. This file measures peak
//! memory, so tests that read modules are in other files.

use std::process::Command;
use std::time::Duration;

use otelctx_fixtures::{Target, thread_cpu_time};
use otelctx_integration::facts;
use otelctx_reader::format::KeyMapError;
use otelctx_reader::{Broken, ContextState, Options, Process, ThreadSupport, Unreadable};

fn hostile(task: &str) -> (Target, Process) {
    let target = Target::spawn(Command::new(env!("CARGO_BIN_EXE_hostile")).arg(task));
    let process = Process::open(target.pid()).unwrap();
    (target, process)
}

fn broken(task: &str) -> Broken {
    let (_target, mut process) = hostile(task);
    let start = thread_cpu_time();
    let state = process.context().unwrap();
    let took = thread_cpu_time() - start;
    assert!(took < Duration::from_secs(5), "{task} took {took:?}");
    match state {
        ContextState::Broken(broken) => broken,
        other => panic!("{task}: {other:?}"),
    }
}

/// Peak memory of this process, in KiB.
fn peak_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_malformed_context_is_broken_and_the_error_says_why() {
    let before = peak_memory();
    let too_large = |size| Broken::TooLarge {
        size,
        limit: 1 << 20,
    };
    assert_eq!(broken("huge-payload"), too_large(u32::MAX));
    assert!(matches!(broken("huge-keys"), Broken::TooLarge { size, .. } if size > 256 << 20));
    for task in ["payload-nowhere", "payload-in-kernel"] {
        assert!(
            matches!(broken(task), Broken::PayloadUnreadable(_)),
            "{task}"
        );
    }
    let malformed = broken("malformed").to_string();
    assert_eq!(
        malformed,
        "the payload is malformed at byte 0: it ends in the middle of a value"
    );
    assert_eq!(broken("never-finished"), Broken::BeingUpdated { tries: 5 });
    let version = broken("version-3").to_string();
    assert_eq!(
        version,
        "the process context has version 3; version 2 is supported"
    );
    let grown = peak_memory() - before;
    assert!(grown < 16 << 10, "reading took {grown} KiB");

    // A higher limit reads all of it. Here, because it must not run at the same time as the measurement.
    let target = Target::spawn(Command::new(env!("CARGO_BIN_EXE_hostile")).arg("huge-keys"));
    let mut options = Options::default();
    options.max_payload = 300 << 20;
    let mut process = Process::with_options(target.pid(), options).unwrap();
    let ContextState::Published(context) = process.context().unwrap() else {
        panic!()
    };
    let keys = context.keys.clone().unwrap().unwrap();
    assert_eq!(keys.names().len(), 256);
    assert!(keys.names().iter().all(|name| name.len() == 1 << 20));
}

#[test]
fn of_two_contexts_the_first_is_read_and_the_other_reported() {
    let (target, mut process) = hostile("two");
    let ContextState::Published(context) = process.context().unwrap() else {
        panic!()
    };
    let mut printed: Vec<u64> = facts(&target.lines, "address")
        .iter()
        .map(|fact| fact[0].parse().unwrap())
        .collect();
    printed.sort_unstable();
    assert_eq!(
        (context.address, &context.others[..]),
        (printed[0], &printed[1..])
    );
}

#[test]
fn a_malformed_key_map_is_reported() {
    let (_target, mut process) = hostile("no-key-map");
    match process.thread_support().unwrap() {
        ThreadSupport::Unreadable(Unreadable::KeyMap(KeyMapError::NotAnArray)) => {}
        other => panic!("{other:?}"),
    }
}
