//! Programs in C and C++: each function, the examples, and what readers see of them.

#![cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]

mod common;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use object::{Object, ObjectSection, ObjectSymbol};

use common::{Built, Libc, compile, have, installed, package, root, source, threads};
use otelctx_fixtures::Target;
use otelctx_reader::format::process_context::Value;
use otelctx_reader::{ContextState, Process};

const C: [&str; 4] = ["-O2", "-Wall", "-Wextra", "-Werror"];
const CPP: [&str; 5] = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror"];

/// Builds a program with a package of pkg-config.
fn program(compiler: &str, flags: &[&str], file: &str, prefix: &Path, name: &str) -> Built {
    let flags = flags.iter().map(OsString::from);
    let package = package(prefix, &["--cflags", "--libs", name]);
    let all = flags
        .chain(["-pthread".into(), source(file).into()])
        .chain(package.iter().map(OsString::from));
    compile(compiler, all.collect::<Vec<_>>(), "c-program")
        .unwrap_or_else(|error| panic!("{error}"))
}

fn spawn(program: &Built, prefix: &Path) -> Target {
    Target::spawn(Command::new(&program.0).env("LD_LIBRARY_PATH", prefix.join("lib")))
}

// Values of `otelctx_result`.
const OK: i32 = 0;
const ALREADY_PUBLISHED: i32 = 9;

/// Compilers for C with their C library.
fn compilers() -> Vec<(String, &'static Path)> {
    let mut compilers = Vec::new();
    if let Some(prefix) = installed(Libc::Glibc) {
        for compiler in ["gcc", "clang"].into_iter().filter(|it| have(it)) {
            compilers.push((compiler.to_owned(), prefix));
        }
    }
    if let Some(prefix) = installed(Libc::Musl) {
        let gcc = root().join("target/setup/musl-x86_64/gcc");
        compilers.push((gcc.display().to_string(), prefix));
    }
    compilers
}

#[test]
fn every_function_for_c_does_what_it_says_and_refuses_what_it_cannot_do() {
    for (compiler, prefix) in compilers() {
        for package in ["otelctx", "otelctx-static"] {
            let built = program(&compiler, &C, "tests/programs/api.c", prefix, package);
            let mut target = spawn(&built, prefix);
            let mut process = Process::open(target.pid()).unwrap();
            let context = match process.context().unwrap() {
                ContextState::Published(context) => context,
                other => panic!("{other:?}"),
            };
            let value = |name: &str| context.payload.resource_attribute(name).cloned();
            let map = Value::Map(vec![(
                "ports".into(),
                Value::Array(vec![Value::Int(80), Value::from("443")]),
            )]);
            for (name, expected) in [
                ("service.name", Value::from("api")),
                ("telemetry.sdk.language", Value::from("c")),
                ("process.pid", Value::Int(target.pid().into())),
                ("bool", Value::Bool(true)),
                ("int", Value::Int(-7)),
                ("double", Value::Double(0.5)),
                ("bytes", Value::Bytes(vec![0, 0xff])),
                ("map", map),
                ("job.name", Value::from("nightly")),
            ] {
                assert_eq!(value(name), Some(expected), "{compiler} {package}: {name}");
            }
            assert_eq!(value("gone"), None);
            let own = |name: &str| {
                let mut attributes = context.payload.attributes.iter();
                attributes
                    .find(|(key, _)| key == name)
                    .map(|(_, value)| value.clone())
            };
            assert_eq!(own("own"), Some(Value::Bool(false)));
            assert_eq!(own("threadlocal.more"), Some(Value::Double(2.5)));
            assert_eq!(context.keys.clone().unwrap().unwrap().names().len(), 256);
            assert!(ends(&mut target), "{compiler} {package}");
        }
    }
}

/// Closes the input of a program; whether it then succeeds.
fn ends(target: &mut Target) -> bool {
    target.close();
    target.child().wait().unwrap().success()
}

