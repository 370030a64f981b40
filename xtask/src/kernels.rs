//! `cargo xtask kernels`: the test programs under other kernels, in an emulator.
//!
//! All tests under all kernels take about an hour; `cargo xtask test` runs the tests that depend
//! most on the kernel, under three of them. `docs/kernels.md` has the results.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use fs_err as fs;

use crate::counts::Counts;
use crate::debian::{self, Guest};
use crate::files::{table, write};
use crate::guest::{self, Image, Machine};
use crate::named_kernel;
use crate::report::{self, Done, Words, command, in_parallel, joined, passed, skipped};
use crate::unprivileged;
use crate::workspace::{cargo, have, messages, target_dir};

/// A kernel.
struct Kernel {
    /// Its name on the command line.
    version: &'static str,
    /// The release whose cloud kernel it is; the one without is built here from Debian's source.
    suite: Option<&'static str>,
    /// Words: `names` if anonymous mappings can have names (CONFIG_ANON_VMA_NAME), `queries` if it has PROCMAP_QUERY (Linux
    /// 6.11), `snapshots` if eBPF programs can read running threads (5.18) and find a process's mappings (6.1), and `always`
    /// if `cargo xtask test` boots it too.
    features: &'static str,
}

const KERNELS: [Kernel; 5] = [
    debian("5.10", "bullseye", "always"),
    debian("6.1", "bookworm", "snapshots always"),
    debian("6.12", "trixie", "snapshots queries"),
    debian("7", "sid", "snapshots queries always"),
    Kernel {
        version: "named",
        suite: None,
        features: "snapshots queries names",
    },
];

const fn debian(version: &'static str, suite: &'static str, features: &'static str) -> Kernel {
    Kernel {
        version,
        suite: Some(suite),
        features,
    }
}

impl Kernel {
    fn has(&self, feature: &str) -> bool {
        self.features.split(' ').any(|it| it == feature)
    }

    fn fetch(&self) -> Result<Guest> {
        match self.suite {
            Some(suite) => debian::guest(suite, "amd64"),
            None => named_kernel::guest(),
        }
    }

    /// What the kernel supports, for the sampler's tests (`otelctx_fixtures::kernel`).
    fn of_sampler(&self) -> &'static str {
        if self.has("snapshots") {
            "ebpf rings tables snapshots mappings"
        } else {
            "ebpf rings tables"
        }
    }

    /// The line that the command's test `names.rs` prints under this kernel.
    fn names(&self) -> String {
        let yes = |feature| if self.has(feature) { "yes" } else { "no" };
        let (names, queries) = (yes("names"), yes("queries"));
        format!("names: anonymous mappings can have names: {names}; PROCMAP_QUERY: {queries}")
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.suite {
            Some(suite) => write!(f, "Linux {} (Debian {suite})", self.version),
            None => write!(f, "a kernel with names for anonymous mappings"),
        }
    }
}

const MACHINE: Machine = Machine {
    emulator: "qemu-system-x86_64",
    // KVM is not available everywhere, and hangs in some nested machines. QEMU 7.2 sometimes loses
    // the flags of cmpxchg16b, which crashes the kernel: this CPU lacks it, and there is only one.
    arguments: "-accel tcg -cpu max,la57=off,cx16=off -smp 1 -m 3072",
    console: "ttyS0",
};

/// How many machines run at a time. Each has one processor, and the host mostly has two, but each waits for some of its time.
const AT_A_TIME: usize = 3;

/// Libraries that the test programs are linked with, at their own paths; the last one for musl.
const LIBRARIES: &str = "/lib64/ld-linux-x86-64.so.2 /lib/x86_64-linux-gnu/libc.so.6 \
    /lib/x86_64-linux-gnu/libm.so.6 /lib/x86_64-linux-gnu/libgcc_s.so.1 /lib/ld-musl-x86_64.so.1";

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

/// The tests that depend most on the kernel.
const SHORT: &str = include_str!("kernels/short.tsv");

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
            Self::Short => {
                let mut tests = table(SHORT).expect("three columns").into_iter();
                let test = tests.find(|[of, name, _]| (*of, *name) == (package, program));
                test.map(|[.., filter]| filter)
            }
        }
    }
}

/// Runs all tests under the kernels of these versions, or under all of them; with `--short` those of
/// [`SHORT`], with `--package` those of one package.
pub(crate) fn run(arguments: &[String], counts: &mut Counts) -> Done {
    let (selection, versions) = match arguments {
        [flag] if flag == "--short" => return short(counts),
        [flag, versions @ ..] if flag == "--short" => (Selection::Short, versions),
        [flag, package, versions @ ..] if flag == "--package" => {
            (Selection::Package(package), versions)
        }
        versions => (Selection::Everything, versions),
    };
    let known = KERNELS.each_ref().map(|kernel| kernel.version);
    for version in versions {
        let is_known = known.contains(&version.as_str());
        let known = known.join(", ");
        ensure!(is_known, "no kernel {version}; there are {known}");
    }
    let is_wanted =
        |kernel: &Kernel| versions.is_empty() || versions.iter().any(|it| it == kernel.version);
    boot(is_wanted, selection, counts)
}

