//! `cargo xtask aarch64`: publisher and reader built for aarch64, under an arm64 kernel.
//!
//! It runs the tests of the publisher, remote, reader, sampler and Python crates, the matrix of programs (built on the
//! host, because the machine has no compiler), and the command on its demo. Those of the format crate depend on no
//! machine. `cargo xtask test` has fewer of the Pythons, programs and tests, and not the command, which compiles for as long as
//! all others.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::counts::Counts;
use crate::guest::{self, Image, Machine, Rows, Sampled};
use crate::report::{self, Outcome};
use crate::workspace::{cargo, find, have, metadata, root};
use crate::{debian, musl};

const TARGET: &str = "aarch64-unknown-linux-gnu";
/// The architecture's name in the fixtures.
const TARGET_ARCHITECTURE: &str = "aarch64";
const COMPILER: &str = "aarch64-linux-gnu-gcc";
/// The linker that it calls, several times faster than its own.
const LINKER: &str = "ld.lld";
const MACHINE: Machine = Machine {
    emulator: "qemu-system-aarch64",
    arguments: &[
        "-machine",
        "virt",
        "-cpu",
        // With pointer authentication, by a function that is cheap to emulate.
        "max,pauth-impdef=on",
        "-smp",
        "2",
        "-m",
        "3072",
    ],
    console: "ttyAMA0",
    timeout: Duration::from_secs(3600),
};
/// The Debian release that has the cross compiler's C library.
pub(crate) const SUITE: &str = "bookworm";
/// Folder of the cross compiler's C library.
const SYSROOT: &str = "/usr/aarch64-linux-gnu/lib";
const LIBRARIES: [&str; 4] = [
    "ld-linux-aarch64.so.1",
    "libc.so.6",
    "libm.so.6",
    "libgcc_s.so.1",
];
/// What otelctx-build prints for applications.
const EXPORT: &str = "-Clink-arg=-Wl,--export-dynamic-symbol=otel_thread_ctx_v1";
/// Packages whose tests run; tests that need a compiler skip. The command is not among them, see [`COMMAND`].
const PACKAGES: [&str; 5] = [
    "otelctx",
    "otelctx-python",
    "otelctx-reader",
    "otelctx-remote",
    "otelctx-sampler",
];
/// The command's package, and the test program that has [`COMMAND_TEST`].
const COMMAND: (&str, &str) = ("otelctx-cli", "command");
/// A kernel of Debian's.
pub(crate) struct Kernel {
    /// Its name on the command line.
    version: &'static str,
    suite: &'static str,
    /// What it and the processor support, for the sampler's tests (`otelctx_fixtures::kernel`).
    features: &'static str,
}

/// The kernel of the release that has the cross compiler's C library.
pub(crate) const USUAL: Kernel = Kernel {
    version: "6.1",
    suite: SUITE,
    features: "ebpf rings tables snapshots mappings signed-returns",
};

const KERNELS: [Kernel; 3] = [
    Kernel {
        version: "5.10",
        suite: "bullseye",
        features: "ebpf tables signed-returns",
    },
    USUAL,
    Kernel {
        version: "7",
        suite: "sid",
        ..USUAL
    },
];

/// Test programs that do not run: what they test depends on the kernel, on an interpreter's version or on no machine at
/// all, and takes half a minute or more in an emulator, or it takes a compiler or an interpreter that the machine lacks.
const EXCLUDED: [&str; 10] = [
    "chains",
    "cores",
    "following",
    "handlers",
    "life",
    "model",
    "recompiled",
    "tasks",
    "traps",
    "unresponsive",
];

/// Tests that do not run, for the same reasons.
const SKIPPED: [&str; 10] = [
    "a_cpu_that_comes_back",
    "a_list_with_a_state_that_no_thread_stores",
    "a_thousand_thread_states",
    "files_that_are_not_read_to_their_end",
    "jit::",
    "more_targets_than_slots",
    "names_of_one_process",
    "samples_in_a_subinterpreter",
    "tasks::",
    "threads_are_found_while_others",
];

