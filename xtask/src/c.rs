//! `cargo xtask c [--musl] [--prefix FOLDER]`: builds the C library and installs it: `lib`, `include`,
//! and what pkg-config and CMake read. Without a prefix, below Cargo's target folder.
//!
//! The shared library is linked here, from the static one: rustc gives the linker a version script of its
//! own for a cdylib, and linkers refuse another one with named versions besides.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};
use fs_err as fs;

use crate::files::{copy_into, link, write};
use crate::musl;
use crate::report::{self, Done, Words, command};
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

pub(crate) fn run(arguments: &[String]) -> Done {
    let (mut musl, mut prefix) = (false, None);
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match (argument.as_str(), arguments.as_slice()) {
            ("--musl", _) => musl = true,
            ("--prefix", [folder, ..]) => {
                prefix = Some(PathBuf::from(folder));
                arguments.next();
            }
            _ => bail!("c takes --musl and --prefix FOLDER"),
        }
    }
    let name = if musl { "otelctx-musl" } else { "otelctx" };
    let prefix = prefix.unwrap_or_else(|| target_dir().join(name));
    install(musl, &prefix)?;
    report::passed(prefix.display().to_string())
}

/// Builds the library, and installs it into a folder.
pub(crate) fn install(musl: bool, prefix: &Path) -> Result<()> {
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
    fn new(musl: bool) -> Result<Self> {
        let archive = Path::new(PROFILE).join("libotelctx_ffi.a");
        let mut build = cargo("build --quiet --locked -p otelctx-ffi --profile");
        build.arg(PROFILE);
        if !musl {
            // As applications are built: without the flags of the checkout's own `.cargo/config.toml`.
            report::run(build.env("RUSTFLAGS", ""))?;
            return Ok(Self {
                cc: "cc".into(),
                libraries: &["-lpthread", "-lm", "-ldl"],
                archive: target_dir().join(archive),
            });
        }
        let (rustc, gcc) = musl::X86_64.rust()?;
        let gcc = fs::canonicalize(gcc)?;
        let target = musl::X86_64.target();
        let folder = target_dir().join("otelctx-musl-build");
        build.env("RUSTC", &rustc).env_remove("RUSTC_WRAPPER");
        // The standard library that setup builds has nothing for it.
        build.env("CARGO_PROFILE_C_LTO", "off");
        let linker = format!("-Clinker={}", gcc.display());
        build.env("CARGO_ENCODED_RUSTFLAGS", linker);
        build.args(["--target", &target, "--target-dir"]);
        build.arg(&folder);
        report::run(&mut build)?;
        Ok(Self {
            cc: gcc,
            libraries: &["-lunwind"],
            archive: folder.join(target).join(archive),
        })
    }

    fn install(&self, prefix: &Path) -> Result<()> {
        let sources = root().join("publish/c");
        let library = prefix.join("lib");
        fs::create_dir_all(&library)?;
        for header in HEADERS {
            let header = sources.join("include").join(header);
            copy_into(&header, &prefix.join("include"))?;
        }
        let header = fs::read_to_string(sources.join("include/otelctx.h"))?;
        self.archive(&library, &header)?;
        self.link(&library, &header)?;

        let (series, _) = VERSION.rsplit_once('.').unwrap_or((VERSION, ""));
        for (folder, file) in [
            ("pkgconfig", "otelctx.pc"),
            ("pkgconfig", "otelctx-static.pc"),
            ("cmake/otelctx", "otelctx-config.cmake"),
            ("cmake/otelctx", "otelctx-config-version.cmake"),
        ] {
            let text = fs::read_to_string(sources.join(format!("package/{file}.in")))?
                .replace("@VERSION@", VERSION)
                .replace("@SERIES@", series)
                .replace("@SONAME@", SONAME)
                .replace("@LIBRARIES@", &self.libraries.join(" "))
                .replace("@CMAKE_LIBRARIES@", &self.libraries.join(";"));
            write(&library.join(folder).join(file), &text)?;
        }
        Ok(())
    }

    /// Makes the static library: one object file, in which only the functions of the header and the variable are global.
    /// Everything else, Rust's standard library included, would conflict with that of another static library in Rust.
    fn archive(&self, folder: &Path, header: &str) -> Result<()> {
        let object = folder.join("otelctx.o");
        let functions = functions(header);
        let mut link = Command::new(&self.cc);
        // GNU ld, as the other linkers cannot dissolve groups: of those with the same name, a program gets one.
        link.words("-fuse-ld=bfd -r -nostdlib -Wl,--force-group-allocation");
        let undefined = functions
            .iter()
            .map(|name| format!("-Wl,--undefined={name}"));
        link.args(undefined);
        report::run(link.arg("-o").arg(&object).arg(&self.archive))?;
        let mut keep = command("objcopy --strip-debug");
        let kept = functions.into_iter().chain(OTHER_SYMBOLS);
        keep.args(kept.map(|name| format!("--keep-global-symbol={name}")));
        report::run(keep.arg(&object))?;
        // Not in place: a program may be linked with the old one.
        let partial = folder.join("partial.a");
        let _ = fs::remove_file(&partial);
        report::run(command("ar crs").arg(&partial).arg(&object))?;
        fs::remove_file(&object)?;
        Ok(fs::rename(&partial, folder.join("libotelctx.a"))?)
    }

    /// Links the shared library, and makes the links to it.
    fn link(&self, folder: &Path, header: &str) -> Result<()> {
        let script = folder.join("partial.map");
        write(&script, version_script(header))?;
        let file = format!("libotelctx.so.{VERSION}");
        // Not in place: a program may be using the old one.
        let partial = folder.join("partial.so");
        let mut command = Command::new(&self.cc);
        command.arg("-shared").arg("-o").arg(&partial);
        command.arg(format!("-Wl,-soname,{SONAME}"));
        command.arg(format!("-Wl,--version-script={}", script.display()));
        // Threads that have used the library call it when they end, and so does fork.
        command.words("-Wl,-z,nodelete -Wl,-z,defs -Wl,-z,relro,-z,now");
        command.words("-Wl,--gc-sections -Wl,--strip-all -Wl,--whole-archive");
        command.arg(&self.archive);
        command.words("-Wl,--no-whole-archive -Wl,--as-needed");
        report::run(command.args(self.libraries))?;
        fs::remove_file(&script)?;
        fs::rename(&partial, folder.join(&file))?;
        link(file, &folder.join(SONAME))?;
        link(SONAME, &folder.join("libotelctx.so"))
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
