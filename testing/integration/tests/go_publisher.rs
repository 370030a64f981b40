//! The process context that the Go module publishes, as a reader finds it.

#[allow(dead_code)]
#[path = "../../../publish/otelctx/tests/seccomp/mod.rs"]
mod seccomp;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::Arc;

use otelctx_fixtures::{Target, go_package};
use otelctx_integration::{checksum, facts};
use otelctx_reader::format::process_context::{Header, Payload, Value};
use otelctx_reader::{Broken, ContextState, Process, ProcessContext};

/// The test program, with what it shall do. `None`, with a line on standard error, without Go.
fn program(argument: &str) -> Option<Command> {
    let program = go_package("publish/go/internal/testprogram", "publish/go")?;
    let mut command = Command::new(program);
    command.arg(argument);
    Some(command)
}

fn context(pid: i32) -> ContextState {
    Process::open(pid).unwrap().context().unwrap()
}

fn published(pid: i32) -> Arc<ProcessContext> {
    match context(pid) {
        ContextState::Published(context) => context,
        other => panic!("{other:?}"),
    }
}

fn service_name(pid: i32) -> Option<Value> {
    let context = published(pid);
    context.payload.resource_attribute("service.name").cloned()
}

/// What a program has said that it could not do.
fn refused(target: &Target) -> String {
    facts(&target.lines, "refused").concat().concat()
}

fn schema() -> (String, Value) {
    (
        "threadlocal.schema_version".into(),
        "go_pprof_labels_v1".into(),
    )
}

#[test]
fn values_of_all_types_are_read_and_their_bytes_are_those_of_the_rust_publisher() {
    let Some(mut program) = program("values") else {
        return;
    };
    let target = Target::spawn(&mut program);
    assert_eq!(refused(&target), "");
    let resource: Vec<(&str, Value)> = vec![
        ("service.name", "shop".into()),
        ("text", "Zürich".into()),
        ("no text", "".into()),
        ("true", true.into()),
        ("false", false.into()),
        ("zero", 0_i64.into()),
        ("smallest", i64::MIN.into()),
        ("largest", i64::MAX.into()),
        ("fraction", (-0.5).into()),
        ("infinite", f64::INFINITY.into()),
        ("bytes", Value::Bytes(vec![0xff, 0, 0x80])),
        ("not set", Value::Empty),
        (
            "list",
            Value::Array(vec![
                80_i64.into(),
                "x".into(),
                Value::Empty,
                Value::Array(vec![]),
            ]),
        ),
        (
            "map",
            Value::Map(vec![
                ("a".into(), 1_i64.into()),
                ("b".into(), Value::Map(vec![("c".into(), true.into())])),
            ]),
        ),
        ("long", "x".repeat(20_000).into()),
    ];
    let expected = Payload {
        resource: resource
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect(),
        attributes: vec![("context.attribute".into(), "y".into()), schema()],
    };
    let context = published(target.pid());
    assert_eq!(context.payload, expected);
    assert_eq!(context.problems, []);
    assert_eq!(context.others, []);
    assert_eq!(context.keys, Ok(None));
    assert!(context.schema.as_ref().unwrap().is_go_labels());

    let memory = File::open(format!("/proc/{}/mem", target.pid())).unwrap();
    let mut header = [0; 32];
    memory.read_exact_at(&mut header, context.address).unwrap();
    let header = Header::decode(&header).unwrap();
    let mut payload = vec![0; header.payload_size as usize];
    memory
        .read_exact_at(&mut payload, header.payload_address)
        .unwrap();
    assert_eq!(payload, expected.encode());
}

