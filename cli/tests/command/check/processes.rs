//! Running processes.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use otelctx_fixtures::{Compiler, Node, Target as Fixture};
use otelctx_reader::remote::stop::on_own_thread;
use otelctx_reader::remote::{Process, Stopped};
use serde_json::Value;

use super::{assert_findings, check, compile, finding, findings, program, text};
use crate::run::otelctx;
use crate::target::{self, Target, wait_until_asleep};

/// Properties of the test program's variable: rustc's lld relaxes the descriptors of the crate otelctx.
const VARIABLE: [&str; 3] = [
    "ok exported",
    "ok access local-exec from tlsdesc",
    "ok storage static",
];
const READ: &str = "ok threads";
const IDLE: &str = "note none-attached";

#[test]
fn a_process_that_publishes_everything() {
    let target = Target::start("shop");
    wait_until_asleep(target.pid(), 0);
    let answer = check(target.pid().to_string());
    let context = ["ok process-context", "ok schema", "ok key-map"];
    assert_findings(&answer, &[&context[..], &VARIABLE, &[READ]].concat());
    assert_eq!(
        text(&answer, "threads"),
        "a reader finds the contexts of its 5 threads; 3 attached now"
    );
    let subject = &answer.json()["subject"]["process"];
    let own = target::program();
    assert_eq!(subject["pid"], target.pid());
    assert_eq!(subject["executable"], own.to_str().unwrap());
    assert_eq!(subject["state"], "sleeping");
    // All of them sleep.
    assert_eq!(subject["threads_stopped"], 0);
    assert_eq!(finding(&answer, "storage")["module"], own.to_str().unwrap());
}

#[test]
fn a_process_that_publishes_the_wrong_thing() {
    for (scenario, attached, first) in [
        ("silent", false, &["problem no-process-context"][..]),
        ("newer_version", false, &["problem broken-process-context"]),
        ("enormous", false, &["problem broken-process-context"]),
        ("dangling", false, &["problem broken-process-context"]),
        (
            "no_schema",
            true,
            &["ok process-context", "problem no-schema", "note no-key-map"],
        ),
        (
            "other_schema",
            true,
            &[
                "ok process-context",
                "problem unsupported-schema",
                "note no-key-map",
            ],
        ),
        (
            "no_keys",
            true,
            &["ok process-context", "ok schema", "note no-key-map"],
        ),
        (
            "bad_key_map",
            false,
            &["ok process-context", "ok schema", "problem broken-key-map"],
        ),
        (
            "many_keys",
            false,
            &[
                "ok process-context",
                "note too-many-keys",
                "ok schema",
                "ok key-map",
            ],
        ),
        (
            "odd_keys",
            false,
            &[
                "ok process-context",
                "note attribute",
                "ok schema",
                "ok key-map",
                "note empty-key",
                "note repeated-key",
            ],
        ),
        (
            "empty_name",
            false,
            &[
                "ok process-context",
                "note no-service-name",
                "note attribute",
                "ok schema",
                "ok key-map",
            ],
        ),
        (
            "oversize",
            false,
            &[
                "ok process-context",
                "note oversize",
                "ok schema",
                "ok key-map",
            ],
        ),
        (
            "copied_on_fork",
            false,
            &[
                "ok process-context",
                "note copied-on-fork",
                "ok schema",
                "ok key-map",
            ],
        ),
        (
            "two_contexts",
            false,
            &[
                "ok process-context",
                "note second-process-context",
                "ok schema",
                "ok key-map",
            ],
        ),
    ] {
        let target = Target::start(scenario);
        let idle: &[&str] = if attached { &[] } else { &[IDLE] };
        let expected = [first, &VARIABLE, &[READ], idle].concat();
        assert_findings(&check(target.pid().to_string()), &expected);
    }
}

