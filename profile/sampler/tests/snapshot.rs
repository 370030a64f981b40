//! The contexts of all threads without stopping them: what the program says, and never a mixture of
//! two records.
//!
//! Needs the right to use eBPF, and Linux 5.18.

use std::process::Command;

use otelctx_fixtures::Target;
use otelctx_fixtures::kernel::Feature;
use otelctx_fixtures::sampled::Sampled;
use otelctx_reader::{Process, ThreadSupport};
use otelctx_sampler::sample::{Found, ReadStep};
use otelctx_sampler::{Snapshots, ThreadSnapshot};

fn read(snapshots: &mut Snapshots, process: &mut Process) -> Vec<ThreadSnapshot> {
    let ThreadSupport::Readable(variables) = process.thread_support().unwrap() else {
        panic!("its threads have contexts");
    };
    snapshots.threads(process, &variables).unwrap()
}

fn load() -> Option<Snapshots> {
    Feature::Snapshots.or_skip(Snapshots::load(640))
}

#[test]
fn every_thread_is_what_it_says() {
    let Some(mut snapshots) = load() else { return };
    let Some(program) = Sampled::own().workers() else {
        return;
    };
    for way in ["busy", "asleep"] {
        let target = Target::spawn(Command::new(&program).args(["workers=8", way]));
        let mut process = Process::open(target.pid()).unwrap();
        let threads = read(&mut snapshots, &mut process);
        for truth in &target.threads {
            let thread = threads.iter().find(|thread| thread.tid == truth.tid);
            let thread = thread.unwrap();
            assert_eq!(thread.name, truth.name);
            match (&thread.context, &truth.attached) {
                (Found::Attached(context), Some(attached)) => {
                    assert_eq!(context.trace_id.to_string(), attached.trace_id);
                    assert_eq!(context.span_id.to_string(), attached.span_id);
                    let attribute = ("worker".to_owned(), truth.name.clone());
                    assert_eq!(context.attributes, [attribute]);
                }
                (Found::Detached, None) => {}
                other => panic!("{other:?}"),
            }
        }
        // The main thread and the one that reads commands have none.
        assert_eq!(threads.len(), target.threads.len() + 2);
    }
}

#[test]
fn no_context_is_a_mixture() {
    let Some(mut snapshots) = load() else { return };
    let Some(program) = Sampled::own().spans() else {
        return;
    };
    let log = std::env::temp_dir().join(format!("snapshot-{}.log", std::process::id()));
    let argument = format!("log={}", log.display());
    let target = Target::spawn(Command::new(&program).args([&argument, "seconds=20"]));
    let mut process = Process::open(target.pid()).unwrap();
    let (mut attached, mut torn) = (0, 0);
    for _ in 0..100 {
        for thread in read(&mut snapshots, &mut process) {
            match thread.context {
                Found::Attached(context) => {
                    let id = u64::from_be_bytes(context.span_id.to_bytes());
                    let letter = |at: u32| char::from(b'a' + ((id >> (4 * at)) % 16) as u8);
                    let expected: String = (0..8).map(letter).collect();
                    let attribute = ("worker".to_owned(), expected);
                    assert_eq!(context.attributes, [attribute], "{context:?}");
                    // A task's record may be another thread's by the time that it is read.
                    attached += 1;
                }
                Found::Invalid | Found::Unreadable(ReadStep::Verify) => torn += 1,
                _ => {}
            }
        }
    }
    std::fs::remove_file(&log).unwrap();
    eprintln!("{attached} attached, {torn} torn");
    assert!(attached > 100, "{attached} attached, {torn} torn");
}