#[test]
fn detected_attributes_are_those_of_the_environment_and_the_process() {
    let Some(mut program) = program("detected") else {
        return;
    };
    program.env("OTEL_SERVICE_NAME", "shop");
    program.env("OTEL_RESOURCE_ATTRIBUTES", "a=1,b=x%2Cy,service.name=z");
    let path = program.get_program().to_str().unwrap().to_owned();
    let path = std::fs::canonicalize(path).unwrap();
    let target = Target::spawn(&mut program);
    let mut resource = published(target.pid()).payload.resource.clone();
    let Some((key, Value::String(instance))) = resource.pop() else {
        panic!("{resource:?}");
    };
    assert_eq!((key.as_str(), instance.len()), ("service.instance.id", 36));
    let name = path.file_name().unwrap().to_str().unwrap();
    let expected: Vec<(&str, Value)> = vec![
        ("service.name", "shop".into()),
        ("telemetry.sdk.language", "go".into()),
        ("telemetry.sdk.name", "otelctx".into()),
        ("telemetry.sdk.version", env!("CARGO_PKG_VERSION").into()),
        ("process.executable.name", name.into()),
        ("process.executable.path", path.to_str().unwrap().into()),
        ("process.pid", i64::from(target.pid()).into()),
        ("a", "1".into()),
        ("b", "x,y".into()),
    ];
    let expected = expected
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value));
    assert_eq!(resource, expected.collect::<Vec<_>>());
}

#[test]
fn an_import_publishes_before_main() {
    let Some(program) = go_package("publish/go/internal/autoprogram", "publish/go") else {
        return;
    };
    let target = Target::spawn(Command::new(program).env("OTEL_SERVICE_NAME", "shop"));
    assert_eq!(service_name(target.pid()), Some("shop".into()));
    assert!(refused(&target).starts_with("a process context is already published"));
}

#[test]
fn a_context_updated_as_fast_as_can_be_is_never_torn() {
    let Some(mut program) = program("updating") else {
        return;
    };
    const READS: i32 = 100_000;
    let target = Target::spawn(&mut program);
    let mut process = Process::open(target.pid()).unwrap();
    let (mut succeeded, mut last) = (0, -1);
    for _ in 0..READS {
        let context = match process.context().unwrap() {
            ContextState::Published(context) => context,
            ContextState::Broken(Broken::BeingUpdated { .. }) => continue,
            other => panic!("{other:?}"),
        };
        let attribute = |key| context.payload.resource_attribute(key);
        let (Some(Value::Int(number)), Some(Value::Int(sum)), Some(Value::String(filler))) = (
            attribute("number"),
            attribute("checksum"),
            attribute("filler"),
        ) else {
            panic!("a torn payload was accepted: {context:?}");
        };
        assert_eq!(*sum, checksum(*number, filler), "a torn payload was read");
        assert!(*number >= last, "{number} after {last}");
        last = *number;
        succeeded += 1;
    }
    println!("{succeeded} of {READS} reads succeeded, up to update {last}");
    assert!(succeeded > READS / 2, "{succeeded}");
    assert!(last > 0, "nothing was updated");
}

#[test]
fn a_context_is_replaced_and_withdrawn() {
    let Some(mut program) = program("commanded") else {
        return;
    };
    let mut target = Target::spawn(&mut program);
    assert_eq!(context(target.pid()), ContextState::Absent);
    target.command("publish shop");
    let first = published(target.pid());
    assert_eq!(service_name(target.pid()), Some("shop".into()));
    target.command("update store");
    let second = published(target.pid());
    assert_eq!(service_name(target.pid()), Some("store".into()));
    assert_eq!(first.address, second.address);
    assert!(first.monotonic_published_at_ns < second.monotonic_published_at_ns);
    target.command("unpublish");
    assert_eq!(context(target.pid()), ContextState::Absent);
    target.command("publish again");
    assert_eq!(service_name(target.pid()), Some("again".into()));
    assert_eq!(refused(&target), "");
    target.command("publish twice");
    assert!(refused(&target).starts_with("a process context is already published"));
}

