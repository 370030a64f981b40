//! `otelctx check`: files of compilers that are not ours, and running processes.

use std::path::{Path, PathBuf};
use std::process::Command;

use otelctx_fixtures::{Compiler, Target as Fixture};
use serde_json::Value;

use crate::run::{Answer, otelctx};
use crate::target::Target;

fn check(target: impl AsRef<Path>) -> Answer {
    otelctx(&[Path::new("check"), target.as_ref(), Path::new("--json")])
}

/// The findings by id and level, in their order.
fn findings(answer: &Answer) -> Vec<(String, String)> {
    let answer = answer.json();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let list = answer["findings"].as_array().unwrap();
    list.iter()
        .map(|it| (text(&it["id"]), text(&it["level"])))
        .collect()
}

fn assert_findings(answer: &Answer, expected: &[(&str, &str)]) {
    let found = findings(answer);
    let found: Vec<(&str, &str)> = found
        .iter()
        .map(|(a, b)| (a.as_str(), b.as_str()))
        .collect();
    assert_eq!(found, expected, "{}", answer.stdout);
    let readable = expected.iter().all(|(_, level)| *level != "problem");
    assert_eq!(answer.json()["readable"], readable);
    assert_eq!(answer.status, i32::from(!readable));
    assert_eq!(answer.stderr, "");
    // Every finding that is not as it should be says what to do, or is only for information.
    for finding in answer.json()["findings"].as_array().unwrap() {
        assert_eq!(
            finding["level"] == "problem",
            finding["level"] == "problem" && finding["mend"].is_array(),
            "{finding}"
        );
    }
}

/// The text of the finding with this id.
fn text(answer: &Answer, id: &str) -> String {
    let answer = answer.json();
    let list = answer["findings"].as_array().unwrap();
    let finding = list.iter().find(|it| it["id"] == id).unwrap();
    finding["text"].as_str().unwrap().to_owned()
}

fn program(flags: &[&str]) -> Option<PathBuf> {
    let mut all = vec!["-DLINKED"];
    all.extend(flags);
    Compiler::gcc().program(&["threads.c", "variable.c"], &all)
}

fn library(flags: &[&str]) -> Option<PathBuf> {
    Compiler::gcc().library(&["variable.c"], flags)
}

#[test]
fn an_exported_variable_of_a_program() {
    let Some(program) = program(&["-rdynamic"]) else {
        return;
    };
    let answer = check(program);
    assert_findings(&answer, &[("exported", "ok"), ("access", "ok")]);
    assert!(text(&answer, "access").contains("local-exec after relaxation"));
}

#[test]
fn a_variable_that_the_linker_kept_local() {
    let Some(program) = program(&[]) else { return };
    let answer = check(&program);
    assert_findings(&answer, &[("not-exported", "problem"), ("access", "ok")]);
    assert_eq!(
        otelctx(&[Path::new("check"), &program]).expect(1).stdout,
        "✗ otel_thread_ctx_v1 is defined but not exported: readers can't find it\n    \
         The linker kept it local. Add to Cargo's build script:  otelctx_build::export();\n    \
         or for gcc and clang:  -Wl,--export-dynamic-symbol=otel_thread_ctx_v1\n\
         ✓ access is local-exec after relaxation (fastest; every reader supports it)\n"
    );
    // The mend works.
    let Some(mended) = self::program(&["-Wl,--export-dynamic-symbol=otel_thread_ctx_v1"]) else {
        return;
    };
    assert_findings(&check(mended), &[("exported", "ok"), ("access", "ok")]);
}

