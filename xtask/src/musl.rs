//! musl beside the machine's C library: headers and libraries from Debian, a gcc that uses them,
//! and Rust's standard library, built here where neither rustup nor Debian has it for musl.
//!
//! | below `target/setup/musl-ARCHITECTURE` | what |
//! |---|---|
//! | `tree` | Debian's packages `musl` and `musl-dev` |
//! | `gcc` | a compiler and linker for musl, also for static-pie |
//! | `include`, `lib` | links into `tree`, and libgcc's unwinder under the names that Rust links |
//!
//! The standard library goes to Debian's current Rust (`target/setup/debian-rust-current`), where
//! `--target x86_64-unknown-linux-musl` finds it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use fs_err as fs;

use crate::debian;
use crate::files::{copy, copy_into, create_empty, entries, link, write, write_script};
use crate::report::{Words, command, output};
use crate::workspace::{cargo, have, setup_dir};

/// The release whose compilers and kernels the tests use.
const SUITE: &str = "bookworm";

/// An architecture that musl is set up for.
pub(crate) struct Musl {
    name: &'static str,
    /// Debian's name of it.
    debian: &'static str,
    /// The machine's gcc for it.
    gcc: &'static str,
}

/// The architecture of the tests' own machine.
pub(crate) const X86_64: Musl = Musl {
    name: "x86_64",
    debian: "amd64",
    gcc: "x86_64-linux-gnu-gcc",
};

/// The architecture of the emulated machine.
pub(crate) const AARCH64: Musl = Musl {
    name: "aarch64",
    debian: "arm64",
    gcc: "aarch64-linux-gnu-gcc",
};

impl Musl {
    /// Its compiler and linker, made on first use (about 10 s).
    pub(crate) fn gcc(&self) -> Result<PathBuf> {
        let Self { name, debian, gcc } = self;
        let what = format!("{SUITE}'s musl for {debian}");
        debian::made(&format!("musl-{name}"), "gcc", &what, |folder| {
            ensure!(have(gcc), "no {gcc}");
            let packages = ["musl", "musl-dev"].map(|name| format!("{name}:{debian}"));
            let tree = debian::unpack(folder, SUITE, &packages)?;
            let triple = format!("{name}-linux-musl");
            for name in ["include", "lib"] {
                link(format!("tree/usr/{name}/{triple}"), &folder.join(name))?;
            }
            // The packages count on `/lib` being a link to `/usr/lib`.
            let shared = tree.join("lib").join(&triple).join("libc.so");
            fs::rename(shared, folder.join("lib/libc.so"))?;
            // What Debian's `musl-gcc.specs` says, for these paths, with static-pie and without a dynamic linker in
            // static programs.
            let specs = include_str!("musl/specs").replace("ARCHITECTURE", name);
            let absolute = fs::canonicalize(folder)?.display().to_string();
            write(&folder.join("specs"), specs.replace("FOLDER", &absolute))?;
            let partial = folder.join("gcc.partial");
            let specs = "\"$(dirname \"$(readlink -f \"$0\")\")/specs\"";
            let script = format!("#!/bin/sh\nexec {gcc} \"$@\" -specs {specs}\n");
            write_script(&partial, &script)?;
            self.unwinder(&partial, folder)?;
            Ok(fs::rename(&partial, folder.join("gcc"))?)
        })
    }

    /// libgcc's unwinder under the names by which Rust's standard library asks for it: LLVM's in
    /// static programs, the shared one in others (glibc's, which musl cannot load).
    fn unwinder(&self, gcc: &Path, folder: &Path) -> Result<()> {
        let object = folder.join("find_object.o");
        let source = folder.join("find_object.c");
        write(&source, include_str!("musl/find_object.c"))?;
        let mut compile = Command::new(gcc);
        output(compile.words("-O2 -fPIC -c -o").args([&object, &source]))?;
        let unwinder = output(command(self.gcc).arg("-print-file-name=libgcc_eh.a"))?;
        for name in ["libunwind.a", "libgcc_s.a"] {
            let archive = folder.join("lib").join(name);
            copy(unwinder.trim().as_ref(), &archive)?;
            output(command("ar q").arg(&archive).arg(&object))?;
        }
        Ok(())
    }

