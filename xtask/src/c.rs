//! `cargo xtask c [--musl] [--prefix FOLDER]`: builds the C library and installs it: `lib`, `include`,
//! and what pkg-config and CMake read. Without a prefix, below Cargo's target folder.
//!
//! The shared library is linked here, from the static one: rustc gives the linker a version script of its
//! own for a cdylib, and linkers refuse another one with named versions besides.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::files::{at, copy, read, write};
use crate::musl;
use crate::report::{self, Outcome};
use crate::workspace::{VERSION, cargo, root, target_dir};

/// The profile of `Cargo.toml` for it.
const PROFILE: &str = "c";
/// Changes with an incompatible change of a function.
const SONAME: &str = "libotelctx.so.0";
/// The version of all symbols so far. Later ones get a later version.
const SYMBOLS: &str = "OTELCTX_0.1";
/// What the library exports in addition to the functions of the header.
const OTHER_SYMBOLS: [&str; 1] = ["otel_thread_ctx_v1"];
const HEADERS: [&str; 3] = ["otelctx.h", "otelctx.hpp", "otelctx_opentelemetry.hpp"];

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let (mut musl, mut prefix) = (false, None);
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match (argument.as_str(), arguments.as_slice()) {
            ("--musl", _) => musl = true,
            ("--prefix", [folder, ..]) => {
                prefix = Some(PathBuf::from(folder));
                arguments.next();
            }
            _ => return Outcome::Failed("c takes --musl and --prefix FOLDER".into()),
        }
    }
    let name = if musl { "otelctx-musl" } else { "otelctx" };
    let prefix = prefix.unwrap_or_else(|| target_dir().join(name));
    match install(musl, &prefix) {
        Ok(()) => Outcome::Passed(prefix.display().to_string()),
        Err(error) => Outcome::Failed(error),
    }
}

/// Builds the library, and installs it into a folder.
pub(crate) fn install(musl: bool, prefix: &Path) -> Result<(), String> {
    Build::new(musl)?.install(prefix)
}

/// A way to build.
struct Build {
    /// The compiler that links.
    cc: PathBuf,
    /// The libraries that the static one needs.
    libraries: &'static [&'static str],
    archive: PathBuf,
}

impl Build {
    /// Builds the static library.
    fn new(musl: bool) -> Result<Self, String> {
        let mut command = cargo();
        command.args(["build", "--quiet", "--locked", "-p", "otelctx-ffi"]);
        command.args(["--profile", PROFILE]);
        if !musl {
            // As applications are built: without the flags of the checkout's own `.cargo/config.toml`.
            command.env("RUSTFLAGS", "");
            report::run(&mut command)?;
            return Ok(Self {
                cc: "cc".into(),
                libraries: &["-lpthread", "-lm", "-ldl"],
                archive: target_dir().join(PROFILE).join("libotelctx_ffi.a"),
            });
        }
        let (rustc, gcc) = musl::X86_64.rust()?;
        let gcc = fs::canonicalize(&gcc).map_err(at(&gcc))?;
        let folder = target_dir().join("otelctx-musl-build");
        command
            .env("RUSTC", &rustc)
            .env_remove("RUSTC_WRAPPER")
            // The standard library that setup builds has nothing for it.
            .env("CARGO_PROFILE_C_LTO", "off")
            .env(
                "CARGO_ENCODED_RUSTFLAGS",
                format!("-Clinker={}", gcc.display()),
            )
            .args(["--target", &musl::X86_64.target(), "--target-dir"])
            .arg(&folder);
        report::run(&mut command)?;
        Ok(Self {
            cc: gcc,
            libraries: &["-lunwind"],
            archive: folder
                .join(musl::X86_64.target())
                .join(PROFILE)
                .join("libotelctx_ffi.a"),
        })
    }

    fn install(&self, prefix: &Path) -> Result<(), String> {
        let sources = root().join("publish/c");
        let library = prefix.join("lib");
        fs::create_dir_all(&library).map_err(at(&library))?;
        for header in HEADERS {
            copy(
                &sources.join("include").join(header),
                &prefix.join("include").join(header),
            )?;
        }
        self.archive(&library, &prefix.join("include/otelctx.h"))?;
        self.link(&library, &prefix.join("include/otelctx.h"))?;

        let package = |from: &str, to: &str| {
            let from = sources.join("package").join(from);
            let text = read(&from)?;
            let series = VERSION
                .rsplit_once('.')
                .map_or(VERSION, |(series, _)| series);
            let text = text
                .replace("@VERSION@", VERSION)
                .replace("@SERIES@", series)
                .replace("@SONAME@", SONAME)
                .replace("@LIBRARIES@", &self.libraries.join(" "))
                .replace("@CMAKE_LIBRARIES@", &self.libraries.join(";"));
            write(&library.join(to), &text)
        };
        package("otelctx.pc.in", "pkgconfig/otelctx.pc")?;
        package("otelctx-static.pc.in", "pkgconfig/otelctx-static.pc")?;
        for file in ["otelctx-config.cmake", "otelctx-config-version.cmake"] {
            package(&format!("{file}.in"), &format!("cmake/otelctx/{file}"))?;
        }
        Ok(())
    }

