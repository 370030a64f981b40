//! Workers of a pre-forking server, as a reader sees them.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;

use otelctx_fixtures::Target;
use otelctx_integration::facts;
use otelctx_reader::format::process_context::{Attributes, Value};
use otelctx_reader::{ContextState, Process, ProcessContext};

/// The server, and each worker's pid and count of allocations in `fork`.
fn serve(arguments: &[&str]) -> (Target, Vec<(i32, String)>) {
    let program = env!("CARGO_BIN_EXE_prefork");
    let target = Target::spawn(Command::new(program).args(arguments));
    let workers = facts(&target.lines, "worker");
    let workers = workers
        .into_iter()
        .map(|fact| (fact[0].parse().unwrap(), fact[1].clone()))
        .collect();
    (target, workers)
}

#[track_caller]
fn published(process: &mut Process) -> Arc<ProcessContext> {
    match process.context().unwrap() {
        ContextState::Published(context) => context,
        other => panic!("{other:?}"),
    }
}

/// The resource by name, without the given names.
fn without(context: &ProcessContext, names: &[&str]) -> Attributes {
    let mut resource = context.payload.resource.clone();
    resource.retain(|(key, _)| !names.contains(&&**key));
    resource.sort_by(|(a, _), (b, _)| a.cmp(b));
    resource
}

#[test]
fn each_worker_publishes_a_context_of_its_own() {
    let (target, workers) = serve(&["republish"]);
    assert_eq!(workers.len(), 20);
    let parents = published(&mut Process::open(target.pid()).unwrap());
    let parents_keys = parents.keys.clone().unwrap().unwrap().names().to_vec();
    let differ = ["process.pid", "service.instance.id", "round"];

    let mut ids = BTreeSet::new();
    let mut add_id = |context: &ProcessContext| {
        let Some(Value::String(id)) = context.payload.resource_attribute("service.instance.id")
        else {
            panic!("{context:?}");
        };
        assert_eq!((id.len(), id.as_bytes()[14]), (36, b'4'), "{id}");
        assert!(ids.insert(id.clone()), "{id} again");
    };
    add_id(&parents);
    for (pid, allocations) in workers {
        let mut process = Process::open(pid).unwrap();
        let context = published(&mut process);
        assert_eq!((context.problems.len(), context.others.len()), (0, 0));
        add_id(&context);
        assert_eq!(
            context.payload.resource_attribute("process.pid"),
            Some(&Value::Int(pid.into()))
        );
        assert_eq!(without(&context, &differ), without(&parents, &differ));
        // The parent's keys of that moment, in its order, and the worker's own.
        let keys = context.keys.clone().unwrap().unwrap().names().to_vec();
        let (own, inherited) = keys.split_last().unwrap();
        assert_eq!(own, "worker.key");
        assert_eq!(inherited, &parents_keys[..inherited.len()]);

        let threads = process.threads().unwrap();
        let found = threads[0].context().unwrap();
        let attributes = &found.attached().unwrap().attributes;
        let expected = [
            ("http.route", pid.to_string()),
            ("worker.key", "own".into()),
        ];
        let expected = expected.map(|(key, value)| (key.to_owned(), value));
        assert_eq!(*attributes, expected);
        assert_eq!(allocations, "0", "in fork, in the child");
    }
}

#[test]
fn workers_have_no_context_unless_that_is_asked_for() {
    let (target, workers) = serve(&[]);
    assert_eq!(workers.len(), 20);
    published(&mut Process::open(target.pid()).unwrap());
    for (pid, _) in workers {
        let mut process = Process::open(pid).unwrap();
        assert_eq!(process.context().unwrap(), ContextState::Absent);
    }
}
