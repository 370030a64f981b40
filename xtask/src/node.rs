//! The npm package: part of `cargo xtask test`. Its tests with each Node.js are part of `cargo test`.

mod project;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::files::{at, copy, create_empty, entries, read, write};
use crate::report::{self, Outcome};
use crate::workspace::{root, setup_dir, target_dir};
use crate::{musl, python, repository};

/// Where Debian has the libraries of a cross compiler for it.
const ARM64_LIBRARIES: &str = "/usr/aarch64-linux-gnu";

/// What the package has addons for: Rust's name, and the folder in the package.
const PLATFORMS: [(&str, &str); 4] = [
    ("x86_64-unknown-linux-gnu", "linux-x64-gnu"),
    ("aarch64-unknown-linux-gnu", "linux-arm64-gnu"),
    ("x86_64-unknown-linux-musl", "linux-x64-musl"),
    ("aarch64-unknown-linux-musl", "linux-arm64-musl"),
];
/// Largest size of the package, in bytes.
const MAX_SIZE: u64 = 1 << 20;

/// Builds the package, and uses it with each Node.js that setup installed, as programs do. With `--bench`, also compares
/// its speed with that of others. With `--native`, builds it for this machine alone, which takes a minute or two.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let (is_native, is_bench) = match arguments {
        [] => (false, false),
        [flag] if flag == "--native" => (true, false),
        [flag] if flag == "--bench" => (false, true),
        _ => return Outcome::Failed("node takes no argument, --native or --bench".into()),
    };
    if let Err(error) = python::install_builders() {
        println!("not installed: {error}");
    }
    if !python::can_link_for_older_systems() {
        return Outcome::Skipped("no zig, which links for older systems".into());
    }
    let built = build(is_native);
    if is_bench && built.is_ok() {
        return bench().map(|()| Outcome::Passed(String::new())).into();
    }
    built.into()
}

/// The folder of the package that is published, with its addons.
fn package() -> PathBuf {
    target_dir().join("node/otelctx")
}

fn build(is_native: bool) -> Result<Outcome, String> {
    let package = package();
    create_empty(&package)?;
    let source = root().join("publish/node");
    copy(&root().join("LICENSE"), &package.join("LICENSE"))?;
    write(
        &package.join("README.md"),
        repository::readme("publish/node")?,
    )?;
    write(&package.join("package.json"), manifest(&source)?)?;
    for file in entries(&source.join("lib"))? {
        copy(
            &file,
            &package
                .join("lib")
                .join(file.file_name().unwrap_or_default()),
        )?;
    }
    let mut missing = Vec::new();
    let is_wanted = |(target, _): &(&str, _)| !is_native || musl::is_native(target);
    for (target, folder) in PLATFORMS.into_iter().filter(is_wanted) {
        let mut build = python::zigbuild("otelctx-napi", target)?;
        if let Err(error) = musl::cross(&mut build, target) {
            println!("not built: {folder}: {error}");
            missing.push(folder);
            continue;
        }
        if !musl::is_native(target) {
            let is_musl = target.ends_with("musl");
            let flags = if is_musl {
                "-Ctarget-feature=-crt-static"
            } else {
                ""
            };
            build.env("RUSTFLAGS", flags);
        }
        report::run(&mut build)?;
        let built = python::zigbuilt(target, "libotelctx_napi.so")?;
        check_symbol(&built)?;
        let addon = format!("prebuilds/{folder}/otelctx.node");
        copy(&built, &package.join(addon))?;
    }

    let target = target_dir().join("node");
    let mut pack = Command::new("npm");
    pack.current_dir(&target)
        .args(["pack", "--silent", "./otelctx"]);
    let name = report::output(&mut pack)?;
    let packed = target.join(name.trim());
    let size = fs::metadata(&packed).map_err(at(&packed))?.len();
    if size > MAX_SIZE {
        return Err(format!("{} has {size} bytes", packed.display()));
    }
    if is_native {
        let packed = packed.display();
        return Ok(Outcome::Passed(format!("{packed}, for this machine alone")));
    }
    let used = project::check(&packed)?;
    let mut result = format!("{}, {size} bytes; {used}", packed.display());
    if !missing.is_empty() {
        result += &format!("; without {}", missing.join(", "));
    }
    Ok(Outcome::Passed(result))
}

/// Checks that readers find the variable of an addon: exported, and reached by TLSDESC. Those of each platform that no
/// Node.js loads here are checked by this alone.
fn check_symbol(addon: &Path) -> Result<(), String> {
    const SYMBOL: &str = "otel_thread_ctx_nodejs_v1";
    let lines = |option| {
        let mut readelf = Command::new("readelf");
        let text = report::output(readelf.args([option, "--wide"]).arg(addon))?;
        let lines = text.lines().filter(|line| line.contains(SYMBOL));
        Ok::<_, String>(lines.map(str::to_owned).collect::<Vec<_>>())
    };
    let symbols = lines("--dyn-syms")?;
    let is_exported = |line: &String| {
        let words: Vec<_> = line.split_whitespace().collect();
        matches!(words[..], [_, _, "32", "TLS", "GLOBAL", "DEFAULT", section, _] if section != "UND")
    };
    if symbols.len() != 1 || !symbols.iter().all(is_exported) {
        return Err(format!("{}: {symbols:?}", addon.display()));
    }
    let relocations = lines("--relocs")?;
    match &relocations[..] {
        [relocation] if relocation.contains("_TLSDESC ") => Ok(()),
        _ => Err(format!("{}: {relocations:?}", addon.display())),
    }
}

/// The path of a Node.js that setup installed.
fn node(folder: &str, platform: &str) -> PathBuf {
    let file = format!("{folder}/node_modules/node-{platform}/bin/node");
    setup_dir().join(file)
}

/// Compares the speed of the package that was built, with each Node.js. Fails if a bound is missed with one.
fn bench() -> Result<(), String> {
    let mut failed = Vec::new();
    for major in [22, 24, 26] {
        let mut command = Command::new(node(&format!("nodejs-{major}"), "linux-x64"));
        if major == 22 {
            command.arg("--experimental-async-context-frame");
        }
        command.arg("--expose-gc");
        command.arg(root().join("publish/node/bench/contexts.mjs"));
        command.arg(package());
        let other = setup_dir().join("node-addon-5.20");
        command.arg(other.join("node_modules/@datadog/pprof"));
        command.arg(setup_dir().join("nodejs-opentelemetry-2"));
        println!("Node.js {major}");
        if let Err(error) = report::run(&mut command) {
            println!("{error}");
            failed.push(format!("Node.js {major}"));
        }
    }
    match &failed[..] {
        [] => Ok(()),
        failed => Err(format!("a bound is missed with {}", failed.join(", "))),
    }
}

/// `package.json` with the repository's address.
fn manifest(source: &Path) -> Result<String, String> {
    let address = repository::address_or_placeholder()?;
    let line = format!(
        "  \"repository\": {{ \"type\": \"git\", \"url\": \"git+{address}.git\", \"directory\": \"publish/node\" }},\n"
    );
    let mut text = read(&source.join("package.json"))?;
    let first = text.find("  \"license\"").unwrap_or_default();
    text.insert_str(first, &line);
    Ok(text)
}