#[test]
fn the_wrapper_for_cpp_has_scopes_that_end() {
    let Some(prefix) = installed(Libc::Glibc) else {
        return;
    };
    for compiler in ["g++", "clang++"].into_iter().filter(|it| have(it)) {
        for package in ["otelctx", "otelctx-static"] {
            let built = program(compiler, &CPP, "tests/programs/api.cpp", prefix, package);
            let mut target = spawn(&built, prefix);
            let mut process = Process::open(target.pid()).unwrap();
            let ContextState::Published(context) = process.context().unwrap() else {
                panic!("not published");
            };
            let value = |name: &str| context.payload.resource_attribute(name).cloned();
            assert_eq!(value("service.name"), Some(Value::from("cpp")));
            assert_eq!(value("telemetry.sdk.language"), Some(Value::from("cpp")));
            let ports = Value::Array(vec![Value::Int(80), Value::Int(443)]);
            assert_eq!(value("ports"), Some(ports));
            let nested = vec![
                ("a".into(), Value::Double(1.5)),
                ("b".into(), Value::Bool(true)),
            ];
            assert_eq!(value("nested"), Some(Value::Map(nested)));
            assert_eq!(value("bytes"), Some(Value::Bytes(vec![0, 1])));
            for (name, expected) in [
                ("signed", Value::Int(-7)),
                ("size", Value::Int(2)),
                ("largest", Value::Int(i64::MAX)),
                ("small", Value::Int(200)),
                ("float", Value::Double(0.5)),
            ] {
                assert_eq!(value(name), Some(expected), "{name}");
            }
            assert_eq!(value("job.name"), Some(Value::from("nightly")));
            let own = |name: &str| {
                let mut attributes = context.payload.attributes.iter();
                attributes
                    .find(|(key, _)| key == name)
                    .map(|(_, value)| value.clone())
            };
            assert_eq!(own("own"), Some(Value::Bool(false)));
            assert_eq!(own("threadlocal.more"), Some(Value::Double(2.5)));
            let schema = Some(Value::from("tls_v1"));
            assert_eq!(own("threadlocal.schema_version"), schema);
            assert!(ends(&mut target), "{compiler} {package}");
        }
    }
}

/// Warnings that a user's own code may have as errors.
const STRICT: [&str; 8] = [
    "-Wpedantic",
    "-Wshadow",
    "-Wconversion",
    "-Wsign-conversion",
    "-Wold-style-cast",
    "-Wnon-virtual-dtor",
    "-Woverloaded-virtual",
    "-Wundef",
];

#[test]
fn the_wrapper_for_cpp_needs_no_exceptions_and_has_no_warnings() {
    let Some(prefix) = installed(Libc::Glibc) else {
        return;
    };
    for compiler in ["g++", "clang++"].into_iter().filter(|it| have(it)) {
        for (more, start) in [
            (&[][..], "thrown: "),
            (&["-fno-exceptions", "-fno-rtti"], "otelctx: "),
        ] {
            let flags = [&CPP[..], &STRICT, more].concat();
            let file = "tests/programs/strict.cpp";
            let built = program(compiler, &flags, file, prefix, "otelctx-static");
            let mut target = spawn(&built, prefix);
            let mut process = common::published(&target, "strict");
            let ContextState::Published(context) = process.context().unwrap() else {
                panic!("not published");
            };
            let job = context.payload.resource_attribute("job.name").cloned();
            assert_eq!(job, Some(Value::from("nightly")), "{compiler} {more:?}");
            assert!(ends(&mut target), "{compiler} {more:?}");

            let output = Command::new(&built.0).arg("fail").output().unwrap();
            let errors = String::from_utf8(output.stderr).unwrap();
            assert_eq!(errors.lines().count(), 1, "{compiler} {more:?}: {errors}");
            assert!(errors.starts_with(start), "{compiler} {more:?}: {errors}");
            let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
            let aborted = (!more.is_empty()).then_some(libc::SIGABRT);
            assert_eq!(signal, aborted, "{compiler} {more:?}");
        }
    }
}

