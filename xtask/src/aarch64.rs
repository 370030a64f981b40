//! `cargo xtask aarch64`: publisher and reader built for aarch64, under an arm64 kernel.
//!
//! It runs the tests of the publisher, remote, reader, sampler and Python crates, the matrix of programs (built on the
//! host, because the machine has no compiler), and the command on its demo. Those of the format crate depend on no
//! machine. `cargo xtask test` has fewer of the Pythons, programs and tests, and not the command, which compiles for as long as
//! all others.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::counts::Counts;
use crate::files::{entries, link};
use crate::guest::{self, Image, Machine};
use crate::report::{Done, passed, skipped};
use crate::workspace::{cargo, find, have, messages, packages, root, targets};
use crate::{debian, musl};

const TARGET: &str = "aarch64-unknown-linux-gnu";
/// The architecture's name in the fixtures.
const TARGET_ARCHITECTURE: &str = "aarch64";
const COMPILER: &str = "aarch64-linux-gnu-gcc";
/// The linker that it calls, several times faster than its own.
const LINKER: &str = "ld.lld";
const MACHINE: Machine = Machine {
    emulator: "qemu-system-aarch64",
    // With pointer authentication, by a function that is cheap to emulate.
    arguments: "-machine virt -cpu max,pauth-impdef=on -smp 2 -m 3072",
    console: "ttyAMA0",
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
const EXCLUDED: &str = "\
    chains cores following handlers life model recompiled tasks traps unresponsive";

/// Tests that do not run, for the same reasons.
const SKIPPED: &str = "\
    a_cpu_that_comes_back a_list_with_a_state_that_no_thread_stores a_thousand_thread_states \
    files_that_are_not_read_to_their_end jit:: more_targets_than_slots names_of_one_process \
    samples_in_a_subinterpreter tasks:: threads_are_found_while_others";

/// Tests that the short run skips as well. Each takes ten seconds to a minute there, or more than what other work on the
/// host may leave, and the tests on the host cover the same code, except for what is particular to aarch64, which the full
/// run covers.
const NOT_IN_SHORT: &str = "\
    a_core_file_has_what_the_process_had a_fork_while_another_thread_updates \
    a_list_that_does_not_end a_process_without_room a_step_without_room \
    a_thread_that_ends_leaves_no_memory each_sample_that_finds_the_ring_full \
    every_sample_by_ptrace_has mappings_are_bounded neighbouring_pieces_of_memory \
    samples_in_interpreters_with_gils stacks_are_the_same_without_loops \
    stacks_through_mappings_without_room the_recorder_wakes_up_less_often \
    threads_of_two_interpreters whatever_the_storage_and_the_access words_of_threads_are_kept";

/// Where the machine has the tests of the command.
const COMMAND_TESTS: &str = "/command_tests";
/// Which of them runs: others take a compiler, or more time than an emulator has.
const COMMAND_TEST: &str = "signed_return_addresses";

/// The script's last part, which dumps the core of a process that crashed.
const CRASH: &str = include_str!("aarch64/crash.sh");
/// What [`CRASH`] prints: of the stack, the outermost frames.
const CRASH_OUTPUT: [&str; 3] = [
    "core, ended by SIGABRT in thread",
    "    std::rt::lang_start",
    "    _start (otelctx)",
];

/// The Pythons of the short run: one with a layout of the table, and one that says its offsets.
const SHORT_PYTHONS: [&str; 2] = ["3.11", "3.14"];

/// Runs the tests: those of the short run with `--short`, and under another kernel than [`USUAL`] with its version.
pub(crate) fn run_with(arguments: &[String], counts: &mut Counts) -> Done {
    let (is_short, rest) = match arguments {
        [flag, rest @ ..] if flag == "--short" => (true, rest),
        rest => (false, rest),
    };
    let kernel = match rest {
        [] => Some(&USUAL),
        [version] => KERNELS.iter().find(|kernel| kernel.version == version),
        _ => None,
    };
    let Some(kernel) = kernel else {
        let known = KERNELS.each_ref().map(|kernel| kernel.version);
        bail!("it takes --short and one kernel of {}", known.join(", "));
    };
    run(is_short, kernel, counts)
}

/// Runs the tests. The short run is without the command and [`NOT_IN_SHORT`], with [`SHORT_PYTHONS`], and with few programs
/// ([`guest::matrix`]).
pub(crate) fn run(is_short: bool, kernel: &Kernel, counts: &mut Counts) -> Done {
    for program in [MACHINE.emulator, COMPILER, LINKER] {
        if !have(program) {
            return skipped(format!("no {program}"));
        }
    }
    let (rustc, machine) = match (
        debian::CURRENT.rustc(),
        debian::guest(kernel.suite, "arm64"),
    ) {
        (Ok(rustc), Ok(machine)) => (rustc, machine),
        (Err(why), _) | (_, Err(why)) => return skipped(format!("{why:#}")),
    };
    let sampled = guest::sampled(TARGET_ARCHITECTURE)?;
    let target = sampled[0].ancestors().nth(2);
    let programs = Programs::build(&rustc, is_short)?;
    let mut script = guest::variables(target.unwrap_or(Path::new("/")), kernel.features);
    let skip = [SKIPPED, if is_short { NOT_IN_SHORT } else { "" }];
    let skip = skip.iter().flat_map(|tests| tests.split_whitespace());
    let skip: String = skip.map(|test| format!(" --skip {test}")).collect();
    // One program at a time, because a thread has one tracer.
    script += &format!("for test in /tests/*; do run $test{skip}; done\n");
    let mut expected = Vec::new();
    if let Some((command, _)) = &programs.command {
        let path = command.display();
        script += &format!("ln -s {path} /bin/otelctx\nrun {COMMAND_TESTS} {COMMAND_TEST}\n");
        script += guest::COMMAND;
        script += CRASH;
        expected.extend(guest::COMMAND_OUTPUT);
        expected.extend(CRASH_OUTPUT);
    }
    let mut image = Image::new(&machine.busybox, &script)?;
    image.files(sampled)?;
    image.files(guest::fixture_sources()?)?;
    for library in LIBRARIES {
        let from = Path::new(SYSROOT).join(library);
        image.file(format!("/lib/{library}"), &from)?;
    }
    // Without it, the rows of musl are missing too.
    if let Ok(gcc) = musl::AARCH64.gcc() {
        let library = gcc.with_file_name("lib").join("libc.so");
        image.file("/lib/ld-musl-aarch64.so.1", &library)?;
    }
    for (series, suite) in debian::GUEST_PYTHONS {
        if !is_short || SHORT_PYTHONS.contains(&series) {
            put_python(&mut image, series, &debian::guest_python(series, suite)?)?;
        }
    }
    for test in &programs.tests {
        let name = test.file_name().unwrap_or_default();
        image.file(Path::new("/tests").join(name), test)?;
    }
    if let Some((command, tests)) = &programs.command {
        image.file(command, command)?;
        image.file(COMMAND_TESTS, tests)?;
    }
    let few = if is_short { " --few" } else { "" };
    let rows = guest::matrix(&format!("{TARGET_ARCHITECTURE}{few}"))?;
    image.matrix(&rows)?;
    let initramfs = root().join("target/aarch64/initramfs");
    image.write(&initramfs)?;

    let output = MACHINE.run(&machine.kernel, &initramfs, TARGET_ARCHITECTURE)?;
    let here = guest::verdict(&output, &expected, "aarch64", counts)?;
    passed(format!("{here}, {} programs", rows.lines().count()))
}

/// Adds an interpreter as `/usr/bin/python3.…`, where tests find it, with its modules.
fn put_python(image: &mut Image, series: &str, tree: &Path) -> Result<()> {
    let place = PathBuf::from(format!("/python{series}"));
    let binary = format!("usr/bin/python{series}");
    image.file(place.join(&binary), &tree.join(&binary))?;
    for folder in ["lib/aarch64-linux-gnu", "usr/lib/aarch64-linux-gnu"] {
        for library in files_below(&tree.join(folder))? {
            let name = library.file_name().unwrap_or_default();
            image.file(place.join("lib").join(name), &library)?;
        }
    }
    for module in files_below(&tree.join(format!("usr/lib/python{series}")))? {
        image.file(place.join(module.strip_prefix(tree)?), &module)?;
    }
    let script = format!(
        "#!/bin/sh\nPYTHONHOME={place}/usr exec {place}/lib/ld-linux-aarch64.so.1 \
         --library-path {place}/lib {place}/{binary} \"$@\"\n",
        place = place.display()
    );
    image.bytes(format!("/usr/bin/python{series}"), script.as_bytes());
    Ok(())
}

/// The files in a folder and all below it; none if it is not there. Links that lead nowhere are left out.
fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        // Character tables of C libraries, and documentation.
        let is_left_out = ["gconv", "pydoc_data", "ensurepip", "lib2to3"];
        if is_left_out.iter().any(|it| folder.ends_with(it)) || !folder.is_dir() {
            continue;
        }
        for path in entries(&folder)? {
            if path.is_dir() {
                folders.push(path);
            } else if path.is_file() {
                found.push(path);
            }
        }
    }
    Ok(found)
}

