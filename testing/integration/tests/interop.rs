//! What other vendors' publishers publish is read exactly: every value is compared with what the
//! target itself prints.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use otelctx_fixtures::Target;
use otelctx_integration::{facts, words};
use otelctx_reader::format::Schema;
use otelctx_reader::format::process_context::{Attributes, Value};
use otelctx_reader::{ContextState, Found, Process, ProcessContext};

fn context(process: &mut Process) -> std::sync::Arc<ProcessContext> {
    match process.context().unwrap() {
        ContextState::Published(context) => context,
        other => panic!("{other:?}"),
    }
}

fn pairs(attributes: &Attributes) -> Vec<(String, String)> {
    attributes
        .iter()
        .map(|(key, value)| (key.clone(), words(value)))
        .collect()
}

#[test]
fn what_libdd_publishes_is_read_exactly() {
    let target = Target::spawn(&mut Command::new(env!("CARGO_BIN_EXE_libdd")));
    let printed = |word| -> Vec<(String, String)> {
        facts(&target.lines, word)
            .iter()
            .map(|fact| (fact[0].clone(), fact[1].clone()))
            .collect()
    };
    let mut process = Process::open(target.pid()).unwrap();
    let context = context(&mut process);
    assert_eq!(pairs(&context.payload.resource), printed("resource"));
    assert_eq!(pairs(&context.payload.attributes), printed("attribute"));
    assert!(
        printed("resource").len() >= 8 && printed("attribute").len() >= 3,
        "{:?}",
        target.lines
    );
    assert_eq!(context.schema, Some(Schema::TlsdescV1Dev));
    assert_eq!(
        context.keys.clone().unwrap().unwrap().names(),
        facts(&target.lines, "keys")[0]
    );
    assert_eq!((context.problems.len(), context.others.len()), (0, 0));

    let mut read = BTreeMap::new();
    for thread in process.threads().unwrap() {
        if let Found::Attached(context) = thread.context().unwrap() {
            assert!(context.skipped.is_empty());
            let mut fact = vec![
                thread.tid().to_string(),
                context.trace_id.to_string(),
                context.span_id.to_string(),
                context.trace_flags.0.to_string(),
            ];
            fact.extend(
                context
                    .attributes
                    .iter()
                    .map(|(name, value)| format!("{name}={value}")),
            );
            read.insert(fact[0].clone(), fact);
        }
    }
    let printed = facts(&target.lines, "thread")
        .into_iter()
        .map(|fact| (fact[0].clone(), fact.to_vec()));
    assert_eq!(read, printed.collect());
    assert_eq!(read.len(), 3);
}

#[test]
fn what_ddtrace_publishes_from_python_is_read_exactly() {
    let packages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/setup/ddtrace");
    if !packages.join("ddtrace").is_dir() {
        eprintln!(
            "skipped: ddtrace is not in {}; `cargo xtask setup` installs it",
            packages.display()
        );
        return;
    }
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ddtrace_program.py");
    let mut command = Command::new("python3");
    command.arg(program).env("PYTHONPATH", packages);
    let target = Target::spawn(&mut command);

    let mut process = Process::open(target.pid()).unwrap();
    let context = context(&mut process);
    for fact in facts(&target.lines, "resource") {
        let value = context.payload.resource_attribute(&fact[0]);
        assert_eq!(value, Some(&Value::from(fact[1].as_str())), "{}", fact[0]);
    }
    assert_eq!(facts(&target.lines, "resource").len(), 5);
    assert_eq!(context.schema, Some(Schema::TlsdescV1Dev));

    let mut seen = 0;
    for thread in process.threads().unwrap() {
        let tid = thread.tid().to_string();
        let printed = facts(&target.lines, "thread")
            .into_iter()
            .find(|fact| fact[0] == tid);
        match (thread.context().unwrap(), printed) {
            (Found::Attached(context), Some(fact)) => {
                seen += 1;
                assert_eq!(context.trace_id.to_string(), fact[1]);
                assert_eq!(context.span_id.to_string(), fact[2]);
                let root = ("datadog.local_root_span_id".to_owned(), fact[3].clone());
                assert!(context.attributes.contains(&root), "{context:?}");
            }
            (Found::Detached, None) => {}
            (read, printed) => panic!("thread {tid}: read {read:?}, the target says {printed:?}"),
        }
    }
    assert_eq!(seen, 2);
}