/// Built as the library is, because that decides what a panic does.
#[test]
fn a_panic_in_the_library_is_an_error_in_c() {
    if !have("gcc") {
        return;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("panic");
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .current_dir(root())
        .args(["build", "--quiet", "--locked", "-p", "otelctx-ffi"])
        .args(["--profile", "c", "--features", "test-panic"])
        .arg("--target-dir")
        .arg(&folder)
        .env("RUSTFLAGS", "");
    let Ok(built) = cargo.output() else {
        println!("skipped: Cargo is out of this user's reach");
        return;
    };
    let errors = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{errors}");
    let include = format!("-I{}", source("include").display());
    let flags = C.into_iter().chain(["-pthread", &include]);
    let all = flags.map(OsString::from).chain([
        source("tests/programs/panic.c").into(),
        folder.join("c/libotelctx_ffi.a").into(),
        "-ldl".into(),
        "-lm".into(),
    ]);
    let program = compile("gcc", all.collect::<Vec<_>>(), "c-panic")
        .unwrap_or_else(|error| panic!("{error}"));
    let output = Command::new(&program.0).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    let panics = errors.matches("on purpose").count();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        format!("{panics} panics\n")
    );
}

/// Versions of opentelemetry-cpp's headers in `target/setup`: the oldest that Debian has, and the newest.
const OPENTELEMETRY_CPP: [&str; 2] = ["opentelemetry-cpp-1.19", "opentelemetry-cpp-newest"];

#[test]
fn spans_of_opentelemetry_cpp_are_shown() {
    let Some(prefix) = installed(Libc::Glibc) else {
        return;
    };
    for version in OPENTELEMETRY_CPP {
        let folder = root().join("target/setup").join(version).join("include");
        if !folder.is_dir() {
            println!("skipped: no {version}; cargo xtask setup fetches it");
            continue;
        }
        let folder = format!("-isystem{}", folder.display());
        for compiler in ["g++", "clang++"].into_iter().filter(|it| have(it)) {
            // As its SDK may be compiled.
            let more: &[&str] = match compiler {
                "g++" => &["-fno-exceptions", "-fno-rtti"],
                _ => &[
                    "-DOPENTELEMETRY_ABI_VERSION_NO=2",
                    "-DOPENTELEMETRY_STL_VERSION=2017",
                ],
            };
            let flags = [&CPP[..], &STRICT, more, &[&folder]].concat();
            let file = "tests/programs/opentelemetry.cpp";
            let built = program(compiler, &flags, file, prefix, "otelctx");
            let mut target = spawn(&built, prefix);
            let ids = ("07040000000000000000000000000000", "0400000000000000");
            let expected = (ids.0.to_owned(), ids.1.to_owned(), 4, vec![]);
            let seen = threads(&target, "spans");
            assert_eq!(seen, [Some(expected)], "{version} {compiler}");
            assert!(ends(&mut target), "{version} {compiler}");
        }
    }
}