#[test]
fn what_attaches_a_record_in_the_language_of_the_program() {
    for (language, attaches) in [
        ("rust", " A Rust program calls  context.attach()"),
        ("c", " A C program calls  otelctx_context_attach(record)"),
        ("cpp", " A C++ program calls  context.attach()"),
        ("python", " A Python program calls  otelctx.attach(context)"),
        ("nodejs", " A Node.js program calls  context.run("),
        ("erlang", ""),
    ] {
        let target = Target::start_with("idle", |command| {
            command.arg(language);
        });
        let answer = check(target.pid().to_string());
        let finding = finding(&answer, "none-attached");
        let hint = finding["hint"].as_str().unwrap();
        let expected = format!("Check again under load.{attaches}");
        let has_exporter = hint.contains("no spans there without an exporter");
        assert_eq!(has_exporter, language == "nodejs", "{hint}");
        match attaches {
            "" => assert_eq!(hint, expected),
            _ => assert!(hint.starts_with(&expected), "{hint}"),
        }
    }
}

#[test]
fn a_fork_of_a_process_that_publishes() {
    let target = Target::start("forked");
    let answer = check(target.number("child").to_string());
    let hint = finding(&answer, "no-process-context")["hint"].clone();
    for call in [
        "otelctx::ProcessContext::detect().publish()",
        "otelctx_publish(",
        "import otelctx",
        "--import otelctx/register",
    ] {
        assert!(hint.as_str().unwrap().contains(call), "{hint}");
    }
    let expected = [
        &["problem no-process-context"][..],
        &VARIABLE,
        &[READ, IDLE],
    ];
    assert_findings(&answer, &expected.concat());
    assert_eq!(
        text(&answer, "no-process-context"),
        format!(
            "it publishes no process context; its parent, process {}, does, but a forked child \
             does not inherit it",
            target.pid()
        )
    );
}

#[test]
fn a_process_that_is_stopped_or_traced() {
    let target = Target::start("shop");
    let pid = Pid::from_raw(target.pid());
    kill(pid, Signal::SIGSTOP).unwrap();
    let state = || check(target.pid().to_string());
    let mut answer = state();
    // The signal takes a moment.
    while answer.json()["subject"]["process"]["state"] != "stopped by a signal" {
        answer = state();
    }
    assert_eq!(answer.status, 0);
    assert!(findings(&answer).contains(&READ.to_owned()));
    let process = Process::open(target.pid()).unwrap();
    // Once resumed, it stops again by itself after a moment.
    while process.thread_state(target.pid()).unwrap() != 'T' {
        std::thread::sleep(Duration::from_millis(1));
    }
    kill(pid, Signal::SIGCONT).unwrap();

    // A thread that another tracer has stopped can be read as it is.
    let stopped = Stopped::stop(&process, target.pid(), Duration::from_secs(60)).unwrap();
    let answer = check(target.pid().to_string());
    stopped.resume().unwrap();
    assert_eq!(answer.status, 0);
    assert!(findings(&answer).contains(&READ.to_owned()));

    let target = Target::start("busy");
    let pid = target.pid();
    let threads = Process::open(pid).unwrap().threads().unwrap();
    let thread = threads.iter().find(|it| it.name == "at work").unwrap().tid;
    // The thread runs on, and is traced until the OS thread ends that traces it.
    let answer = on_own_thread(|| {
        // SAFETY: takes numbers only.
        let traced = unsafe { nix::libc::ptrace(nix::libc::PTRACE_SEIZE, thread, 0, 0) };
        assert_eq!(traced, 0);
        check(pid.to_string())
    });
    let answer = answer.unwrap();
    assert_eq!(answer.status, 1);
    let expected = format!(
        "1 thread can't be read: thread {thread} of process {pid} is already traced by process "
    );
    assert!(
        text(&answer, "threads").starts_with(&expected),
        "{answer:?}"
    );
}

