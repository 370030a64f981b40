//! Other versions of glibc, each by its own dynamic linker, which is `/proc/PID/exe` then. The
//! oldest resolves a TLS descriptor when a thread first needs it (lazy binding, until 2.35): a
//! reader comes before that and after.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use otelctx_fixtures::{Compiler, Target};
use otelctx_remote::tls::{Place, Resolution, resolve};
use otelctx_remote::{FileCache, LiveProcess, Memory, Process, Stopped};

const NAME: &str = "otel_thread_ctx_v1";
const TIMEOUT: Duration = otelctx_fixtures::HANG_TIMEOUT;
const DESCRIPTORS: &str = "-mtls-dialect=gnu2";
const FUNCTION: &str = "-mtls-dialect=gnu";
const INITIAL_EXEC: &str = "-ftls-model=initial-exec";

/// A glibc that `cargo xtask setup` has fetched.
struct Glibc {
    folder: PathBuf,
    /// Older than the machine's: programs have to be linked with it too.
    older: bool,
}

/// How a library with the variable comes into a program.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    /// It is the program itself.
    Executable,
    Linked,
    Dlopen,
    /// No static storage is left over for libraries that are loaded later.
    DlopenNoSurplus,
}

/// Kind, flags of the variable, what a reader finds with the older and with the newest one. Where
/// two are separated by a bar, the first is before any thread has touched the variable.
const ROWS: [(Kind, &str, &str, &str); 10] = {
    use Kind::{Dlopen, DlopenNoSurplus, Executable, Linked};
    const STATIC: &str = "Tlsdesc Static";
    const FIXED: &str = "InitialExec Static";
    [
        (
            Executable,
            "-ftls-model=local-exec",
            "LocalExec Static",
            "LocalExec Static",
        ),
        (
            Executable,
            DESCRIPTORS,
            "LocalExec Static",
            "LocalExec Static",
        ),
        (Linked, DESCRIPTORS, STATIC, STATIC),
        (
            Linked,
            FUNCTION,
            "GeneralDynamic Static",
            "GeneralDynamic Static",
        ),
        (Linked, INITIAL_EXEC, FIXED, FIXED),
        (
            Dlopen,
            DESCRIPTORS,
            "none|Tlsdesc Static",
            "none|Tlsdesc Static",
        ),
        (
            Dlopen,
            FUNCTION,
            "none|GeneralDynamic Dynamic",
            "none|GeneralDynamic Dynamic",
        ),
        (
            Dlopen,
            INITIAL_EXEC,
            "none|InitialExec Static",
            "none|InitialExec Static",
        ),
        (
            DlopenNoSurplus,
            DESCRIPTORS,
            "none|Tlsdesc Dynamic",
            "none|Tlsdesc Dynamic",
        ),
        (
            DlopenNoSurplus,
            FUNCTION,
            "none|GeneralDynamic Dynamic",
            "none|GeneralDynamic Dynamic",
        ),
    ]
};

impl Glibc {
    fn find(name: &str, older: bool) -> Option<Self> {
        let setup = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/setup");
        let folder = setup.join(name).canonicalize().ok()?;
        folder
            .join("ld.so")
            .is_file()
            .then_some(Self { folder, older })
    }

    fn flags(&self) -> Vec<String> {
        self.flags_with(&["libpthread.so.0", "libdl.so.2"])
    }

    /// `parts` were libraries of their own, whose links lead out of the tree.
    fn flags_with(&self, parts: &[&str]) -> Vec<String> {
        if !self.older {
            return Vec::new();
        }
        let tree = self.folder.join("tree");
        let libraries = tree.join("usr/lib/x86_64-linux-gnu");
        let parts = parts
            .iter()
            .map(|part| self.folder.join("lib").join(part).display().to_string());
        // The compiler looks beside itself first, whatever it takes for the system's root.
        let root = [
            format!("--sysroot={}", tree.display()),
            format!("-B{}", libraries.display()),
        ];
        root.into_iter().chain(parts).collect()
    }

