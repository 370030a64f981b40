//! Files of every kind, by each linker.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use otelctx_fixtures::Compiler;

use super::truth::compare;
use super::{assert_findings, check, compile, finding, object, program, source, text};
use crate::run::{Answer, Scratch, command, otelctx};

const LINKERS: [&str; 4] = ["bfd", "lld", "gold", "mold"];
const EXPORT: &str = "-Wl,--export-dynamic-symbol=otel_thread_ctx_v1";
const DESCRIPTORS: [&str; 2] = ["-fPIC", "-mtls-dialect=gnu2"];
const HIDE: &str = concat!(
    "-Wl,--version-script=",
    env!("CARGO_MANIFEST_DIR"),
    "/../testing/fixtures/programs/local.map"
);

/// OTEP 4947, "Thread-Local Variable Resolution": general dynamic is supported, and not preferred.
#[test]
fn access_models_are_judged_as_the_otep_does() {
    for (flags, said) in [
        (
            &["-mtls-dialect=gnu2"][..],
            "(preferred by OTEP 4947; every reader supports it)",
        ),
        (
            &["-mtls-dialect=gnu"],
            "OTEP 4947 supports it, but prefers tlsdesc",
        ),
        (
            &["-mtls-dialect=gnu", "-DMODEL=\"local-dynamic\"", "-DBIG=24"],
            "which OTEP 4947 does not support: otelctx can read it, other readers need not",
        ),
    ] {
        let Some(library) = Compiler::gcc().library(&["variable.c"], flags) else {
            return;
        };
        let answer = check(&library);
        assert!(text(&answer, "access").contains(said), "{answer:?}");
        assert!(!answer.stdout.contains("requires TLSDESC"), "{answer:?}");
        assert_eq!(answer.status, 0);
    }
}

/// The whole of what is found in a program, by linker.
#[test]
fn programs() {
    let export = [EXPORT];
    let traditional = ["-fPIC", "-mtls-dialect=gnu"];
    for linker in LINKERS {
        let gnu = linker == "bfd";
        let exported_access = match gnu {
            true => "ok access initial-exec from tlsdesc",
            false => "ok access local-exec from tlsdesc",
        };
        let untraced = match gnu {
            true => "ok access initial-exec",
            false => "ok access local-exec",
        };
        let relaxed = "ok access local-exec from tlsdesc";
        for (kind, model, export, expected) in [
            (
                "-pie",
                &DESCRIPTORS[..],
                &[][..],
                &["problem not-exported", relaxed][..],
            ),
            (
                "-pie",
                &DESCRIPTORS,
                &export,
                &["ok exported", exported_access],
            ),
            (
                "-no-pie",
                &DESCRIPTORS,
                &export,
                &["ok exported", exported_access],
            ),
            ("-pie", &traditional, &export, &["ok exported", untraced]),
            (
                "-pie",
                &["-fPIE"],
                &[],
                &["problem not-exported", "ok access local-exec"],
            ),
            (
                "-pie",
                &["-fPIE"],
                &export,
                &["ok exported", "ok access local-exec"],
            ),
            ("-static", &DESCRIPTORS, &[], &["problem static", relaxed]),
            (
                "-static-pie",
                &DESCRIPTORS,
                &[],
                &["problem static-pie", relaxed],
            ),
            (
                "-static-pie",
                &DESCRIPTORS,
                &export,
                match gnu {
                    true => &[
                        "ok exported",
                        "problem static-pie-crash",
                        "ok access initial-exec from tlsdesc",
                    ],
                    false => &["ok exported", "ok access local-exec from tlsdesc"],
                },
            ),
            (
                "-pie",
                &["-fPIC", "-mtls-dialect=gnu2", "-s"],
                &export,
                &["ok exported", exported_access],
            ),
            ("-pie", &["-fPIC", "-s"], &[], &["problem absent"]),
            (
                "-pie",
                &["-fPIC", "-DNAME=another"],
                &[],
                &["problem absent"],
            ),
        ] {
            // gold makes no static-pie.
            if (linker, kind) == ("gold", "-static-pie") {
                continue;
            }
            let flags = [&[kind], model, export].concat();
            let Some(program) = program(Compiler::gcc().linker(linker), &flags) else {
                continue;
            };
            let answer = check(&program);
            assert_findings(&answer, expected);
            compare(&program, &answer, false);
            let runs = Command::new(&program)
                .stdin(std::process::Stdio::null())
                .output();
            // The crash is one.
            let crashes = expected.contains(&"problem static-pie-crash");
            assert_eq!(
                runs.unwrap().status.success(),
                !crashes,
                "{linker} {flags:?}"
            );
            let subject = &answer.json()["subject"]["file"];
            let word = match kind {
                "-pie" => "pie",
                "-no-pie" => "executable",
                kind => &kind[1..],
            };
            assert_eq!(subject["kind"], word);
            assert_eq!(subject["machine"], "x86-64");
            assert_eq!(subject["stripped"], flags.contains(&"-s"));
        }
    }
}

