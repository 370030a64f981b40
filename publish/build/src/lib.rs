//! Exports the thread-context symbol of [`otelctx`](https://docs.rs/otelctx) from an executable.
//!
//! Most programs do not need this crate: `otelctx` exports the symbol by itself from shared
//! libraries, and from executables linked with lld (the default on x86-64) or gold. GNU ld (the
//! default on aarch64) and mold keep it local. There, and if in doubt, add this to the package
//! with the executable:
//!
//! ```toml
//! [build-dependencies]
//! otelctx-build = "0.1"
//! ```
//!
//! ```no_run
//! // in main() of build.rs
//! otelctx_build::export();
//! ```
//!
//! `otelctx::is_exported()` says at run time whether it worked, `otelctx check FILE` after linking.

mod linker;

use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use linker::{Attempt, Linker};

/// The linker option. lld, mold and gold support it, and GNU ld since binutils 2.35.
const ARGUMENT: &str = "-Wl,--export-dynamic-symbol=otel_thread_ctx_v1";

/// The dynamic list for an older GNU ld.
const DYNAMIC_LIST: &str = "{ otel_thread_ctx_v1; };\n";

/// Exports every symbol: for zig's linker, which supports neither option above.
const EVERYTHING: &str = "-rdynamic";

/// Makes the linker export the symbol from this package's executables, for its build script.
///
/// It links an empty program the way rustc will link the package, to find out which linker is
/// used and which option it supports.
///
/// If the symbol cannot be exported, this prints a warning. The program still builds and works, but
/// readers cannot find its thread contexts. On targets other than Linux, this does nothing.
pub fn export() {
    let target = Target::from_environment();
    let directory = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    match target.argument(&directory, |argument| Attempt::new(&directory, argument)) {
        Ok(Some(argument)) => println!("cargo:rustc-link-arg={argument}"),
        Ok(None) => {}
        Err(refusal) => println!("cargo:warning={refusal}"),
    }
}

/// Facts about the target that Cargo passes to build scripts.
#[derive(Clone, Copy, Debug)]
struct Target {
    linux: bool,
    /// True if the C library is linked statically.
    crt_static: bool,
    /// True if the relocation model is `static`: no position-independent executable.
    not_pie: bool,
}

/// The reason why the symbol cannot be exported.
#[derive(Debug, PartialEq)]
enum Refusal {
    /// A static-pie executable linked with GNU ld.
    StaticPie,
    /// A static executable has no dynamic symbol table.
    Static,
}

impl Target {
    fn from_environment() -> Self {
        let variable = |name| env::var(name).unwrap_or_default();
        let flags = variable("CARGO_ENCODED_RUSTFLAGS");
        let features = variable("CARGO_CFG_TARGET_FEATURE");
        let not_pie = linker::options(&flags).any(|option| option == "relocation-model=static");
        Self {
            linux: variable("CARGO_CFG_TARGET_OS") == "linux",
            crt_static: features.split(',').any(|feature| feature == "crt-static"),
            not_pie,
        }
    }

    /// Returns the linker argument, if one is needed. `link` tries an argument. If the argument
    /// names a file, the file is written to the directory first.
    fn argument(
        self,
        directory: &Path,
        link: impl Fn(&str) -> Attempt,
    ) -> Result<Option<String>, Refusal> {
        if !self.linux {
            return Ok(None);
        }
        if self.crt_static && self.not_pie {
            return Err(Refusal::Static);
        }
        let attempt = link(ARGUMENT);
        if self.crt_static && attempt.linker == Linker::Gnu {
            return Err(Refusal::StaticPie);
        }
        if !attempt.linked {
            let file = directory.join("otelctx.dynamic-list");
            let argument = format!("-Wl,--dynamic-list={}", file.display());
            if fs::write(&file, DYNAMIC_LIST).is_ok() && link(&argument).linked {
                return Ok(Some(argument));
            }
            if link(EVERYTHING).linked {
                return Ok(Some(EVERYTHING.to_owned()));
            }
        }
        // Used even if no test program could be linked: the package itself may link.
        Ok(Some(ARGUMENT.to_owned()))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // GNU ld relaxes the access to a TPOFF64 relocation, on which glibc crashes in
            // _dl_relocate_static_pie.
            Self::StaticPie => f.write_str(
                "otel_thread_ctx_v1 is not exported: a static-pie executable that exports it \
                 crashes before main when GNU ld has linked it. Use lld or mold \
                 (-C link-arg=-fuse-ld=lld), or link dynamically (-C target-feature=-crt-static)",
            ),
            Self::Static => f.write_str(
                "otel_thread_ctx_v1 is not exported: a static executable has no dynamic symbol \
                 table. Link dynamically (-C target-feature=-crt-static), or as static-pie with \
                 lld or mold",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(crt_static: bool, not_pie: bool) -> Target {
        Target {
            linux: true,
            crt_static,
            not_pie,
        }
    }

    /// Returns the argument for a linker that supports this option.
    fn argument(target: Target, linker: Linker, known: &[&str]) -> Result<Option<String>, Refusal> {
        target.argument(&env::temp_dir(), |argument| Attempt {
            linker,
            linked: known.iter().any(|option| argument.starts_with(option)),
        })
    }

    #[test]
    fn dynamic_executables_get_the_argument_that_the_linker_knows() {
        let dynamic = target(false, false);
        let new = ["-Wl,--export-dynamic-symbol=", "-Wl,--dynamic-list="];
        for linker in [Linker::Gnu, Linker::LldOrMold] {
            assert_eq!(
                argument(dynamic, linker, &new),
                Ok(Some(ARGUMENT.to_owned()))
            );
        }
        let old = argument(dynamic, Linker::Gnu, &new[1..]);
        let old = old.unwrap().unwrap();
        let file = old.strip_prefix("-Wl,--dynamic-list=").unwrap();
        assert_eq!(fs::read_to_string(file).unwrap(), DYNAMIC_LIST);
        assert_eq!(
            argument(dynamic, Linker::LldOrMold, &[EVERYTHING]),
            Ok(Some(EVERYTHING.to_owned()))
        );
        // No test program can be linked, for example because the target's libraries are missing.
        assert_eq!(
            argument(dynamic, Linker::Gnu, &[]),
            Ok(Some(ARGUMENT.to_owned()))
        );
        let other = Target {
            linux: false,
            ..dynamic
        };
        assert_eq!(argument(other, Linker::Gnu, &new), Ok(None));
    }

    #[test]
    fn static_executables_are_refused_where_they_would_crash_or_have_no_table() {
        let new = ["-Wl,--export-dynamic-symbol="];
        assert_eq!(
            argument(target(true, false), Linker::Gnu, &new),
            Err(Refusal::StaticPie)
        );
        assert_eq!(
            argument(target(true, false), Linker::LldOrMold, &new),
            Ok(Some(ARGUMENT.to_owned()))
        );
        assert_eq!(
            argument(target(true, true), Linker::LldOrMold, &new),
            Err(Refusal::Static)
        );
    }
}