/// An `extern "C"` function that may unwind contains a call of `panic_cannot_unwind`, which aborts, which ends the process.
/// Of the library for glibc alone: the one for musl is compiled without link-time optimization, by which the
/// compiler finds what cannot panic.
#[test]
fn no_panic_gets_out_of_any_function() {
    let Some(prefix) = installed(Libc::Glibc) else {
        return;
    };
    let data = std::fs::read(prefix.join("lib/libotelctx.a")).unwrap();
    let archive = object::read::archive::ArchiveFile::parse(&*data).unwrap();
    let (mut functions, mut ending) = (BTreeSet::new(), BTreeSet::new());
    for member in archive.members() {
        let Ok(file) = object::File::parse(member.unwrap().data(&*data).unwrap()) else {
            continue;
        };
        for symbol in file
            .symbols()
            .filter(|it| it.kind() == object::SymbolKind::Text)
        {
            let name = symbol.name().unwrap();
            if name.starts_with("otelctx_") {
                functions.insert(name.to_owned());
            }
        }
        // Each function has a section of its own, or shares that of one with the same code.
        for section in file.sections() {
            let name = section.name().unwrap();
            let Some(function) = name.strip_prefix(".text.") else {
                continue;
            };
            let ends_process = section.relocations().any(|(_, relocation)| {
                let object::RelocationTarget::Symbol(index) = relocation.target() else {
                    return false;
                };
                let symbol = file.symbol_by_index(index).unwrap();
                let section = symbol.section_index();
                let section = section.and_then(|index| file.section_by_index(index).ok());
                let names = [
                    symbol.name().ok(),
                    section.as_ref().and_then(|it| it.name().ok()),
                ];
                let mut names = names.into_iter().flatten();
                names.any(|name| name.contains("panic_cannot_unwind"))
            });
            if ends_process {
                ending.insert(function.to_owned());
            }
        }
    }
    let header = std::fs::read_to_string(prefix.join("include/otelctx.h")).unwrap();
    assert_eq!(functions, declared(&header).map(str::to_owned).collect());
    assert!(!ending.is_empty(), "the standard library has some");
    ending.retain(|function| function.contains("otelctx"));
    assert_eq!(ending, BTreeSet::new());
}

#[test]
fn a_library_that_is_unloaded_keeps_what_threads_use() {
    for (compiler, prefix) in compilers() {
        if compiler == "clang" {
            continue;
        }
        let is_musl = compiler != "gcc";
        let include = format!("-I{}", prefix.join("include").display());
        let file = source("tests/programs/unload.c").display().to_string();
        let arguments = C.into_iter().chain(["-pthread", &include, &file, "-ldl"]);
        let program =
            compile(&compiler, arguments, "c-unload").unwrap_or_else(|error| panic!("{error}"));
        // A plugin with the static library, which nothing tells to stay.
        let archive = prefix.join("lib/libotelctx.a").display().to_string();
        let whole = format!("-Wl,--whole-archive,{archive},--no-whole-archive");
        let libraries = package(prefix, &["--libs", "otelctx-static"]);
        let arguments = ["-shared", &whole].into_iter();
        let arguments = arguments.chain(libraries.iter().map(String::as_str));
        let plugin =
            compile(&compiler, arguments, "c-plugin").unwrap_or_else(|error| panic!("{error}"));

        let shared = prefix.join("lib/libotelctx.so.0");
        // musl unloads nothing.
        let states = ["loaded", if is_musl { "loaded" } else { "gone" }];
        for (library, state) in [&shared, &plugin.0].into_iter().zip(states) {
            for how in ["record", "scope", "swap", "own"] {
                let mut command = Command::new(&program.0);
                let mut target = Target::spawn(command.arg(library).arg(how));
                let (trace, span) = (format!("{:0<32}", "05"), format!("{:0<16}", "06"));
                let expected = [None, Some((trace, span, 1, vec![]))];
                let row = format!("{compiler} {state} {how}");
                assert_eq!(threads(&target, "unloaded"), expected, "{row}");
                target.command("end");
                assert_eq!(target.lines, [state], "{row}");
                common::published(&target, "unloaded");

                // One that was unloaded knows nothing of its context, and replaces it.
                target.lines.clear();
                target.command("again");
                let (result, service) = match state {
                    "gone" => (OK, "again"),
                    _ => (ALREADY_PUBLISHED, "unloaded"),
                };
                assert_eq!(target.lines, [format!("published {result}")], "{row}");
                common::published(&target, service);
                assert!(ends(&mut target), "{row}");
            }
        }
    }
}

fn ids(trace: &str, span: &str, route: &str) -> common::Seen {
    let route = ("http.route".to_owned(), route.to_owned());
    Some((trace.to_owned(), span.to_owned(), 1, vec![route]))
}