#[test]
fn libraries() {
    let hidden = "-fvisibility=hidden";
    for linker in LINKERS {
        // lld and gold keep the visibility in .symtab, the others make the symbol local.
        let hides = match linker {
            "lld" | "gold" => "problem hidden",
            _ => "problem not-exported",
        };
        let bound = ["note bound-here"];
        let desc_bound: &[&str] = match linker {
            "lld" => &bound,
            _ => &[],
        };
        let offset_bound: &[&str] = match linker {
            "lld" | "mold" => &bound,
            _ => &[],
        };
        for (flags, expected) in [
            (
                &["-mtls-dialect=gnu2"][..],
                vec!["ok exported", "ok access tlsdesc"],
            ),
            (
                &["-mtls-dialect=gnu"],
                vec!["ok exported", "note access general-dynamic"],
            ),
            (
                &["-ftls-model=initial-exec"],
                vec!["ok exported", "note access initial-exec"],
            ),
            (
                &["-mtls-dialect=gnu", "-DMODEL=\"local-dynamic\"", "-DBIG=24"],
                vec!["ok exported", "note access local-dynamic"],
            ),
            (
                &["-mtls-dialect=gnu2", HIDE, "-DBIG=24"],
                vec!["problem not-exported", "ok access tlsdesc"],
            ),
            (
                &["-mtls-dialect=gnu", HIDE, "-DBIG=24"],
                vec!["problem not-exported", "note access general-dynamic"],
            ),
            (
                &["-mtls-dialect=gnu2", hidden, "-DBIG=24"],
                vec![hides, "ok access tlsdesc"],
            ),
            (
                &["-mtls-dialect=gnu2", "-Wl,-Bsymbolic", "-DBIG=24"],
                [&["ok exported", "ok access tlsdesc"], desc_bound].concat(),
            ),
            (
                &["-mtls-dialect=gnu", "-Wl,-Bsymbolic", "-DBIG=24"],
                [
                    &["ok exported", "note access general-dynamic"],
                    offset_bound,
                ]
                .concat(),
            ),
            (
                &["-DREFER", "-mtls-dialect=gnu2"],
                vec!["note defined-elsewhere", "ok access tlsdesc"],
            ),
            (
                &["-DREFER", "-mtls-dialect=gnu2", "-s"],
                vec!["note defined-elsewhere", "ok access tlsdesc"],
            ),
        ] {
            let Some(library) = Compiler::gcc()
                .linker(linker)
                .library(&["variable.c"], flags)
            else {
                continue;
            };
            let answer = check(&library);
            assert_findings(&answer, &expected);
            compare(&library, &answer, false);
            assert_eq!(answer.json()["subject"]["file"]["kind"], "library");
        }
    }
}