/// Tests that the short run skips as well. Each takes ten seconds to a minute there, or more than what other work on the
/// host may leave, and the tests on the host cover the same code, except for what is particular to aarch64, which the full
/// run covers.
const NOT_IN_SHORT: [&str; 17] = [
    "a_core_file_has_what_the_process_had",
    "a_fork_while_another_thread_updates",
    "a_list_that_does_not_end",
    "a_process_without_room",
    "a_step_without_room",
    "a_thread_that_ends_leaves_no_memory",
    "each_sample_that_finds_the_ring_full",
    "every_sample_by_ptrace_has",
    "mappings_are_bounded",
    "neighbouring_pieces_of_memory",
    "samples_in_interpreters_with_gils",
    "stacks_are_the_same_without_loops",
    "stacks_through_mappings_without_room",
    "the_recorder_wakes_up_less_often",
    "threads_of_two_interpreters",
    "whatever_the_storage_and_the_access",
    "words_of_threads_are_kept",
];

/// Where the machine has the tests of the command.
const COMMAND_TESTS: &str = "/command_tests";
/// Which of them runs: others take a compiler, or more time than an emulator has.
const COMMAND_TEST: &str = "signed_return_addresses";

/// The script's last part: crashes a process and dumps its core.
const CRASH: &str = "\
cd /tmp
ulimit -c unlimited
/bin/otelctx demo-service --parent=$$ > /dev/null &
service=$!
sleep 3
kill -ABRT $service
wait $service
/bin/otelctx dump --core core --stacks || echo 'guest: FAILED dump of a core'
";
/// What [`CRASH`] prints: of the stack, the outermost frames.
const CRASH_OUTPUT: [&str; 3] = [
    "core, ended by SIGABRT in thread",
    "    std::rt::lang_start",
    "    _start (otelctx)",
];

/// The Pythons of the short run: one with a layout of the table, and one that says its offsets.
const SHORT_PYTHONS: [&str; 2] = ["3.11", "3.14"];

/// What the machine runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Selection {
    Everything,
    /// Without the command and [`NOT_IN_SHORT`], with [`SHORT_PYTHONS`], and with few programs ([`Rows::build_few`]).
    Short,
}

impl Selection {
    fn contains(self, python: &debian::GuestPython) -> bool {
        self == Self::Everything || SHORT_PYTHONS.contains(&python.series)
    }

    /// Arguments that skip the tests that do not run.
    fn skip(self) -> String {
        let also: &[&str] = match self {
            Self::Everything => &[],
            Self::Short => &NOT_IN_SHORT,
        };
        let skipped = SKIPPED.iter().chain(also);
        skipped.map(|test| format!(" --skip {test}")).collect()
    }
}

/// Runs the tests: those of the short run with `--short`, and under another kernel than [`USUAL`] with its version.
pub(crate) fn run_with(arguments: &[String], counts: &mut Counts) -> Outcome {
    let (selection, rest) = match arguments {
        [flag, rest @ ..] if flag == "--short" => (Selection::Short, rest),
        rest => (Selection::Everything, rest),
    };
    let kernel = match rest {
        [] => Some(&USUAL),
        [version] => KERNELS.iter().find(|kernel| kernel.version == version),
        _ => None,
    };
    match kernel {
        Some(kernel) => run(selection, kernel, counts),
        None => {
            let known = KERNELS.map(|kernel| kernel.version).join(", ");
            Outcome::Failed(format!("it takes --short and one kernel of {known}"))
        }
    }
}

pub(crate) fn run(selection: Selection, kernel: &Kernel, counts: &mut Counts) -> Outcome {
    for program in [MACHINE.emulator, COMPILER, LINKER] {
        if !have(program) {
            return Outcome::Skipped(format!("no {program}"));
        }
    }
    match (
        debian::CURRENT.rustc(),
        debian::guest(kernel.suite, "arm64"),
    ) {
        (Ok(rustc), Ok(machine)) => {
            let features = kernel.features;
            test(&rustc, &machine, features, selection, counts).into()
        }
        (Err(why), _) | (_, Err(why)) => Outcome::Skipped(why),
    }
}

