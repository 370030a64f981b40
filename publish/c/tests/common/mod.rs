//! The installed library, and programs that use it.

#![allow(dead_code)]

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use otelctx_fixtures::{STOP_TIMEOUT, Target, tier};
use otelctx_reader::format::process_context::Value;
use otelctx_reader::{ContextState, Options, Process};

/// The C library that a program is linked with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Libc {
    Glibc,
    Musl,
}

/// Where `cargo xtask c` has installed the library; `None`, with a line on standard output, if this
/// machine or user cannot build it.
pub(crate) fn installed(libc: Libc) -> Option<&'static Path> {
    static INSTALLED: [OnceLock<Option<PathBuf>>; 2] = [OnceLock::new(), OnceLock::new()];
    let prefix = INSTALLED[libc as usize].get_or_init(|| install(libc));
    prefix.as_deref()
}

fn install(libc: Libc) -> Option<PathBuf> {
    let musl = root().join("target/setup/musl-x86_64/gcc");
    if libc == Libc::Musl && !musl.exists() {
        missing(&musl.display().to_string(), "musl-tools");
        return None;
    }
    // `cargo xtask test` has built it.
    if let Some(folder) = std::env::var_os("OTELCTX_C_LIBRARY") {
        let prefix = Path::new(&folder).join(format!("{libc:?}"));
        let is_there = prefix.join("lib/libotelctx.so").exists();
        let may_lack = libc == Libc::Musl;
        assert!(is_there || may_lack, "no {}", prefix.display());
        if !is_there && !tier::left_to_all("the C library for musl") {
            println!("skipped: there is no Rust for musl");
        }
        return is_there.then_some(prefix);
    }
    // Each test program has its own: others may run at the same time.
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(env!("CARGO_CRATE_NAME"));
    let prefix = folder.join(format!("{libc:?}"));
    // A user who cannot write here cannot build either, see below.
    let _ = fs::create_dir_all(&prefix);
    // nextest runs each test in a process of its own: the first one of a run installs for all.
    let lock = folder.join(format!("{libc:?}.lock"));
    let _lock = prefix.exists().then(|| otelctx_fixtures::lock_file(&lock));
    let run = std::env::var("NEXTEST_RUN_ID").ok();
    let installed_by = prefix.join("run");
    if run.is_some() && fs::read_to_string(&installed_by).ok() == run {
        return Some(prefix);
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root()).args(["xtask", "c", "--prefix"]);
    cargo.arg(&prefix);
    if libc == Libc::Musl {
        cargo.arg("--musl");
    }
    let Ok(built) = cargo.output() else {
        // The tests are also run as a user who cannot reach Cargo, after root has built this.
        let there = prefix.join("lib/libotelctx.so").exists();
        if !there {
            println!("skipped: Cargo is out of this user's reach");
        }
        return there.then_some(prefix);
    };
    let errors = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{errors}");
    fs::write(installed_by, run.unwrap_or_default()).unwrap();
    Some(prefix)
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A file of this package.
pub(crate) fn source(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

/// A new path for a built file.
pub(crate) fn output(name: &str) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("{name}-{}-{number}", std::process::id());
    otelctx_fixtures::directory().join(name)
}

/// A built file, which is removed at the end.
pub(crate) struct Built(pub(crate) PathBuf);

impl Drop for Built {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The packages of Debian with the programs that the tests use, where the names differ.
const PACKAGES: [(&str, &str); 6] = [
    ("clang++", "clang"),
    ("ld.bfd", "binutils"),
    ("ld.gold", "binutils"),
    ("ld.lld", "lld"),
    ("ld.mold", "mold"),
    ("python3", "python3-pip"),
];

/// Whether the machine has the program; says so when it has not.
///
/// # Panics
/// If `cargo xtask setup` could have installed it.
pub(crate) fn have(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        let package = PACKAGES.iter().find(|(name, _)| *name == program);
        missing(program, package.map_or(program, |(_, package)| package));
    }
    found
}

/// Says that a test is skipped for the lack of something, unless `cargo xtask setup` could have installed it:
/// as root, if apt knows the package.
fn missing(what: &str, package: &str) {
    // SAFETY: it has no arguments, and cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    let show = Command::new("apt-cache").args(["show", package]).output();
    let is_known = show.is_ok_and(|show| show.status.success());
    assert!(!(is_root && is_known), "no {what}: run `cargo xtask setup`");
    println!("skipped: no {what} on this machine");
}

/// Runs a compiler; the error is what it says.
pub(crate) fn compile<I: AsRef<OsStr>>(
    compiler: &str,
    arguments: impl IntoIterator<Item = I>,
    name: &str,
) -> Result<Built, String> {
    let file = output(name);
    let mut command = Command::new(compiler);
    command.arg("-o").arg(&file).args(arguments);
    let result = command
        .output()
        .map_err(|error| format!("{compiler}: {error}"))?;
    match result.status.success() {
        true => Ok(Built(file)),
        false => Err(String::from_utf8_lossy(&result.stderr).into_owned()),
    }
}

/// The flags that pkg-config has for a package of an installed library.
pub(crate) fn package(prefix: &Path, arguments: &[&str]) -> Vec<String> {
    let output = Command::new("pkg-config")
        .args(arguments)
        .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"))
        .output()
        .expect("pkg-config is there");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().map(str::to_owned).collect()
}

/// Runs a program to its end with the shared library; returns what it prints.
pub(crate) fn run(program: &Path, prefix: &Path, arguments: &[&OsStr]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .env("LD_LIBRARY_PATH", prefix.join("lib"))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{}: {} {printed}{errors}",
        program.display(),
        output.status
    );
    printed.into_owned()
}

/// What a reader finds of a thread: trace, span, flags, attributes.
pub(crate) type Seen = Option<(String, String, u8, Vec<(String, String)>)>;

/// Asserts that a process publishes one context, with this service's name; returns the process.
#[track_caller]
pub(crate) fn published(target: &Target, service: &str) -> Process {
    let mut options = Options::default();
    options.stop_timeout = STOP_TIMEOUT;
    let mut process = Process::with_options(target.pid(), options).unwrap();
    let context = match process.context().unwrap() {
        ContextState::Published(context) => context,
        other => panic!("{other:?}"),
    };
    let name = context.payload.resource_attribute("service.name");
    assert_eq!(name, Some(&Value::from(service)));
    assert_eq!(context.others, [0; 0], "one context");
    process
}

/// What a reader finds of the threads of a process, with no other context than this service's.
#[track_caller]
pub(crate) fn threads(target: &Target, service: &str) -> Vec<Seen> {
    let mut process = published(target, service);
    let threads = process.threads().unwrap();
    let seen = threads.iter().map(|thread| {
        let found = thread.context().unwrap();
        let context = found.attached()?;
        Some((
            context.trace_id.to_string(),
            context.span_id.to_string(),
            context.trace_flags.0,
            context.attributes.clone(),
        ))
    });
    seen.collect()
}