#[test]
fn a_child_does_not_show_its_parents_context() {
    let Some(mut program) = program("commanded") else {
        return;
    };
    let mut target = Target::spawn(&mut program);
    target.command("publish shop");
    target.command("start");
    assert_eq!(refused(&target), "");
    let child = facts(&target.lines, "child").concat().concat();
    let child = child.parse().unwrap();
    assert_eq!(context(child), ContextState::Absent);
    assert_eq!(service_name(target.pid()), Some("shop".into()));
    // A fork without an exec, as of a C library in the program, does not copy it either (proc_pid_smaps(5): "dc").
    let maps = std::fs::read_to_string(format!("/proc/{}/smaps", target.pid())).unwrap();
    let (_, mapping) = maps.split_once("OTEL_CTX").unwrap();
    let flags = mapping.lines().find(|line| line.starts_with("VmFlags:"));
    let is_kept = flags.unwrap().split(' ').any(|flag| flag == "dc");
    assert!(is_kept, "{flags:?}");
}

/// Starts the program while system calls are denied to it, or answered with an `errno`.
fn refused_with(answers: &[(libc::c_long, libc::c_int)]) -> Option<Target> {
    let mut program = program("values")?;
    // The filters are of this thread, and of what it starts.
    let spawn = || {
        for (call, errno) in answers {
            seccomp::answer(&[*call], *errno);
        }
        Target::spawn(&mut program)
    };
    Some(std::thread::scope(|scope| {
        scope.spawn(spawn).join().unwrap()
    }))
}

#[test]
fn a_step_that_fails_is_named_and_nothing_stays_mapped() {
    let cases: [(&str, &[(libc::c_long, libc::c_int)]); 4] = [
        (
            "the process context was not published, because no reader could find it: memfd_create: operation not \
             permitted; prctl(PR_SET_VMA_ANON_NAME): permission denied. Allow memfd_create, or prctl on a kernel with \
             CONFIG_ANON_VMA_NAME",
            &[
                (libc::SYS_memfd_create, libc::EPERM),
                (libc::SYS_prctl, libc::EACCES),
            ],
        ),
        (
            "the process context was not published: ftruncate: operation not permitted",
            &[(libc::SYS_ftruncate, libc::EPERM)],
        ),
        (
            "the process context was not published: madvise(MADV_DONTFORK): operation not permitted",
            &[(libc::SYS_madvise, libc::EPERM)],
        ),
        // A memfd is enough.
        ("", &[(libc::SYS_prctl, libc::EPERM)]),
    ];
    for (message, answers) in cases {
        let Some(target) = refused_with(answers) else {
            return;
        };
        assert_eq!(refused(&target), message);
        let is_published = matches!(context(target.pid()), ContextState::Published(_));
        assert_eq!(is_published, message.is_empty(), "{message}");
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", target.pid())).unwrap();
        let mappings = maps.matches("OTEL_CTX").count();
        assert_eq!(mappings, usize::from(message.is_empty()), "{message}");
    }
}

/// Where sandboxes deny memfd_create, the name of an anonymous mapping is enough. This kernel may name none, so the call is
/// answered.
#[test]
fn without_a_memfd_an_anonymous_mapping_is_named() {
    let answers = [(libc::SYS_memfd_create, libc::EPERM), (libc::SYS_prctl, 0)];
    let Some(target) = refused_with(&answers) else {
        return;
    };
    assert_eq!(refused(&target), "");
    // Nothing else maps a page whose first bytes are the signature.
    let memory = File::open(format!("/proc/{}/mem", target.pid())).unwrap();
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", target.pid())).unwrap();
    let mut found = Vec::new();
    for line in maps.lines().filter(|line| line.contains("rw-p")) {
        let start = u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
        let mut bytes = [0; 32];
        if memory.read_exact_at(&mut bytes, start).is_ok()
            && let Ok(header) = Header::decode(&bytes)
        {
            found.push(header);
        }
    }
    let [header] = found[..] else {
        panic!("{found:?}");
    };
    assert!(header.monotonic_published_at_ns > 0 && header.payload_size > 20_000);
}
