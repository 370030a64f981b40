//! Each way of linking: compilers, C libraries, linkers, and how the library gets into the program.

#![cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]

mod common;

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use common::{Built, Libc, compile, have, installed, package, root, source, threads};
use otelctx_fixtures::{Target, tier};
use otelctx_reader::Process;

/// How the library gets into the program.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Link {
    /// The shared library.
    Shared,
    /// The static one, as its package says.
    Static,
    /// The static one, without the package's flag.
    StaticWithoutFlag,
    /// The static one, with the flag for GNU ld before 2.35 in place of the package's.
    StaticDynamicList,
    /// The static one, in a program at a fixed address.
    StaticNonPie,
    /// The static one, in a fully static program.
    FullyStatic,
    /// The static one, in a static-pie program, as the shared one's package says for static programs.
    StaticPie,
    /// The same, as the static one's package says for static programs.
    StaticPieExcluded,
    /// The same, as the static one's package says for dynamic programs.
    StaticPieWithFlag,
    /// The static one, in a library that the program loads.
    Plugin,
    /// The same, without the symbols of static libraries.
    PluginExcluded,
    /// The shared one, in a library that the program loads.
    SharedPlugin,
    /// The program loads it, and then a library that counts on that.
    Loaded,
}
use Link::*;

const LINKS: [Link; 13] = [
    Shared,
    Static,
    StaticWithoutFlag,
    StaticDynamicList,
    StaticNonPie,
    FullyStatic,
    StaticPie,
    StaticPieExcluded,
    StaticPieWithFlag,
    Plugin,
    PluginExcluded,
    SharedPlugin,
    Loaded,
];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Expected {
    /// The program says that it is exported, and a reader finds the values.
    Exported,
    /// The program runs and says, with these words, that it is not.
    Unexported(&'static str),
    /// The same, but the reader of this project finds it as a local symbol of `.dynsym`, where others need not search.
    Local(&'static str),
    /// The linker refuses.
    Refused,
    /// The program crashes before main.
    Crashes,
}
use Expected::*;

const HIDDEN: &str = "but not exported: the linker kept it local";
const EXCLUDED: &str = "but not exported: --exclude-libs or a version script hides it";
const STATIC_PIE: &str = "but not exported: the linker kept it local. Link this static-pie";
const STATIC: &str = "is fully static and has no dynamic symbol table";

/// The expected outcome. It depends on neither the compiler nor the C library.
fn expected(link: Link, linker: &str) -> Expected {
    match (link, linker) {
        (StaticWithoutFlag, _) => Unexported(HIDDEN),
        (PluginExcluded, "gold" | "mold") => Local(EXCLUDED),
        (PluginExcluded, _) => Unexported(EXCLUDED),
        (FullyStatic, _) => Unexported(STATIC),
        // gold does not know static-pie: it makes a dynamic executable of position-dependent parts.
        (StaticPie | StaticPieExcluded | StaticPieWithFlag, "gold") => Refused,
        (StaticPie | StaticPieExcluded, _) => Unexported(STATIC_PIE),
        // It relaxes the access to a relocation that the program cannot apply to itself.
        (StaticPieWithFlag, "bfd") => Crashes,
        (
            Shared | Static | StaticDynamicList | StaticNonPie | StaticPieWithFlag | Plugin
            | SharedPlugin | Loaded,
            _,
        ) => Exported,
    }
}

const LINKERS: [&str; 4] = ["bfd", "gold", "lld", "mold"];

/// Whether the tests that run have this row. The usual ones have each way of linking once with each compiler, and each
/// linker with other ways.
fn is_run(compiler: &str, linker: &str, link: Link) -> bool {
    let way = LINKS.iter().position(|it| *it == link);
    let linker = LINKERS.iter().position(|it| *it == linker);
    let shift = if compiler == "gcc" { 0 } else { 2 };
    tier::runs_all() || way.map(|way| (way + shift) % LINKERS.len()) == linker
}

fn rows(compiler: &'static str, libc: Libc) {
    tier::left_to_all("each way of linking with each linker");
    let Some(prefix) = installed(libc) else {
        return;
    };
    if !have(compiler) || !have("pkg-config") {
        return;
    }
    let mut wrong = Vec::new();
    for linker in LINKERS {
        if !have(&format!("ld.{linker}")) {
            continue;
        }
        for link in LINKS
            .into_iter()
            .filter(|link| is_run(compiler, linker, *link))
        {
            let row = Row {
                compiler,
                libc,
                linker,
                link,
            };
            let (found, expected) = (row.outcome(prefix), expected(link, linker));
            println!("{row:?}: {found:?}");
            if found != Ok(expected) {
                wrong.push(format!("{row:?}: {found:?} instead of {expected:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn gcc_with_glibc() {
    rows("gcc", Libc::Glibc);
}

#[test]
fn clang_with_glibc() {
    rows("clang", Libc::Glibc);
}

#[test]
fn gcc_with_musl() {
    rows("gcc", Libc::Musl);
}

#[test]
fn clang_with_musl() {
    rows("clang", Libc::Musl);
}

#[derive(Debug)]
struct Row {
    compiler: &'static str,
    libc: Libc,
    linker: &'static str,
    link: Link,
}

impl Row {
    fn outcome(&self, prefix: &Path) -> Result<Expected, String> {
        let Self { link, .. } = *self;
        let mut files = Vec::new();
        match self.build(prefix) {
            Ok(built) => files.extend(built),
            // Of a linker that refuses; everything else is a mistake of this test.
            Err(error)
                if error.contains("ld returned") || error.contains("linker command failed") =>
            {
                return Ok(Refused);
            }
            Err(error) => return Err(error),
        }
        let mut command = Command::new(&files[0].0);
        match link {
            Shared => {
                command.env("LD_LIBRARY_PATH", prefix.join("lib"));
            }
            SharedPlugin => {
                command.env("LD_LIBRARY_PATH", prefix.join("lib"));
                command.arg(&files[1].0);
            }
            Plugin | PluginExcluded => {
                command.arg(&files[1].0);
            }
            Loaded => {
                command
                    .arg(prefix.join("lib/libotelctx.so.0"))
                    .arg(&files[1].0);
            }
            _ => {}
        }
        if link == StaticPieWithFlag && self.linker == "bfd" {
            let status = command.status().map_err(|error| error.to_string())?;
            return match std::os::unix::process::ExitStatusExt::signal(&status) {
                Some(11) => Ok(Crashes),
                _ => Err(format!("{status}")),
            };
        }
        let target = Target::spawn(&mut command);
        let [line] = &target.lines[..] else {
            return Err(format!("{:?}", target.lines));
        };
        // The names of threads tell which of them belong to the program: all have one.
        if line == "exported 0 " {
            let seen = threads(&target, "linked");
            let expected = (
                "0102030405060708090a0b0c0d0e0f10".to_owned(),
                "15161718191a1b1c".to_owned(),
                1,
                vec![("http.route".to_owned(), "/cart/\u{e9}".to_owned())],
            );
            return match seen == [Some(expected)] {
                true => Ok(Exported),
                false => Err(format!("{seen:?}")),
            };
        }
        // A reader finds nothing: the programs are stripped.
        let mut process = Process::open(target.pid()).map_err(|error| error.to_string())?;
        let found = process.threads().map_err(|error| error.to_string())?;
        let context = found[0].context();
        let is_found = context.is_ok_and(|found| found.attached().is_some());
        for words in [STATIC_PIE, HIDDEN, EXCLUDED, STATIC] {
            if line.starts_with("exported 14 ") && line.contains(words) {
                return Ok(if is_found {
                    Local(words)
                } else {
                    Unexported(words)
                });
            }
        }
        Err(line.clone())
    }

    /// Builds the program, and the library that it loads.
    fn build(&self, prefix: &Path) -> Result<Vec<Built>, String> {
        let static_library = package(prefix, &["--libs", "otelctx-static"]);
        let (flag, without): (Vec<_>, Vec<_>) = static_library
            .iter()
            .cloned()
            .partition(|flag| flag.contains("export-dynamic"));
        assert_eq!(flag.len(), 1);
        let list = source("tests/programs/dynamic-list");
        let list = format!("-Wl,--dynamic-list={}", list.display());
        let with_list = [&without[..], &[list]].concat();
        let shared_library = package(prefix, &["--libs", "otelctx"]);
        let static_program = package(prefix, &["--libs", "--static", "otelctx"]);
        let excluded = package(prefix, &["--libs", "--static", "otelctx-static"]);
        let (libraries, kind): (&[String], &[&str]) = match self.link {
            Shared => (&shared_library, &[]),
            Static => (&static_library, &[]),
            StaticWithoutFlag => (&without, &[]),
            StaticDynamicList => (&with_list, &[]),
            StaticNonPie => (&static_library, &["-no-pie", "-fno-pie"]),
            FullyStatic => (&static_library, &["-static"]),
            StaticPie => (&static_program, &["-static-pie", "-fPIE"]),
            StaticPieExcluded => (&excluded, &["-static-pie", "-fPIE"]),
            StaticPieWithFlag => (&static_library, &["-static-pie", "-fPIE"]),
            Plugin => (&static_library, &["-shared", "-fPIC"]),
            PluginExcluded => (
                &static_library,
                &["-shared", "-fPIC", "-Wl,--exclude-libs,ALL"],
            ),
            SharedPlugin => (&shared_library, &["-shared", "-fPIC"]),
            Loaded => (&[], &["-shared", "-fPIC"]),
        };
        let is_plugin = kind.contains(&"-shared");
        let main: &[&str] = if is_plugin { &[] } else { &["-DMAIN"] };
        let kind = [kind, main].concat();
        let linked = self.compile("link.c", &kind, libraries, prefix)?;
        if !is_plugin {
            return Ok(vec![linked]);
        }
        let loader = self.compile("load.c", &[], &["-ldl".to_owned()], prefix)?;
        Ok(vec![loader, linked])
    }

    fn compile(
        &self,
        file: &str,
        kind: &[&str],
        libraries: &[String],
        prefix: &Path,
    ) -> Result<Built, String> {
        let program = source("tests/programs").join(file);
        let mut arguments: Vec<OsString> = ["-O2", "-Wall", "-Wextra", "-Werror", "-s"]
            .map(OsString::from)
            .to_vec();
        arguments.push(format!("-fuse-ld={}", self.linker).into());
        arguments.extend(kind.iter().map(OsString::from));
        arguments.push(format!("-I{}", prefix.join("include").display()).into());
        let name = format!("c-{:?}-{}", self.link, self.linker);
        let link = |compiler: &str, input: &Path, arguments: &[OsString]| {
            let libraries = libraries.iter().map(OsString::from);
            let all = arguments
                .iter()
                .cloned()
                .chain([input.into()])
                .chain(libraries);
            compile(compiler, all.collect::<Vec<_>>(), &name)
        };
        let musl = root().join("target/setup/musl-x86_64");
        let gcc = musl.join("gcc").display().to_string();
        match (self.compiler, self.libc) {
            (compiler, Libc::Glibc) => link(compiler, &program, &arguments),
            ("gcc", Libc::Musl) => link(&gcc, &program, &arguments),
            (compiler, Libc::Musl) => {
                // clang has no idea of where this musl lies: gcc links what clang compiles.
                let include = format!("-isystem{}", musl.join("include").display());
                let object: Vec<OsString> = ["-c", "--target=x86_64-linux-musl", "-nostdlibinc"]
                    .map(OsString::from)
                    .into_iter()
                    .chain([include.into(), "-Qunused-arguments".into()])
                    .chain(arguments.iter().cloned())
                    .chain([program.into()])
                    .collect();
                let object = compile(compiler, object, "c-object")?;
                link(&gcc, &object.0, &arguments)
            }
        }
    }
}