    /// Makes the static library: one object file, in which only the functions of the header and the variable are global.
    /// Everything else, Rust's standard library included, would conflict with that of another static library in Rust.
    fn archive(&self, folder: &Path, header: &Path) -> Result<(), String> {
        let header = read(header)?;
        let object = folder.join("otelctx.o");
        let mut command = Command::new(&self.cc);
        // GNU ld, as the other linkers cannot dissolve groups: of those with the same name, a program gets one.
        command.args(["-fuse-ld=bfd", "-r", "-nostdlib"]);
        command.arg("-Wl,--force-group-allocation");
        let functions = functions(&header);
        for name in &functions {
            command.arg(format!("-Wl,--undefined={name}"));
        }
        command.arg("-o").arg(&object).arg(&self.archive);
        report::run(&mut command)?;
        let mut keep = Command::new("objcopy");
        keep.arg("--strip-debug");
        for name in functions.into_iter().chain(OTHER_SYMBOLS) {
            keep.arg(format!("--keep-global-symbol={name}"));
        }
        report::run(keep.arg(&object))?;
        // Not in place: a program may be linked with the old one.
        let partial = folder.join("partial.a");
        let _ = fs::remove_file(&partial);
        report::run(Command::new("ar").arg("crs").arg(&partial).arg(&object))?;
        fs::remove_file(&object).map_err(at(folder))?;
        fs::rename(&partial, folder.join("libotelctx.a")).map_err(at(folder))
    }

    /// Links the shared library, and makes the links to it.
    fn link(&self, folder: &Path, header: &Path) -> Result<(), String> {
        let script = folder.join("partial.map");
        write(&script, version_script(&read(header)?))?;
        let file = format!("libotelctx.so.{VERSION}");
        // Not in place: a program may be using the old one.
        let partial = folder.join("partial.so");
        let mut command = Command::new(&self.cc);
        command.arg("-shared").arg("-o").arg(&partial);
        command.arg(format!("-Wl,-soname,{SONAME}"));
        command.arg(format!("-Wl,--version-script={}", script.display()));
        // Threads that have used the library call it when they end, and so does fork.
        command.args(["-Wl,-z,nodelete", "-Wl,-z,defs", "-Wl,-z,relro,-z,now"]);
        command.args(["-Wl,--gc-sections", "-Wl,--strip-all"]);
        command.arg("-Wl,--whole-archive").arg(&self.archive);
        command.args(["-Wl,--no-whole-archive", "-Wl,--as-needed"]);
        command.args(self.libraries);
        report::run(&mut command)?;
        fs::remove_file(&script).map_err(at(folder))?;
        fs::rename(&partial, folder.join(&file)).map_err(at(folder))?;
        for (name, target) in [(SONAME, file.as_str()), ("libotelctx.so", SONAME)] {
            let link = folder.join(name);
            let _ = fs::remove_file(&link);
            symlink(target, &link).map_err(at(&link))?;
        }
        Ok(())
    }
}

/// A linker version script that exports what the header declares.
fn version_script(header: &str) -> String {
    let mut script = format!("{SYMBOLS} {{\n  global:\n");
    for name in functions(header).iter().copied().chain(OTHER_SYMBOLS) {
        script += &format!("    {name};\n");
    }
    script + "  local: *;\n};\n"
}

/// The functions that the header declares.
fn functions(header: &str) -> Vec<&str> {
    let declarations = header.lines().filter(|line| {
        line.starts_with(|first: char| first.is_ascii_lowercase()) && !line.starts_with("typedef")
    });
    declarations
        .filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("otelctx_"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{functions, version_script};

    const HEADER: &str = "/* text (with parentheses) */\n#define OTELCTX_A (1)\n\
        typedef void (*otelctx_change)(void *data);\nbool otelctx_withdraw(void);\n\
        otelctx_value *otelctx_value_string(const char *string,\n                  size_t length);\n";

    #[test]
    fn what_the_header_declares_is_exported() {
        assert_eq!(
            functions(HEADER),
            ["otelctx_withdraw", "otelctx_value_string"]
        );
        assert_eq!(
            version_script(HEADER),
            "OTELCTX_0.1 {\n  global:\n    otelctx_withdraw;\n    otelctx_value_string;\n    \
             otel_thread_ctx_v1;\n  local: *;\n};\n"
        );
    }
}
