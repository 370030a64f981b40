//! `cargo xtask kernels`: the test programs under other kernels, in an emulator.
//!
//! All tests under all kernels take about an hour; `cargo xtask test` runs the tests that depend
//! most on the kernel, under three of them. `docs/kernels.md` has the results.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::counts::Counts;
use crate::debian::{self, Guest};
use crate::guest::{self, Image, Machine, Rows};
use crate::named_kernel;
use crate::report::{self, Outcome};
use crate::unprivileged;
use crate::workspace::{TestProgram, have, target_dir, test_programs};

/// A kernel and its features.
struct Kernel {
    /// Its name on the command line.
    version: &'static str,
    origin: Origin,
    /// It gives names to anonymous mappings (CONFIG_ANON_VMA_NAME).
    names: bool,
    /// It has PROCMAP_QUERY (Linux 6.11).
    queries: bool,
    /// eBPF programs can read running threads (Linux 5.18), and find a process's mappings (6.1).
    snapshots: bool,
    /// `cargo xtask test` boots it too.
    always: bool,
}

enum Origin {
    /// The cloud kernel of this release.
    Debian(&'static str),
    /// Built here from Debian's source.
    Built,
}

const KERNELS: [Kernel; 5] = [
    Kernel {
        snapshots: false,
        always: true,
        ..Kernel::debian("5.10", "bullseye")
    },
    Kernel {
        always: true,
        ..Kernel::debian("6.1", "bookworm")
    },
    Kernel {
        queries: true,
        ..Kernel::debian("6.12", "trixie")
    },
    Kernel {
        queries: true,
        always: true,
        ..Kernel::debian("7", "sid")
    },
    Kernel {
        version: "named",
        origin: Origin::Built,
        names: true,
        queries: true,
        snapshots: true,
        always: false,
    },
];

impl Kernel {
    const fn debian(version: &'static str, suite: &'static str) -> Self {
        Self {
            version,
            origin: Origin::Debian(suite),
            names: false,
            queries: false,
            snapshots: true,
            always: false,
        }
    }

    fn fetch(&self) -> Result<Guest, String> {
        match self.origin {
            Origin::Debian(suite) => debian::guest(suite, "amd64"),
            Origin::Built => named_kernel::guest(),
        }
    }

    /// What the kernel supports, for the sampler's tests (`otelctx_fixtures::kernel`).
    fn of_sampler(&self) -> &'static str {
        if self.snapshots {
            "ebpf rings tables snapshots mappings"
        } else {
            "ebpf rings tables"
        }
    }

    /// The line that the command's test `names.rs` prints under this kernel.
    fn features(&self) -> String {
        let yes = |it: bool| if it { "yes" } else { "no" };
        format!(
            "names: anonymous mappings can have names: {}; PROCMAP_QUERY: {}",
            yes(self.names),
            yes(self.queries)
        )
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.origin {
            Origin::Debian(suite) => write!(f, "Linux {} (Debian {suite})", self.version),
            Origin::Built => write!(f, "a kernel with names for anonymous mappings"),
        }
    }
}

const MACHINE: Machine = Machine {
    emulator: "qemu-system-x86_64",
    // KVM is not available everywhere, and hangs in some nested machines. QEMU 7.2 sometimes loses
    // the flags of cmpxchg16b, which crashes the kernel: this CPU lacks it, and there is only one.
    arguments: &[
        "-accel",
        "tcg",
        "-cpu",
        "max,la57=off,cx16=off",
        "-smp",
        "1",
        "-m",
        "3072",
    ],
    console: "ttyS0",
    timeout: Duration::from_secs(1200),
};

/// How many machines run at a time. Each has one processor, and the host mostly has two, but each waits for some of its time.
const AT_A_TIME: usize = 3;

