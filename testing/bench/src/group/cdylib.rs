//! The publishers' operations from libraries that a C program loads: one library for each side, both
//! in one process, taking turns.
//!
//! The linker cannot know where a library's variable will lie, so each access calls the TLS
//! descriptor's function. The group checks that both libraries have the relocation for it.

use std::path::{Path, PathBuf};
use std::process::Command;

use object::read::elf::{ElfFile64, FileHeader, SectionHeader};

use crate::pair::{self, Pair, Rounds};
use crate::row::Report;
use crate::work::WORKS;
use crate::{machine, scratch};

/// Leaves the dynamic linker no room for static storage, so that descriptors look up a thread's
/// block.
const DYNAMIC: &str = "glibc.rtld.optional_static_tls=0";
/// Leaves room for both of our libraries: by default, the second one would be in dynamic storage.
const BOTH_STATIC: &str = "glibc.rtld.optional_static_tls=4096";
const BOUND: f64 = 0.6;
/// Of a call from C, compared with the same operation in a Rust library, without a call.
const C_BOUND: f64 = 1.3;

pub(crate) fn run(report: &mut Report) {
    report.group("cdylib");
    let _pinned = machine::Pinned::to(0);
    let scratch = scratch::Directory::new("cdylib");
    let host = match build(scratch.path()) {
        Ok(host) => host,
        Err(why) => return report.failed("build", &why),
    };
    for library in [&host.ours, &host.libdd] {
        if let Err(why) = check_descriptor(library) {
            return report.failed("check", &why);
        }
    }
    for (storage, tunables) in [("static", ""), ("dynamic", DYNAMIC)] {
        let libraries = [&host.ours, &host.libdd];
        match compare(&host.program, libraries, WORKS.len(), tunables) {
            Err(why) => report.failed(storage, &why),
            Ok(pairs) => {
                for ((name, bound), pair) in WORKS.into_iter().zip(pairs) {
                    let work = format!("{storage}: {name}");
                    report.pair(work, pair, "ns", bound.map(|_| BOUND));
                }
            }
        }
    }
    let c = c_library(scratch.path());
    for (storage, tunables) in [("static", BOTH_STATIC), ("dynamic", DYNAMIC)] {
        let pairs = c
            .as_ref()
            .map_err(Clone::clone)
            .and_then(|c| compare(&host.program, [c, &host.ours], 1, tunables));
        match pairs {
            Err(why) => report.failed("C", &why),
            Ok(pairs) => {
                for pair in pairs {
                    let work = format!("{storage}: {} in C, to Rust", WORKS[0].0);
                    report.pair(work, pair, "ns", C_BOUND);
                }
            }
        }
    }
}

/// Builds the C library, and a library in C that uses it.
fn c_library(scratch: &Path) -> Result<PathBuf, String> {
    let prefix = scratch.join("otelctx");
    let mut cargo = scratch::cargo();
    scratch::output(cargo.args(["xtask", "c", "--prefix"]).arg(&prefix))?;
    let library = scratch.join("libbench_c.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("cdylib/c.c");
    let folder = prefix.join("lib");
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(source)
        .arg(format!("-I{}", prefix.join("include").display()))
        .arg(format!("-L{}", folder.display()))
        .arg("-lotelctx")
        .arg(format!("-Wl,-rpath,{}", folder.display()));
    scratch::output(&mut cc)?;
    Ok(library)
}

struct Host {
    program: PathBuf,
    ours: PathBuf,
    libdd: PathBuf,
}

/// Builds the libraries and the C program that loads them.
fn build(scratch: &Path) -> Result<Host, String> {
    let examples = scratch::cargo_build(&["-p", "otelctx-bench", "--examples"])?;
    let library = |name: &str| {
        let found = examples.iter().find(|path| {
            path.file_name()
                .is_some_and(|file| *file == *format!("lib{name}.so"))
        });
        found.cloned().ok_or(format!("cargo built no lib{name}.so"))
    };
    let program = scratch.join("host");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("cdylib/host.c");
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-o"]).arg(&program).arg(source).arg("-ldl");
    scratch::output(&mut cc)?;
    Ok(Host {
        program,
        ours: library("bench_ours")?,
        libdd: library("bench_libdd")?,
    })
}

/// Makes sure that a library has a TLS descriptor for the dynamic linker to fill in.
fn check_descriptor(library: &Path) -> Result<(), String> {
    let wrong = |what: &str| format!("{}: {what}", library.display());
    let bytes = std::fs::read(library).map_err(|error| wrong(&error.to_string()))?;
    let file = ElfFile64::<object::Endianness>::parse(&*bytes)
        .map_err(|error| wrong(&error.to_string()))?;
    let (endian, header) = (file.endian(), file.elf_header());
    let kind = match header.e_machine(endian) {
        object::elf::EM_X86_64 => object::elf::R_X86_64_TLSDESC,
        object::elf::EM_AARCH64 => object::elf::R_AARCH64_TLSDESC,
        other => return Err(wrong(&format!("machine {other}"))),
    };
    let sections = header
        .sections(endian, &*bytes)
        .map_err(|error| wrong(&error.to_string()))?;
    let descriptors = sections
        .iter()
        .filter_map(|section| section.rela(endian, &*bytes).ok().flatten())
        .flat_map(|(relocations, _)| relocations)
        .filter(|relocation| relocation.r_type(endian, false) == kind)
        .count();
    if descriptors == 0 {
        return Err(wrong("it has no TLS descriptor"));
    }
    Ok(())
}

/// Runs the C program; returns how two libraries compare in each of the first works.
fn compare(
    program: &Path,
    libraries: [&PathBuf; 2],
    works: usize,
    tunables: &str,
) -> Result<Vec<Pair>, String> {
    let mut command = Command::new(program);
    command
        .args(libraries)
        .args([
            works.to_string(),
            pair::ROUNDS.to_string(),
            pair::ROUND_NS.to_string(),
        ])
        .env("GLIBC_TUNABLES", tunables);
    let text = scratch::output(&mut command)?;
    let mut works: Vec<Rounds> = (0..works).map(|_| Rounds::default()).collect();
    for line in text.lines() {
        let odd = || format!("the C program printed {line:?}");
        let mut words = line.split(' ');
        let mut number = || words.next()?.parse::<f64>().ok();
        let work = number().ok_or_else(odd)? as usize;
        let (ours, libdd) = (number().ok_or_else(odd)?, number().ok_or_else(odd)?);
        works.get_mut(work).ok_or_else(odd)?.push(ours, libdd);
    }
    Ok(works.iter().map(|rounds| rounds.medians(1.0)).collect())
}
