//! Unusual records and variables are read as far as they are well formed, and get a clear error
//! otherwise.

use std::process::Command;

use otelctx_fixtures::Target;
use otelctx_reader::format::TraceFlags;
use otelctx_reader::format::record::{DecodedContext, Skipped};
use otelctx_reader::{Error, Found, Options, Process};

fn hostile(task: &str) -> (Target, Process) {
    let target = Target::spawn(Command::new(env!("CARGO_BIN_EXE_hostile")).arg(task));
    let process = Process::open(target.pid()).unwrap();
    (target, process)
}

#[test]
fn a_variable_that_points_at_no_record_is_an_error() {
    for (task, reason) in [
        ("record-nowhere", "no readable memory at 0x10"),
        ("record-odd", "a record's address is even"),
        (
            "record-in-kernel",
            "no readable memory at 0xfffffffffffffffe",
        ),
    ] {
        let (target, mut process) = hostile(task);
        let threads = process.threads().unwrap();
        assert_eq!(threads.len(), 1, "{task}");
        match threads[0].context() {
            Err(Error::Pointer {
                tid,
                reason: expected,
                ..
            }) => {
                assert_eq!(tid, target.pid());
                assert!(expected.contains(reason), "{task}: {expected}");
            }
            other => panic!("{task}: {other:?}"),
        }
    }
}

/// The outcome of reading a target's only thread.
fn only_thread(process: &mut Process) -> Result<Found<DecodedContext>, Error> {
    let threads = process.threads().unwrap();
    assert_eq!(threads.len(), 1);
    threads[0].context()
}

/// Asserts that the only thread has the context of this file's records, with these attributes.
#[track_caller]
fn assert_attached(process: &mut Process, attributes: &[(&str, &str)]) -> Skipped {
    let outcome = only_thread(process).unwrap();
    let context = outcome.attached().unwrap();
    assert_eq!(context.trace_id, [1; 16].into());
    assert_eq!(context.span_id, [2; 8].into());
    assert_eq!(context.trace_flags, TraceFlags::SAMPLED);
    let read: Vec<_> = context
        .attributes
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    assert_eq!(read, attributes);
    context.skipped
}

fn with_options(target: &Target, set: impl FnOnce(&mut Options)) -> Process {
    let mut options = Options::default();
    set(&mut options);
    Process::with_options(target.pid(), options).unwrap()
}

#[test]
fn records_are_read_only_under_a_schema_that_announces_them() {
    let (_target, mut process) = hostile("final-schema");
    assert!(assert_attached(&mut process, &[("a", "x")]).is_empty());

    for (task, expected) in [
        (
            "no-schema",
            "no schema: it does not publish threadlocal.schema_version",
        ),
        ("other-schema", "unsupported schema other\\u{1b}[2J"),
    ] {
        let (target, mut process) = hostile(task);
        match only_thread(&mut process) {
            Err(Error::Unreadable { why, .. }) => assert_eq!(why.to_string(), expected),
            other => panic!("{task}: {other:?}"),
        }
        let mut process = with_options(&target, |options| options.any_schema = true);
        let outcome = only_thread(&mut process).unwrap();
        assert_eq!(outcome.attached().unwrap().trace_id, [1; 16].into());
    }
}

#[test]
fn the_last_of_repeated_keys_wins_and_skipped_entries_are_counted() {
    let (_target, mut process) = hostile("record-with-repeats");
    // The last value of `b` is not UTF-8: the earlier one does not stand in for it.
    let skipped = assert_attached(&mut process, &[("a", "z")]);
    assert_eq!((skipped.unknown_key, skipped.not_utf8), (1, 1));
    assert_eq!(skipped.incomplete_bytes, 0);
}

#[test]
fn a_record_may_end_where_readable_memory_ends() {
    let (_target, mut process) = hostile("record-at-page-end");
    assert!(assert_attached(&mut process, &[("a", "xy")]).is_empty());
}

#[test]
fn a_record_that_is_not_valid_is_no_context() {
    let (_target, mut process) = hostile("record-not-valid");
    assert_eq!(only_thread(&mut process).unwrap(), Found::Invalid);
}

#[test]
fn a_large_record_is_read_as_far_as_asked_for() {
    // Behind `a`: 255 entries of 256 bytes, then `b` = last.
    let (target, mut process) = hostile("record-large");
    let middle = "y".repeat(254);
    let skipped = assert_attached(&mut process, &[("a", "x"), ("b", &middle)]);
    let attributes = 3 + 255 * 256 + 6;
    assert_eq!(skipped.incomplete_bytes, attributes - 3 - 2 * 256);
    // The smallest and the largest limit also stand for what lies beyond them.
    for max_record in [0, 28] {
        let mut process = with_options(&target, |options| options.max_record = max_record);
        let skipped = assert_attached(&mut process, &[]);
        assert_eq!(skipped.incomplete_bytes, attributes);
    }
    for max_record in [28 + attributes, 65_563, usize::MAX] {
        let mut process = with_options(&target, |options| options.max_record = max_record);
        assert!(assert_attached(&mut process, &[("a", "x"), ("b", "last")]).is_empty());
    }
}
