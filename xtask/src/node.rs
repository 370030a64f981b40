//! The npm package: part of `cargo xtask test`. Its tests with each Node.js are part of `cargo test`.

mod project;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail, ensure};
use fs_err as fs;

use crate::files::{copy, copy_into, create_empty, entries, write};
use crate::report::{self, Done, command, output, passed, skipped};
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
pub(crate) fn run(arguments: &[String]) -> Done {
    let (is_native, is_bench) = match arguments {
        [] => (false, false),
        [flag] if flag == "--native" => (true, false),
        [flag] if flag == "--bench" => (false, true),
        _ => bail!("node takes no argument, --native or --bench"),
    };
    if let Err(error) = python::install_builders() {
        println!("not installed: {error:#}");
    }
    if !python::can_link_for_older_systems() {
        return skipped("no zig, which links for older systems");
    }
    let built = build(is_native)?;
    if is_bench { bench() } else { Ok(built) }
}

/// The folder of the package that is published, with its addons.
fn package() -> PathBuf {
    target_dir().join("node/otelctx")
}

fn build(is_native: bool) -> Done {
    let package = package();
    create_empty(&package)?;
    let source = root().join("publish/node");
    copy_into(&root().join("LICENSE"), &package)?;
    let readme = repository::readme("publish/node")?;
    write(&package.join("README.md"), readme)?;
    write(&package.join("package.json"), manifest(&source)?)?;
    for file in entries(&source.join("lib"))? {
        copy_into(&file, &package.join("lib"))?;
    }
    let mut missing = Vec::new();
    let is_wanted = |(target, _): &(&str, _)| !is_native || musl::is_native(target);
    for (target, folder) in PLATFORMS.into_iter().filter(is_wanted) {
        let mut build = python::zigbuild("otelctx-napi", target)?;
        if let Err(error) = musl::cross(&mut build, target) {
            println!("not built: {folder}: {error:#}");
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
    let name = output(command("npm pack --silent ./otelctx").current_dir(&target))?;
    let packed = target.join(name.trim());
    let size = fs::metadata(&packed)?.len();
    ensure!(size <= MAX_SIZE, "{} has {size} bytes", packed.display());
    if is_native {
        return passed(format!("{}, for this machine alone", packed.display()));
    }
    let used = project::check(&packed)?;
    let mut result = format!("{}, {size} bytes; {used}", packed.display());
    if !missing.is_empty() {
        result += &format!("; without {}", missing.join(", "));
    }
    passed(result)
}

/// Checks that readers find the variable of an addon: exported, and reached by TLSDESC. Those of each platform that no
/// Node.js loads here are checked by this alone.
fn check_symbol(addon: &Path) -> Result<()> {
    const SYMBOL: &str = "otel_thread_ctx_nodejs_v1";
    let lines = |readelf: &str| -> Result<Vec<String>> {
        let text = output(command(readelf).arg(addon))?;
        let lines = text.lines().filter(|line| line.contains(SYMBOL));
        Ok(lines.map(str::to_owned).collect())
    };
    let symbols = lines("readelf --wide --dyn-syms")?;
    let is_exported = |line: &String| {
        let words: Vec<_> = line.split_whitespace().collect();
        matches!(words[..], [_, _, "32", "TLS", "GLOBAL", "DEFAULT", section, _] if section != "UND")
    };
    let is_right = symbols.len() == 1 && symbols.iter().all(is_exported);
    ensure!(is_right, "{}: {symbols:?}", addon.display());
    let relocations = lines("readelf --wide --relocs")?;
    let is_right = relocations.len() == 1 && relocations[0].contains("_TLSDESC ");
    ensure!(is_right, "{}: {relocations:?}", addon.display());
    Ok(())
}

/// The path of a Node.js that setup installed.
fn node(folder: &str, platform: &str) -> PathBuf {
    let file = format!("{folder}/node_modules/node-{platform}/bin/node");
    setup_dir().join(file)
}

/// A Node.js of a major version in which contexts can be published.
fn node_command(major: u32) -> Command {
    let mut command = Command::new(node(&format!("nodejs-{major}"), "linux-x64"));
    if major == 22 {
        command.arg("--experimental-async-context-frame");
    }
    command
}

/// Compares the speed of the package that was built, with each Node.js. Fails if a bound is missed with one.
fn bench() -> Done {
    let mut failed = Vec::new();
    for major in [22, 24, 26] {
        let mut command = node_command(major);
        command.arg("--expose-gc");
        command.arg(root().join("publish/node/bench/contexts.mjs"));
        command.arg(package());
        command.arg(setup_dir().join("node-addon-5.20/node_modules/@datadog/pprof"));
        command.arg(setup_dir().join("nodejs-opentelemetry-2"));
        println!("Node.js {major}");
        if let Err(error) = report::run(&mut command) {
            println!("{error:#}");
            failed.push(format!("Node.js {major}"));
        }
    }
    let failed = failed.join(", ");
    ensure!(failed.is_empty(), "a bound is missed with {failed}");
    passed("")
}

/// `package.json` with the repository's address.
fn manifest(source: &Path) -> Result<String> {
    let address = repository::address_or_placeholder()?;
    let line = format!(
        "  \"repository\": {{ \"type\": \"git\", \"url\": \"git+{address}.git\", \"directory\": \"publish/node\" }},\n"
    );
    let mut text = fs::read_to_string(source.join("package.json"))?;
    let first = text.find("  \"license\"").unwrap_or_default();
    text.insert_str(first, &line);
    Ok(text)
}
