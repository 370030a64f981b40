//! A process context that is being rewritten is read whole or not at all.

use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use otelctx_fixtures::Target;
use otelctx_integration::checksum;
use otelctx_reader::format::process_context::Value;
use otelctx_reader::{Broken, ContextState, Process, ProcessContext};

/// Fails unless the payload is one that was published as a whole.
fn check(context: &ProcessContext) {
    let attribute = |key| context.payload.resource_attribute(key);
    match (
        attribute("number"),
        attribute("checksum"),
        attribute("filler"),
    ) {
        (Some(Value::Int(number)), Some(Value::Int(sum)), Some(Value::String(filler))) => {
            assert_eq!(
                *sum,
                checksum(*number, filler),
                "a torn payload was accepted"
            );
        }
        other => panic!("a torn payload was accepted: {other:?}"),
    }
}

/// Reads `reads` times from each of `readers` threads, each with its own [`Process`]; returns how
/// many reads succeeded. Each makes at most five attempts.
fn read(pid: i32, readers: usize, reads: u64) -> u64 {
    let succeeded = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..readers {
            scope.spawn(|| {
                let mut process = Process::open(pid).unwrap();
                for _ in 0..reads {
                    match process.context().unwrap() {
                        ContextState::Published(context) => {
                            check(&context);
                            succeeded.fetch_add(1, Ordering::Relaxed);
                        }
                        ContextState::Broken(Broken::BeingUpdated { tries }) => {
                            assert_eq!(tries, 5)
                        }
                        other => panic!("{other:?}"),
                    }
                }
            });
        }
    });
    succeeded.into_inner()
}

#[test]
fn a_context_updated_as_fast_as_can_be_is_never_torn() {
    let target = Target::spawn(&mut Command::new(env!("CARGO_BIN_EXE_updating")));
    let succeeded = read(target.pid(), 10, 100_000);
    println!("{succeeded} of 1,000,000 reads succeeded within 5 tries");
    assert!(
        succeeded >= 500_000,
        "only {succeeded} of 1,000,000 reads succeeded"
    );
}

#[test]
fn a_context_updated_a_thousand_times_a_second_is_nearly_always_read() {
    let target = Target::spawn(Command::new(env!("CARGO_BIN_EXE_updating")).arg("1000"));
    let succeeded = read(target.pid(), 1, 100_000);
    println!("{succeeded} of 100,000 reads succeeded within 5 tries");
    assert!(
        succeeded >= 99_900,
        "only {succeeded} of 100,000 reads succeeded"
    );
}
