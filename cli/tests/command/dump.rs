//! `otelctx dump`: exact values.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use otelctx_fixtures::{Compiler, Target as Fixture};
use serde_json::{Value, json};

use crate::run::{Answer, Scratch, command, otelctx, under_strace};
use crate::target::{self, SPAN, TRACE, Target, wait_until_asleep};

/// Path of the program that targets run.
fn program() -> String {
    target::program().to_str().unwrap().to_owned()
}

/// The thread of this name, as the answer has it.
fn thread<'a>(answer: &'a Value, name: &str) -> &'a Value {
    let threads = answer["threads"].as_array().unwrap();
    threads
        .iter()
        .find(|thread| thread["name"] == name)
        .unwrap()
}

#[test]
fn json_has_every_published_value() {
    let target = Target::start("shop");
    let mut answer = otelctx(&["dump", &target.pid().to_string(), "--json"])
        .expect(0)
        .json();
    let published = answer["process_context"]["monotonic_published_at_ns"].take();
    assert!(published.as_str().unwrap().parse::<u64>().unwrap() > 0);
    assert_eq!(
        answer["process_context"],
        json!({
            "mapping": "/memfd:OTEL_CTX (deleted)",
            "version": 2,
            "monotonic_published_at_ns": null,
            "resource": {
                "service.name": "shop",
                "telemetry.sdk.language": "rust",
                "replicas": 3,
                "ratio": 0.5,
                "canary": true,
                "digest": "dead",
                "zones": ["a", "b"],
                "limits": {"cpu": 2},
            },
            "attributes": {
                "deployment": "blue",
                "threadlocal.schema_version": "tlsdesc_v1_dev",
                "threadlocal.attribute_key_map": ["http.route", "http.request.method"],
            },
        })
    );
    assert_eq!(
        answer["thread_context"],
        json!({
            "schema": "tlsdesc_v1_dev",
            "symbol": "otel_thread_ctx_v1",
            "module": program(),
            "access": "local-exec",
            "storage": "static",
            "keys": ["http.route", "http.request.method"],
        })
    );
    assert_eq!(answer["pid"], target.pid());
    assert_eq!(answer.get("detected"), None);
    assert_eq!(
        thread(&answer, "worker-1"),
        &json!({
            "tid": target.number("worker-1"),
            "name": "worker-1",
            "context": {
                "trace_id": TRACE,
                "span_id": SPAN,
                "trace_flags": 1,
                "attributes": {"http.route": "/cart", "http.request.method": "GET"},
            },
        })
    );
    assert_eq!(thread(&answer, "worker-2")["context"], Value::Null);
    assert_eq!(
        thread(&answer, "worker-3")["context"],
        json!({
            "trace_id": null,
            "span_id": null,
            "trace_flags": 0,
            "attributes": {"http.route": "/none"},
        })
    );
    assert_eq!(
        thread(&answer, "worker-4")["context"],
        json!({"trace_id": TRACE, "span_id": SPAN, "trace_flags": 0x81, "attributes": {}})
    );
    // And the first.
    assert_eq!(answer["threads"].as_array().unwrap().len(), 5);
}

#[test]
fn text_has_it_in_columns() {
    let target = Target::start("shop");
    wait_until_asleep(target.pid(), 0);
    let answer = otelctx(&["dump", &target.pid().to_string()]).expect(0);
    assert_eq!(answer.stderr, "");
    let mut lines = answer.stdout.lines();
    let pid = target.pid();
    assert_eq!(lines.next().unwrap(), format!("shop  pid {pid}  rust"));
    assert_eq!(
        lines.next().unwrap(),
        "  resource  service.name=shop  telemetry.sdk.language=rust  replicas=3  ratio=0.5  \
         canary=true  digest=0xdead  zones=[a, b]  limits={cpu=2}"
    );
    assert_eq!(lines.next().unwrap(), "  context   deployment=blue");
    assert_eq!(
        lines.next().unwrap(),
        format!(
            "  threads   otel_thread_ctx_v1 in {}, local-exec, 2 keys",
            program()
        )
    );
    assert_eq!(lines.next().unwrap(), "  read      5 threads, none stopped");
    assert_eq!(lines.next().unwrap(), "");
    let head = lines.next().unwrap();
    let rows: Vec<&str> = lines.collect();
    let row = |name: &str| {
        let tid = target.number(name).to_string();
        *rows
            .iter()
            .find(|row| row.trim_start().starts_with(&tid))
            .unwrap()
    };
    // Every cell starts below its head.
    let at = |row: &str, column: &str| row[head.find(column).unwrap()..].to_owned();
    assert_eq!(
        at(row("worker-1"), "TRACE"),
        format!("{TRACE}  {SPAN}  http.route=/cart  http.request.method=GET")
    );
    assert_eq!(
        at(row("worker-2"), "NAME")
            .trim_start_matches("worker-2")
            .trim_start(),
        "none attached"
    );
    assert!(at(row("worker-3"), "ATTRIBUTES").starts_with("http.route=/none"));
    assert_eq!(at(row("worker-4"), "TRACE"), format!("{TRACE}  {SPAN}"));
}