/// The files are for aarch64, whichever machine this is.
#[test]
fn files_for_another_machine() {
    if cfg!(target_arch = "aarch64") {
        return;
    }
    let other = "note other-machine";
    let relaxed = "ok access local-exec from tlsdesc";
    let gcc = Compiler::aarch64_gcc().linker("bfd");
    // clang has descriptors alone, and no flag for them.
    let clang = Compiler::aarch64_clang().linker("lld");
    for (compiler, flags, expected) in [
        (
            gcc,
            &["-pie", "-fPIC"][..],
            &[other, "problem not-exported", relaxed][..],
        ),
        (
            gcc,
            &["-pie", "-fPIC", "-rdynamic"],
            &[other, "ok exported", relaxed],
        ),
        (
            clang,
            &["-pie", "-fPIC", "-rdynamic"],
            &[other, "ok exported", relaxed],
        ),
    ] {
        let Some(program) = program(compiler, flags) else {
            continue;
        };
        let answer = check(&program);
        assert_findings(&answer, expected);
        compare(&program, &answer, true);
    }
    let descriptor = [other, "ok exported", "ok access tlsdesc"];
    let traditional = [other, "ok exported", "note access general-dynamic"];
    let initial = [other, "ok exported", "note access initial-exec"];
    for (compiler, flags, expected) in [
        (gcc, &["-mtls-dialect=desc"][..], &descriptor),
        (gcc, &["-mtls-dialect=trad"], &traditional),
        (gcc, &["-ftls-model=initial-exec"], &initial),
        (clang, &[], &descriptor),
        (clang, &["-ftls-model=initial-exec"], &initial),
    ] {
        let Some(library) = compiler.library(&["variable.c"], flags) else {
            continue;
        };
        let answer = check(&library);
        assert_findings(&answer, expected);
        compare(&library, &answer, true);
    }
}

