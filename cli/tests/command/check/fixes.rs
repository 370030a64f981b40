//! Each line that a check offers is copied into a program that has the problem, and fixes it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use otelctx_fixtures::{Compiler, tier};
use serde_json::Value;

use super::{check, compile, findings, source};

/// The lines of the answer's findings for one tool.
fn lines(path: &Path, id: &str, tool: &str) -> Vec<String> {
    let answer = check(path).json();
    let list = answer["findings"].as_array().unwrap();
    let found = list
        .iter()
        .find(|it| it["id"] == id && it["fix"].is_array());
    let Some(found) = found else {
        panic!("no fix for {id}: {answer:#}")
    };
    let fix = found["fix"].as_array().unwrap().iter();
    let lines = fix.filter(|it| it["tool"] == tool);
    let text = |line: &Value| line["line"].as_str().unwrap().to_owned();
    let lines: Vec<String> = lines.map(text).collect();
    assert!(!lines.is_empty(), "no line for {tool}: {answer:#}");
    lines
}

/// Splits a line into words as a shell does.
fn words(line: &str) -> Vec<String> {
    let words = line.split_whitespace().filter(|word| *word != "\\");
    words.map(str::to_owned).collect()
}

/// Returns whether there is a finding with this ID that is not good.
fn has(path: &Path, id: &str) -> bool {
    let found = findings(&check(path));
    let bad = |it: &&String| !it.starts_with("ok ") && it.split(' ').nth(1) == Some(id);
    found.iter().any(|it| bad(&it))
}

#[track_caller]
fn assert_fixed(path: &Path, id: &str, line: &str) {
    assert!(!has(path, id), "{line}: {:?}", findings(&check(path)));
    assert_eq!(check(path).status, 0, "{line}");
}

