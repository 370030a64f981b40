//! A reader that polls a process notices what changed between two polls.

use std::process::Command;
use std::sync::Arc;

use otelctx_fixtures::Target;
use otelctx_reader::format::process_context::Value;
use otelctx_reader::{ContextState, Options, Process, ProcessContext, ThreadSupport, Unreadable};

fn commanded() -> Target {
    Target::spawn(&mut Command::new(env!("CARGO_BIN_EXE_commanded")))
}

#[track_caller]
fn published(process: &mut Process) -> Arc<ProcessContext> {
    match process.context().unwrap() {
        ContextState::Published(context) => context,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn assert_service(process: &mut Process, service: &str) {
    let context = published(process);
    let read = context.payload.resource_attribute("service.name");
    assert_eq!(read, Some(&Value::from(service)));
}

/// The attributes of the main thread's context.
#[track_caller]
fn attributes(process: &mut Process) -> Option<Vec<(String, String)>> {
    let threads = process.threads().unwrap();
    let outcome = threads[0].context().unwrap();
    let context = outcome.attached()?;
    assert_eq!(context.trace_id, [1; 16].into());
    assert_eq!(context.span_id, [2; 8].into());
    Some(context.attributes.clone())
}

fn pairs(pairs: &[(&str, &str)]) -> Option<Vec<(String, String)>> {
    let owned = pairs
        .iter()
        .map(|(name, value)| ((*name).into(), (*value).into()));
    Some(owned.collect())
}

#[test]
fn publishing_late_updating_and_unpublishing_are_noticed() {
    let mut target = commanded();
    let mut process = Process::open(target.pid()).unwrap();
    assert_eq!(process.context().unwrap(), ContextState::Absent);
    assert!(matches!(
        process.thread_support().unwrap(),
        ThreadSupport::Unreadable(Unreadable::NoProcessContext)
    ));
    for round in 0..3 {
        target.command("publish\tone");
        assert_service(&mut process, "one");
        let first = published(&mut process);
        assert!(
            Arc::ptr_eq(&first, &published(&mut process)),
            "decoded once"
        );
        target.command("update\ttwo");
        assert_service(&mut process, "two");
        let second = published(&mut process);
        assert_ne!(
            first.monotonic_published_at_ns,
            second.monotonic_published_at_ns
        );
        assert_eq!(first.address, second.address, "round {round}");
        target.command("unpublish");
        assert_eq!(process.context().unwrap(), ContextState::Absent);
    }
    // At another place, probably.
    target.command("publish\tthree");
    assert_service(&mut process, "three");
    target.command("publish\tfour");
    assert_service(&mut process, "four");
}

#[test]
fn an_exec_is_noticed() {
    let mut target = commanded();
    let mut process = Process::open(target.pid()).unwrap();
    target.command("publish\tone");
    target.command("attach\troute\t/cart");
    assert_eq!(attributes(&mut process), pairs(&[("route", "/cart")]));
    target.command("exec");
    assert_eq!(process.context().unwrap(), ContextState::Absent);
    target.command("publish\ttwo");
    assert_service(&mut process, "two");
    assert_eq!(attributes(&mut process), None);
    target.command("attach\tuser\tanna");
    assert_eq!(attributes(&mut process), pairs(&[("user", "anna")]));
}

#[test]
fn an_exec_is_noticed_where_nothing_was_published() {
    let mut target = commanded();
    let mut options = Options::default();
    options.any_schema = true;
    let mut process = Process::with_options(target.pid(), options).unwrap();
    for _ in 0..2 {
        assert_eq!(attributes(&mut process), None);
        target.command("attach\troute\t/cart");
        // Without a process context no key may be used.
        assert_eq!(attributes(&mut process), pairs(&[]));
        target.command("exec");
    }
    target.command("publish\tone");
    assert_service(&mut process, "one");
}

#[test]
fn keys_that_are_registered_after_the_key_map_was_read_have_their_names() {
    let mut target = commanded();
    target.command("publish\tone");
    let mut process = Process::open(target.pid()).unwrap();
    let threads = process.threads().unwrap();
    for (name, value) in [("route", "/cart"), ("user", "anna")] {
        target.command(&format!("attach\t{name}\t{value}"));
        let outcome = threads[0].context().unwrap();
        let context = outcome.attached().unwrap();
        assert_eq!(Some(context.attributes.clone()), pairs(&[(name, value)]));
        assert!(context.skipped.is_empty());
    }
    let context = published(&mut process);
    let keys = context.keys.clone().unwrap().unwrap();
    assert_eq!(keys.names(), ["route", "user"]);
}

#[test]
fn what_a_process_says_of_itself_stands_in_for_what_it_does_not_publish() {
    let copy = std::env::temp_dir().join(format!("otelctx-replaced-{}", std::process::id()));
    otelctx_fixtures::copy_program(env!("CARGO_BIN_EXE_commanded"), &copy);
    let target = Target::spawn(
        Command::new(&copy)
            .env("OTEL_SERVICE_NAME", "quiet")
            .env("OTEL_RESOURCE_ATTRIBUTES", "a=1,service.name=other,b=x%20y"),
    );
    // As a package upgrade does.
    std::fs::remove_file(&copy).unwrap();
    let process = Process::open(target.pid()).unwrap();
    let detected = process.detected().unwrap();
    let name = copy.file_name().unwrap().to_string_lossy();
    let expected: [(String, Value); 6] = [
        ("service.name".into(), "quiet".into()),
        ("a".into(), "1".into()),
        ("b".into(), "x y".into()),
        ("process.pid".into(), i64::from(target.pid()).into()),
        ("process.executable.name".into(), name.as_ref().into()),
        (
            "process.executable.path".into(),
            copy.to_string_lossy().as_ref().into(),
        ),
    ];
    assert_eq!(detected.resource, expected);
    assert!(!detected.malformed_variable);

    let target = Target::spawn(
        Command::new(env!("CARGO_BIN_EXE_commanded"))
            .env_remove("OTEL_SERVICE_NAME")
            .env("OTEL_RESOURCE_ATTRIBUTES", "a=1,b"),
    );
    let detected = Process::open(target.pid()).unwrap().detected().unwrap();
    assert!(detected.malformed_variable);
    assert!(
        detected
            .resource
            .iter()
            .all(|(key, _)| key.starts_with("process."))
    );
}
