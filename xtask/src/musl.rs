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

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::debian;
use crate::files::{at, copy, create_empty, entries, write};
use crate::report;
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
    ///
    /// # Errors
    /// Says why it is not available on this machine.
    pub(crate) fn gcc(&self) -> Result<PathBuf, String> {
        let folder = setup_dir().join(format!("musl-{}", self.name));
        let gcc = folder.join("gcc");
        if gcc.is_file() {
            return Ok(gcc);
        }
        if !have(self.gcc) {
            return Err(format!("no {}", self.gcc));
        }
        // The wrapper is written last: without it, an earlier attempt was interrupted.
        let _ = fs::remove_dir_all(&folder);
        println!(
            "fetching Debian {SUITE}'s musl for {} into {}",
            self.debian,
            folder.display()
        );
        let packages = ["musl", "musl-dev"].map(|name| format!("{name}:{}", self.debian));
        let tree = debian::unpack(&folder, SUITE, &packages)?;
        let triple = format!("{}-linux-musl", self.name);
        let include = format!("tree/usr/include/{triple}");
        symlink(include, folder.join("include")).map_err(at(&folder))?;
        symlink(format!("tree/usr/lib/{triple}"), folder.join("lib")).map_err(at(&folder))?;
        // The packages count on `/lib` being a link to `/usr/lib`.
        let shared = tree.join("lib").join(&triple).join("libc.so");
        fs::rename(shared, folder.join("lib/libc.so")).map_err(at(&folder))?;
        write(&folder.join("specs"), self.specs(&folder))?;
        let text = format!(
            "#!/bin/sh\nexec {} \"$@\" -specs \"$(dirname \"$(readlink -f \"$0\")\")/specs\"\n",
            self.gcc
        );
        let partial = folder.join("gcc.partial");
        write(&partial, text)?;
        fs::set_permissions(&partial, fs::Permissions::from_mode(0o755)).map_err(at(&partial))?;
        self.unwinder(&partial, &folder)?;
        fs::rename(&partial, &gcc).map_err(at(&gcc))?;
        Ok(gcc)
    }

    /// What Debian's `musl-gcc.specs` says, for these paths, with static-pie and without a dynamic
    /// linker in static programs.
    fn specs(&self, folder: &Path) -> String {
        let folder = fs::canonicalize(folder).unwrap_or_else(|_| folder.into());
        format!(
            "%rename cpp_options old_cpp_options\n\n\
             *cpp_options:\n\
             -nostdinc -isystem {folder}/include -isystem include%s %(old_cpp_options)\n\n\
             *cc1:\n\
             %(cc1_cpu) -nostdinc -isystem {folder}/include -isystem include%s\n\n\
             *link_libgcc:\n\
             -L{folder}/lib -L .%s\n\n\
             *libgcc:\n\
             libgcc.a%s %:if-exists(libgcc_eh.a%s)\n\n\
             *startfile:\n\
             %{{shared:;static-pie:{folder}/lib/rcrt1.o;static|no-pie:{folder}/lib/crt1.o;:{folder}/lib/Scrt1.o}} \
             {folder}/lib/crti.o crtbeginS.o%s\n\n\
             *endfile:\n\
             crtendS.o%s {folder}/lib/crtn.o\n\n\
             *link:\n\
             -nostdlib %{{shared:-shared}} %{{pie:-pie}} %{{rdynamic:-export-dynamic}} \
             %{{static-pie:-static -pie --no-dynamic-linker -z text;static:-static;\
             !shared:-dynamic-linker /lib/ld-musl-{name}.so.1}}\n\n\
             *esp_link:\n\n\n\
             *esp_options:\n\n\n\
             *esp_cpp_options:\n\n\n",
            folder = folder.display(),
            name = self.name,
        )
    }

    /// libgcc's unwinder under the names by which Rust's standard library asks for it: LLVM's in
    /// static programs, the shared one in others (glibc's, which musl cannot load).
    fn unwinder(&self, gcc: &Path, folder: &Path) -> Result<(), String> {
        let object = folder.join("find_object.o");
        let source = folder.join("find_object.c");
        write(&source, include_str!("musl/find_object.c"))?;
        let flags = ["-O2", "-fPIC", "-c", "-o"];
        report::output(Command::new(gcc).args(flags).arg(&object).arg(&source))?;
        let unwinder = report::output(Command::new(self.gcc).arg("-print-file-name=libgcc_eh.a"))?;
        for name in ["libunwind.a", "libgcc_s.a"] {
            let archive = folder.join("lib").join(name);
            copy(unwinder.trim().as_ref(), &archive)?;
            report::output(Command::new("ar").arg("q").arg(&archive).arg(&object))?;
        }
        Ok(())
    }

    /// A `rustc` whose `--target` can be [`Self::target`], and the linker that it needs; the
    /// standard library is built on first use (about 40 s on two cores).
    ///
    /// # Errors
    /// Says why it is not available on this machine.
    pub(crate) fn rust(&self) -> Result<(PathBuf, PathBuf), String> {
        let rustc = debian::CURRENT.rustc()?;
        let gcc = self.gcc()?;
        let libraries = report::output(
            Command::new(&rustc)
                .args(["--print", "target-libdir", "--target"])
                .arg(self.target()),
        )?;
        let libraries = Path::new(libraries.trim());
        if !libraries.is_dir() {
            println!("building Rust's standard library for {}", self.target());
            self.standard_library(&rustc, libraries)?;
        }
        Ok((rustc, gcc))
    }

    /// Makes cargo build static programs, C code included, for [`Self::target`].
    ///
    /// # Errors
    /// As [`Self::rust`].
    pub(crate) fn build_static<'c>(
        &self,
        cargo: &'c mut Command,
    ) -> Result<&'c mut Command, String> {
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
    fn standard_library(&self, rustc: &Path, libraries: &Path) -> Result<(), String> {
        let folder = setup_dir().join("musl-std");
        let _ = fs::remove_dir_all(&folder);
        let tree = debian::unpack(&folder, debian::CURRENT.suite(), &["rust-src".to_owned()])?;
        let sources = find_library(&tree.join("usr/src"))?;
        let build = folder.join("build");
        let mut command = cargo();
        command
            .env("RUSTC", rustc)
            // The standard library is written in unstable Rust.
            .env("RUSTC_BOOTSTRAP", "1")
            // What rustc's own build says of every crate of it (bootstrap's `std_cargo`).
            .env("RUSTFLAGS", "-Zforce-unstable-if-unmarked")
            .env_remove("RUSTC_WRAPPER")
            // Debian's configuration there names the dependencies that come with the sources.
            .current_dir(sources.join("sysroot"))
            .args(["build", "--quiet", "--release", "--offline"])
            .args(["--features", "panic-unwind,backtrace", "--target"])
            .arg(self.target())
            .arg("--target-dir")
            .arg(&build);
        report::output(&mut command)?;

        let partial = libraries.with_extension("partial");
        create_empty(&partial)?;
        for file in entries(&build.join(self.target()).join("release/deps"))? {
            if file.extension().is_some_and(|ending| ending == "rlib") {
                copy(&file, &partial.join(file.file_name().unwrap_or_default()))?;
            }
        }
        fs::rename(&partial, libraries).map_err(at(libraries))?;
        fs::remove_dir_all(&folder).map_err(at(&folder))
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
///
/// # Errors
/// Says why that Rust is not available on this machine.
pub(crate) fn cross<'c>(cargo: &'c mut Command, target: &str) -> Result<&'c mut Command, String> {
    if is_native(target) {
        return Ok(cargo);
    }
    let rustc = match [X86_64, AARCH64]
        .iter()
        .find(|musl| musl.target() == target)
    {
        Some(musl) => musl.rust()?.0,
        None => debian::CURRENT.rustc()?,
    };
    Ok(cargo.env("RUSTC", rustc).env_remove("RUSTC_WRAPPER"))
}

/// The folder `library` of the one version of Rust's sources.
fn find_library(sources: &Path) -> Result<PathBuf, String> {
    let mut libraries = entries(sources)?.into_iter().map(|it| it.join("library"));
    let found = libraries.find(|folder| folder.is_dir());
    found.ok_or_else(|| format!("{}: no sources of Rust", sources.display()))
}