/// Runs a program, which must succeed.
#[track_caller]
fn assert_runs(program: &Path) {
    let output = Command::new(program).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn flags_of_gcc_and_clang() {
    let (gcc, clang) = (Compiler::gcc(), Compiler::clang_with_descriptors());
    for (tool, compiler) in [("gcc", gcc), ("clang", clang)] {
        for (linker, id, base) in [
            ("bfd", "not-exported", &["-pie", "-fPIC"][..]),
            ("mold", "not-exported", &["-no-pie", "-fno-pie"]),
            ("bfd", "static", &["-static"]),
            ("bfd", "static-pie", &["-static-pie", "-fPIE"]),
            (
                "bfd",
                "static-pie-crash",
                &[
                    "-static-pie",
                    "-fPIC",
                    "-Wl,--export-dynamic-symbol=otel_thread_ctx_v1",
                ],
            ),
        ] {
            let build = |flags: &[String]| {
                let mut all = vec!["-DLINKED".to_owned()];
                all.extend(flags.iter().cloned());
                let compiler = compiler.linker(linker);
                compiler.program(&["threads.c", "variable.c"], &all)
            };
            let base: Vec<String> = base.iter().map(|&flag| flag.to_owned()).collect();
            let Some(broken) = build(&base) else { continue };
            for line in lines(&broken, id, tool) {
                // What it says about -static.
                let kept = base.iter().filter(|flag| *flag != "-static").cloned();
                let flags: Vec<String> = kept.chain(words(&line)).collect();
                let fixed = build(&flags).unwrap();
                assert_fixed(&fixed, id, &line);
                assert_runs(&fixed);
            }
        }
        let traditional = "-mtls-dialect=gnu";
        for (linker, id, base) in [
            (
                "lld",
                "hidden",
                &["-fvisibility=hidden", "-DSLOT=f", "-Wno-error"][..],
            ),
            ("bfd", "not-exported", &["-fvisibility=hidden", "-DBIG=24"]),
            ("bfd", "access", &[traditional]),
            ("bfd", "access", &[traditional, "-ftls-model=initial-exec"]),
            (
                "bfd",
                "access",
                &[traditional, "-ftls-model=local-dynamic", "-DBIG=24"],
            ),
        ] {
            let build =
                |flags: Vec<String>| compiler.linker(linker).library(&["variable.c"], &flags);
            let base: Vec<String> = base.iter().map(|&flag| flag.to_owned()).collect();
            let Some(broken) = build(base.clone()) else {
                continue;
            };
            for line in lines(&broken, id, tool) {
                let flags = [base.clone(), words(&line)].concat();
                assert_fixed(&build(flags).unwrap(), id, &line);
            }
        }
    }
}

/// clang's linker generates the code: the flags of the compilation alone do nothing.
#[test]
fn flags_of_the_link_where_the_linker_generates_the_code() {
    if !cfg!(target_arch = "x86_64") {
        return;
    }
    let folder = otelctx_fixtures::directory();
    let [object, library] = ["o", "so"].map(|it| folder.join(format!("check-lto.{it}")));
    let run = |flags: &[&str], more: &[String], output: &Path| {
        let mut clang = Command::new("clang-19");
        clang
            .args(["-flto", "-fPIC"])
            .args(flags)
            .args(more)
            .arg("-o")
            .arg(output);
        clang.output().is_ok_and(|it| it.status.success())
    };
    let source = otelctx_fixtures::program_source("variable.c");
    let compile = ["-mtls-dialect=gnu2", "-c", source.to_str().unwrap()];
    let link = ["-shared", "-fuse-ld=bfd", object.to_str().unwrap()];
    if !run(&compile, &[], &object) || !run(&link, &[], &library) {
        eprintln!("skipped: no clang 19 that links with -flto");
        return;
    }
    assert!(has(&library, "access"));
    let answer = check(&library);
    assert!(answer.stdout.contains("-flto"), "{answer:?}");
    for line in lines(&library, "access", "clang") {
        assert!(run(&link, &words(&line), &library));
        assert_fixed(&library, "access", &line);
        assert!(run(&link, &[], &library));
    }
    for line in lines(&library, "access", "CMake") {
        let options = line
            .lines()
            .find_map(|it| it.strip_prefix("target_link_options("));
        let options = options.unwrap().trim_end_matches(')');
        let (_, options) = options.split_once(" PRIVATE ").unwrap();
        assert!(run(&link, &words(options), &library));
        assert_fixed(&library, "access", &line);
        assert!(run(&link, &[], &library));
    }
}

#[test]
fn declarations_and_version_scripts() {
    let library = |name: &str, declaration: &str, flags: &[&str]| {
        let code = format!("{declaration} void *f(void) {{ return &otel_thread_ctx_v1; }}");
        compile(name, &code, &[&["-mtls-dialect=gnu2"], flags].concat())
    };
    let hidden = "__attribute__((visibility(\"hidden\"))) __thread void *otel_thread_ctx_v1;";
    for (id, declaration) in [
        ("not-exported", hidden),
        ("wrong-size", "__thread char otel_thread_ctx_v1[16];"),
        ("not-thread-local", "void *otel_thread_ctx_v1;"),
    ] {
        let Some(broken) = library(&format!("fix-{id}"), declaration, &[]) else {
            return;
        };
        for line in lines(&broken, id, "C") {
            let fixed = library(&format!("fixed-{id}"), &line, &["-fvisibility=default"]);
            assert_fixed(&fixed.unwrap(), id, &line);
        }
    }

    let variable = "__thread void *otel_thread_ctx_v1;";
    let script = |name: &str, text: &str| {
        let script = source(name, &format!("{{ {text} local: *; }};"));
        format!("-Wl,--version-script={}", script.display())
    };
    let keeping = script("fix-script", "global: f;");
    let broken = library("fix-versions", variable, &[&keeping]).unwrap();
    for line in lines(&broken, "not-exported", "version script (global)") {
        let listing = script("fixed-script", &format!("global: {line} f;"));
        let fixed = library("fixed-versions", variable, &[&listing]);
        assert_fixed(&fixed.unwrap(), "not-exported", &line);
    }

    let program = |name: &str, declaration: &str| {
        let code = format!(
            "{declaration} void *f(void) {{ return &otel_thread_ctx_v1; }} \
             int main(void) {{ return f() == 0; }}"
        );
        let source = source(name, &code);
        Compiler::gcc().program(&[source.to_str().unwrap()], &["-rdynamic"])
    };
    let broken = program("fix-static", "static __thread void *otel_thread_ctx_v1;");
    for line in lines(&broken.unwrap(), "static-variable", "C") {
        let fixed = program("fixed-static", &line);
        assert_fixed(&fixed.unwrap(), "static-variable", &line);
    }
}

/// In programs linked by GNU ld and mold, a hidden variable looks like a static one.
#[test]
fn hidden_in_a_program() {
    let hidden = ["-fvisibility=hidden", "-rdynamic"];
    for (linker, id) in [("bfd", "static-variable"), ("mold", "not-exported")] {
        let program = |name: &str, declaration: &str, flag: &str| {
            let code = format!(
                "{declaration} void *f(void) {{ return &otel_thread_ctx_v1; }} \
                 int main(void) {{ return f() == 0; }}"
            );
            let source = source(name, &code);
            let flags = [&hidden[..], &[flag]].concat();
            let compiler = Compiler::gcc().linker(linker);
            compiler.program(&[source.to_str().unwrap()], &flags)
        };
        let plain = "__thread void *otel_thread_ctx_v1;";
        let Some(broken) = program("fix-hidden", plain, "-w") else {
            continue;
        };
        let answer = check(&broken).json();
        assert!(answer.to_string().contains("static or hidden"), "{answer}");
        for line in lines(&broken, id, "C") {
            let fixed = program("fixed-hidden", &line, "-w");
            assert_fixed(&fixed.unwrap(), id, &line);
        }
        if linker == "bfd" {
            for line in lines(&broken, id, "gcc") {
                let fixed = program("fix-hidden", plain, &line);
                assert_fixed(&fixed.unwrap(), id, &line);
            }
        }
    }
}

/// The variable as a crate can define it: rustc exports none of its own.
const VARIABLE: &str = r#"
std::arch::global_asm!(
    ".pushsection .tbss, \"awT\", @nobits",
    ".globl otel_thread_ctx_v1",
    ".type otel_thread_ctx_v1, @object",
    ".size otel_thread_ctx_v1, 8",
    ".p2align 3",
    "otel_thread_ctx_v1: .zero 8",
    ".popsection",
);
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn slot() -> *mut usize {
    let at: *mut usize;
    // SAFETY: what a compiler writes to reach the variable.
    unsafe {
        std::arch::asm!(
            "lea rax, [rip + otel_thread_ctx_v1@tlsdesc]",
            "call [rax + otel_thread_ctx_v1@tlscall]",
            "add rax, fs:0",
            out("rax") at,
            clobber_abi("C"),
        );
    }
    at
}
"#;

fn rustc(name: &str, code: &str, flags: &[String]) -> Option<PathBuf> {
    if !cfg!(target_arch = "x86_64") {
        return None;
    }
    let directory = otelctx_fixtures::directory();
    let file = directory.join(format!("check-{name}-{}.rs", std::process::id()));
    fs::write(&file, code).unwrap();
    let output = file.with_extension("out");
    // Beside the cargo that built this test.
    let rustc = Path::new(env!("CARGO")).with_file_name("rustc");
    let mut command = Command::new(rustc);
    command
        .args(["--edition=2024", "-o"])
        .arg(&output)
        .arg(&file);
    let Ok(answer) = command.args(flags).output() else {
        println!("skipped: rustc is out of this user's reach");
        return None;
    };
    fs::remove_file(file).unwrap();
    assert!(answer.status.success(), "{command:?}: {answer:?}");
    Some(output)
}

#[test]
fn flags_and_lines_for_rustc() {
    let program = format!("{VARIABLE}\nfn main() {{ unsafe {{ *slot() = 1 }} }}");
    let gnu = "-Clink-arg=-fuse-ld=bfd";
    let crt_static = "-Ctarget-feature=+crt-static";
    let export = "-Clink-arg=-Wl,--export-dynamic-symbol=otel_thread_ctx_v1";
    for (id, base) in [
        ("not-exported", &[gnu][..]),
        ("not-exported", &[]),
        ("static", &[crt_static, "-Crelocation-model=static"]),
        ("static-pie", &[crt_static, gnu]),
        ("static-pie-crash", &[crt_static, gnu, export]),
    ] {
        let base: Vec<String> = base.iter().map(|&flag| flag.to_owned()).collect();
        let Some(broken) = rustc("fix-program", &program, &base) else {
            return;
        };
        for line in lines(&broken, id, "rustc") {
            let kept = base
                .iter()
                .filter(|flag| id != "static" || *flag != crt_static);
            let flags: Vec<String> = kept.cloned().chain(words(&line)).collect();
            let fixed = rustc("fixed-program", &program, &flags).unwrap();
            assert!(!has(&fixed, id), "{line}");
            // Out of a static program a dynamic one, whose linker is to export it now.
            if id != "static" {
                assert_fixed(&fixed, id, &line);
            }
            assert_runs(&fixed);
            fs::remove_file(fixed).unwrap();
        }
        fs::remove_file(broken).unwrap();
    }

    let library = ["--crate-type=cdylib".to_owned()];
    let broken = rustc("fix-library", VARIABLE, &library).unwrap();
    for line in lines(&broken, "not-exported", "Rust") {
        let code = format!("{VARIABLE}\n{line}");
        let fixed = rustc("fixed-library", &code, &library).unwrap();
        assert_fixed(&fixed, "not-exported", &line);
        fs::remove_file(fixed).unwrap();
    }
    fs::remove_file(broken).unwrap();
}

/// A package that is built by the Cargo which built this test.
struct Package(PathBuf);

impl Package {
    fn new() -> Self {
        // Kept, so that a second run builds little.
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("check-package");
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        let package = Self(directory);
        package.write(
            "Cargo.toml",
            &format!(
                "[package]\nname = \"app\"\nversion = \"0.0.0\"\nedition = \"2021\"\n\
                 [dependencies]\notelctx.path = \"{root}/publish/otelctx\"\n\
                 [build-dependencies]\notelctx-build.path = \"{root}/publish/build\"\n[workspace]\n"
            ),
        );
        package.write(
            "src/main.rs",
            "fn main() {\n    let mut context = otelctx::Context::new([1; 16], [2; 8]).unwrap();\n    \
             let _attached = context.attach();\n}\n",
        );
        let lock = fs::read_to_string(format!("{root}/Cargo.lock")).unwrap();
        package.write("Cargo.lock", &lock);
        package
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn build(&self) -> PathBuf {
        let target = "x86_64-unknown-linux-gnu";
        let mut command = Command::new(env!("CARGO"));
        command
            .args(["build", "--offline", "--quiet", "--target", target])
            .current_dir(&self.0)
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .env_remove("RUSTFLAGS")
            .env("CARGO_TARGET_DIR", self.0.join("target"));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        self.0.join("target").join(target).join("debug/app")
    }
}

#[test]
fn build_scripts_and_configurations_of_cargo() {
    let reachable = Command::new(env!("CARGO")).arg("--version").output();
    if !cfg!(target_arch = "x86_64") || !reachable.is_ok_and(|it| it.status.success()) {
        println!("skipped: Cargo is out of this user's reach");
        return;
    }
    const CONFIG: &str = ".cargo/config.toml";
    const GNU: &str = "\"-Clink-arg=-fuse-ld=bfd\"";
    let package = Package::new();
    package.write("build.rs", "fn main() {}\n");
    package.write(CONFIG, &format!("build.rustflags = [{GNU}]"));
    let program = package.build();
    let id = "not-exported";
    let (scripts, configs) = (lines(&program, id, "build.rs"), lines(&program, id, CONFIG));
    for line in scripts {
        package.write("build.rs", &line);
        assert_fixed(&package.build(), id, &line);
    }
    if tier::left_to_all("each line for Cargo's configuration") {
        return;
    }
    package.write(
        "build.rs",
        "fn main() { println!(\"cargo:rustc-link-arg=-fuse-ld=bfd\"); }\n",
    );
    for line in configs {
        package.write(CONFIG, &line);
        assert_fixed(&package.build(), id, &line);
    }

    // Static programs: the recommended flags follow the flags that made them static.
    let flags = |line: &str| {
        let list = line.split_once('[').unwrap().1.rsplit_once(']').unwrap().0;
        list.to_owned()
    };
    package.write("build.rs", "fn main() {}\n");
    let base = "\"-Ctarget-feature=+crt-static\", \"-Clink-arg=-fuse-ld=bfd\",";
    let export = "\"-Clink-arg=-Wl,--export-dynamic-symbol=otel_thread_ctx_v1\",";
    for (id, base) in [
        ("static-pie", base.to_owned()),
        ("static-pie-crash", format!("{base}{export}")),
    ] {
        package.write(CONFIG, &format!("build.rustflags = [{base}]"));
        for line in lines(&package.build(), id, CONFIG) {
            package.write(
                CONFIG,
                &format!("build.rustflags = [{base}{}]", flags(&line)),
            );
            let fixed = package.build();
            assert_fixed(&fixed, id, &line);
            assert_runs(&fixed);
        }
    }
    let fixed =
        "build.rustflags = [\"-Ctarget-feature=+crt-static\", \"-Crelocation-model=static\"]";
    package.write(CONFIG, fixed);
    for line in lines(&package.build(), "static", CONFIG) {
        // In place of +crt-static; rustc's lld exports it then, for the crate otelctx.
        package.write(CONFIG, &line);
        assert_fixed(&package.build(), "static", &line);
    }

    // C in a package of Cargo: crates that compile it go by CFLAGS.
    let c = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../testing/fixtures/programs/variable.c"
    );
    package.write(
        "build.rs",
        &format!(
            "fn main() {{\n    println!(\"cargo:rerun-if-env-changed=CFLAGS\");\n    \
             let flags = std::env::var(\"CFLAGS\").unwrap_or_default();\n    \
             let mut gcc = std::process::Command::new(\"gcc\");\n    \
             gcc.args([\"-shared\", \"-fPIC\", \"-o\", \"{0}/libc.so\", {c:?}]);\n    \
             assert!(gcc.args(flags.split_whitespace()).status().unwrap().success());\n}}\n",
            package.0.display()
        ),
    );
    package.write(CONFIG, "");
    package.build();
    let library = package.0.join("libc.so");
    for line in lines(&library, "access", CONFIG) {
        package.write(CONFIG, &line);
        package.build();
        assert_fixed(&library, "access", &line);
    }
}

/// Targets of one project: kind, name, what breaks them, and the finding.
const TARGETS: [(&str, &str, &str, &str); 9] = [
    ("executable", "kept", "", "not-exported"),
    (
        "executable",
        "fixed",
        "target_link_options(fixed PRIVATE -static)",
        "static",
    ),
    (
        "executable",
        "pie",
        "target_link_options(pie PRIVATE -static-pie)\ntarget_compile_options(pie PRIVATE -fPIE)",
        "static-pie",
    ),
    (
        "executable",
        "crash",
        "target_link_options(crash PRIVATE -static-pie -Wl,--export-dynamic-symbol=otel_thread_ctx_v1)\n\
         target_compile_options(crash PRIVATE -fPIC)",
        "static-pie-crash",
    ),
    (
        "library",
        "hidden",
        "set_property(TARGET hidden PROPERTY C_VISIBILITY_PRESET hidden)\ntarget_link_options(hidden PRIVATE -fuse-ld=lld)",
        "hidden",
    ),
    (
        "library",
        "unseen",
        "set_property(TARGET unseen PROPERTY C_VISIBILITY_PRESET hidden)",
        "not-exported",
    ),
    (
        "library",
        "general",
        "target_compile_options(general PRIVATE -mtls-dialect=gnu)",
        "access",
    ),
    (
        "library",
        "initial",
        "target_compile_options(initial PRIVATE -ftls-model=initial-exec)",
        "access",
    ),
    (
        "library",
        "local",
        "target_compile_options(local PRIVATE -ftls-model=local-dynamic -DBIG=24)",
        "access",
    ),
];

/// Configures and builds the project, and finds a target's file.
fn cmake(directory: &Path, broken: impl Fn(&str, &str) -> String) -> Option<()> {
    let programs = concat!(env!("CARGO_MANIFEST_DIR"), "/../testing/fixtures/programs");
    let mut project = "cmake_minimum_required(VERSION 3.13)\nproject(fixes C)\n".to_owned();
    for (kind, name, breaks, _) in TARGETS {
        project += &match kind {
            "library" => format!("add_library({name} SHARED {programs}/variable.c)\n"),
            _ => format!(
                "add_executable({name} {programs}/threads.c {programs}/variable.c)\n\
                 target_compile_definitions({name} PRIVATE LINKED)\n\
                 target_link_options({name} PRIVATE -pthread)\n"
            ),
        };
        project += &broken(name, breaks);
        project += "\n";
    }
    fs::create_dir_all(directory).unwrap();
    fs::write(directory.join("CMakeLists.txt"), project).unwrap();
    let build = directory.join("build");
    for arguments in [
        &["-S", ".", "-B", "build"][..],
        &["--build", "build", "-j2"],
    ] {
        let mut cmake = Command::new("cmake");
        let Ok(output) = cmake.args(arguments).current_dir(directory).output() else {
            println!("skipped: cmake is not installed");
            return None;
        };
        assert!(output.status.success(), "{build:?}: {output:?}");
    }
    Some(())
}

#[test]
fn lines_for_cmake() {
    if !cfg!(target_arch = "x86_64") {
        return;
    }
    let directory =
        otelctx_fixtures::directory().join(format!("check-cmake-{}", std::process::id()));
    let file = |kind: &str, name: &str| match kind {
        "library" => directory.join(format!("build/lib{name}.so")),
        _ => directory.join("build").join(name),
    };
    if cmake(&directory, |_, breaks| breaks.to_owned()).is_none() {
        let _ = fs::remove_dir_all(&directory);
        return;
    }
    let reported: Vec<Vec<String>> = TARGETS
        .iter()
        .map(|(kind, name, _, id)| lines(&file(kind, name), id, "CMake"))
        .collect();
    // A finding may have several lines, of which each must do.
    let most = reported.iter().map(Vec::len).max().unwrap();
    for round in 0..most {
        let line = |name: &str| {
            let index = TARGETS.iter().position(|target| target.1 == name).unwrap();
            let lines = &reported[index];
            lines[round.min(lines.len() - 1)].clone()
        };
        cmake(&directory, |name, breaks| {
            // What it says about -static.
            let breaks = if name == "fixed" { "" } else { breaks };
            format!("{breaks}\n{}", line(name))
        });
        for (kind, name, _, id) in TARGETS {
            assert_fixed(&file(kind, name), id, &line(name));
            if kind == "executable" {
                assert_runs(&file(kind, name));
            }
        }
    }
    fs::remove_dir_all(directory).unwrap();
}