fn test(
    rustc: &Path,
    machine: &debian::Guest,
    features: &str,
    selection: Selection,
    counts: &mut Counts,
) -> Result<Outcome, String> {
    let sampled = Sampled::build(TARGET_ARCHITECTURE)?;
    let programs = Programs::build(rustc, selection)?;
    let mut script = format!(
        "export OTELCTX_MATRIX=/matrix OTELCTX_KERNEL='{features}' CARGO_TARGET_DIR='{}'\n",
        sampled.target().display(),
    );
    // One program at a time, because a thread has one tracer.
    let skip = selection.skip();
    script += &format!("for test in /tests/*; do run $test{skip}; done\n");
    let mut expected = Vec::new();
    if let Some(command) = &programs.command {
        let path = command.path.display();
        script += &format!("ln -s {path} /bin/otelctx\nrun {COMMAND_TESTS} {COMMAND_TEST}\n");
        script += guest::COMMAND;
        script += CRASH;
        expected.extend(guest::COMMAND_OUTPUT);
        expected.extend(CRASH_OUTPUT);
    }
    let mut image = Image::new(&machine.busybox, &script)?;
    sampled.put_into(&mut image)?;
    for library in LIBRARIES {
        image.file(
            &Path::new("/lib").join(library),
            &Path::new(SYSROOT).join(library),
        )?;
    }
    // Without it, the rows of musl are missing too.
    if let Ok(gcc) = musl::AARCH64.gcc() {
        let library = gcc.with_file_name("lib").join("libc.so");
        image.file(Path::new("/lib/ld-musl-aarch64.so.1"), &library)?;
    }
    for python in debian::GUEST_PYTHONS
        .iter()
        .filter(|it| selection.contains(it))
    {
        put_python(&mut image, python)?;
    }
    for test in &programs.tests {
        let name = test.file_name().unwrap_or_default();
        image.file(&Path::new("/tests").join(name), test)?;
    }
    if let Some(Command { path, tests }) = &programs.command {
        image.file(path, path)?;
        image.file(COMMAND_TESTS.as_ref(), tests)?;
    }
    let rows = match selection {
        Selection::Everything => Rows::build(TARGET_ARCHITECTURE)?,
        Selection::Short => Rows::build_few(TARGET_ARCHITECTURE)?,
    };
    rows.put_into(&mut image)?;
    let folder = root().join("target/aarch64");
    let initramfs = folder.join("initramfs");
    fs::write(&initramfs, image.finish())
        .map_err(|error| format!("{}: {error}", initramfs.display()))?;

    let output = MACHINE.run(&machine.kernel, &initramfs, TARGET_ARCHITECTURE)?;
    let here = guest::verdict(&output, &expected, "aarch64", counts)?;
    Ok(Outcome::Passed(format!(
        "{here}, {} programs",
        rows.count()
    )))
}

/// Adds an interpreter as `/usr/bin/python3.…`, where tests find it, with its modules.
fn put_python(image: &mut Image, python: &debian::GuestPython) -> Result<(), String> {
    let series = python.series;
    let tree = python.fetch()?;
    let place = PathBuf::from(format!("/python{series}"));
    let binary = format!("usr/bin/python{series}");
    image.file(&place.join(&binary), &tree.join(&binary))?;
    let libraries = ["lib/aarch64-linux-gnu", "usr/lib/aarch64-linux-gnu"];
    for folder in libraries.map(|it| tree.join(it)) {
        for library in files_below(&folder)? {
            let name = library.file_name().unwrap_or_default();
            image.file(&place.join("lib").join(name), &library)?;
        }
    }
    let modules = Path::new("usr/lib").join(format!("python{series}"));
    for module in files_below(&tree.join(&modules))? {
        let below = module.strip_prefix(&tree).unwrap_or(&module);
        image.file(&place.join(below), &module)?;
    }
    let script = format!(
        "#!/bin/sh\nPYTHONHOME={place}/usr exec {place}/lib/ld-linux-aarch64.so.1 \
         --library-path {place}/lib {place}/{binary} \"$@\"\n",
        place = place.display()
    );
    let path = format!("/usr/bin/python{series}");
    image.bytes(Path::new(&path), script.as_bytes());
    Ok(())
}

