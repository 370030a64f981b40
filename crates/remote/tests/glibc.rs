//! Other versions of glibc, each by its own dynamic linker, which is `/proc/PID/exe` then. The
//! oldest resolves a TLS descriptor when a thread first needs it (lazy binding, until 2.35): a
//! reader comes before that and after.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use otelctx_fixtures::{Compiler, Target};
use otelctx_remote::tls::{Resolution, resolve};
use otelctx_remote::{Memory, ModuleCache, Process, Stopped};

const NAME: &str = "otel_thread_ctx_v1";
const TIMEOUT: Duration = Duration::from_secs(30);
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
/// two are told apart by a bar, the first is before any thread has touched the variable.
const ROWS: [(Kind, &str, &str, &str); 10] = {
    use Kind::{Dlopen, DlopenNoSurplus, Executable, Linked};
    const STATIC: &str = "Tlsdesc Static";
    const FIXED: &str = "InitialExec Static";
    const LATER: &str = "GeneralDynamic Dynamic";
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
        (Linked, DESCRIPTORS, "not yet|Tlsdesc Static", STATIC),
        (Linked, FUNCTION, LATER, "GeneralDynamic Static"),
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
        if !self.older {
            return Vec::new();
        }
        let tree = self.folder.join("tree");
        let libraries = tree.join("usr/lib/x86_64-linux-gnu");
        // The compiler looks beside itself first, whatever it takes for the system's root. These
        // parts were libraries of their own, whose links lead out of the tree.
        let parts = ["libpthread.so.0", "libdl.so.2"];
        let parts = parts.map(|part| self.folder.join("lib").join(part).display().to_string());
        let root = [
            format!("--sysroot={}", tree.display()),
            format!("-B{}", libraries.display()),
        ];
        [root, parts].concat()
    }

    /// The program, which will attach when told to, and the file with the variable.
    fn start(&self, kind: Kind, model: &str) -> Option<(Target, PathBuf)> {
        let with = |flags: &[&str]| {
            let mut all = self.flags();
            all.extend(flags.iter().map(|flag| (*flag).to_owned()));
            all
        };
        let gcc = Compiler::gcc();
        let mut command = Command::new(self.folder.join("ld.so"));
        command.arg("--library-path").arg(self.folder.join("lib"));
        let module;
        match kind {
            Kind::Executable => {
                let flags = with(&["-DLINKED", "-rdynamic", "-fPIE", "-pie", model]);
                module = gcc.program(&["threads.c", "variable.c"], &flags)?;
                command.arg(&module).arg("late=");
            }
            Kind::Linked => {
                module = gcc.library(&["variable.c"], &with(&[model, "-Wl,-z,lazy"]))?;
                let path = module.to_str().unwrap();
                let program = gcc.program(&["threads.c"], &with(&["-DLINKED", path]))?;
                command.arg(program).arg(format!("late={path}"));
            }
            Kind::Dlopen | Kind::DlopenNoSurplus => {
                module = gcc.library(&["variable.c"], &with(&[model, "-Wl,-z,lazy"]))?;
                let program = gcc.program(&["threads.c"], &with(&["-ldl"]))?;
                command
                    .arg(program)
                    .arg(format!("late={}", module.display()));
            }
        }
        if kind == Kind::DlopenNoSurplus {
            command.env("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=0");
        }
        Some((Target::spawn(&mut command), module))
    }
}

/// What a reader finds in a process now; it has compared every thread with what that says of
/// itself.
fn look(target: &Target, module: &Path) -> String {
    let process = Process::open(target.pid()).unwrap();
    let memory = process.memory().unwrap();
    let resolution = resolve(&process, &memory, &mut ModuleCache::new(), NAME).unwrap();
    let Resolution {
        variables,
        unreadable,
        ..
    } = &resolution;
    let variable = match (&variables[..], &unreadable[..]) {
        ([variable], []) => variable,
        ([], []) => return "none".into(),
        // A descriptor that was not relocated yet, which is not the same.
        ([], [(name, reason)]) => {
            assert_eq!(Path::new(name), module);
            assert!(
                reason.contains("tells yet where the variable is"),
                "{reason}"
            );
            return "not yet".into();
        }
        _ => panic!("{resolution:?}"),
    };
    assert_eq!(Path::new(&variable.module), module);
    for thread in process.threads().unwrap() {
        let stopped = Stopped::stop(&process, thread.tid, TIMEOUT).unwrap();
        let address = variable.address(&memory, stopped.thread_pointer()).unwrap();
        let value = address.map(|address| memory.read_u64(address).unwrap());
        stopped.resume().unwrap();
        let told = target.threads.iter().find(|told| told.tid == thread.tid);
        match told.and_then(|told| told.attached.as_ref()) {
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

            let before = look(&target, &module);
            target.command("attach");
            let attached = target.threads.iter().filter(|it| it.attached.is_some());
            assert_eq!(attached.count(), 2);
            let after = look(&target, &module);

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