#[test]
fn a_library_that_keeps_the_variable_to_itself() {
    let variable =
        "__thread void *otel_thread_ctx_v1; void *f(void) { return otel_thread_ctx_v1; }";
    let hidden = format!("__attribute__((visibility(\"hidden\"))) {variable}");
    let Some(hidden) = compile("cli-hidden.c", &hidden) else {
        return;
    };
    let answer = check(hidden);
    assert_eq!(
        findings(&answer)[0],
        ("not-exported".to_owned(), "problem".to_owned())
    );
    // The linker's option for programs would not help; what is told instead does.
    let mend = &answer.json()["findings"][0]["mend"];
    assert!(!mend.to_string().contains("-Wl,"), "{mend}");
    let attribute = mend[1].as_str().unwrap().split(" __thread").next().unwrap();
    let Some(mended) = compile("cli-mended.c", &format!("{attribute} {variable}")) else {
        return;
    };
    assert_eq!(
        findings(&check(mended))[0],
        ("exported".to_owned(), "ok".to_owned())
    );
}

#[test]
fn a_static_program() {
    let Some(program) = program(&["-static"]) else {
        return;
    };
    assert_findings(&check(&program), &[("static", "problem"), ("access", "ok")]);
    // While it runs, the same is told of it.
    let target = Fixture::spawn(&mut Command::new(program));
    let answer = check(target.pid().to_string());
    assert!(findings(&answer).contains(&("static".into(), "problem".into())));
    assert!(text(&answer, "threads").starts_with("but for that, a reader would find "));
}

#[test]
fn the_access_models_of_libraries() {
    for (flags, level, name) in [
        (&["-mtls-dialect=gnu2"][..], "ok", "tlsdesc"),
        (&["-mtls-dialect=gnu"], "note", "general-dynamic"),
        (&["-ftls-model=initial-exec"], "note", "initial-exec"),
    ] {
        let Some(library) = library(flags) else {
            return;
        };
        let answer = check(library);
        assert_findings(&answer, &[("exported", "ok"), ("access", level)]);
        assert!(text(&answer, "access").starts_with(&format!("access is {name}")));
    }
}

#[test]
fn a_program_that_leaves_the_variable_to_a_library() {
    let Some(library) = library(&["-mtls-dialect=gnu2"]) else {
        return;
    };
    let flags = ["-DLINKED".into(), "-DREFER".into(), library];
    let Some(program) = Compiler::gcc().program(&["threads.c", "variable.c"], &flags) else {
        return;
    };
    assert_findings(&check(program), &[("defined-elsewhere", "note")]);
}

/// A library of this C code.
fn compile(name: &str, code: &str) -> Option<PathBuf> {
    let source = otelctx_fixtures::directory().join(name);
    std::fs::write(&source, code).unwrap();
    Compiler::gcc().library(&[source.to_str().unwrap()], &["-w"])
}

#[test]
fn a_symbol_of_another_size_or_kind() {
    let wide = "__thread char otel_thread_ctx_v1[16]; char *f(void) { return otel_thread_ctx_v1; }";
    let Some(wide) = compile("cli-wide.c", wide) else {
        return;
    };
    let answer = check(wide);
    assert_eq!(answer.status, 1);
    assert!(findings(&answer).contains(&("wrong-size".into(), "problem".into())));
    assert!(text(&answer, "wrong-size").contains("16 bytes instead of 8"));

    let Some(global) = compile("cli-global.c", "void *otel_thread_ctx_v1;") else {
        return;
    };
    assert_findings(&check(global), &[("not-thread-local", "problem")]);
}

#[test]
fn files_without_the_variable_and_files_that_are_no_programs() {
    let Some(without) = compile("cli-without.c", "int f(void) { return 0; }") else {
        return;
    };
    assert_findings(&check(without), &[("absent", "problem")]);

    let object = otelctx_fixtures::directory().join("cli-object.o");
    let source = object.with_extension("c");
    std::fs::write(&source, "__thread void *otel_thread_ctx_v1;").unwrap();
    let mut gcc = Command::new("gcc");
    gcc.arg("-c").arg(&source).arg("-o").arg(&object);
    assert!(gcc.status().unwrap().success());
    let object = object.to_str().unwrap();

    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    for (path, why) in [
        (manifest, "no ELF file"),
        ("/", "not a regular file"),
        ("/nowhere", "No such file"),
        (object, "neither a program nor a shared library"),
        ("2147483648", "no process has the id 2147483648"),
    ] {
        let answer = otelctx(&["check", path]).expect(2);
        assert_eq!(answer.stdout, "");
        let first = answer.stderr.lines().next().unwrap();
        assert!(first.contains(why), "{answer:?}");
    }
}

