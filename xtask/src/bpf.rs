//! `cargo xtask bpf [--check]`: compiles the sampler's eBPF programs.
//!
//! The objects are checked in, one per architecture, so that building the command needs no C compiler.
//! The sampler has one without any runtime's steps; the crates that assemble a command have their own,
//! with the steps of its runtimes. `--check` rebuilds them and compares.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::report::{self, Outcome};
use crate::workspace::{have, root};

/// A program: the folder that it is compiled in, its source there, its object without the ending for
/// the architecture, and the steps that it has.
struct Program {
    folder: &'static str,
    source: &'static str,
    object: &'static str,
    steps: Option<Steps>,
}

/// Steps of runtimes: files `NAME.step.h` in a folder `bpf` of each folder below these, and the list
/// that is generated of them.
struct Steps {
    folders: &'static [&'static str],
    list: &'static str,
}

const PROGRAMS: [Program; 5] = [
    Program {
        folder: "profile/sampler/bpf",
        source: "sampler.bpf.c",
        object: "profile/sampler/bpf/sampler",
        steps: None,
    },
    // The command's: the sampler's programs with the steps of the command's runtimes.
    Program {
        folder: "profile/sampler/bpf",
        source: "sampler.bpf.c",
        object: "cli/bpf/sampler",
        steps: Some(Steps {
            folders: &["inspect/runtimes"],
            list: "cli/bpf/steps.gen.h",
        }),
    },
    // With the steps of tests too, which are not shipped.
    Program {
        folder: "profile/sampler/bpf",
        source: "sampler.bpf.c",
        object: "testing/fixtures/bpf/sampler",
        steps: Some(Steps {
            folders: &["inspect/runtimes", "testing", "testing/fixtures/runtimes"],
            list: "testing/fixtures/bpf/steps.gen.h",
        }),
    },
    Program {
        folder: "profile/sampler/bpf",
        source: "snapshot.bpf.c",
        object: "profile/sampler/bpf/snapshot",
        steps: None,
    },
    Program {
        folder: "testing/bench/bpf",
        source: "reference.bpf.c",
        object: "testing/bench/bpf/reference",
        steps: None,
    },
];
/// From the sampler's folder to the checkout's: the type information has the names of headers as they
/// are given here.
const TO_ROOT: &str = "../../..";
/// `MAX_STEPS` in `event.h`.
const MAX_STEPS: usize = 31;
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
    let mut put = |path: &Path, new: &[u8]| -> Result<(), String> {
        let failed = |error| format!("{path:?}: {error}");
        if !check {
            fs::write(path, new).map_err(failed)?;
        } else if fs::read(path).map_err(failed)? != new {
            different.push(path.display().to_string());
        }
        Ok(())
    };
    for program in &PROGRAMS {
        if let Some(steps) = &program.steps {
            put(&root().join(steps.list), steps.list()?.as_bytes())?;
        }
        for (define, architecture) in ARCHITECTURES {
            let built = build(program, define)?;
            let bytes = fs::read(&built).map_err(|error| format!("{built:?}: {error}"))?;
            fs::remove_file(&built).map_err(|error| format!("{built:?}: {error}"))?;
            let object = format!("{}.{architecture}.o", program.object);
            put(&root().join(object), &bytes)?;
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

impl Steps {
    /// What `sampler.bpf.c` includes: each step's file, and its number by the order of names.
    fn list(&self) -> Result<String, String> {
        let mut steps = BTreeMap::new();
        for folder in self.folders {
            for owner in entries(&root().join(folder))? {
                let folder = owner.join("bpf");
                let files = if folder.is_dir() {
                    entries(&folder)?
                } else {
                    Vec::new()
                };
                for file in files {
                    let name = file.file_name().and_then(|name| name.to_str());
                    if let Some(name) = name.and_then(|name| name.strip_suffix(".step.h"))
                        && let Some(other) = steps.insert(name.to_owned(), file.clone())
                    {
                        return Err(format!("{other:?} and {file:?} are steps of one name"));
                    }
                }
            }
        }
        if steps.len() > MAX_STEPS {
            return Err(format!(
                "{} steps; there are numbers for {MAX_STEPS}",
                steps.len()
            ));
        }
        let mut list = String::from("/* Generated by `cargo xtask bpf`. */\n");
        for (index, (name, file)) in steps.iter().enumerate() {
            let source = fs::read_to_string(file).map_err(|error| format!("{file:?}: {error}"))?;
            let file = file.strip_prefix(root()).unwrap_or(file).display();
            let step = match source.contains("bpf_loop(") {
                true => "STEP_WITH_LOOPS",
                false => "STEP",
            };
            list += &format!("#include \"{file}\"\n{step}({}, {name})\n", index + 1);
        }
        Ok(list)
    }
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{folder:?}: {error}"))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

/// Compiles one source for one architecture, in its own folder: the type information contains the
/// file names as they are given here.
fn build(program: &Program, define: &str) -> Result<PathBuf, String> {
    let (folder, source) = (root().join(program.folder), program.source);
    let output = std::env::temp_dir().join(format!("{source}-{define}-{}.o", std::process::id()));
    let headers = format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let mut clang = Command::new("clang");
    clang
        // Wherever the checkout lies.
        .arg(format!("-ffile-prefix-map={}=.", folder.display()))
        .current_dir(&folder)
        .args(["-target", "bpf", "-O2", "-g", "-Wall", "-Wextra", "-Werror"])
        .arg(format!("-D__TARGET_ARCH_{define}"))
        .args(["-I", &headers, "-c", source, "-o"])
        .arg(&output);
    if let Some(steps) = &program.steps {
        clang
            .args(["-I", TO_ROOT])
            .arg(format!("-DSTEPS_LIST=\"{}\"", steps.list));
    }
    report::output(&mut clang)?;
    // Type information stays, debug information goes.
    report::output(Command::new("llvm-strip").arg("-g").arg(&output))?;
    Ok(output)
}
