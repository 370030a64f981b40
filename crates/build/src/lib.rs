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
//! `otelctx::is_exported()` tells at run time whether it worked, `otelctx check FILE` afterwards.

mod linker;

use std::env;
use std::fmt;
use std::process::Command;

use linker::Linker;

/// What the linker is told.
const ARGUMENT: &str = "-Wl,--export-dynamic-symbol=otel_thread_ctx_v1";

/// Has the linker export the symbol from this package's executables. Call it from the build
/// script.
///
/// Where that is impossible it prints a warning, and the program is built all the same: it works,
/// and its thread contexts are not visible. Nothing is done for targets other than Linux.
pub fn export() {
    let target = Target::from_environment();
    match target.argument() {
        Ok(Some(argument)) => println!("cargo:rustc-link-arg={argument}"),
        Ok(None) => {}
        Err(refusal) => println!("cargo:warning={refusal}"),
    }
}

/// What Cargo tells a build script about the target.
#[derive(Debug)]
struct Target {
    linux: bool,
    /// The C library is linked statically.
    crt_static: bool,
    /// `-C relocation-model=static`: no position-independent executable.
    not_pie: bool,
    linker: Linker,
}

/// The 95 of rustc 1.95.0; 0 when rustc does not tell.
fn rustc_minor_version() -> u32 {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let minor = text
        .ok()
        .and_then(|text| text.split('.').nth(1)?.parse().ok());
    minor.unwrap_or(0)
}

/// Why the symbol cannot be exported.
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
        let default = Linker::default_of(&variable("TARGET"), rustc_minor_version());
        Self {
            linux: variable("CARGO_CFG_TARGET_OS") == "linux",
            crt_static: features.split(',').any(|feature| feature == "crt-static"),
            not_pie,
            linker: Linker::of(&flags, &variable("RUSTC_LINKER"), default),
        }
    }

    /// What to tell the linker, if anything.
    fn argument(&self) -> Result<Option<&'static str>, Refusal> {
        match self {
            Self { linux: false, .. } => Ok(None),
            Self {
                crt_static: true,
                not_pie: true,
                ..
            } => Err(Refusal::Static),
            Self {
                crt_static: true,
                linker: Linker::Gnu,
                ..
            } => Err(Refusal::StaticPie),
            _ => Ok(Some(ARGUMENT)),
        }
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

    fn target(crt_static: bool, not_pie: bool, linker: Linker) -> Target {
        Target {
            linux: true,
            crt_static,
            not_pie,
            linker,
        }
    }

    #[test]
    fn dynamic_executables_get_the_argument_whatever_the_linker() {
        for linker in [Linker::Gnu, Linker::LldOrMold] {
            assert_eq!(target(false, false, linker).argument(), Ok(Some(ARGUMENT)));
        }
        let other = Target {
            linux: false,
            ..target(false, false, Linker::Gnu)
        };
        assert_eq!(other.argument(), Ok(None));
    }

    #[test]
    fn static_executables_are_refused_where_they_would_crash_or_have_no_table() {
        let argument = |target: Target| target.argument();
        assert_eq!(
            argument(target(true, false, Linker::Gnu)),
            Err(Refusal::StaticPie)
        );
        assert_eq!(
            argument(target(true, false, Linker::LldOrMold)),
            Ok(Some(ARGUMENT))
        );
        assert_eq!(
            argument(target(true, true, Linker::LldOrMold)),
            Err(Refusal::Static)
        );
    }
}
