//! Finds out which linker rustc uses and which options it supports, by linking an empty program.

use std::env;
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

/// Linkers, distinguished by what they can export from a static-pie executable.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Linker {
    /// GNU ld, or unknown.
    Gnu,
    /// lld (including rustc's own) or mold.
    LldOrMold,
}

/// The outcome of linking with an argument.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    pub(crate) linker: Linker,
    /// True if the linker accepted the argument.
    pub(crate) linked: bool,
}

impl Attempt {
    /// Makes rustc link an empty program in this directory, for the target and with the flags
    /// from the build script's environment and this linker argument.
    pub(crate) fn new(directory: &Path, argument: &str) -> Self {
        Self::in_directory(directory, argument).unwrap_or(Self {
            linker: Linker::Gnu,
            linked: false,
        })
    }

    fn in_directory(directory: &Path, argument: &str) -> io::Result<Self> {
        let source = directory.join("otelctx_empty.rs");
        fs::write(&source, "fn main() {}\n")?;
        let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        rustc
            .args(["--crate-type=bin", "--print=link-args", "--cap-lints=allow"])
            .arg("-o")
            .arg(directory.join("otelctx_empty"));
        if let Ok(target) = env::var("TARGET") {
            rustc.args(["--target", &target]);
        }
        // From Cargo's configuration. The flags come later and take precedence, as with Cargo.
        if let Some(linker) = env::var_os("RUSTC_LINKER") {
            let mut option = std::ffi::OsString::from("-Clinker=");
            option.push(linker);
            rustc.arg(option);
        }
        let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
        rustc.args(flags.split('\x1f').filter(|flag| !flag.is_empty()));
        rustc.arg(format!("-Clink-arg={argument}")).arg(&source);
        let output = rustc.output()?;
        let printed = String::from_utf8_lossy(&output.stdout);
        Ok(Self {
            linker: Linker::of(&printed),
            linked: output.status.success(),
        })
    }
}

impl Linker {
    /// Returns the linker that a command runs, as rustc prints it. The last `-fuse-ld` wins, as
    /// with the C compilers. Without it, `cc` is assumed to run GNU ld.
    fn of<'a>(link_args: &'a str) -> Self {
        let mut arguments = arguments(link_args);
        let program = arguments.next().unwrap_or_default();
        let value = |argument: &'a str| {
            let value = argument.strip_prefix("-fuse-ld=");
            value.or_else(|| argument.strip_prefix("--ld-path="))
        };
        let chosen = arguments.filter_map(value).last();
        let path = Path::new(chosen.unwrap_or(program));
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if ["lld", "mold"].iter().any(|known| name.contains(known)) {
            Self::LldOrMold
        } else {
            Self::Gnu
        }
    }
}

/// Returns the program and its arguments in a line such as `LC_ALL="C" "cc" "-m64"`.
fn arguments(link_args: &str) -> impl Iterator<Item = &str> {
    let mut pieces = link_args.split('"');
    std::iter::from_fn(move || Some((pieces.next()?, pieces.next()?)))
        .filter(|(before, _)| !before.ends_with('='))
        .map(|(_, quoted)| quoted)
}

/// Returns the `-C` options among rustc's flags, as `name` or `name=value`.
pub(crate) fn options(flags: &str) -> impl Iterator<Item = &str> {
    let mut after_c = false;
    flags.split('\x1f').filter_map(move |flag| {
        if std::mem::take(&mut after_c) {
            return Some(flag);
        }
        after_c = matches!(flag, "-C" | "--codegen");
        flag.strip_prefix("-C")
            .or_else(|| flag.strip_prefix("--codegen="))
            .filter(|option| !option.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use Linker::{Gnu, LldOrMold};

    #[test]
    fn the_linker_is_the_one_that_the_command_names_last() {
        for (line, expected) in [
            (r#"LC_ALL="C" PATH="/mold/bin" "cc" "-m64""#, Gnu),
            (r#"LC_ALL="C" "cc" "-B/x/gcc-ld" "-fuse-ld=lld""#, LldOrMold),
            (r#""cc" "-fuse-ld=lld" "-fuse-ld=bfd""#, Gnu),
            (r#""cc" "-fuse-ld=bfd" "-fuse-ld=mold""#, LldOrMold),
            (r#""clang" "--ld-path=/opt/bin/ld.lld""#, LldOrMold),
            (r#""/a dir/rust-lld" "-flavor" "gnu""#, LldOrMold),
            (r#""/mold/bin/cc" "-o" "lld""#, Gnu),
            ("", Gnu),
        ] {
            assert_eq!(Linker::of(line), expected, "{line}");
        }
    }

    #[test]
    fn options_are_found_in_each_way_of_writing_them() {
        let flags = "-C\x1fa=1\x1f-Cb\x1f--cfg\x1fc\x1f--codegen=d=2\x1f--codegen\x1fe";
        assert_eq!(options(flags).collect::<Vec<_>>(), ["a=1", "b", "d=2", "e"]);
    }
}