#[test]
fn processes_without_memory() {
    let status = std::fs::read_to_string("/proc/2/comm").unwrap_or_default();
    if status == "kthreadd\n" {
        let answer = otelctx(&["check", "2"]).expect(2);
        assert!(
            answer
                .stderr
                .starts_with("otelctx: process 2 is a kernel thread")
        );
    }
    let mut child = Command::new("true").spawn().unwrap();
    let process = Process::open(child.id() as i32).unwrap();
    while process.thread_state(child.id() as i32).unwrap() != 'Z' {
        std::thread::sleep(Duration::from_millis(1));
    }
    let answer = otelctx(&["check", &child.id().to_string()]).expect(2);
    child.wait().unwrap();
    assert!(
        answer.stderr.contains("does not exist, or has exited"),
        "{answer:?}"
    );
}

#[test]
fn a_process_of_32_bits() {
    let gcc = Compiler::gcc();
    let flags = [
        "-m32",
        "-static",
        "-nostdlib",
        "-fno-pie",
        "-no-pie",
        "-fno-stack-protector",
        "-ffreestanding",
    ];
    let Some(program) = gcc.program(&["publish32.c"], &flags) else {
        return;
    };
    let answer = check(&program);
    assert_findings(&answer, &["problem 32-bit"]);
    let subject = &answer.json()["subject"]["file"];
    assert_eq!(
        (&subject["kind"], &subject["machine"]),
        (&"32-bit".into(), &"i386".into())
    );

    // Not every kernel runs such programs.
    if !matches!(Command::new(&program).stdin(std::process::Stdio::null()).status(), Ok(status) if status.success())
    {
        println!("skipped: this kernel runs no 32-bit programs");
        return;
    }
    let target = Fixture::spawn(&mut Command::new(program));
    let answer = check(target.pid().to_string());
    assert_findings(
        &answer,
        &[
            "ok process-context",
            "note no-service-name",
            "problem no-schema",
            "note no-key-map",
            "problem 32-bit",
        ],
    );
    assert_eq!(answer.json()["subject"]["process"]["threads_stopped"], 0);
}

#[test]
fn a_process_whose_variable_nobody_exports() {
    let Some(program) = program(Compiler::gcc(), &["-s"]) else {
        return;
    };
    let target = Fixture::spawn(&mut Command::new(program));
    assert_findings(
        &check(target.pid().to_string()),
        &["problem no-process-context", "problem absent"],
    );
}

#[test]
fn a_process_with_something_else_of_that_name() {
    let Some(library) = compile(
        "other-kind",
        "void *otel_thread_ctx_v1; void **fixture_slot(void) { static __thread void *x; return &x; }",
        &[],
    ) else {
        return;
    };
    let flags = ["-DLINKED".into(), library.clone()];
    let program = Compiler::gcc().program(&["threads.c"], &flags).unwrap();
    let target = Fixture::spawn(&mut Command::new(program));
    let answer = check(target.pid().to_string());
    assert_findings(
        &answer,
        &["problem no-process-context", "problem not-thread-local"],
    );
    let module = finding(&answer, "not-thread-local")["module"].clone();
    assert_eq!(module, library.to_str().unwrap());
}

#[test]
fn a_static_program_that_runs() {
    for (linker, kind, id) in [
        ("bfd", "-static", "static"),
        ("lld", "-static-pie", "static-pie"),
    ] {
        let Some(program) = program(
            Compiler::gcc().linker(linker),
            &[kind, "-fPIC", "-mtls-dialect=gnu2"],
        ) else {
            continue;
        };
        let target = Fixture::spawn(&mut Command::new(program));
        let answer = check(target.pid().to_string());
        let problem = format!("problem {id}");
        let expected = [
            "problem no-process-context",
            &problem,
            "ok access local-exec from tlsdesc",
            "ok storage static",
            READ,
        ];
        assert_findings(&answer, &expected);
        assert!(text(&answer, "threads").starts_with("apart from that, a reader would find "));
    }
}

fn library(flags: &[&str]) -> Option<PathBuf> {
    Compiler::gcc().library(&["variable.c"], flags)
}