/// Libraries that the test programs are linked with, at their own paths; the last one for musl.
const LIBRARIES: [&str; 5] = [
    "/lib64/ld-linux-x86-64.so.2",
    "/lib/x86_64-linux-gnu/libc.so.6",
    "/lib/x86_64-linux-gnu/libm.so.6",
    "/lib/x86_64-linux-gnu/libgcc_s.so.1",
    "/lib/ld-musl-x86_64.so.1",
];

/// Packages whose tests run in the machine, by the last part of their folders.
const PACKAGES: [&str; 5] = ["otelctx", "remote", "reader", "sampler", "cli"];

/// Test programs that do not run: one has a time limit of half a second, too short for an emulated
/// machine; one needs options of `unshare` that busybox lacks.
const EXCLUDED: [(&str, &str); 2] = [("remote", "vanish"), ("remote", "namespace")];

/// Path of the command's own tests in the machine.
const COMMAND_TESTS: &str = "/tests/cli-command";
/// Path of the process that they inspect: `../examples/target` from there.
const TARGET: &str = "/examples/target";

/// Skips tests that call a compiler or binutils.
const SKIPPED: &str = "--skip build_id --skip files_without_the_variable";

/// The tests that depend most on the kernel: package, program, filter.
const SHORT: [(&str, &str, &str); 9] = [
    ("otelctx", "process_context", "memfd"),
    ("remote", "process", ""),
    ("remote", "stop", ""),
    ("reader", "threads", ""),
    (
        "sampler",
        "otelctx_sampler",
        "the_program_finds the_kernel_takes_each_step",
    ),
    ("sampler", "right_trace", "every_sample_has"),
    ("sampler", "snapshot", "every_thread"),
    ("sampler", "stacks", ""),
    (
        "cli",
        "command",
        "names:: kernel_limits code::code_at_the_address",
    ),
];

/// Which tests to run.
#[derive(Clone, Copy)]
enum Selection<'a> {
    Everything,
    /// Those of [`SHORT`].
    Short,
    /// All of one package, but the matrix.
    Package(&'a str),
}

impl<'a> Selection<'a> {
    /// Cargo's arguments for the packages to build.
    fn packages(self) -> Vec<&'a str> {
        match self {
            Self::Package(package) => vec!["-p", package],
            Self::Everything | Self::Short => unprivileged::packages(),
        }
    }

    /// The filter for a program's tests; `None` if it does not run.
    fn filter(self, package: &str, program: &str) -> Option<&'static str> {
        if EXCLUDED.contains(&(package, program)) {
            return None;
        }
        match self {
            Self::Everything => PACKAGES.contains(&package).then_some(SKIPPED),
            Self::Package(_) => (program != "matrix").then_some(SKIPPED),
            Self::Short => SHORT
                .iter()
                .find(|(of, name, _)| (*of, *name) == (package, program))
                .map(|(.., filter)| *filter),
        }
    }

    fn is_everything(self) -> bool {
        matches!(self, Self::Everything)
    }
}

/// Runs all tests under the kernels of these versions, or under all of them; with `--short` those of
/// [`SHORT`], with `--package` those of one package.
pub(crate) fn run(arguments: &[String], counts: &mut Counts) -> Outcome {
    let (selection, versions) = match arguments {
        [flag] if flag == "--short" => return short(counts),
        [flag, versions @ ..] if flag == "--short" => (Selection::Short, versions),
        [flag, package, versions @ ..] if flag == "--package" => {
            (Selection::Package(package), versions)
        }
        versions => (Selection::Everything, versions),
    };
    let known = |version: &String| KERNELS.iter().any(|kernel| kernel.version == version);
    if let Some(unknown) = versions.iter().find(|version| !known(version)) {
        let known = KERNELS.map(|kernel| kernel.version).join(", ");
        return Outcome::Failed(format!("no kernel {unknown}; there are {known}"));
    }
    let wanted = |kernel: &&Kernel| {
        versions.is_empty() || versions.iter().any(|version| version == kernel.version)
    };
    boot(KERNELS.iter().filter(wanted), selection, counts)
}