#[test]
fn a_process_that_publishes_nothing_is_described_from_outside() {
    let target = Target::start_with("silent", |command| {
        command.env("OTEL_SERVICE_NAME", "quiet");
    });
    let pid = target.pid();
    let answer = otelctx(&["dump", &pid.to_string(), "--json"])
        .expect(0)
        .json();
    assert_eq!(answer["process_context"], Value::Null);
    assert_eq!(answer["thread_context"], Value::Null);
    assert_eq!(answer["threads"][0]["context"], Value::Null);
    let detected = &answer["detected"]["resource"];
    assert_eq!(detected["service.name"], "quiet");
    assert_eq!(detected["process.pid"], pid);
    assert_eq!(detected["process.executable.path"], program());

    let text = otelctx(&["dump", &pid.to_string()]).expect(0).stdout;
    assert!(
        text.starts_with(&format!(
            "quiet  pid {pid}\n  publishes no process context\n  detected  service.name=quiet  "
        )),
        "{text}"
    );
}

#[test]
fn what_is_broken_is_an_error_and_what_is_absent_is_none() {
    for (scenario, error) in [
        ("newer_version", "version 3"),
        ("enormous", "4294967295 bytes"),
        ("dangling", "payload cannot be read"),
    ] {
        let target = Target::start(scenario);
        let answer = otelctx(&["dump", &target.pid().to_string(), "--json"])
            .expect(1)
            .json();
        for field in ["process_context", "thread_context"] {
            let reported = answer[field]["error"].as_str().unwrap();
            assert!(reported.contains(error), "{scenario}: {field}: {reported}");
        }
        assert!(answer["threads"][0]["context"]["error"].is_string());
        // Threads that can be read all the same do not make it right.
        otelctx(&["dump", &target.pid().to_string(), "--force"]).expect(1);
        let text = otelctx(&["dump", &target.pid().to_string()])
            .expect(1)
            .stdout;
        assert!(text.contains(error), "{text}");
    }
}

#[test]
fn a_larger_payload_is_read_when_asked_for() {
    let target = Target::start("shop");
    let pid = target.pid().to_string();
    let answer = otelctx(&["dump", &pid, "--json", "--max-payload", "64"])
        .expect(1)
        .json();
    let error = answer["process_context"]["error"].as_str().unwrap();
    assert!(error.contains("more than the limit of 64"), "{error}");
    // The reason is reported once.
    let text = otelctx(&["dump", &pid, "--max-payload", "64"])
        .expect(1)
        .stdout;
    assert_eq!(
        text.matches("more than the limit of 64").count(),
        1,
        "{text}"
    );
    assert!(text.contains("threads, unreadable without it\n"), "{text}");
    otelctx(&["dump", &pid, "--json", "--max-payload", "4096"]).expect(0);
}

#[test]
fn less_of_a_record_is_read_when_asked_for() {
    let target = Target::start("shop");
    let pid = target.pid().to_string();
    // Header, the first attribute (two bytes and "/cart") and a byte of the second, which has five.
    let answer = otelctx(&["dump", &pid, "--json", "--record-size", "36"])
        .expect(0)
        .json();
    let context = &thread(&answer, "worker-1")["context"];
    assert_eq!(context["attributes"], json!({"http.route": "/cart"}));
    assert_eq!(
        context["skipped"],
        json!({"unknown_key": 0, "contested_key": 0, "not_utf8": 0, "incomplete_bytes": 5})
    );
}

