//! `cargo xtask aarch64`: publisher and reader built for aarch64, under an arm64 kernel.
//!
//! What runs there: the tests of the format, publisher, remote and reader crates, the matrix of
//! programs (built here, because no compiler is there), and the command on its own demo.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::debian;
use crate::guest::{self, Image};
use crate::report::{self, Outcome};
use crate::test::Counts;
use crate::workspace::{cargo, have, root};

const TARGET: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-system-aarch64";
/// Where Debian's cross compiler has the C library.
const SYSROOT: &str = "/usr/aarch64-linux-gnu/lib";
const LIBRARIES: [&str; 4] = [
    "ld-linux-aarch64.so.1",
    "libc.so.6",
    "libm.so.6",
    "libgcc_s.so.1",
];
/// Their tests run, except those that need a compiler, which skip there.
const PACKAGES: [&str; 3] = ["otelctx", "otelctx-remote", "otelctx-reader"];

/// What the machine does: every program of /tests, then the command on its demo; one at a time,
/// because a thread has one tracer. The demo may say (status 1) that a thread did not stop in time: the
/// machine is emulated, on one that may be busy.
const SCRIPT: &str = "\
cd /
export OTELCTX_MATRIX=/matrix
for test in /tests/*; do
    echo \"guest: running $test\"
    $test --test-threads=2 || echo \"guest: FAILED $test\"
done
echo 'guest: the command'
/bin/otelctx demo --duration 5 || test $? = 1 || echo 'guest: FAILED demo'
/bin/otelctx demo-service --parent=$$ > /dev/null &
sleep 3
/bin/otelctx ps || echo 'guest: FAILED ps'
/bin/otelctx dump $! || echo 'guest: FAILED dump'
/bin/otelctx check $! || echo 'guest: FAILED check'
";

pub(crate) fn run(counts: &mut Counts) -> Outcome {
    for program in [EMULATOR, LINKER] {
        if !have(program) {
            return Outcome::Skipped(format!("no {program}"));
        }
    }
    match (debian::CURRENT.rustc(), debian::arm64_guest()) {
        (Ok(rustc), Ok(machine)) => test(&rustc, &machine, counts).into(),
        (Err(why), _) | (_, Err(why)) => Outcome::Skipped(why),
    }
}

fn test(rustc: &Path, machine: &debian::Guest, counts: &mut Counts) -> Result<Outcome, String> {
    let mut image = Image::new(&machine.busybox, SCRIPT)?;
    for library in LIBRARIES {
        image.file(
            &Path::new("/lib").join(library),
            &Path::new(SYSROOT).join(library),
        )?;
    }
    let (tests, command) = programs(rustc)?;
    for test in &tests {
        let name = test.file_name().unwrap_or_default();
        image.file(&Path::new("/tests").join(name), test)?;
    }
    image.file(Path::new("/bin/otelctx"), &command)?;
    let rows = rows()?;
    for path in files(&rows) {
        image.file(path, path)?;
    }
    image.bytes(Path::new("/matrix"), rows.as_bytes());
    let folder = root().join("target/aarch64");
    let initramfs = folder.join("initramfs");
    fs::write(&initramfs, image.finish())
        .map_err(|error| format!("{}: {error}", initramfs.display()))?;

    let mut emulator = Command::new(EMULATOR);
    emulator.args([
        "-machine",
        "virt",
        "-cpu",
        "cortex-a72",
        "-smp",
        "2",
        "-m",
        "2048",
    ]);
    let output = guest::run(&mut emulator, &machine.kernel, &initramfs, "ttyAMA0")?;

    let mut here = Counts::default();
    for line in output.lines() {
        here.add(&Counts::parse(line));
    }
    counts.add(&here);
    let failed: Vec<&str> = output
        .lines()
        .filter_map(|line| line.strip_prefix("guest: FAILED "))
        .collect();
    if !failed.is_empty() {
        return Err(format!("{here}; failed: {}", failed.join(", ")));
    }
    for expected in [
        "matrix: ",
        "every one readable",
        "http.route=",
        "local-exec",
    ] {
        if !output.contains(expected) {
            return Err(format!("{here}; nothing said {expected:?}"));
        }
    }
    Ok(Outcome::Passed(format!(
        "{here}, {} programs",
        rows.lines().count()
    )))
}

/// The test programs, and the command.
fn programs(rustc: &Path) -> Result<(Vec<PathBuf>, PathBuf), String> {
    let build = |arguments: &[&str], packages: &[&str]| {
        let mut command = cargo();
        command
            .env("RUSTC", rustc)
            .env(
                format!(
                    "CARGO_TARGET_{}_LINKER",
                    TARGET.to_uppercase().replace('-', "_")
                ),
                LINKER,
            )
            // The file goes into the machine's memory as it is.
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            // What otelctx-build prints for applications whose linker is GNU ld.
            .env(
                "RUSTFLAGS",
                "-Clink-arg=-Wl,--export-dynamic-symbol=otel_thread_ctx_v1",
            )
            .env_remove("RUSTC_WRAPPER")
            .args(arguments)
            .args([
                "--quiet",
                "--locked",
                "--message-format=json",
                "--target",
                TARGET,
            ])
            .arg("--target-dir")
            .arg(root().join("target/aarch64"))
            .args(packages.iter().flat_map(|package| ["-p", *package]));
        report::output(&mut command).map(|output| executables(&output))
    };
    let mut tests = build(&["test", "--no-run", "--lib", "--tests"], &PACKAGES)?;
    // Without the comparison with prost: values only, and 2 minutes in an emulator.
    tests.extend(build(&["test", "--no-run", "--lib"], &["otelctx-format"])?);
    let command = build(&["build"], &["otelctx-cli"])?.pop();
    Ok((tests, command.ok_or("otelctx-cli has no program")?))
}

/// The programs that cargo's messages name.
fn executables(messages: &str) -> Vec<PathBuf> {
    let messages = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    messages
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
        .collect()
}

/// One line for each program of the matrix.
fn rows() -> Result<String, String> {
    let matrix = [
        "run",
        "--quiet",
        "--locked",
        "-p",
        "otelctx-fixtures",
        "--bin",
        "matrix",
    ];
    report::output(cargo().args(matrix).args(["--", "aarch64"]))
}

/// The files that rows name.
fn files(rows: &str) -> Vec<&Path> {
    let words = rows.lines().flat_map(|line| line.split(['\t', '=']));
    let mut files: Vec<&Path> = words
        .map(Path::new)
        .filter(|path| path.is_absolute())
        .collect();
    files.sort_unstable();
    files.dedup();
    files
}