/// The files in a folder and all below it; none if it is not there. Links that lead nowhere are left out.
fn files_below(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        // Character tables of C libraries, and documentation.
        let is_left_out = ["gconv", "pydoc_data", "ensurepip", "lib2to3"];
        if is_left_out.iter().any(|it| folder.ends_with(it)) || !folder.is_dir() {
            continue;
        }
        let entries = fs::read_dir(&folder);
        for entry in entries.map_err(|error| format!("{}: {error}", folder.display()))? {
            let path = entry.map_err(|error| error.to_string())?.path();
            match path.is_dir() {
                true => folders.push(path),
                false if path.is_file() => found.push(path),
                false => {}
            }
        }
    }
    Ok(found)
}

/// A folder with the linker, by the name that the compiler knows.
fn folder_of_linker() -> io::Result<PathBuf> {
    let folder = root().join("target/aarch64/linker");
    fs::create_dir_all(&folder)?;
    let link = folder.join("ld");
    let _ = fs::remove_file(&link);
    symlink(find(LINKER).unwrap_or_default(), link)?;
    Ok(folder)
}

/// What is built for the machine.
struct Programs {
    /// Test programs that run as a whole.
    tests: Vec<PathBuf>,
    command: Option<Command>,
}

struct Command {
    /// Where it is built, which is where its tests run it.
    path: PathBuf,
    tests: PathBuf,
}

impl Programs {
    fn build(rustc: &Path, selection: Selection) -> Result<Self, String> {
        let linker = folder_of_linker().map_err(|error| format!("{LINKER}: {error}"))?;
        let flags = format!("-Clink-arg=-B{} {EXPORT}", linker.display());
        let (package, tests_of_command) = COMMAND;
        let mut cargo = cargo();
        cargo
            .env("RUSTC", rustc)
            .env(
                format!(
                    "CARGO_TARGET_{}_LINKER",
                    TARGET.to_uppercase().replace('-', "_")
                ),
                COMPILER,
            )
            // The file goes into the machine's memory as it is.
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env("RUSTFLAGS", flags)
            .env_remove("RUSTC_WRAPPER")
            .args(["test", "--no-run", "--lib"])
            .args(integration_tests()?)
            .args(["--quiet", "--locked", "--message-format=json"])
            .args(["--target", TARGET, "--target-dir"])
            .arg(root().join("target/aarch64"))
            // All at once: cargo builds a package again for each set of features that the packages beside it ask for.
            .args(PACKAGES.iter().flat_map(|package| ["-p", *package]));
        if selection == Selection::Everything {
            cargo.args(["-p", package, "--test", tests_of_command]);
        }
        let (mut tests, mut commands, mut of_command) = (vec![], vec![], vec![]);
        for path in guest::executables(&report::output(&mut cargo)?) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            // NAME-HASH, if it is a test program.
            match name.rsplit_once('-').map(|(name, _)| name) {
                None => commands.push(path),
                Some(name) if name == tests_of_command => of_command.push(path),
                // The command's unit tests depend on no machine, but `--lib` builds them, too.
                Some("otelctx_cli") => {}
                Some(_) => tests.push(path),
            }
        }
        let command = match (selection, &commands[..], &of_command[..]) {
            (Selection::Short, [], []) => None,
            (Selection::Everything, [path], [tests]) => Some(Command {
                path: path.clone(),
                tests: tests.clone(),
            }),
            (_, commands, tests) => {
                return Err(format!("{package} and its tests: {commands:?} {tests:?}"));
            }
        };
        Ok(Self { tests, command })
    }
}

/// Cargo's arguments for the integration tests of [`PACKAGES`] that are not [`EXCLUDED`].
fn integration_tests() -> Result<Vec<String>, String> {
    let metadata = metadata(&root().join("Cargo.toml"))?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let ours = packages.filter(|it| it["name"].as_str().is_some_and(|it| PACKAGES.contains(&it)));
    let targets = ours.flat_map(|package| package["targets"].as_array().into_iter().flatten());
    let tests = targets.filter(|target| target["kind"][0] == "test");
    let names = tests.filter_map(|target| target["name"].as_str());
    let selected = names.filter(|name| !EXCLUDED.contains(name));
    Ok(selected.map(|name| format!("--test={name}")).collect())
}