#[test]
fn a_second_context_is_reported() {
    let target = Target::start("two_contexts");
    let pid = target.pid().to_string();
    let answer = otelctx(&["dump", &pid, "--json"]).expect(0).json();
    let others = answer["second_contexts"].as_array().unwrap();
    assert_eq!(others.len(), 1);
    let text = otelctx(&["dump", &pid]).expect(0).stdout;
    let warning = format!(
        "a second process context at {}",
        others[0].as_str().unwrap()
    );
    assert!(text.contains(&warning), "{text}");
}

#[test]
fn other_schemas_are_read_by_force_only() {
    for (scenario, schema, forced_text) in [
        ("no_schema", Value::Null, "announces no schema"),
        ("other_schema", "future_v9".into(), "announces future_v9"),
    ] {
        let target = Target::start(scenario);
        let pid = target.pid().to_string();
        let status = if schema.is_null() { 0 } else { 1 };
        let answer = otelctx(&["dump", &pid, "--json"]).expect(status).json();
        assert_eq!(
            thread(&answer, "worker-1")["context"]["trace_id"],
            Value::Null
        );

        let forced = otelctx(&["dump", &pid, "--json", "--force"])
            .expect(0)
            .json();
        assert_eq!(forced["thread_context"]["forced"], true);
        assert_eq!(forced["thread_context"]["schema"], schema);
        assert_eq!(thread(&forced, "worker-1")["context"]["trace_id"], TRACE);
        let text = otelctx(&["dump", &pid, "--force"]).expect(0).stdout;
        assert!(text.contains(forced_text), "{text}");
    }
}

/// Shells do not search the directory of a program, as a rule.
#[test]
fn a_hint_has_the_command_as_it_was_called() {
    let own = Path::new(env!("CARGO_BIN_EXE_otelctx"));
    let mut ended = Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    let hint = |name: &str, program: &Path| {
        let mut command = Command::new(program);
        command.arg0(name).args(["dump", &ended.id().to_string()]);
        command.current_dir(own.parent().unwrap());
        let answer = Answer::of(command.output().unwrap()).expect(2);
        let line = answer.stderr.lines().last().unwrap().trim_start();
        let (command, _) = line.split_once(" lists").expect(line);
        command.to_owned()
    };
    assert_eq!(hint("./otelctx", Path::new("./otelctx")), "`./otelctx ps`");
    assert_eq!(hint("otelctx", own), "`otelctx ps`");
    assert_eq!(hint("/a b/otelctx", own), "`'/a b/otelctx' ps`");
    assert_eq!(hint("", own), "`otelctx ps`");
}

#[test]
fn a_process_that_does_not_exist_can_not_be_dumped() {
    let mut ended = std::process::Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    let pid = ended.id().to_string();
    let own = env!("CARGO_BIN_EXE_otelctx");
    let answer = otelctx(&["dump", &pid]).expect(2);
    assert_eq!(answer.stdout, "");
    assert_eq!(
        answer.stderr,
        format!(
            "otelctx: process {pid} does not exist, or has exited\n  \
             `{own} ps` lists the processes that publish a context\n"
        )
    );
    for (id, why) in [
        ("x", "a process ID is a number"),
        ("0", "process IDs are from 1 to 2147483647"),
        ("2147483648", "process IDs are from 1 to 2147483647"),
    ] {
        let answer = otelctx(&["dump", id]).expect(2);
        assert!(answer.stderr.contains(why), "{answer:?}");
    }
    let answer = otelctx(&["dump"]).expect(2);
    assert!(
        answer
            .stderr
            .contains("<PID|--all|--core <FILE>|--last <SECONDS>>"),
        "{answer:?}"
    );
    let kernel = std::fs::read_to_string("/proc/2/comm");
    if kernel.is_ok_and(|name| name == "kthreadd\n") {
        let answer = otelctx(&["dump", "2"]).expect(2);
        assert_eq!(
            answer.stderr,
            format!(
                "otelctx: process 2 is a kernel thread: it has no memory to publish in\n  \
                 `{own} ps` lists the processes that publish a context\n"
            )
        );
    }
}