/// With the shared and with the static library, by each linker.
#[test]
fn the_examples_show_what_they_work_on() {
    let ids_of_c = |route| {
        ids(
            "4bf92f3577b34da6a3ce929d0e0e4736",
            "00f067aa0ba902b7",
            route,
        )
    };
    let expected_of_c = vec![ids_of_c("/cart"), ids_of_c("/cart/background")];
    let zeroes = |text: &str, digits: usize| format!("{text:0<digits$}");
    let mut expected_of_cpp = vec![None];
    for (number, route) in (1..).zip(["/cart", "/checkout", "/items/{id}"]) {
        let (trace, span) = (format!("4b0{number}"), format!("f00{number}"));
        expected_of_cpp.push(ids(&zeroes(&trace, 32), &zeroes(&span, 16), route));
    }

    let c = compilers().into_iter().map(|(compiler, prefix)| {
        let file = "examples/shop.c";
        (compiler, prefix, &C[..], file, &expected_of_c)
    });
    let cpp = installed(Libc::Glibc).into_iter().flat_map(|prefix| {
        let compilers = ["g++", "clang++"].into_iter().filter(|it| have(it));
        let file = "examples/shop.cpp";
        let expected = &expected_of_cpp;
        compilers.map(move |compiler| (compiler.to_owned(), prefix, &CPP[..], file, expected))
    });
    let linkers = ["bfd", "gold", "lld", "mold"].map(|linker| {
        let program = format!("ld.{linker}");
        have(&program).then(|| format!("-fuse-ld={linker}"))
    });
    for (compiler, prefix, flags, file, expected) in c.chain(cpp) {
        // Each is compiled once, and linked in each way.
        let source = source(file).display().to_string();
        let include = format!("-I{}", prefix.join("include").display());
        let arguments = flags.iter().copied().chain(["-c", &include, &source]);
        let object = compile(&compiler, arguments, "c-object")
            .unwrap_or_else(|error| panic!("{compiler}: {error}"));
        for package in ["otelctx", "otelctx-static"] {
            let libraries = self::package(prefix, &["--libs", package]);
            for linker in linkers.iter().flatten() {
                let row = format!("{compiler} {file} {package} {linker}");
                let object = object.0.display().to_string();
                let arguments = [linker.clone(), "-pthread".to_owned(), object]
                    .into_iter()
                    .chain(libraries.iter().cloned());
                let built = compile(&compiler, arguments, "c-program")
                    .unwrap_or_else(|error| panic!("{row}: {error}"));
                let mut target = spawn(&built, prefix);
                until(|| threads(&target, "shop"), |seen| seen == expected);
                assert_eq!(threads(&target, "shop"), *expected, "{row}");
                assert!(ends(&mut target), "{row}");
            }
        }
    }
}