#[test]
fn machines_without_thread_context() {
    let Some(library) = Compiler::gcc().library(&["variable.c"], &["-mtls-dialect=gnu2"]) else {
        return;
    };
    let bytes = std::fs::read(library).unwrap();
    let path = otelctx_fixtures::directory().join(format!("check-machine-{}", std::process::id()));
    // EI_CLASS, EI_DATA and e_machine, in the machine's own order of bytes.
    for (at, value, kind, machine, expected) in [
        (
            18,
            243,
            "library",
            "riscv",
            &["problem machine", "ok exported", "note no-access"][..],
        ),
        (
            18,
            99,
            "library",
            "ELF machine 99",
            &["problem machine", "ok exported", "note no-access"],
        ),
        (
            5,
            2,
            "big-endian",
            "ELF machine 15872",
            &["problem machine"],
        ),
        (4, 1, "32-bit", "x86-64", &["problem 32-bit"]),
    ] {
        let mut other = bytes.clone();
        other[at] = value;
        std::fs::write(&path, &other).unwrap();
        let answer = check(&path);
        assert_findings(&answer, expected);
        let subject = &answer.json()["subject"]["file"];
        assert_eq!(
            (subject["kind"].as_str(), subject["machine"].as_str()),
            (Some(kind), Some(machine))
        );
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn symbols_that_are_not_as_they_should_be() {
    let slot = "void *f(void) { return &otel_thread_ctx_v1; }";
    let library = |name: &str, code: &str, flags: &[&str]| {
        let descriptors = [&["-mtls-dialect=gnu2"], flags].concat();
        compile(name, &format!("{code} {slot}"), &descriptors)
    };
    let Some(wide) = library("wide", "__thread char otel_thread_ctx_v1[16];", &[]) else {
        return;
    };
    let answer = check(wide);
    assert_findings(
        &answer,
        &["ok exported", "problem wrong-size", "ok access tlsdesc"],
    );
    assert!(text(&answer, "wrong-size").contains("has 16 bytes instead of 8"));

    let narrow = library("narrow", "__thread int otel_thread_ctx_v1;", &[]).unwrap();
    assert_findings(
        &check(narrow),
        &["ok exported", "problem wrong-size", "ok access tlsdesc"],
    );

    let global = library("global", "void *otel_thread_ctx_v1;", &[]).unwrap();
    assert_findings(&check(global), &["problem not-thread-local"]);
    let hidden = library(
        "global-hidden",
        "void *otel_thread_ctx_v1;",
        &["-fvisibility=hidden"],
    );
    assert_findings(&check(hidden.unwrap()), &["problem not-thread-local"]);

    let versions = source(
        "versions",
        "V1 { global: otel_thread_ctx_v1; f; local: *; };",
    );
    let script = format!("-Wl,--version-script={}", versions.display());
    let versioned = library(
        "versioned",
        "__thread void *otel_thread_ctx_v1;",
        &[&script],
    );
    let answer = check(versioned.unwrap());
    assert_findings(
        &answer,
        &["ok exported", "note versioned", "ok access tlsdesc"],
    );
    assert!(text(&answer, "versioned").contains("has the version V1:"));

    let twice = "__thread void *otel_thread_ctx_v1; \
                 void *g(void) { static __thread void *x __asm__(\"otel_thread_ctx_v1\"); return &x; }";
    let other = object(
        "gcc",
        "twice",
        "static __thread void *otel_thread_ctx_v1; void *g(void) { return &otel_thread_ctx_v1; }",
        &["-fPIC", "-mtls-dialect=gnu2"],
    );
    let twice = library(
        "twice-too",
        &twice[..twice.find("void *g").unwrap()],
        &[other.to_str().unwrap()],
    );
    assert_findings(
        &check(twice.unwrap()),
        &[
            "ok exported",
            "note several-definitions",
            "ok access tlsdesc",
        ],
    );

    let unused = compile("unused", "__thread void *otel_thread_ctx_v1;", &[]);
    assert_findings(&check(unused.unwrap()), &["ok exported", "note no-access"]);
    let without = compile("without", "int f(void) { return 0; }", &[]).unwrap();
    let answer = check(without);
    assert_findings(&answer, &["problem absent"]);
    assert_eq!(
        text(&answer, "absent"),
        "it has no otel_thread_ctx_v1: its threads publish no context"
    );

    let program = "static __thread void *volatile otel_thread_ctx_v1; int main(void) { otel_thread_ctx_v1 = 0; return 0; }";
    let program = Compiler::gcc().program(
        &[source("static", program).to_str().unwrap()],
        &["-rdynamic"],
    );
    assert_findings(
        &check(program.unwrap()),
        &["problem static-variable", "ok access local-exec"],
    );
}

#[test]
fn a_program_that_leaves_the_variable_to_a_library() {
    let Some(library) = Compiler::gcc().library(&["variable.c"], &["-mtls-dialect=gnu2"]) else {
        return;
    };
    let flags = ["-DLINKED".into(), "-DREFER".into(), library.clone()];
    let Some(program) = Compiler::gcc().program(&["threads.c", "variable.c"], &flags) else {
        return;
    };
    let answer = check(program);
    let findings = [
        "note defined-elsewhere",
        "ok access initial-exec",
        "ok exported",
        "ok access tlsdesc",
    ];
    assert_findings(&answer, &findings);
    let library = library.display().to_string();
    assert_eq!(
        text(&answer, "defined-elsewhere"),
        format!(
            "it uses otel_thread_ctx_v1 and does not define it: the definition is in {library}"
        )
    );
    assert_eq!(finding(&answer, "exported")["module"], library);
}

/// Found as the dynamic linker finds it: by the program's DT_RUNPATH, which names the library's directory.
#[test]
fn a_needed_library_that_the_program_itself_does_not_refer_to() {
    let scratch = Scratch::new("check-needed");
    let copy = scratch.path("libhas-variable.so");
    let Some(library) = Compiler::gcc().library(&["variable.c"], &["-mtls-dialect=gnu2"]) else {
        return;
    };
    std::fs::copy(library, &copy).unwrap();
    let flags = [
        "-Wl,--no-as-needed".to_owned(),
        format!("-L{}", scratch.folder().display()),
        "-l:libhas-variable.so".to_owned(),
        "-Wl,--enable-new-dtags,-rpath,$ORIGIN".to_owned(),
    ];
    let built = Compiler::gcc().program(&["threads.c"], &flags).unwrap();
    let program = scratch.path("program");
    otelctx_fixtures::copy_program(&built, &program);
    std::fs::remove_file(built).unwrap();
    let answer = check(&program);
    let findings = ["note defined-elsewhere", "ok exported", "ok access tlsdesc"];
    assert_findings(&answer, &findings);
    let copy = std::fs::canonicalize(copy).unwrap();
    assert_eq!(
        text(&answer, "defined-elsewhere"),
        format!(
            "it has no otel_thread_ctx_v1: the definition is in {}",
            copy.display()
        )
    );
    let other = Compiler::gcc().program(&["threads.c"], &["-ldl"]).unwrap();
    let answer = check(other);
    assert_findings(&answer, &["problem absent"]);
    let absent = text(&answer, "absent");
    assert!(
        absent.ends_with(" either: its threads publish no context"),
        "{absent}"
    );
    // A library that is not found is named, and nothing is claimed about it.
    std::fs::remove_file(copy).unwrap();
    let answer = check(&program);
    assert_findings(&answer, &["problem absent"]);
    let absent = finding(&answer, "absent");
    let claims = absent["text"]
        .as_str()
        .unwrap()
        .contains("publish no context");
    assert!(!claims, "{absent}");
    let hint = absent["hint"].as_str().unwrap();
    assert!(
        hint.contains("Not found here, so not inspected: libhas-variable.so. "),
        "{hint}"
    );
}

/// Only the first 64 were inspected, and the others not mentioned.
#[test]
fn a_program_that_needs_many_libraries() {
    const LIBRARIES: usize = 80;
    let scratch = Scratch::new("check-many-needed");
    let flags = ["-Wl,-soname,libneeded-00.so"];
    let Some(library) = compile("many-needed", "int needed;", &flags) else {
        return;
    };
    let bytes = std::fs::read(library).unwrap();
    let name = b"libneeded-00.so\0";
    let at = bytes.windows(name.len()).position(|it| it == name).unwrap();
    let copy = |number: usize| {
        let (mut bytes, path) = (bytes.clone(), scratch.path(&format!("{number}.so")));
        bytes[at + 10..at + 12].copy_from_slice(format!("{number:02}").as_bytes());
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let mut flags = vec!["-Wl,--no-as-needed".to_owned()];
    flags.extend((0..LIBRARIES).map(copy));
    let program =
        Compiler::gcc().program(&["threads.c"], &[&flags[..], &["-ldl".to_owned()]].concat());
    let answer = check(program.unwrap());
    let hint = finding(&answer, "absent")["hint"]
        .as_str()
        .unwrap()
        .to_owned();
    let named: String = (0..6)
        .map(|number| format!("libneeded-{number:02}.so, "))
        .collect();
    let named = named.trim_end_matches(", ");
    assert!(
        hint.contains(&format!(": {named} and 74 others. ")),
        "{hint}"
    );
}

#[test]
fn object_files_and_static_libraries() {
    let variable =
        "__thread void *otel_thread_ctx_v1; void *f(void) { return &otel_thread_ctx_v1; }";
    let hidden = format!("__attribute__((visibility(\"hidden\"))) {variable}");
    let own = format!("static {variable}");
    let reference = format!("extern {variable}");
    let mut objects = Vec::new();
    for (name, code, flags, expected) in [
        (
            "o-plain",
            variable,
            &["-fPIC", "-mtls-dialect=gnu2"][..],
            &["ok defined", "ok access tlsdesc"][..],
        ),
        (
            "o-gd",
            variable,
            &["-fPIC", "-mtls-dialect=gnu"],
            &["ok defined", "note access general-dynamic"],
        ),
        (
            "o-ie",
            variable,
            &["-fPIC", "-ftls-model=initial-exec"],
            &["ok defined", "note access initial-exec"],
        ),
        (
            "o-ld",
            variable,
            &["-fPIC", "-ftls-model=local-dynamic"],
            &["ok defined", "note access local-dynamic"],
        ),
        (
            "o-le",
            variable,
            &["-fno-pic"],
            &["ok defined", "ok access local-exec"],
        ),
        (
            "o-hidden",
            &hidden,
            &["-fPIC", "-mtls-dialect=gnu2"],
            &["problem hidden", "ok access tlsdesc"],
        ),
        (
            "o-static",
            &own,
            &["-fPIC", "-mtls-dialect=gnu2"],
            &["problem static-variable", "ok access tlsdesc"],
        ),
        (
            "o-reference",
            &reference,
            &["-fPIC", "-mtls-dialect=gnu2"],
            &["note defined-elsewhere", "ok access tlsdesc"],
        ),
        (
            "o-kind",
            "void *otel_thread_ctx_v1 = 0;",
            &[],
            &["problem not-thread-local"],
        ),
        (
            "o-size",
            "__thread char otel_thread_ctx_v1[4];",
            &[],
            &["ok defined", "problem wrong-size"],
        ),
        (
            "o-none",
            "int f(void) { return 0; }",
            &[],
            &["problem absent"],
        ),
    ] {
        let object = object("gcc", name, code, flags);
        assert_findings(&check(&object), &[&["note not-linked"], expected].concat());
        objects.push((object, expected));
    }
    let lto = object("gcc", "o-lto", variable, &["-flto"]);
    assert_findings(
        &check(lto),
        &["note not-linked", "note intermediate", "note absent"],
    );

    let archive = otelctx_fixtures::directory().join(format!("check-{}.a", std::process::id()));
    let mut ar = Command::new("ar");
    ar.arg("rcs")
        .arg(&archive)
        .args(objects.iter().map(|(object, _)| object));
    assert!(ar.status().unwrap().success());
    let answer = check(&archive);
    // The last of them has nothing to tell.
    let members = objects[..objects.len() - 1]
        .iter()
        .flat_map(|(_, expected)| *expected);
    let expected: Vec<&str> = ["note not-linked"].iter().chain(members).copied().collect();
    assert_findings(&answer, &expected);
    let subject = &answer.json()["subject"]["archive"];
    assert_eq!(subject["members"], objects.len());
    assert_eq!(subject["concerned"], objects.len() - 1);
    let text = otelctx(&[Path::new("check"), &archive]).stdout;
    assert!(
        text.contains("not linked yet: 11 members; 10 know the variable\n"),
        "{text}"
    );
    assert_eq!(finding(&answer, "defined")["module"], "check-o-plain.o");
    std::fs::remove_file(archive).unwrap();
}

/// Runs to its end within a time that only a hang takes.
fn bounded(path: &Path) -> Answer {
    let mut child = command(&[Path::new("check"), path])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > otelctx_fixtures::HANG_TIMEOUT {
            child.kill().unwrap();
            panic!("{} hangs", path.display());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Answer::of(child.wait_with_output().unwrap())
}

#[test]
fn what_nothing_can_be_checked_in() {
    let directory =
        otelctx_fixtures::directory().join(format!("check-other-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = directory.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let mut cases: Vec<(PathBuf, &str)> = vec![
        (file("empty", b""), "an empty file"),
        (
            file("script", b"#!/bin/sh\nexit\n"),
            "a script for /bin/sh, not an ELF file",
        ),
        (
            file("libx.so", b"/* GNU ld script */ INPUT(x)"),
            "a linker script",
        ),
        (file("bitcode.o", b"BC\xc0\xde0123"), "LLVM bitcode"),
        (file("text", b"hello\n"), "not an ELF file"),
        (file("magic", b"\x7fELF"), "it is truncated after 4 bytes"),
        (file("archive", b"!<arch>\nx"), "it is truncated"),
        (directory.clone(), "not a regular file"),
        ("/dev/zero".into(), "not a regular file"),
        ("/dev/tty".into(), "not a regular file"),
        ("/nowhere".into(), "No such file"),
        ("2147483648".into(), "no process has the ID 2147483648"),
    ];
    let fifo = directory.join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    cases.push((fifo, "not a regular file"));
    // Cut in the middle of a table, and a core file.
    if let Some(program) = program(Compiler::gcc(), &["-rdynamic"]) {
        let bytes = std::fs::read(&program).unwrap();
        cases.push((
            file("cut", &bytes[..bytes.len() / 2]),
            "it is truncated after ",
        ));
        let mut core = bytes.clone();
        // e_type: ET_CORE
        core[16] = 4;
        cases.push((file("core", &core), "a core file"));
        let debug = directory.join("debug");
        let mut objcopy = Command::new("objcopy");
        objcopy.arg("--only-keep-debug").arg(&program).arg(&debug);
        assert!(objcopy.status().unwrap().success());
        cases.push((debug, "a separate debug file"));
    }
    for (path, why) in cases {
        let answer = bounded(&path).expect(2);
        assert_eq!(answer.stdout, "");
        let lines: Vec<&str> = answer.stderr.lines().collect();
        assert!(lines[0].contains(why), "{answer:?}");
        assert!(
            lines.len() == 2 || why.contains("No such file"),
            "{answer:?}"
        );
    }
    std::fs::remove_dir_all(directory).unwrap();
}

/// Truncated anywhere, or with any half-word wrong: an answer or a refusal, and no panic.
#[test]
fn broken_files() {
    let Some(library) = Compiler::gcc().library(&["variable.c"], &["-mtls-dialect=gnu2"]) else {
        return;
    };
    let bytes = std::fs::read(library).unwrap();
    let path = otelctx_fixtures::directory().join(format!("check-broken-{}", std::process::id()));
    for at in (0..bytes.len()).step_by(bytes.len() / 40) {
        std::fs::write(&path, &bytes[..at]).unwrap();
        assert!(bounded(&path).status <= 2);
        let mut broken = bytes.clone();
        broken[at..(at + 2).min(bytes.len())].fill(0xff);
        std::fs::write(&path, &broken).unwrap();
        assert!(bounded(&path).status <= 2);
    }
    std::fs::remove_file(path).unwrap();
}

/// Eighty columns: sentences are wrapped, what is to be copied is not.
#[test]
fn the_text_of_an_answer() {
    let Some(program) = program(Compiler::gcc(), &["-pie", "-fPIC", "-mtls-dialect=gnu2"]) else {
        return;
    };
    let name = program.file_name().unwrap().to_str().unwrap();
    assert_eq!(
        otelctx(&[Path::new("check"), &program]).expect(1).stdout,
        format!(
            "{}\n  a position-independent program, linked dynamically; x86-64\n\
             ✗ otel_thread_ctx_v1 is defined but not exported: readers can't find it\n    \
             The linker kept it local. Any one of these exports it:\n    \
             gcc, clang:  -Wl,--export-dynamic-symbol=otel_thread_ctx_v1\n    \
             rustc:       -C link-arg=-Wl,--export-dynamic-symbol=otel_thread_ctx_v1\n    \
             build.rs:\n      \
             // cargo add --build --path PATH/TO/otelctx/publish/build\n      \
             fn main() {{ otelctx_build::export(); }}\n    \
             .cargo/config.toml:\n      \
             # at the top:\n      \
             build.rustflags = [\n        \
             \"-Clink-arg=-Wl,--export-dynamic-symbol=otel_thread_ctx_v1\",\n      \
             ]\n    \
             CMake:\n      \
             target_link_options({name} PRIVATE\n        \
             \"LINKER:--export-dynamic-symbol=otel_thread_ctx_v1\")\n    \
             CMake:       set_property(TARGET {name} PROPERTY ENABLE_EXPORTS ON)\n\
             ✓ access is local-exec after relaxation: the linker replaced 1 TLS descriptor with the offset (fastest; every reader supports it)\n",
            program.display()
        )
    );
}