#[test]
fn every_module_of_a_process_that_has_the_variable() {
    let Some(library) = library(&["-mtls-dialect=gnu2"]) else {
        return;
    };
    let flags = ["-DLINKED".into(), library.clone()];
    let Some(user) = Compiler::gcc().program(&["threads.c"], &flags) else {
        return;
    };
    let target = Fixture::spawn(&mut Command::new(user));
    let answer = check(target.pid().to_string());
    let first = ["problem no-process-context"];
    let rest = [
        "ok exported",
        "ok access tlsdesc",
        "ok storage static",
        READ,
    ];
    assert_findings(&answer, &[&first[..], &rest].concat());
    let name = library.display();
    assert_eq!(
        text(&answer, "exported"),
        format!("otel_thread_ctx_v1 is exported in {name}")
    );

    // Loaded late, where no static storage is left over.
    let loader = Compiler::gcc().program(&["threads.c"], &["-ldl"]).unwrap();
    let late = format!("lib={name}");
    let mut command = Command::new(loader);
    command.arg(&late);
    command.env("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=0");
    let target = Fixture::spawn(&mut command);
    let answer = check(target.pid().to_string());
    let rest = [
        "ok exported",
        "ok access tlsdesc",
        "ok storage dynamic",
        READ,
    ];
    assert_findings(&answer, &[&first[..], &rest].concat());

    // The program's own definition comes before that of a library that is loaded later.
    let Some(owner) = program(
        Compiler::gcc(),
        &["-rdynamic", "-fPIC", "-mtls-dialect=gnu2"],
    ) else {
        return;
    };
    let target = Fixture::spawn(Command::new(owner).arg(&late));
    let answer = check(target.pid().to_string());
    let rest = [
        "ok exported",
        "ok access initial-exec from tlsdesc",
        "ok storage static",
        "note bound-elsewhere",
        READ,
    ];
    assert_findings(&answer, &[&first[..], &rest].concat());
    assert!(text(&answer, "bound-elsewhere").starts_with(&format!("{name} defines ")));
}

#[test]
fn a_library_that_was_removed_is_checked_by_what_is_loaded() {
    let Some(library) = library(&["-mtls-dialect=gnu2"]) else {
        return;
    };
    let copy = library.with_extension(format!("{}.so", std::process::id()));
    std::fs::copy(library, &copy).unwrap();
    let loader = Compiler::gcc().program(&["threads.c"], &["-ldl"]).unwrap();
    let target = Fixture::spawn(Command::new(loader).arg(format!("lib={}", copy.display())));
    std::fs::remove_file(&copy).unwrap();
    let answer = check(target.pid().to_string());
    let found = findings(&answer);
    for expected in [
        "ok exported",
        "ok access tlsdesc",
        "ok storage static",
        READ,
    ] {
        assert!(found.contains(&expected.to_owned()), "{found:?}");
    }
}

/// Publishers may announce it before they load the library that has it.
#[test]
fn a_schema_is_announced_before_the_variable_is_loaded() {
    let sources = ["threads.c", "publish.c"];
    let Some(program) = Compiler::gcc().program(&sources, &["-ldl"]) else {
        return;
    };
    let target = Fixture::spawn(Command::new(program).arg("workers=0"));
    let answer = check(target.pid().to_string());
    let findings = [
        "ok process-context",
        "ok schema",
        "ok key-map",
        "note not-loaded",
    ];
    assert_findings(&answer, &findings);
    assert_eq!(answer.status, 0);
}

#[test]
fn the_schema_of_node_js_is_named_and_not_held_against_the_other_symbol() {
    let sources = ["threads.c", "publish.c"];
    for schema in ["nodejs_v1_dev", "nodejs_v1"] {
        let flags = [format!("-DSCHEMA=\"{schema}\"")];
        let Some(program) = Compiler::gcc().program(&sources, &flags) else {
            return;
        };
        let target = Fixture::spawn(Command::new(program).arg("workers=0"));
        let answer = check(target.pid().to_string());
        let findings = [
            "ok process-context",
            "ok nodejs-schema",
            "ok key-map",
            "problem absent",
        ];
        assert_findings(&answer, &findings);
        assert_eq!(
            text(&answer, "nodejs-schema"),
            format!("its schema is {schema}: that of Node.js, with otel_thread_ctx_nodejs_v1")
        );
    }
}

