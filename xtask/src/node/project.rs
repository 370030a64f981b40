//! The packed package as a program gets it: installed by npm into an empty project, imported in each way, and checked by
//! TypeScript.

use std::path::Path;
use std::process::Command;

use super::{ARM64_LIBRARIES, node};
use crate::files::{copy, create_empty, write};
use crate::report;
use crate::workspace::{have, root, setup_dir, target_dir};

/// Files of the project, in `publish/node/tests/project`.
const FILES: [&str; 6] = [
    "use.cjs",
    "requires.cjs",
    "imports.mjs",
    "types.mts",
    "types.cts",
    "tsconfig.json",
];
/// Ways to use the package: options of Node.js, and a program with its arguments.
const WAYS: [&[&str]; 6] = [
    &["imports.mjs"],
    &["requires.cjs"],
    &["--import", "otelctx/register", "imports.mjs", "registered"],
    &["--import", "otelctx/register", "requires.cjs", "registered"],
    &["--require", "otelctx/register", "imports.mjs", "registered"],
    &[
        "--require",
        "otelctx/register",
        "requires.cjs",
        "registered",
    ],
];
/// Each version of TypeScript, by its folder.
const TYPESCRIPTS: [&str; 2] = ["typescript", "typescript-5"];

/// Installs what npm packed, uses it with each Node.js, and checks its types. Returns what did.
pub(super) fn check(packed: &Path) -> Result<String, String> {
    let project = target_dir().join("node/project");
    create_empty(&project)?;
    for file in FILES {
        let source = root().join("publish/node/tests/project").join(file);
        copy(&source, &project.join(file))?;
    }
    write(&project.join("package.json"), "{ \"private\": true }\n")?;
    let mut install = Command::new("npm");
    // It needs no other package, and so no network.
    install
        .args(["install", "--offline", "--ignore-scripts", "--no-audit"])
        .args(["--no-fund", "--silent"])
        .arg(packed)
        .current_dir(&project);
    report::output(&mut install)?;
    Ok(format!("{}; {}", run(&project)?, types(&project)?))
}

/// Runs the programs in each way, with each Node.js; returns their versions.
fn run(project: &Path) -> Result<String, String> {
    let mut versions = Vec::new();
    for major in [22, 24, 26] {
        let node = node(&format!("nodejs-{major}"), "linux-x64");
        if !node.exists() {
            println!("not loaded by {}", node.display());
            continue;
        }
        let mut said = String::new();
        for way in WAYS {
            let mut command = Command::new(&node);
            if major == 22 {
                command.arg("--experimental-async-context-frame");
            }
            command.args(way).current_dir(project);
            said = output(&mut command)?;
        }
        versions.push(said);
    }
    let arm64 = node("nodejs-24-arm64", "linux-arm64");
    if arm64.exists() && have("qemu-aarch64") {
        let mut command = Command::new("qemu-aarch64");
        command.args(["-L", ARM64_LIBRARIES]).arg(&arm64);
        versions.push(output(command.arg("requires.cjs").current_dir(project))?);
    } else {
        println!("not loaded by {}", arm64.display());
    }
    match &versions[..] {
        [] => Ok("no Node.js to load it with".into()),
        versions => Ok(format!("loaded by Node.js {}", versions.join(", "))),
    }
}

/// What a program says, which must be without warnings.
fn output(command: &mut Command) -> Result<String, String> {
    let shown = report::shown(command);
    let output = command
        .output()
        .map_err(|error| format!("{shown}: {error}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    match output.status.success() && errors.is_empty() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(format!("{shown}: {}\n{}", output.status, errors.trim_end())),
    }
}

/// Has TypeScript check the programs that use the package's types; returns its versions.
fn types(project: &Path) -> Result<String, String> {
    let node = node("nodejs-24", "linux-x64");
    let mut versions = Vec::new();
    for folder in TYPESCRIPTS {
        let compiler = format!("typescript/node_modules/{folder}/bin/tsc");
        let compiler = setup_dir().join(compiler);
        if !compiler.exists() || !node.exists() {
            println!("types are not checked by {}", compiler.display());
            continue;
        }
        let tsc = |argument: &[&str]| {
            let mut tsc = Command::new(&node);
            tsc.arg(&compiler).args(argument).current_dir(project);
            let output = tsc.output().map_err(|error| error.to_string())?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            match output.status.success() {
                true => Ok(text),
                // It writes errors there.
                false => Err(format!("{}\n{text}", report::shown(&tsc))),
            }
        };
        tsc(&["--project", "."])?;
        let version = tsc(&["--version"])?;
        let version = version.trim().trim_start_matches("Version ");
        versions.push(version.to_owned());
    }
    match &versions[..] {
        [] => Ok("types not checked".into()),
        versions => Ok(format!(
            "types checked by TypeScript {}",
            versions.join(", ")
        )),
    }
}