    /// A `rustc` whose `--target` can be [`Self::target`], and the linker that it needs; the
    /// standard library is built on first use (about 40 s on two cores).
    pub(crate) fn rust(&self) -> Result<(PathBuf, PathBuf)> {
        let (rustc, gcc) = (debian::CURRENT.rustc()?, self.gcc()?);
        let mut print = Command::new(&rustc);
        print.words("--print target-libdir --target");
        let libraries = output(print.arg(self.target()))?;
        let libraries = Path::new(libraries.trim());
        if !libraries.is_dir() {
            println!("building Rust's standard library for {}", self.target());
            self.standard_library(&rustc, libraries)?;
        }
        Ok((rustc, gcc))
    }

    /// Makes cargo build static programs, C code included, for [`Self::target`].
    pub(crate) fn build_static<'c>(&self, cargo: &'c mut Command) -> Result<&'c mut Command> {
        let (rustc, gcc) = self.rust()?;
        let target = self.target();
        let name = target.replace('-', "_");
        let linker = format!("CARGO_TARGET_{}_LINKER", name.to_uppercase());
        // Frame pointers as `.cargo/config.toml` says, which this replaces.
        let flags = "-Cforce-frame-pointers=yes -Clink-self-contained=no";
        cargo.env("RUSTC", rustc).env_remove("RUSTC_WRAPPER");
        cargo.env(linker, &gcc).env(format!("CC_{name}"), gcc);
        Ok(cargo.env("RUSTFLAGS", flags).args(["--target", &target]))
    }

    /// The machine's gcc for this architecture.
    pub(crate) fn host_gcc(&self) -> &'static str {
        self.gcc
    }

    /// Rust's name of this target.
    pub(crate) fn target(&self) -> String {
        format!("{}-unknown-linux-musl", self.name)
    }

    /// Builds it from the sources, and with the dependencies, that Debian packages.
    fn standard_library(&self, rustc: &Path, libraries: &Path) -> Result<()> {
        let folder = setup_dir().join("musl-std");
        create_empty(&folder)?;
        let tree = debian::unpack(&folder, debian::CURRENT.suite, &["rust-src"])?;
        // In the folder of the one version.
        let sources = entries(&tree.join("usr/src"))?.into_iter();
        let sources = sources.map(|it| it.join("library")).find(|it| it.is_dir());
        let sources = sources.context("no sources of Rust")?;
        let built = folder.join("build");
        let mut build = cargo("build --quiet --release --offline");
        // Debian's configuration there names the dependencies that come with the sources.
        build.current_dir(sources.join("sysroot"));
        build.words("--features panic-unwind,backtrace --target");
        build.arg(self.target());
        build.arg("--target-dir").arg(&built);
        // The standard library is written in unstable Rust.
        build.env("RUSTC", rustc).env("RUSTC_BOOTSTRAP", "1");
        // What rustc's own build says of every crate of it (bootstrap's `std_cargo`).
        build.env("RUSTFLAGS", "-Zforce-unstable-if-unmarked");
        output(build.env_remove("RUSTC_WRAPPER"))?;

        let partial = libraries.with_extension("partial");
        create_empty(&partial)?;
        for file in entries(&built.join(self.target()).join("release/deps"))? {
            if file.extension().is_some_and(|ending| ending == "rlib") {
                copy_into(&file, &partial)?;
            }
        }
        fs::rename(&partial, libraries)?;
        Ok(fs::remove_dir_all(&folder)?)
    }
}

/// This machine's own target, with glibc.
pub(crate) fn native() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

/// Whether a target is [`native`].
pub(crate) fn is_native(target: &str) -> bool {
    target == native()
}

/// Makes cargo build for a target with Debian's Rust, unless it is this machine's own.
pub(crate) fn cross<'c>(cargo: &'c mut Command, target: &str) -> Result<&'c mut Command> {
    if is_native(target) {
        return Ok(cargo);
    }
    let mut all = [X86_64, AARCH64].into_iter();
    let rustc = match all.find(|musl| musl.target() == target) {
        Some(musl) => musl.rust()?.0,
        None => debian::CURRENT.rustc()?,
    };
    Ok(cargo.env("RUSTC", rustc).env_remove("RUSTC_WRAPPER"))
}