/// As SDKs do that publish no contexts of threads.
#[test]
fn a_process_context_alone_is_no_problem() {
    let sources = ["threads.c", "publish.c"];
    for (language, advice) in [
        ("python", "OTEL_PYTHON_CONTEXT=otelctx"),
        ("nodejs", "node --import otelctx/register"),
        ("rust", "otelctx-opentelemetry"),
        ("cpp", "otelctx::storage()"),
        ("c", "otelctx_context_attach(record)"),
        ("go", "Goroutines have labels"),
        ("java", "an agent"),
        ("dotnet", "by OTEP 4947"),
    ] {
        let flags = ["-DPROCESS".to_owned(), format!("-DLANGUAGE=\"{language}\"")];
        let Some(program) = Compiler::gcc().program(&sources, &flags) else {
            return;
        };
        let target = Fixture::spawn(Command::new(program).arg("workers=0"));
        let pid = target.pid().to_string();
        let answer = check(&pid);
        assert_findings(
            &answer,
            &["ok process-context", "note process-context-only"],
        );
        let only = finding(&answer, "process-context-only");
        assert!(
            only["text"]
                .as_str()
                .unwrap()
                .starts_with("process context only: ")
        );
        assert!(only["hint"].as_str().unwrap().contains(advice), "{only}");
        let listing = otelctx(&["ps"]).expect(0).stdout;
        let line = listing.lines().find(|it| it.trim_start().starts_with(&pid));
        assert!(
            line.unwrap().ends_with("; process context only"),
            "{listing}"
        );
        let listing = otelctx(&["ps", "--json"]).expect(0).json();
        let mut rows = listing["processes"].as_array().unwrap().iter();
        let row = rows.find(|it| it["pid"] == target.pid()).unwrap();
        assert_eq!(
            (&row["unreadable"], &row["process_context_only"]),
            (&Value::Null, &true.into())
        );
        assert_eq!(otelctx(&["dump", &pid]).expect(0).stderr, "");
    }
}

/// Of a process that has the variable, the schema is missing.
#[test]
fn a_variable_without_a_schema_is_a_problem() {
    let sources = ["threads.c", "publish.c", "variable.c"];
    let flags = ["-DPROCESS", "-DLINKED", "-rdynamic"];
    let Some(program) = Compiler::gcc().program(&sources, &flags) else {
        return;
    };
    let target = Fixture::spawn(Command::new(program).arg("workers=0"));
    let answer = check(target.pid().to_string());
    assert_eq!(finding(&answer, "no-schema")["level"], "problem");
    assert_eq!(answer.status, 1);
}

#[test]
fn the_labels_of_gos_profiler_are_named() {
    let sources = ["threads.c", "publish.c"];
    let flags = ["-DSCHEMA=\"go_pprof_labels_v1\"", "-DLANGUAGE=\"go\""];
    let Some(program) = Compiler::gcc().program(&sources, &flags) else {
        return;
    };
    let target = Fixture::spawn(Command::new(program).arg("workers=0"));
    let pid = target.pid().to_string();
    let answer = check(&pid);
    assert_findings(&answer, &["ok process-context", "note go-labels-schema"]);
    assert!(text(&answer, "go-labels-schema").contains("labels of Go's profiler"));
    for arguments in [&["ps"][..], &["dump", &pid]] {
        let answer = otelctx(arguments);
        assert!(
            answer.stdout.contains("labels of Go's profiler"),
            "{answer:?}"
        );
    }
}