/// Repeats until the result is right; it may take a thread some time to get there.
fn until<T>(get: impl Fn() -> T, mut is_right: impl FnMut(&T) -> bool) {
    for _ in 0..1000 {
        if is_right(&get()) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// `pkg-config --static`, where the shared library is installed, too, and where it is not: a program that has
/// the static library runs, and says which package exports the variable.
#[test]
fn the_package_has_what_a_static_link_needs() {
    if !have("pkg-config") {
        return;
    }
    for (compiler, prefix) in compilers() {
        let alone = common::output("c-static");
        for file in [
            "include/otelctx.h",
            "lib/libotelctx.a",
            "lib/pkgconfig/otelctx.pc",
        ] {
            std::fs::create_dir_all(alone.join(file).parent().unwrap()).unwrap();
            std::fs::copy(prefix.join(file), alone.join(file)).unwrap();
        }
        for is_alone in [false, true] {
            let prefix = if is_alone { &alone } else { prefix };
            let file = source("tests/programs/link.c").display().to_string();
            let mut arguments = vec!["-DMAIN".to_owned(), file];
            arguments.extend(package(
                prefix,
                &["--static", "--cflags", "--libs", "otelctx"],
            ));
            let built = compile(&compiler, arguments, "c-static")
                .unwrap_or_else(|error| panic!("{compiler}: {error}"));
            let target = spawn(&built, prefix);
            if is_alone {
                let line = &target.lines[0];
                assert!(line.starts_with("exported 14 "), "{compiler}: {line}");
                assert!(
                    line.contains("`pkg-config --libs otelctx-static`"),
                    "{line}"
                );
                common::published(&target, "linked");
                continue;
            }
            assert_eq!(target.lines, ["exported 0 "], "{compiler}");
            let route = Some((
                "0102030405060708090a0b0c0d0e0f10".to_owned(),
                "15161718191a1b1c".to_owned(),
                1,
                vec![("http.route".to_owned(), "/cart/\u{e9}".to_owned())],
            ));
            assert_eq!(threads(&target, "linked"), [route], "{compiler}");
        }
        std::fs::remove_dir_all(&alone).unwrap();
    }
}

#[test]
fn cmake_finds_the_package() {
    let Some(prefix) = installed(Libc::Glibc) else {
        return;
    };
    if !have("cmake") || !have("make") {
        return;
    }
    let folder = common::output("c-cmake");
    std::fs::create_dir_all(&folder).unwrap();
    let text = format!(
        "cmake_minimum_required(VERSION 3.13)\nproject(shop C)\nfind_package(otelctx 0.1 REQUIRED)\n\
         foreach(target otelctx otelctx-static)\n  add_executable(with-${{target}} {:?})\n  \
         target_compile_definitions(with-${{target}} PRIVATE MAIN)\n  \
         target_link_libraries(with-${{target}} otelctx::${{target}})\nendforeach()\n\
         find_package(otelctx 0.2 QUIET)\nif(otelctx_FOUND)\n  message(FATAL_ERROR \"another version\")\nendif()\n",
        source("tests/programs/link.c")
    );
    std::fs::write(folder.join("CMakeLists.txt"), text).unwrap();
    let cmake = |arguments: &[&str]| {
        let output = Command::new("cmake")
            .current_dir(&folder)
            .args(arguments)
            .arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display()))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    cmake(&["-S", ".", "-B", "."]);
    let output = Command::new("make").current_dir(&folder).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    for target in ["with-otelctx", "with-otelctx-static"] {
        let target = Target::spawn(&mut Command::new(folder.join(target)));
        assert_eq!(target.lines, ["exported 0 "]);
        assert_eq!(threads(&target, "linked").len(), 1);
    }
    cmake(&[
        "-S",
        ".",
        "-B",
        ".",
        "-DCMAKE_EXE_LINKER_FLAGS=-static-pie -fuse-ld=bfd",
    ]);
    let mut make = Command::new("make");
    let output = make.current_dir(&folder).arg("with-otelctx-static");
    let output = output.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let target = Target::spawn(&mut Command::new(folder.join("with-otelctx-static")));
    assert_eq!(target.lines.len(), 1);
    let reason = "Link this static-pie program with lld or mold";
    assert!(target.lines[0].contains(reason), "{:?}", target.lines);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_service_in_cpp_builds_with_cmake_and_shows_its_routes() {
    let Some(prefix) = installed(Libc::Glibc) else {
        return;
    };
    if !have("cmake") || !have("make") || !have("c++") {
        return;
    }
    let folder = common::output("c-example");
    let run = |command: &mut Command| {
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{text}");
    };
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(common::root().join("examples/cpp"));
    configure.arg("-B").arg(&folder);
    run(configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display())));
    run(Command::new("cmake").arg("--build").arg(&folder));
    let mut target = Target::spawn(&mut Command::new(folder.join("shop")));
    // Threads come and go, so one may have ended before it is read.
    let routes = || {
        let mut process = common::published(&target, "shop");
        let threads = process.threads().unwrap();
        let found = threads.iter().filter_map(|thread| thread.context().ok());
        let contexts: Vec<_> = found
            .filter_map(|found| found.attached().cloned())
            .collect();
        contexts.into_iter().flat_map(|context| context.attributes)
    };
    let mut missing = vec!["/cart/{id}", "/search/{words}"];
    until(
        || routes().collect::<Vec<_>>(),
        |seen| {
            missing.retain(|route| !seen.contains(&("http.route".to_owned(), (*route).to_owned())));
            missing.is_empty()
        },
    );
    assert_eq!(missing, [""; 0]);
    assert!(ends(&mut target));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_shared_library_exports_its_functions_with_a_version_and_nothing_else() {
    let prefixes = [installed(Libc::Glibc), installed(Libc::Musl)];
    for prefix in prefixes.into_iter().flatten() {
        let library = prefix.join("lib/libotelctx.so");
        let output = Command::new("readelf")
            .args(["--dyn-syms", "--dynamic", "--wide"])
            .arg(&library)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("Library soname: [libotelctx.so.0]"), "{text}");
        let header = std::fs::read_to_string(prefix.join("include/otelctx.h")).unwrap();
        let mut count = 0;
        for line in text.lines() {
            let words: Vec<_> = line.split_whitespace().collect();
            let [_, _, _, _, binding, _, section, name] = words[..] else {
                continue;
            };
            if !["GLOBAL", "WEAK"].contains(&binding) || ["UND", "ABS"].contains(&section) {
                continue;
            }
            let name = name
                .strip_suffix("@@OTELCTX_0.1")
                .unwrap_or_else(|| panic!("{line}"));
            let declared = header.contains(&format!("{name}(")) || name == "otel_thread_ctx_v1";
            assert!(declared, "{line}");
            count += 1;
        }
        let declared = header.lines().filter(|line| {
            line.starts_with(|first: char| first.is_ascii_lowercase())
                && line.contains("otelctx_")
                && line.contains('(')
                && !line.starts_with("typedef")
        });
        assert_eq!(count, declared.count() + 1);
    }
}

