//! Lines to copy: what to add where, for each tool.

use std::path::Path;

use otelctx_reader::remote::module::Machine;
use serde::Serialize;

/// A line to copy, and where it goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Line {
    /// The compiler that accepts it as a flag, or the file that it belongs in.
    pub(super) tool: &'static str,
    /// May have several lines.
    pub(super) line: String,
}

const GCC: &str = "gcc";
const CLANG: &str = "clang";
const RUSTC: &str = "rustc";
/// A program's build script.
const BUILD_SCRIPT: &str = "build.rs";
const CARGO_CONFIG: &str = ".cargo/config.toml";
/// CMakeLists.txt
const CMAKE: &str = "CMake";
const C: &str = "C";
const RUST: &str = "Rust";
/// Below `global:` in that file.
const VERSION_SCRIPT: &str = "version script (global)";

const EXPORT: &str = "--export-dynamic-symbol=otel_thread_ctx_v1";

fn line(tool: &'static str, line: impl Into<String>) -> Line {
    Line {
        tool,
        line: line.into(),
    }
}

/// Returns lines for the top of that file: after a table header they would be part of that table.
fn cargo_config(text: impl std::fmt::Display) -> Line {
    line(CARGO_CONFIG, format!("# at the top:\n{text}"))
}

/// Returns the most likely name of the CMake target that builds this file.
pub(super) fn target_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let library = name
        .strip_prefix("lib")
        .and_then(|name| Some(name.split_once(".so")?.0));
    let name = library.unwrap_or(&name);
    let plain = |character: char| character.is_ascii_alphanumeric() || "_.+-".contains(character);
    if !name.is_empty() && name.chars().all(plain) {
        name.to_owned()
    } else {
        "app".to_owned()
    }
}

/// Makes the linker export a program's variable.
pub(super) fn export(target: &str) -> Vec<Line> {
    let option = format!("target_link_options({target} PRIVATE\n  \"LINKER:{EXPORT}\")");
    let property = format!("set_property(TARGET {target} PROPERTY ENABLE_EXPORTS ON)");
    vec![
        line(GCC, format!("-Wl,{EXPORT}")),
        line(CLANG, format!("-Wl,{EXPORT}")),
        line(RUSTC, format!("-C link-arg=-Wl,{EXPORT}")),
        line(
            BUILD_SCRIPT,
            "// cargo add --build --path PATH/TO/otelctx/publish/build\n\
             fn main() { otelctx_build::export(); }",
        ),
        cargo_config(format_args!(
            "build.rustflags = [\n  \"-Clink-arg=-Wl,{EXPORT}\",\n]"
        )),
        line(CMAKE, option),
        line(CMAKE, property),
    ]
}

/// Declares the variable with default visibility.
pub(super) fn declare_visible() -> Vec<Line> {
    let visible = "__attribute__((visibility(\"default\"))) __thread void *otel_thread_ctx_v1;";
    vec![line(C, visible)]
}

pub(super) fn make_visible(target: &str) -> Vec<Line> {
    let property = format!("set_property(TARGET {target} PROPERTY C_VISIBILITY_PRESET default)");
    let mut lines = declare_visible();
    lines.extend([
        line(GCC, "-fvisibility=default"),
        line(CLANG, "-fvisibility=default"),
        line(CMAKE, property),
    ]);
    lines
}

/// Exports a library's variable despite a version script.
pub(super) fn list() -> Vec<Line> {
    vec![
        line(VERSION_SCRIPT, "otel_thread_ctx_v1;"),
        // rustc writes a version script with the exported names. This name is a pattern there,
        // which matches the variable.
        line(
            RUST,
            "#[unsafe(export_name = \"otel_thread_ctx_v[1]\")] pub static EXPORT: u8 = 0;",
        ),
    ]
}

/// Makes a static program position-independent, with a linker that can export from it.
pub(super) fn static_pie(target: &str) -> Vec<Line> {
    let flags = format!("-static-pie -fPIE -fuse-ld=lld \\\n  -Wl,{EXPORT}");
    let options = format!(
        "target_compile_options({target} PRIVATE -fPIE)\n\
         target_link_options({target} PRIVATE -static-pie -fuse-ld=lld\n  \"LINKER:{EXPORT}\")"
    );
    vec![
        line(GCC, flags.clone()),
        line(CLANG, flags),
        line(RUSTC, "-C target-feature=-crt-static"),
        cargo_config("build.rustflags = [\"-Ctarget-feature=-crt-static\"]"),
        line(CMAKE, options),
    ]
}

/// Exports the variable from a static, position-independent program.
pub(super) fn export_static_pie(target: &str) -> Vec<Line> {
    let arguments = format!("-C link-arg=-fuse-ld=lld \\\n  -C link-arg=-Wl,{EXPORT}");
    let options =
        format!("target_link_options({target} PRIVATE -fuse-ld=lld\n  \"LINKER:{EXPORT}\")");
    vec![
        line(GCC, format!("-fuse-ld=lld -Wl,{EXPORT}")),
        line(CLANG, format!("-fuse-ld=lld -Wl,{EXPORT}")),
        line(RUSTC, arguments),
        cargo_config(format_args!(
            "build.rustflags = [\n  \"-Clink-arg=-fuse-ld=lld\",\n  \"-Clink-arg=-Wl,{EXPORT}\",\n]"
        )),
        line(CMAKE, options),
    ]
}

pub(super) fn use_lld(target: &str) -> Vec<Line> {
    let options = format!("target_link_options({target} PRIVATE -fuse-ld=lld)");
    vec![
        line(GCC, "-fuse-ld=lld"),
        line(CLANG, "-fuse-ld=lld"),
        line(RUSTC, "-C link-arg=-fuse-ld=lld"),
        cargo_config("build.rustflags = [\"-Clink-arg=-fuse-ld=lld\"]"),
        line(CMAKE, options),
    ]
}

/// Makes compilers use TLS descriptors. `other_model`: another model was selected explicitly.
pub(super) fn descriptors(machine: Machine, target: &str, other_model: bool) -> Vec<Line> {
    let model = if other_model {
        " -ftls-model=global-dynamic"
    } else {
        ""
    };
    // On aarch64, clang supports nothing else and has no flag for it.
    let (gcc, clang) = match machine {
        Machine::Aarch64 => (
            format!("-fPIC -mtls-dialect=desc{model}"),
            format!("-fPIC{model}"),
        ),
        _ => {
            let flags = format!("-fPIC -mtls-dialect=gnu2{model}");
            (flags.clone(), flags)
        }
    };
    // With -flto, the linker generates the code.
    let options = format!(
        "target_compile_options({target} PRIVATE {gcc})\n\
         target_link_options({target} PRIVATE {gcc})"
    );
    let cargo = cargo_config(format_args!("env.CFLAGS = \"{gcc}\""));
    vec![
        line(GCC, gcc),
        line(CLANG, clang),
        line(CMAKE, options),
        cargo,
    ]
}

pub(super) fn declare() -> Vec<Line> {
    vec![line(C, "__thread void *otel_thread_ctx_v1;")]
}