#[test]
fn a_process_that_publishes_everything() {
    let target = Target::start("shop");
    let answer = check(target.pid().to_string());
    assert_findings(
        &answer,
        &[
            ("process-context", "ok"),
            ("schema", "ok"),
            ("key-map", "ok"),
            ("exported", "ok"),
            ("access", "ok"),
            ("threads", "ok"),
        ],
    );
    assert_eq!(
        text(&answer, "threads"),
        "a reader finds the contexts of its 6 threads; 3 attached now"
    );
}

#[test]
fn a_process_that_publishes_the_wrong_thing() {
    let rest = [("exported", "ok"), ("access", "ok"), ("threads", "ok")];
    for (scenario, first) in [
        ("silent", &[("no-process-context", "problem")][..]),
        ("newer_version", &[("broken-process-context", "problem")]),
        ("enormous", &[("broken-process-context", "problem")]),
        ("dangling", &[("broken-process-context", "problem")]),
        (
            "no_schema",
            &[
                ("process-context", "ok"),
                ("no-schema", "problem"),
                ("no-key-map", "note"),
            ],
        ),
        (
            "other_schema",
            &[
                ("process-context", "ok"),
                ("unsupported-schema", "problem"),
                ("no-key-map", "note"),
            ],
        ),
        (
            "bad_key_map",
            &[
                ("process-context", "ok"),
                ("schema", "ok"),
                ("broken-key-map", "problem"),
            ],
        ),
        (
            "odd_keys",
            &[
                ("process-context", "ok"),
                ("attribute", "note"),
                ("schema", "ok"),
                ("key-map", "ok"),
                ("empty-key", "note"),
                ("repeated-key", "note"),
            ],
        ),
        (
            "two_contexts",
            &[
                ("process-context", "ok"),
                ("second-process-context", "note"),
                ("schema", "ok"),
                ("key-map", "ok"),
            ],
        ),
    ] {
        let target = Target::start(scenario);
        let expected: Vec<_> = first.iter().chain(&rest).copied().collect();
        assert_findings(&check(target.pid().to_string()), &expected);
    }
}

#[test]
fn a_process_whose_variable_nobody_exports() {
    let Some(program) = program(&["-s"]) else {
        return;
    };
    let target = Fixture::spawn(&mut Command::new(program));
    assert_findings(
        &check(target.pid().to_string()),
        &[("no-process-context", "problem"), ("absent", "problem")],
    );
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
    let rest = [("exported", "ok"), ("access", "ok"), ("threads", "ok")];
    let first = [("no-process-context", "problem")];
    assert_findings(&answer, &[&first[..], &rest].concat());
    let name = library.display();
    assert_eq!(
        text(&answer, "exported"),
        format!("otel_thread_ctx_v1 is exported by {name}")
    );

    // The program's own definition comes before that of a library that is loaded later.
    let Some(owner) = program(&["-rdynamic"]) else {
        return;
    };
    let target = Fixture::spawn(Command::new(owner).arg(format!("lib={name}")));
    let answer = check(target.pid().to_string());
    let rest = [
        ("exported", "ok"),
        ("access", "ok"),
        ("bound-elsewhere", "note"),
        ("threads", "ok"),
    ];
    assert_findings(&answer, &[&first[..], &rest].concat());
    assert!(text(&answer, "bound-elsewhere").starts_with(&format!("{name} defines ")));
}
