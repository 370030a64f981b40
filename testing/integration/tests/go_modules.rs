//! The Go modules' own checks and tests, which are in Go.

use std::path::{Path, PathBuf};
use std::process::Command;

use otelctx_fixtures::tier;

/// The oldest Go that the modules support, as in their `go.mod`; the tests beside newest libraries need a newer one.
const OLDEST: &str = "go1.21.13";

const MODULES: [&str; 3] = ["", "otel", "grpc"];
/// The module of tests beside the newest versions of other libraries.
const TESTS: &str = "tests";

fn folder(module: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../publish/go")
        .join(module)
}

/// Whether there is a Go; says so on standard error, if not.
fn have_go() -> bool {
    let version = Command::new("go").arg("version").output();
    let is_there = version.is_ok_and(|it| it.status.success());
    if !is_there {
        eprintln!("skipped: there is no Go");
    }
    is_there
}

/// Runs the command in a module's folder, without a network: `cargo xtask setup` fetches what modules need. Returns its
/// standard output.
fn go(module: &str, toolchain: &str, program: &str, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder(module));
    command.envs([("GOTOOLCHAIN", toolchain), ("GOWORK", "off")]);
    command.envs([("GOFLAGS", "-mod=readonly"), ("GOPROXY", "off")]);
    let output = command.output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{module}: {program} {arguments:?}: {text}{errors}"));
    }
    Ok(text)
}

/// Whether there is a Go that has what the modules and their tests need; says what is missing on standard error.
fn have_modules() -> bool {
    let is_there = |module| {
        let listed = go(module, "local", "go", &["list", "-deps", "-test", "./..."]);
        if let Err(error) = &listed {
            eprintln!("skipped: no Go modules: run `cargo xtask setup`: {error}");
        }
        listed.is_ok()
    };
    have_go() && MODULES.into_iter().chain([TESTS]).all(is_there)
}

fn checked(module: &str, program: &str, arguments: &[&str]) -> String {
    go(module, "local", program, arguments).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_sources_are_formatted_and_vetted() {
    if !have_modules() {
        return;
    }
    // It visits all folders, those of other modules, too.
    assert_eq!(checked("", "gofmt", &["-l", "."]), "");
    for module in MODULES.into_iter().chain([TESTS]) {
        checked(module, "go", &["vet", "./..."]);
    }
    for module in ["", "otel"] {
        checked(module, "go", &["vet", "-tags=otelctx_nolinkname", "./..."]);
    }
}

#[test]
fn the_core_compiles_for_other_systems_and_needs_no_other_module() {
    if !have_go() {
        return;
    }
    assert_eq!(
        checked("", "go", &["list", "-m", "all"]).trim(),
        "repository.invalid/publish/go"
    );
    // Each needs a standard library of its own, which takes 15 s to compile.
    let usual = &["windows/amd64", "linux/386"][..];
    let all = &["windows/amd64", "linux/386", "darwin/arm64", "linux/arm64"];
    for target in tier::usual_or_all(usual, all) {
        let (system, architecture) = target.split_once('/').unwrap();
        let variables = [format!("GOOS={system}"), format!("GOARCH={architecture}")];
        let mut arguments: Vec<&str> = variables.iter().map(String::as_str).collect();
        arguments.extend(["CGO_ENABLED=0", "go", "vet", "."]);
        checked("", "env", &arguments);
    }
}

#[test]
fn the_modules_pass_their_tests_with_the_race_detector() {
    if !have_modules() {
        return;
    }
    for module in MODULES {
        checked(module, "go", &["test", "-race", "./..."]);
    }
    // Their test of allocations says nothing with it.
    checked("", "go", &["test", "-run=Allocates", "."]);
    checked("", "go", &["test", "-tags=otelctx_nolinkname", "."]);
}

#[test]
fn the_modules_pass_their_tests_with_the_oldest_go() {
    if !have_modules() {
        return;
    }
    // Outside of a module, where no go.mod asks for another one.
    if let Err(error) = go("internal", OLDEST, "go", &["version"]) {
        eprintln!("skipped: there is no {OLDEST}, which cargo xtask setup fetches: {error}");
        return;
    }
    for module in MODULES {
        let tested = go(module, OLDEST, "go", &["test", "./..."]);
        tested.unwrap_or_else(|error| panic!("{error}"));
    }
}

/// In an emulator of user programs, which has no process_vm_readv: the two tests that need it are left out.
#[test]
fn the_core_passes_its_tests_on_aarch64() {
    if !have_go() || tier::left_to_all("Go on aarch64") {
        return;
    }
    let emulator = "qemu-aarch64";
    if Command::new(emulator).arg("--version").output().is_err() {
        eprintln!("skipped: there is no {emulator}");
        return;
    }
    let skip = "-skip=AnotherPublishers|LookLikeAContext";
    let exec = format!("-exec={emulator}");
    let test = [
        "GOARCH=arm64",
        "CGO_ENABLED=0",
        "go",
        "test",
        skip,
        &exec,
        ".",
    ];
    checked("", "env", &test);
}

#[test]
fn labels_of_other_libraries_stay() {
    if !have_modules() {
        return;
    }
    // dd-trace-go takes a minute to compile with the race detector.
    let arguments: &[&str] = tier::usual_or_all(&["test", "./..."], &["test", "-race", "./..."]);
    checked(TESTS, "go", arguments);
}