    /// The command that runs `program` with this glibc.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(self.folder.join("ld.so"));
        command.arg("--library-path").arg(self.folder.join("lib"));
        command.arg(program);
        command
    }

    /// Two libraries with the variable at the same place of their blocks.
    fn alike(&self, dialect: &str) -> Option<[PathBuf; 2]> {
        let library = |which| {
            let mut flags = self.flags_with(&[]);
            flags.extend([dialect, "-DBIG=64", which].map(Into::into));
            Compiler::gcc().library(&["variable.c"], &flags)
        };
        Some([library("-DFIRST")?, library("-DSECOND")?])
    }

    /// The program, which will attach on request, and the file with the variable.
    fn start(&self, kind: Kind, model: &str) -> Option<(Target, PathBuf)> {
        let with = |flags: &[&str]| {
            let mut all = self.flags();
            all.extend(flags.iter().map(|flag| (*flag).to_owned()));
            all
        };
        let gcc = Compiler::gcc();
        let (mut command, module);
        match kind {
            Kind::Executable => {
                let flags = with(&["-DLINKED", "-rdynamic", "-fPIE", "-pie", model]);
                module = gcc.program(&["threads.c", "variable.c"], &flags)?;
                command = self.command(&module);
                command.arg("late=");
            }
            Kind::Linked => {
                module = gcc.library(&["variable.c"], &with(&[model, "-Wl,-z,lazy"]))?;
                let path = module.to_str().unwrap();
                let program = gcc.program(&["threads.c"], &with(&["-DLINKED", path]))?;
                command = self.command(&program);
                command.arg(format!("late={path}"));
            }
            Kind::Dlopen | Kind::DlopenNoSurplus => {
                module = gcc.library(&["variable.c"], &with(&[model, "-Wl,-z,lazy"]))?;
                let program = gcc.program(&["threads.c"], &with(&["-ldl"]))?;
                command = self.command(&program);
                command.arg(format!("late={}", module.display()));
            }
        }
        if kind == Kind::DlopenNoSurplus {
            command.env("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=0");
        }
        Some((Target::spawn(&mut command), module))
    }
}

/// Describes the resolution in a process, after comparing the address in every thread with the
/// one that the thread prints.
fn inspect(target: &Target, module: &Path) -> String {
    let process = Process::open(target.pid()).unwrap();
    let memory = process.memory().unwrap();
    let resolution = resolve(
        &LiveProcess::new(&process, &memory),
        &FileCache::new(),
        NAME,
    )
    .unwrap();
    let Resolution {
        variables,
        unreadable,
        ..
    } = &resolution;
    let variable = match (&variables[..], &unreadable[..]) {
        ([variable], []) => variable,
        ([], []) => return "none".into(),
        _ => panic!("{resolution:?}"),
    };
    assert_eq!(Path::new(&variable.module), module);
    for thread in process.threads().unwrap() {
        let stopped = Stopped::stop(&process, thread.tid, TIMEOUT).unwrap();
        let address = variable.address(&memory, stopped.thread_pointer()).unwrap();
        let value = address.map(|address| memory.read_u64(address).unwrap());
        stopped.resume().unwrap();
        let printed = target
            .threads
            .iter()
            .find(|printed| printed.tid == thread.tid);
        match printed.and_then(|printed| printed.attached.as_ref()) {
            Some(truth) => assert_eq!((address, value), (Some(truth.slot), Some(truth.record))),
            None => assert_eq!(value.unwrap_or(0), 0, "{thread:?}"),
        }
    }
    format!("{:?} {:?}", variable.access, variable.storage())
}

#[test]
fn before_and_after_the_first_touch() {
    for (name, older) in [("glibc-2.31", true), ("glibc-newest", false)] {
        let Some(glibc) = Glibc::find(name, older) else {
            eprintln!("skipped: `cargo xtask setup` fetches {name}");
            continue;
        };
        for (kind, model, of_older, of_newest) in ROWS {
            let Some((mut target, module)) = glibc.start(kind, model) else {
                return;
            };
            let executable = std::fs::read_link(format!("/proc/{}/exe", target.pid())).unwrap();
            let linker = glibc.folder.join("ld.so").canonicalize().unwrap();
            assert_eq!(executable, linker);

            let before = inspect(&target, &module);
            target.command("attach");
            let attached = target.threads.iter().filter(|it| it.attached.is_some());
            assert_eq!(attached.count(), 2);
            let after = inspect(&target, &module);

            // Written past the test harness, which would keep the table of a test that passes.
            let row = format!("{name:<12} {kind:?} {model}");
            let line = format!("glibc: {row:<56} {before:<22} then {after}");
            writeln!(std::io::stderr().lock(), "{line}").unwrap();
            let expected = if older { of_older } else { of_newest };
            let expected = expected.split_once('|').unwrap_or((expected, expected));
            assert_eq!((before.as_str(), after.as_str()), expected, "{row}");
        }
    }
}