/// What is built for the machine.
struct Programs {
    /// Test programs that run as a whole.
    tests: Vec<PathBuf>,
    /// The command, which its tests run where it is built, and the tests.
    command: Option<(PathBuf, PathBuf)>,
}

impl Programs {
    fn build(rustc: &Path, is_short: bool) -> Result<Self> {
        let folder = root().join("target/aarch64");
        // A folder with the linker, by the name that the compiler knows.
        link(find(LINKER).unwrap_or_default(), &folder.join("linker/ld"))?;
        let flags = format!("-Clink-arg=-B{} {EXPORT}", folder.join("linker").display());
        let (package, tests_of_command) = COMMAND;
        let mut cargo = cargo("test --no-run --lib --quiet --locked --message-format=json");
        let name = TARGET.to_uppercase().replace('-', "_");
        cargo.env("RUSTC", rustc).env_remove("RUSTC_WRAPPER");
        cargo.env(format!("CARGO_TARGET_{name}_LINKER"), COMPILER);
        cargo.env("RUSTFLAGS", flags);
        // The file goes into the machine's memory as it is.
        cargo.env("CARGO_PROFILE_DEV_DEBUG", "0");
        cargo.args(integration_tests()?);
        cargo.args(["--target", TARGET, "--target-dir"]);
        cargo.arg(&folder);
        // All at once: cargo builds a package again for each set of features that the packages beside it ask for.
        cargo.args(PACKAGES.iter().flat_map(|package| ["-p", *package]));
        if !is_short {
            cargo.args(["-p", package, "--test", tests_of_command]);
        }
        let (mut tests, mut commands, mut of_command) = (vec![], vec![], vec![]);
        for message in messages(&mut cargo)? {
            let Some(path) = message["executable"].as_str().map(PathBuf::from) else {
                continue;
            };
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
        let command = match (is_short, &commands[..], &of_command[..]) {
            (true, [], []) => None,
            (false, [path], [tests]) => Some((path.clone(), tests.clone())),
            _ => bail!("{package} and its tests: {commands:?} {of_command:?}"),
        };
        Ok(Self { tests, command })
    }
}

/// Cargo's arguments for the integration tests of [`PACKAGES`] that are not [`EXCLUDED`].
fn integration_tests() -> Result<Vec<String>> {
    let mut packages = packages("Cargo.toml")?;
    packages.retain(|it| it["name"].as_str().is_some_and(|it| PACKAGES.contains(&it)));
    let names = packages.iter().flat_map(|package| targets(package, "test"));
    let selected = names.filter(|name| !EXCLUDED.split_whitespace().any(|it| it == *name));
    Ok(selected.map(|name| format!("--test={name}")).collect())
}