/// Fetches the kernels that `cargo xtask test` boots; returns their names, and paths or errors.
pub(crate) fn fetch() -> impl Iterator<Item = (String, Result<PathBuf>)> {
    let kernels = KERNELS.into_iter().filter(|kernel| kernel.has("always"));
    kernels.map(|kernel| (kernel.to_string(), kernel.fetch().map(|guest| guest.kernel)))
}

/// Runs the tests of [`SHORT`] under the kernels that `cargo xtask test` boots.
pub(crate) fn short(counts: &mut Counts) -> Done {
    boot(|kernel| kernel.has("always"), Selection::Short, counts)
}

fn boot(
    is_wanted: impl Fn(&Kernel) -> bool,
    selection: Selection<'_>,
    counts: &mut Counts,
) -> Done {
    if cfg!(not(target_arch = "x86_64")) {
        return skipped("these kernels are for x86-64");
    }
    if !have(MACHINE.emulator) {
        return skipped(format!("no {}", MACHINE.emulator));
    }
    let contents = Contents::new(selection)?;
    let kernels: Vec<_> = KERNELS.into_iter().filter(is_wanted).collect();
    let booted = in_parallel(AT_A_TIME, &kernels, |kernel| contents.boot(kernel));
    joined(booted.into_iter().map(|(of_kernel, done)| {
        counts.add("", of_kernel);
        done
    }))
}

/// A test program that cargo has built.
struct Test {
    executable: PathBuf,
    /// The folder that cargo would start it in.
    package: PathBuf,
    /// Its path in the machine: `/tests/PACKAGE-NAME`, with the name of the package's crate for unit tests.
    place: String,
    /// The filter for its tests.
    filter: &'static str,
}

/// Builds the test programs of a selection.
fn build(selection: Selection<'_>) -> Result<Vec<Test>> {
    let mut command = cargo("test --no-run --locked --quiet");
    command.arg("--message-format=json-render-diagnostics");
    let messages = messages(command.args(selection.packages()))?;
    let tests = messages.iter().filter(|it| it["profile"]["test"] == true);
    let tests = tests.filter_map(|message| {
        let package = Path::new(message["manifest_path"].as_str()?).parent()?;
        let folder = package.file_name()?.to_str()?;
        let name = message["target"]["name"].as_str()?;
        Some(Test {
            executable: message["executable"].as_str()?.into(),
            package: package.to_owned(),
            place: format!("/tests/{folder}-{name}"),
            filter: selection.filter(folder, name)?,
        })
    });
    Ok(tests.collect())
}

/// The variable by which test programs know a file that they list the fixtures in that they use (`otelctx_fixtures`): on
/// each line the program, a tab and the fixture.
const USED_VARIABLE: &str = "OTELCTX_FIXTURES_USED";
/// Larger fixtures stay out, because the machine has too little memory: the module of 1 GiB, whose
/// tests skip there.
const MAX_FIXTURE: u64 = 64 << 20;

/// The fixtures that a test uses. The machine has no compiler: the test runs on the host, which builds them. Whether it
/// passes does not matter. It does not run again while the list is newer than the test and the sources of all fixtures, and
/// each fixture is still there.
fn fixtures(folder: &Path, test: &Test) -> Result<Vec<PathBuf>> {
    let (executable, package) = (&test.executable, &test.package);
    // The publisher's tests compile no fixtures, and the matrix has a list of its own.
    if package.ends_with("otelctx") || test.place.ends_with("-matrix") {
        return Ok(Vec::new());
    }
    let name = executable.file_name().unwrap_or_default().display();
    let tests = test.filter.replace([' ', ':'], "-");
    let list = folder.join(format!("fixtures-{name}-{tests}"));
    let modified = |path: &Path| fs::metadata(path).and_then(|status| status.modified());
    let mut needed = guest::fixture_sources()?;
    needed.push(executable.clone());
    let newest = needed.iter().filter_map(|path| modified(path).ok()).max();
    let listed = fs::read_to_string(&list).unwrap_or_default();
    let is_current =
        modified(&list).ok() > newest && listed.lines().all(|it| Path::new(it).exists());
    let listed = if is_current {
        listed
    } else {
        println!("kernels: building the fixtures of {name}");
        let noted = folder.join(format!("used-{name}"));
        write(&noted, "")?;
        let mut command = Command::new(executable);
        command.current_dir(package).env(USED_VARIABLE, &noted);
        command.env("CARGO_MANIFEST_DIR", package);
        let _ = command.words(test.filter).output();
        let used = fs::read_to_string(&noted)?;
        fs::remove_file(&noted)?;
        // Tests also ask for what no compiler here can build.
        let used = used.lines().filter_map(|line| line.split_once('\t'));
        let fixtures = used.map(|(_, fixture)| fixture);
        let fixtures: BTreeSet<_> = fixtures.filter(|it| Path::new(it).exists()).collect();
        let fixtures = Vec::from_iter(fixtures).join("\n");
        write(&list, &fixtures)?;
        fixtures
    };
    let fits = |path: &PathBuf| fs::metadata(path).is_ok_and(|it| it.len() <= MAX_FIXTURE);
    Ok(listed.lines().map(PathBuf::from).filter(fits).collect())
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
    /// The matrix, if all tests run.
    rows: Option<String>,
}