fn resolution(process: &Process) -> Resolution {
    let memory = process.memory().unwrap();
    resolve(&LiveProcess::new(process, &memory), &FileCache::new(), NAME).unwrap()
}

/// The addresses of the variable in the threads of this name, each read while it is stopped.
fn addresses(process: &Process, found: &Resolution, named: &str) -> Vec<Option<u64>> {
    let [variable] = &found.variables[..] else {
        panic!("{found:?}")
    };
    assert!(
        matches!(variable.place(), Place::Dynamic { .. }),
        "{found:?}"
    );
    let memory = process.memory().unwrap();
    let threads = process.threads().unwrap().into_iter();
    let threads = threads.filter(|it| it.name.to_str().unwrap().starts_with(named));
    threads
        .map(|it| {
            let stopped = Stopped::stop(process, it.tid, TIMEOUT).unwrap();
            let address = variable.address(&memory, stopped.thread_pointer()).unwrap();
            stopped.resume().unwrap();
            address
        })
        .collect()
}

/// The second library takes the module id of the first, which was closed. A thread that has not
/// touched it still has the first one's block under that id, with its record in the variable's place.
#[test]
fn a_library_in_the_place_of_one_that_was_closed() {
    for (name, older) in [("glibc-2.31", true), ("glibc-newest", false)] {
        let Some(glibc) = Glibc::find(name, older) else {
            eprintln!("skipped: `cargo xtask setup` fetches {name}");
            continue;
        };
        for dialect in [DESCRIPTORS, FUNCTION] {
            let mut flags = glibc.flags();
            flags.push("-ldl".into());
            let program = Compiler::gcc().program(&["threads.c"], &flags);
            let (Some(program), Some([first, second])) = (program, glibc.alike(dialect)) else {
                return;
            };
            let mut command = glibc.command(&program);
            command
                .arg(format!("lib={}", first.display()))
                .arg(format!("then={}", second.display()))
                .arg("workers=3")
                .env("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=0");
            let mut target = Target::spawn(&mut command);
            let process = Process::open(target.pid()).unwrap();
            let slots = |target: &Target| {
                let slot = |it: &otelctx_fixtures::Thread| Some(it.attached.as_ref()?.slot);
                target.threads.iter().map(slot).collect::<Vec<_>>()
            };
            let found = resolution(&process);
            assert_eq!(addresses(&process, &found, "worker"), slots(&target)[1..]);

            target.command("reload");
            let found = resolution(&process);
            assert_eq!(found.unreadable, [], "{name} {dialect}");
            let of_first = target.threads.iter().find(|it| it.name == "worker-0");
            let slot = of_first.unwrap().attached.as_ref().unwrap().slot;
            let expected = [Some(slot), None, None];
            let read = addresses(&process, &found, "worker");
            assert_eq!(read, expected, "{name} {dialect}");
        }
    }
}

/// The same in a program that has no library of threads: of those before 2.34 nothing tells then how
/// the dynamic linker's list is laid out, and no guess takes its place.
#[test]
fn without_the_library_that_has_the_layout() {
    for (name, older) in [("glibc-2.31", true), ("glibc-newest", false)] {
        let Some(glibc) = Glibc::find(name, older) else {
            eprintln!("skipped: `cargo xtask setup` fetches {name}");
            continue;
        };
        let mut flags = glibc.flags_with(&["libdl.so.2"]);
        flags.push("-ldl".into());
        let program = Compiler::gcc().program(&["alone.c"], &flags);
        let (Some(program), Some([first, second])) = (program, glibc.alike(FUNCTION)) else {
            return;
        };
        let mut command = glibc.command(&program);
        let target = Target::spawn(command.args([&first, &second]));
        let process = Process::open(target.pid()).unwrap();
        let found = resolution(&process);
        if older {
            assert_eq!(found.variables, []);
            let [(module, reason)] = &found.unreadable[..] else {
                panic!("{found:?}")
            };
            assert_eq!(Path::new(module), second);
            assert!(reason.contains("a loaded libpthread.so.0"), "{reason}");
        } else {
            assert_eq!(addresses(&process, &found, ""), [None]);
        }
    }
}