/// Fetches the kernels that `cargo xtask test` boots; returns their names, and paths or errors.
pub(crate) fn fetch() -> Vec<(String, Result<PathBuf, String>)> {
    let kernels = KERNELS.iter().filter(|kernel| kernel.always);
    let fetch = |kernel: &Kernel| {
        let path = kernel.fetch().map(|guest| guest.kernel);
        (kernel.to_string(), path)
    };
    kernels.map(fetch).collect()
}

/// Runs the tests of [`SHORT`] under the kernels that `cargo xtask test` boots.
pub(crate) fn short(counts: &mut Counts) -> Outcome {
    boot(
        KERNELS.iter().filter(|kernel| kernel.always),
        Selection::Short,
        counts,
    )
}

fn boot<'k>(
    kernels: impl Iterator<Item = &'k Kernel>,
    selection: Selection<'_>,
    counts: &mut Counts,
) -> Outcome {
    if cfg!(not(target_arch = "x86_64")) {
        return Outcome::Skipped("these kernels are for x86-64".into());
    }
    if !have(MACHINE.emulator) {
        return Outcome::Skipped(format!("no {}", MACHINE.emulator));
    }
    let contents = match Contents::new(selection) {
        Ok(contents) => contents,
        Err(error) => return Outcome::Failed(error),
    };
    let kernels: Vec<_> = kernels.collect();
    let next = AtomicUsize::new(0);
    let turn = || kernels.get(next.fetch_add(1, Ordering::Relaxed));
    let boot = || std::iter::from_fn(turn).map(|kernel| contents.boot(kernel));
    let booted: Vec<(Counts, Outcome)> = thread::scope(|scope| {
        let threads = [(); AT_A_TIME].map(|()| scope.spawn(|| boot().collect::<Vec<_>>()));
        let panicked = |_| vec![(Counts::default(), Outcome::Failed("it panicked".into()))];
        let ended = threads
            .into_iter()
            .map(|it| it.join().unwrap_or_else(panicked));
        ended.flatten().collect()
    });
    let (mut done, mut untested, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    for (of_kernel, outcome) in booted {
        counts.add("", of_kernel);
        match outcome {
            Outcome::Passed(line) => done.push(line),
            Outcome::Skipped(line) => untested.push(line),
            Outcome::Failed(line) => failed.push(line),
        }
    }
    if !failed.is_empty() {
        Outcome::Failed(failed.join("; "))
    } else if done.is_empty() {
        Outcome::Skipped(untested.join("; "))
    } else {
        done.append(&mut untested);
        Outcome::Passed(done.join("; "))
    }
}

/// A test program, its path in the machine, and a filter for its tests.
type Test = (TestProgram, String, &'static str);

impl Selection<'_> {
    /// A file that is written when the fixtures of these tests are compiled, and listed in [`USED`].
    fn stamp(self, folder: &Path) -> PathBuf {
        folder.join(match self {
            Self::Everything => "listed".to_owned(),
            Self::Short => "listed-short".to_owned(),
            Self::Package(package) => format!("listed-{package}"),
        })
    }
}

/// A list in [`folder`]: on each line a test program, a tab and a fixture that it uses.
const USED: &str = "used";
/// The variable by which test programs know the list (`otelctx_fixtures`).
const USED_VARIABLE: &str = "OTELCTX_FIXTURES_USED";
/// Larger fixtures stay out, because the machine has too little memory: the module of 1 GiB, whose
/// tests skip there.
const MAX_FIXTURE: u64 = 64 << 20;

fn write_stamp(stamp: &Path) -> Result<(), String> {
    fs::write(stamp, "").map_err(|error| format!("{}: {error}", stamp.display()))
}

/// Name of [`folder`].
const FOLDER: &str = "kernels";

/// The folder for the machines' files.
fn folder() -> Result<PathBuf, String> {
    let folder = target_dir().join(FOLDER);
    fs::create_dir_all(&folder)
        .and_then(|()| folder.canonicalize())
        .map_err(|error| format!("{}: {error}", folder.display()))
}

/// Runs test programs on the host, which build their fixtures and list them, because the machine has
/// no compiler. Whether they pass does not matter here. Programs that have not changed are not run
/// again.
fn build_fixtures(folder: &Path, tests: &[Test], selection: Selection<'_>) -> Result<(), String> {
    let stamp = selection.stamp(folder);
    let modified = |path: &Path| fs::metadata(path).and_then(|status| status.modified());
    // The publisher's tests compile no fixtures, and the matrix has a list of its own.
    let compiling = tests
        .iter()
        .filter(|(program, ..)| !program.package.ends_with("otelctx") && program.name != "matrix");
    for (program, _, filter) in compiling {
        let newer = modified(&program.executable).ok() >= modified(&stamp).ok();
        if !newer {
            continue;
        }
        println!("kernels: building the fixtures of {}", program.name);
        let mut command = program.command();
        command
            .env("CARGO_MANIFEST_DIR", &program.package)
            .env(USED_VARIABLE, folder.join(USED))
            .args(filter.split_whitespace());
        let _ = command.output();
    }
    write_stamp(&stamp)
}

/// The fixtures that these tests have listed.
fn used_fixtures(folder: &Path, tests: &[Test]) -> Result<BTreeSet<PathBuf>, String> {
    let list = folder.join(USED);
    let list = fs::read_to_string(&list).map_err(|error| format!("{}: {error}", list.display()))?;
    // The matrix has a list of its own.
    let programs: BTreeSet<_> = tests
        .iter()
        .filter(|(program, ..)| program.name != "matrix")
        .filter_map(|(program, ..)| program.executable.file_name())
        .collect();
    let of_tests = |line: &str| {
        let (program, fixture) = line.split_once('\t')?;
        let program = Path::new(program).file_name()?;
        programs.contains(program).then(|| PathBuf::from(fixture))
    };
    // Tests also ask for what no compiler here can build.
    let fits = |path: &PathBuf| fs::metadata(path).is_ok_and(|it| it.len() <= MAX_FIXTURE);
    Ok(list.lines().filter_map(of_tests).filter(fits).collect())
}

/// The contents of the initramfs, the same for every kernel.
struct Contents {
    /// For the machines' files.
    folder: PathBuf,
    /// Cargo's target folder, which tests find fixtures below.
    target: PathBuf,
    tests: Vec<Test>,
    /// Path of the command, where its tests expect it.
    command: PathBuf,
    /// Path of the process that the command's tests inspect.
    inspected: PathBuf,
    /// Fixtures compiled on the host.
    fixtures: BTreeSet<PathBuf>,
    rows: Option<Rows>,
}

impl Contents {
    fn new(selection: Selection<'_>) -> Result<Self, String> {
        let folder = folder()?;
        let mut tests = Vec::new();
        for program in test_programs(&selection.packages())? {
            let package = program.package.file_name().unwrap_or_default();
            let package = package.to_string_lossy().into_owned();
            let Some(filter) = selection.filter(&package, &program.name) else {
                continue;
            };
            let place = format!("/tests/{package}-{}", program.name);
            tests.push((program, place, filter));
        }
        build_fixtures(&folder, &tests, selection)?;
        let target = folder.parent().unwrap_or(&folder).to_owned();
        let fixtures = used_fixtures(&folder, &tests)?;
        let (first, ..) = tests.first().ok_or("there are no test programs")?;
        let built = first.executable.ancestors().nth(2);
        let built = built.ok_or("no target folder")?;
        Ok(Self {
            command: built.join("otelctx"),
            inspected: built.join("examples/target"),
            rows: selection
                .is_everything()
                .then(|| Rows::build("x86_64"))
                .transpose()?,
            folder,
            target,
            tests,
            fixtures,
        })
    }

    fn has_command(&self) -> bool {
        self.tests
            .iter()
            .any(|(_, place, _)| place == COMMAND_TESTS)
    }

    /// Runs the tests under a kernel; the outcome names it.
    fn boot(&self, kernel: &Kernel) -> (Counts, Outcome) {
        println!("kernels: {kernel}");
        let start = Instant::now();
        let mut counts = Counts::default();
        let outcome = match kernel.fetch() {
            Err(why) => Outcome::Skipped(format!("{kernel} is not tested: {why}")),
            Ok(guest) => match self.run(kernel, &guest, &mut counts) {
                Ok(here) => Outcome::Passed(format!("{kernel}: {here}")),
                Err(error) => Outcome::Failed(format!("{kernel}: {error}")),
            },
        };
        println!("kernels: {outcome} ({} s)", start.elapsed().as_secs());
        (counts, outcome)
    }

    fn script(&self, kernel: &Kernel) -> String {
        let mut script = format!(
            "export CARGO_TARGET_DIR='{}' OTELCTX_MATRIX=/matrix OTELCTX_KERNEL='{}'\n",
            self.target.display(),
            kernel.of_sampler()
        );
        for (_, place, filter) in &self.tests {
            script += &format!("run {place} {filter}\n");
        }
        if self.rows.is_some() {
            script += guest::COMMAND;
        }
        if self.has_command() {
            // Last, because it cannot lower the setting again.
            script += &format!("run {COMMAND_TESTS} --ignored yama::\n");
        }
        script
    }

    fn run(&self, kernel: &Kernel, guest: &Guest, counts: &mut Counts) -> Result<String, String> {
        let mut image = Image::new(&guest.busybox, &self.script(kernel))?;
        for library in LIBRARIES.map(Path::new) {
            if library.is_file() {
                image.file(library, library)?;
            }
        }
        for (program, place, _) in &self.tests {
            image.bytes(
                Path::new(place),
                &self.stripped(&program.executable, kernel)?,
            );
        }
        if self.has_command() {
            let command = self.stripped(&self.command, kernel)?;
            image.bytes(Path::new("/bin/otelctx"), &command);
            image.bytes(&self.command, &command);
            image.bytes(Path::new(TARGET), &self.stripped(&self.inspected, kernel)?);
        }
        for fixture in &self.fixtures {
            image.file(fixture, fixture)?;
        }
        image.fixture_sources()?;
        if let Some(rows) = &self.rows {
            rows.put_into(&mut image)?;
        }
        let initramfs = self.folder.join(format!("initramfs-{}", kernel.version));
        fs::write(&initramfs, image.finish())
            .map_err(|error| format!("{}: {error}", initramfs.display()))?;
        let run = || MACHINE.run(&guest.kernel, &initramfs, kernel.version);
        let mut output = run();
        // On a busy host, a machine sometimes fails to boot.
        for _ in 0..2 {
            if !matches!(&output, Err(error) if error == guest::NOT_STARTED) {
                break;
            }
            output = run();
        }
        let _ = fs::remove_file(&initramfs);
        let output = output?;
        let features = kernel.features();
        let mut expected = Vec::new();
        if self.has_command() {
            expected.extend([features.as_str(), "yama: 3"]);
        }
        if self.rows.is_some() {
            expected.extend(guest::COMMAND_OUTPUT);
        }
        guest::verdict(&output, &expected, &kernel.to_string(), counts)
    }

    /// The program without debug information, most of its size: it goes into the machine's memory.
    fn stripped(&self, program: &Path, kernel: &Kernel) -> Result<Vec<u8>, String> {
        let output = self.folder.join(format!("stripped-{}", kernel.version));
        report::output(
            Command::new("strip")
                .args(["--strip-debug", "-o"])
                .args([&output, program]),
        )?;
        fs::read(&output).map_err(|error| format!("{}: {error}", output.display()))
    }
}
