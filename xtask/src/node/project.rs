//! The packed package as a program gets it: installed by npm into an empty project, imported in each way, and checked by
//! TypeScript.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{ARM64_LIBRARIES, node, node_command};
use crate::files::{copy_into, create_empty, write};
use crate::report::{self, Words, command};
use crate::workspace::{have, root, setup_dir, target_dir};

/// Files of the project, in `publish/node/tests/project`.
const FILES: &str = "use.cjs requires.cjs imports.mjs types.mts types.cts tsconfig.json";
/// Ways to use the package: options of Node.js, and a program with its arguments.
const WAYS: [&str; 6] = [
    "imports.mjs",
    "requires.cjs",
    "--import otelctx/register imports.mjs registered",
    "--import otelctx/register requires.cjs registered",
    "--require otelctx/register imports.mjs registered",
    "--require otelctx/register requires.cjs registered",
];
/// Each version of TypeScript, by its folder.
const TYPESCRIPTS: [&str; 2] = ["typescript", "typescript-5"];

/// Installs what npm packed, uses it with each Node.js, and checks its types. Returns what did.
pub(super) fn check(packed: &Path) -> Result<String> {
    let project = target_dir().join("node/project");
    create_empty(&project)?;
    for file in FILES.split(' ') {
        let source = root().join("publish/node/tests/project").join(file);
        copy_into(&source, &project)?;
    }
    write(&project.join("package.json"), "{ \"private\": true }\n")?;
    // It needs no other package, and so no network.
    let mut install = command("npm install --offline --ignore-scripts --no-audit --no-fund");
    install.arg("--silent").arg(packed).current_dir(&project);
    report::output(&mut install)?;
    Ok(format!("{}; {}", run(&project)?, types(&project)?))
}

/// Runs the programs in each way, with each Node.js; returns their versions.
fn run(project: &Path) -> Result<String> {
    let mut versions = Vec::new();
    for major in [22, 24, 26] {
        let node = node(&format!("nodejs-{major}"), "linux-x64");
        if !node.exists() {
            println!("not loaded by {}", node.display());
            continue;
        }
        let mut said = String::new();
        for way in WAYS {
            said = output(node_command(major).words(way).current_dir(project))?;
        }
        versions.push(said);
    }
    let arm64 = node("nodejs-24-arm64", "linux-arm64");
    if arm64.exists() && have("qemu-aarch64") {
        let mut command = command("qemu-aarch64 -L");
        command.arg(ARM64_LIBRARIES).arg(&arm64);
        versions.push(output(command.arg("requires.cjs").current_dir(project))?);
    } else {
        println!("not loaded by {}", arm64.display());
    }
    Ok(match &versions[..] {
        [] => "no Node.js to load it with".into(),
        versions => format!("loaded by Node.js {}", versions.join(", ")),
    })
}

/// What a program says, which must be without warnings.
fn output(command: &mut Command) -> Result<String> {
    let shown = report::shown(command);
    let output = command.output().with_context(|| shown.clone())?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let is_right = output.status.success() && errors.is_empty();
    ensure!(
        is_right,
        "{shown}: {}\n{}",
        output.status,
        errors.trim_end()
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Has TypeScript check the programs that use the package's types; returns its versions.
fn types(project: &Path) -> Result<String> {
    let node = node("nodejs-24", "linux-x64");
    let mut versions = Vec::new();
    for folder in TYPESCRIPTS {
        let compiler = format!("typescript/node_modules/{folder}/bin/tsc");
        let compiler = setup_dir().join(compiler);
        if !compiler.exists() || !node.exists() {
            println!("types are not checked by {}", compiler.display());
            continue;
        }
        let tsc = |arguments: &str| {
            let mut tsc = Command::new(&node);
            tsc.arg(&compiler).words(arguments);
            let ended = tsc.current_dir(project).output()?;
            let said = String::from_utf8_lossy(&ended.stdout).trim().to_owned();
            // It writes errors there.
            ensure!(ended.status.success(), "{}\n{said}", report::shown(&tsc));
            Ok(said)
        };
        tsc("--project .")?;
        versions.push(tsc("--version")?.trim_start_matches("Version ").to_owned());
    }
    Ok(match &versions[..] {
        [] => "types not checked".into(),
        versions => format!("types checked by TypeScript {}", versions.join(", ")),
    })
}