#[test]
fn the_static_library_defines_nothing_else() {
    let prefixes = [installed(Libc::Glibc), installed(Libc::Musl)];
    for prefix in prefixes.into_iter().flatten() {
        let data = std::fs::read(prefix.join("lib/libotelctx.a")).unwrap();
        let archive = object::read::archive::ArchiveFile::parse(&*data).unwrap();
        let members: Vec<_> = archive.members().map(Result::unwrap).collect();
        assert_eq!(members.len(), 1);
        let file = object::File::parse(members[0].data(&*data).unwrap()).unwrap();
        let symbols = file.symbols();
        let globals = symbols.filter(|it| it.is_global() && !it.is_undefined());
        let globals: BTreeSet<_> = globals.map(|it| it.name().unwrap()).collect();
        let header = std::fs::read_to_string(prefix.join("include/otelctx.h")).unwrap();
        let mut expected: BTreeSet<_> = declared(&header).collect();
        expected.insert("otel_thread_ctx_v1");
        assert_eq!(globals, expected);
    }
}

/// Each has a copy of Rust's standard library.
#[test]
fn a_program_may_have_another_static_library_in_rust() {
    let Some(prefix) = installed(Libc::Glibc) else {
        return;
    };
    if !have("gcc") || !have("pkg-config") {
        return;
    }
    let folder = common::output("c-other");
    std::fs::create_dir_all(&folder).unwrap();
    let code = "#[no_mangle]\npub extern \"C\" fn other() -> usize {\n    \
                std::thread::spawn(|| format!(\"{:?}\", [1, 2]).len()).join().unwrap()\n}\n";
    std::fs::write(folder.join("other.rs"), code).unwrap();
    let other = folder.join("libother.a");
    let mut rustc = Command::new(Path::new(env!("CARGO")).with_file_name("rustc"));
    rustc.args(["--crate-type", "staticlib", "--edition", "2021", "-O", "-o"]);
    let Ok(built) = rustc.arg(&other).arg(folder.join("other.rs")).output() else {
        println!("skipped: rustc is out of this user's reach");
        std::fs::remove_dir_all(&folder).unwrap();
        return;
    };
    let errors = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{errors}");

    let code = "#include <otelctx.h>\nsize_t other(void);\nint main(void)\n{\n    \
                return otelctx_is_exported(NULL) != OTELCTX_OK || other() != 6;\n}\n";
    let file = folder.join("two.c");
    std::fs::write(&file, code).unwrap();
    let ours = package(prefix, &["--cflags", "--libs", "otelctx-static"]);
    let other = [
        other.display().to_string(),
        "-lpthread".into(),
        "-ldl".into(),
    ];
    for linker in ["bfd", "gold", "lld", "mold"] {
        if !have(&format!("ld.{linker}")) {
            continue;
        }
        for libraries in [
            [&ours[..], &other[..]].concat(),
            [&other[..], &ours[..]].concat(),
        ] {
            let start = [format!("-fuse-ld={linker}"), file.display().to_string()];
            let built = compile("gcc", start.iter().chain(&libraries), "c-two")
                .unwrap_or_else(|error| panic!("{linker}: {error}"));
            let status = Command::new(&built.0).status().unwrap();
            assert!(status.success(), "{linker}: {status}");
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The functions that the header declares.
fn declared(header: &str) -> impl Iterator<Item = &str> {
    header.lines().filter_map(|line| {
        let is_function = line.starts_with(|first: char| first.is_ascii_lowercase())
            && !line.starts_with("typedef");
        let name = line.split_once('(').filter(|_| is_function)?.0;
        name.rsplit([' ', '*']).next()
    })
}

/// Functions that the wrapper replaces by one for values of all types.
const NOT_IN_CPP: [&str; 6] = [
    "otelctx_process_service_name",
    "otelctx_process_set_bool",
    "otelctx_process_set_bytes",
    "otelctx_process_set_double",
    "otelctx_process_set_int",
    "otelctx_process_set_string",
];

#[test]
fn the_wrapper_for_cpp_has_every_function() {
    let read = |file| std::fs::read_to_string(source(file)).unwrap();
    let (header, wrapper) = (read("include/otelctx.h"), read("include/otelctx.hpp"));
    let is_code = |line: &&str| !line.trim_start().starts_with(['/', '*']);
    let wrapper: String = wrapper.lines().filter(is_code).collect();
    let mut missing: Vec<_> = declared(&header)
        .filter(|name| {
            let mut ends = wrapper.match_indices(name).map(|(at, _)| at + name.len());
            !ends.any(|end| !wrapper[end..].starts_with(|it: char| it.is_alphabetic() || it == '_'))
        })
        .collect();
    missing.sort_unstable();
    assert_eq!(missing, NOT_IN_CPP);
}

/// The rules of threads, signal handlers and forks stand once, before the functions, each of which has a comment.
#[test]
fn the_header_states_its_rules_once() {
    let header = std::fs::read_to_string(source("include/otelctx.h")).unwrap();
    let (rules, items) = header.split_once("#ifndef OTELCTX_H").unwrap();
    for rule in [" * - Threads. ", " * - Signal handlers ", " * - fork. "] {
        assert_eq!(rules.matches(rule).count(), 1, "{rule}");
    }
    for repeated in ["Threads: ", "Signal handlers: ", "Fork: "] {
        assert!(!items.contains(repeated), "{repeated}");
    }
    let (mut has_comment, mut count) = (false, 0);
    for line in items.lines() {
        let is_function = line.starts_with(|first: char| first.is_ascii_lowercase())
            && !line.starts_with("typedef")
            && line.contains('(');
        if is_function {
            count += 1;
            assert!(has_comment, "{line} has no comment");
        }
        // Of the item that follows it.
        has_comment = line.starts_with("/// ");
    }
    assert!(count > 60, "{count}");
}