#[test]
fn a_thread_stands_for_its_process() {
    let target = Target::start("shop");
    let tid = target.number("worker-1");
    let checked = otelctx(&["check", &tid.to_string(), "--json"]).expect(0);
    let subject = checked.json()["subject"]["process"].clone();
    let of_process = otelctx(&["check", &target.pid().to_string(), "--json"]).expect(0);
    assert_eq!(subject["asked_thread"], tid);
    let of_process = of_process.json()["subject"]["process"].clone();
    assert_eq!(of_process.get("asked_thread"), None);
    for field in ["pid", "comm"] {
        assert_eq!(subject[field], of_process[field]);
    }
    let answer = otelctx(&["dump", &tid.to_string(), "--json"])
        .expect(0)
        .json();
    assert_eq!(answer["pid"], target.pid());
    assert_eq!(answer["asked_thread"], tid);
    assert_eq!(answer["threads"].as_array().unwrap().len(), 5);
    let text = otelctx(&["dump", &tid.to_string()]).expect(0).stdout;
    let head = format!(
        "shop  pid {}  rust\n  asked     thread {tid} of this process\n",
        target.pid()
    );
    assert!(text.starts_with(&head), "{text}");
    let first = otelctx(&["dump", &target.pid().to_string(), "--json"]).json();
    assert_eq!(first.get("asked_thread"), None);
}

#[test]
fn a_payload_that_is_too_large_names_the_option() {
    let target = Target::start("shop");
    let pid = target.pid().to_string();
    let answer = otelctx(&["dump", &pid, "--max-payload", "64"]).expect(1);
    let hint = answer.stderr.lines().nth(1).unwrap();
    let larger = hint.trim().strip_suffix(" reads it").unwrap();
    let (option, size) = larger.split_once(' ').unwrap();
    otelctx(&["dump", &pid, option, size]).expect(0);
    assert!(answer.stdout.contains(larger), "{answer:?}");
}

/// The kernel tells a line break in a name as `\012`.
#[test]
fn a_path_with_a_line_break_is_shown_as_it_is() {
    let copy = crate::run::temporary("line\nbreak");
    otelctx_fixtures::copy_program(target::program(), &copy);
    let target = Target::start_program(&copy, "shop");
    let pid = target.pid().to_string();
    let json = otelctx(&["dump", &pid, "--json"]).json();
    let text = otelctx(&["dump", &pid]).stdout;
    std::fs::remove_file(&copy).unwrap();
    let path = copy.to_str().unwrap();
    assert_eq!(json["thread_context"]["module"], path);
    let shown = format!(" in {}, local-exec", path.replace('\n', "\\n"));
    assert!(text.contains(&shown), "{text}");
}

/// Once to find the context, once to resolve the variable, once to find language runtimes, once to
/// confirm after the threads were read; of a process that publishes nothing the first and the third.
#[test]
fn the_mappings_are_walked_no_more_often_than_needed() {
    let scratch = Scratch::new("walks");
    let log = scratch.folder().join("strace");
    for (kind, walks) in [("shop", 4), ("silent", 2)] {
        let target = Target::start(kind);
        let pid = target.pid().to_string();
        for no_stop in [&[][..], &["--no-stop"]] {
            let dump = command(&[&["dump", &pid], no_stop].concat());
            let Some(mut strace) = under_strace(&dump, "trace=openat", &log) else {
                return;
            };
            let answer = Answer::of(strace.output().unwrap());
            if answer.status == 2 && answer.stderr.contains("eBPF") {
                eprintln!("skipped: {}", answer.stderr.trim_end());
                continue;
            }
            answer.expect(0);
            let calls = std::fs::read_to_string(&log).unwrap();
            let opened = calls.lines().filter(|line| line.contains("\"maps\""));
            assert_eq!(opened.count(), walks, "{kind} {no_stop:?}: {calls}");
        }
    }
}

/// The library that has the variable is not loaded yet, as in the C reference's own example.
#[test]
fn an_announced_variable_that_no_module_has_yet_is_no_failure() {
    let Some(program) = Compiler::gcc().program::<&str>(&["signals.c", "publish.c"], &[]) else {
        return;
    };
    let target = Fixture::spawn(&mut Command::new(program));
    let pid = target.pid().to_string();
    let answer = otelctx(&["dump", &pid, "--json"]).expect(0).json();
    assert_eq!(
        answer["process_context"]["resource"]["service.name"],
        "fixture"
    );
    let text = otelctx(&["dump", &pid]).expect(0).stdout;
    let said = "otel_thread_ctx_v1 is not exported by any module: the library that defines it may \
                not be loaded yet";
    assert!(text.contains(said), "{text}");
    // What is asked for by force has to be there.
    otelctx(&["dump", &pid, "--force"]).expect(1);
}