impl Contents {
    fn new(selection: Selection<'_>) -> Result<Self> {
        let folder = target_dir().join("kernels");
        fs::create_dir_all(&folder)?;
        let folder = fs::canonicalize(folder)?;
        let tests = build(selection)?;
        let mut used = BTreeSet::new();
        for test in &tests {
            used.extend(fixtures(&folder, test)?);
        }
        let first = tests.first().context("there are no test programs")?;
        let built = first.executable.ancestors().nth(2);
        let built = built.context("no target folder")?;
        let rows = matches!(selection, Selection::Everything).then(|| guest::matrix("x86_64"));
        Ok(Self {
            command: built.join("otelctx"),
            inspected: built.join("examples/target"),
            rows: rows.transpose()?,
            target: folder.parent().unwrap_or(&folder).to_owned(),
            folder,
            tests,
            fixtures: used,
        })
    }

    fn has_command(&self) -> bool {
        self.tests.iter().any(|test| test.place == COMMAND_TESTS)
    }

    /// Runs the tests under a kernel; the outcome names it.
    fn boot(&self, kernel: &Kernel) -> (Counts, Done) {
        println!("kernels: {kernel}");
        let start = Instant::now();
        let mut counts = Counts::default();
        let done = match kernel.fetch() {
            Err(why) => skipped(format!("{kernel} is not tested: {why:#}")),
            Ok(guest) => match self.run(kernel, &guest, &mut counts) {
                Ok(here) => passed(format!("{kernel}: {here}")),
                Err(error) => Err(error.context(kernel.to_string())),
            },
        };
        let seconds = start.elapsed().as_secs();
        println!("kernels: {} ({seconds} s)", report::line(&done));
        (counts, done)
    }

    fn script(&self, kernel: &Kernel) -> String {
        let mut script = guest::variables(&self.target, kernel.of_sampler());
        for test in &self.tests {
            script += &format!("run {} {}\n", test.place, test.filter);
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

    fn run(&self, kernel: &Kernel, guest: &Guest, counts: &mut Counts) -> Result<String> {
        let mut image = Image::new(&guest.busybox, &self.script(kernel))?;
        let libraries = LIBRARIES.split_whitespace().map(Path::new);
        image.files(libraries.filter(|library| library.is_file()))?;
        for test in &self.tests {
            image.bytes(&test.place, &self.stripped(&test.executable, kernel)?);
        }
        if self.has_command() {
            let command = self.stripped(&self.command, kernel)?;
            image.bytes("/bin/otelctx", &command);
            image.bytes(&self.command, &command);
            image.bytes(TARGET, &self.stripped(&self.inspected, kernel)?);
        }
        image.files(&self.fixtures)?;
        image.files(guest::fixture_sources()?)?;
        if let Some(rows) = &self.rows {
            image.matrix(rows)?;
        }
        let initramfs = self.folder.join(format!("initramfs-{}", kernel.version));
        image.write(&initramfs)?;
        let output = MACHINE.run(&guest.kernel, &initramfs, kernel.version);
        let _ = fs::remove_file(&initramfs);
        let names = kernel.names();
        let mut expected = Vec::new();
        if self.has_command() {
            expected.extend([names.as_str(), "yama: 3"]);
        }
        if self.rows.is_some() {
            expected.extend(guest::COMMAND_OUTPUT);
        }
        guest::verdict(&output?, &expected, &kernel.to_string(), counts)
    }

    /// The program without debug information, most of its size: it goes into the machine's memory.
    fn stripped(&self, program: &Path, kernel: &Kernel) -> Result<Vec<u8>> {
        let output = self.folder.join(format!("stripped-{}", kernel.version));
        report::output(command("strip --strip-debug -o").args([&output, program]))?;
        Ok(fs::read(&output)?)
    }
}