#[test]
fn labels_of_goroutines_are_counted() {
    let Some(program) = otelctx_fixtures::go_program("labels.go", &["-ldflags=-s -w"]) else {
        return;
    };
    // A goroutine that Go has just interrupted runs on no thread.
    let mut command = Command::new(program);
    command.envs([("GODEBUG", "asyncpreemptoff=1"), ("GOMAXPROCS", "4")]);
    let target = Fixture::spawn(&mut command);
    let answer = check(target.pid().to_string());
    let findings = ["note no-process-context", "ok go-labels", "ok runtime"];
    assert_findings(&answer, &findings);
    let text = text(&answer, "go-labels");
    let counts = ", 15 run a goroutine now: 13 have labels, 2 have a trace in them";
    assert!(text.ends_with(counts), "{text}");
    // Another label is none.
    let pid = target.pid().to_string();
    let answer = otelctx(&["check", "--go-labels", "trace_id=http.route", &pid]);
    assert!(
        answer.stdout.contains(" 13 have labels, 0 have a trace"),
        "{answer:?}"
    );
    // Another program has none.
    let Some(program) = otelctx_fixtures::go_program("leaf.go", &[]) else {
        return;
    };
    let target = Fixture::spawn(&mut Command::new(program));
    let answer = check(target.pid().to_string());
    let findings = [
        "note no-process-context",
        "ok go-labels",
        "note go-no-trace",
        "ok runtime",
    ];
    assert_findings(&answer, &findings);
}

/// Uses glibc 2.31 (`cargo xtask setup` fetches it), in a program that has not loaded libpthread: the
/// library has the variable, and nothing tells which blocks of threads are its own.
#[test]
fn a_module_that_has_the_variable_and_can_not_be_read() {
    let setup = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/setup");
    let Ok(glibc) = setup.join("glibc-2.31").canonicalize() else {
        eprintln!("skipped: `cargo xtask setup` fetches glibc 2.31");
        return;
    };
    let (tree, lib) = (glibc.join("tree"), glibc.join("lib"));
    let root = [
        format!("--sysroot={}", tree.display()),
        format!("-B{}", tree.join("usr/lib/x86_64-linux-gnu").display()),
    ];
    let flags = |more: &[String]| [&root[..], more].concat();
    let gcc = Compiler::gcc();
    let dl = lib.join("libdl.so.2").display().to_string();
    let (Some(program), Some(library)) = (
        gcc.program(&["alone.c"], &flags(&[dl])),
        gcc.library(&["variable.c"], &flags(&["-mtls-dialect=gnu".to_owned()])),
    ) else {
        return;
    };
    let mut command = Command::new(glibc.join("ld.so"));
    command.arg("--library-path").arg(lib).arg(program);
    let target = Fixture::spawn(command.args([&library, &library]));
    let answer = check(target.pid().to_string());
    assert_eq!(
        text(&answer, "absent"),
        "no module that could be inspected exports otel_thread_ctx_v1"
    );
    let unreadable = finding(&answer, "unreadable-module");
    assert_eq!(unreadable["module"], library.to_str().unwrap());
    let why = unreadable["text"].as_str().unwrap();
    assert!(why.contains("this needs a loaded libpthread.so.0"), "{why}");
    assert_eq!(answer.status, 1);
}

/// The addon is loaded, and has the variable of threads, but this Node.js has no contexts that readers find.
#[test]
fn a_version_of_node_js_that_cannot_publish_says_which_can() {
    let node = Node::with_version("20");
    let Some((node, addon)) = node.and_then(|node| Some((node.clone(), node.addon("5.20")?)))
    else {
        return;
    };
    let mut command = node.program();
    let script = "require(process.argv[1]); console.log('ready'); setInterval(() => {}, 9e8)";
    let target = Fixture::spawn(command.args(["-e", script]).arg(addon));
    let answer = check(target.pid().to_string());
    assert_findings(&answer, &["problem no-process-context", "ok runtime"]);
    let hint = finding(&answer, "no-process-context")["hint"].clone();
    let hint = hint.as_str().unwrap();
    assert!(hint.contains("Node.js 24 or later"), "{hint}");
    assert!(hint.contains("this is 20."), "{hint}");
}
