//! `cargo xtask bpf [--check]`: compiles the sampler's eBPF programs.
//!
//! The objects are checked in beside their sources, one per architecture, so that building the
//! command needs no C compiler. `--check` rebuilds them and compares.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::report::{self, Outcome};
use crate::workspace::{have, root};

/// Folder, source and object name of each program.
const PROGRAMS: [(&str, &str, &str); 3] = [
    ("crates/sampler/bpf", "sampler.bpf.c", "sampler"),
    ("crates/sampler/bpf", "snapshot.bpf.c", "snapshot"),
    ("bench/bpf", "reference.bpf.c", "reference"),
];
/// Names of each architecture: libbpf's headers, Rust.
const ARCHITECTURES: [(&str, &str); 2] = [("x86", "x86_64"), ("arm64", "aarch64")];
/// The objects' compiler, Debian 12's: another version makes other bytes.
const CLANG: &str = "14.0.6";
/// A header of Debian's package libbpf-dev.
pub(crate) const HEADER: &str = "/usr/include/bpf/bpf_helpers.h";

/// Builds the objects, or with `--check` compares them with what is checked in.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    let check = match arguments {
        [] => false,
        [flag] if flag == "--check" => true,
        _ => return Outcome::Failed("bpf takes no argument, or --check".into()),
    };
    for (program, package) in [("clang", "clang"), ("llvm-strip", "llvm")] {
        if !have(program) {
            return Outcome::Skipped(format!("no {program}: install Debian's package {package}"));
        }
    }
    if !Path::new(HEADER).exists() {
        return Outcome::Skipped(format!("no {HEADER}: install Debian's package libbpf-dev"));
    }
    match report::output(Command::new("clang").arg("--version")) {
        Ok(version) if version.contains(CLANG) => {}
        Ok(version) => {
            let version = version.lines().next().unwrap_or_default();
            return Outcome::Skipped(format!("{version}, but the objects need clang {CLANG}"));
        }
        Err(error) => return Outcome::Failed(error),
    }
    build_all(check).into()
}

fn build_all(check: bool) -> Result<Outcome, String> {
    let mut different = Vec::new();
    for (folder, source, name) in PROGRAMS {
        let folder = root().join(folder);
        for (define, architecture) in ARCHITECTURES {
            let built = build(&folder, source, define)?;
            let object = folder.join(format!("{name}.{architecture}.o"));
            let read = |path: &Path| fs::read(path).map_err(|error| format!("{path:?}: {error}"));
            if check {
                if read(&built)? != read(&object)? {
                    different.push(object.display().to_string());
                }
            } else {
                fs::copy(&built, &object).map_err(|error| format!("{object:?}: {error}"))?;
            }
            fs::remove_file(&built).map_err(|error| format!("{built:?}: {error}"))?;
        }
    }
    Ok(if different.is_empty() {
        Outcome::Passed(format!("the objects match their sources (clang {CLANG})"))
    } else {
        let names = different.join(", ");
        Outcome::Failed(format!(
            "{names}: differs from what its source compiles to; run `cargo xtask bpf`"
        ))
    })
}

/// Compiles one source for one architecture, in its own folder: the type information contains the
/// file names as they are given here.
fn build(folder: &Path, source: &str, define: &str) -> Result<PathBuf, String> {
    let output = std::env::temp_dir().join(format!("{source}-{define}-{}.o", std::process::id()));
    let headers = format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let mut clang = Command::new("clang");
    clang
        // Wherever the checkout lies.
        .arg(format!("-ffile-prefix-map={}=.", folder.display()))
        .current_dir(folder)
        .args(["-target", "bpf", "-O2", "-g", "-Wall", "-Wextra", "-Werror"])
        .arg(format!("-D__TARGET_ARCH_{define}"))
        .args(["-I", &headers, "-c", source, "-o"])
        .arg(&output);
    report::output(&mut clang)?;
    // Type information stays, debug information goes.
    report::output(Command::new("llvm-strip").arg("-g").arg(&output))?;
    Ok(output)
}
