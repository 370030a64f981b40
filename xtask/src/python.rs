//! The tests of the Python package, with every CPython of the machine: part of `cargo xtask test`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, bail, ensure};
use fs_err as fs;
use otelctx_fixtures::tier::PYTHONS;

use crate::counts::Counts;
use crate::files::{copy, copy_into, create_empty, entries, once, only_entry, write, write_script};
use crate::report::{self, Done, Words, command, in_parallel, output, passed};
use crate::workspace::{cargo, root, setup_dir, target_dir};
use crate::{debian, musl, nextest, repository};

/// Minor versions of Python 3 that the package supports.
const VERSIONS: std::ops::RangeInclusive<u32> = 9..=15;

/// What the tests use from PyPI. An older Python gets the newest release that supports it.
const PACKAGES: [&str; 10] = [
    "pytest<=9.2.0",
    "opentelemetry-sdk<=1.45.2",
    "opentelemetry-distro<=0.66b2",
    "opentelemetry-instrumentation-flask<=0.66b2",
    "flask<=3.1.3",
    "asgiref<=3.13.0",
    "uvloop<=0.23.0",
    "rloop<=0.5.0",
    "gevent<=26.9.0",
    "gunicorn<=27.0.1",
];
/// What builds the wheel. zig links with an older glibc than this machine's.
const BUILDERS: [&str; 4] = [
    "maturin==1.16.0",
    "ziglang==0.17.1",
    "cargo-zigbuild==0.24.0",
    "wheel==0.48.0",
];
/// The oldest glibc that the package runs with: that of manylinux2014.
const GLIBC: (u32, u32) = (2, 17);

/// A Python, and what installs packages for it.
struct Interpreter {
    minor: u32,
    /// It loads no module of the stable ABI, and is installed a wheel of its own.
    is_free_threaded: bool,
    path: PathBuf,
    pip: Pip,
}

/// What installs packages for a Python.
#[derive(Clone)]
enum Pip {
    Own,
    /// That of another Python.
    Of(PathBuf),
    /// The wheel that comes with the Python, not installed.
    Wheel(PathBuf),
}

impl Interpreter {
    /// Such as `3.12` or `3.13t`.
    fn version(&self) -> String {
        let flag = if self.is_free_threaded { "t" } else { "" };
        format!("3.{}{flag}", self.minor)
    }

    /// Where its packages of [`PACKAGES`] are.
    fn packages(&self) -> PathBuf {
        setup_dir().join(format!("python-{}", self.version()))
    }

    /// Those of [`PACKAGES`] that there are for it.
    fn wanted(&self) -> Vec<&'static str> {
        let has_wheel = |package: &&str| match package.split_once('<').map_or("", |it| it.0) {
            "uvloop" | "rloop" | "gevent" => !self.is_free_threaded,
            _ => true,
        };
        PACKAGES.into_iter().filter(has_wheel).collect()
    }

    /// Runs the package's tests with the package that is installed in a folder.
    fn pytest(&self, folder: &Path, is_all: bool) -> Result<Output> {
        let paths = std::env::join_paths([folder, &self.packages()])?;
        let mut pytest = Command::new(&self.path);
        pytest.words("-m pytest -q -rs -p no:cacheprovider");
        pytest.current_dir(package());
        pytest.env("PYTHONPATH", paths).env("PYTHON", &self.path);
        pytest.env("PYTHONDONTWRITEBYTECODE", "1");
        pytest.env("OTELCTX", folder.join("bin/otelctx"));
        if is_all {
            pytest.env(nextest::ALL.0, nextest::ALL.1);
        }
        pytest.output().with_context(|| report::shown(&pytest))
    }

    /// `pip install` into a folder for `PYTHONPATH`.
    fn pip(&self, folder: &Path) -> Command {
        let mut pip = Command::new(match &self.pip {
            Pip::Of(python) => python,
            Pip::Own | Pip::Wheel(_) => &self.path,
        });
        pip.words("-m pip install --quiet --upgrade --disable-pip-version-check");
        // Building gevent takes minutes: an older release comes with a wheel.
        pip.arg("--only-binary=:all:").arg("--target").arg(folder);
        match &self.pip {
            Pip::Own => {}
            Pip::Wheel(wheel) => drop(pip.env("PYTHONPATH", wheel)),
            Pip::Of(_) => {
                pip.words("--implementation cp --python-version");
                pip.arg(format!("3.{}", self.minor));
                pip.args((17..=34).map(|it| format!("--platform=manylinux_2_{it}_x86_64")));
                pip.arg("--platform=manylinux2014_x86_64");
            }
        }
        pip
    }

    fn install(&self, packages: &[&str], folder: &Path) -> Result<()> {
        once(folder, &packages.join(" "), || {
            output(self.pip(folder).args(packages)).map(drop)
        })
    }
}

/// Interpreters by version, and whether they are free-threaded.
type Interpreters = BTreeMap<(u32, bool), Interpreter>;

fn add(found: &mut Interpreters, minor: u32, is_free_threaded: bool, path: PathBuf, pip: Pip) {
    let interpreter = Interpreter {
        minor,
        is_free_threaded,
        path,
        pip,
    };
    found
        .entry((minor, is_free_threaded))
        .or_insert(interpreter);
}

/// A release of each version: the system's, those on the search path, and pyenv's.
fn installed() -> Interpreters {
    let mut candidates = vec![PathBuf::from("/usr/bin/python3")];
    candidates.extend(VERSIONS.map(|minor| format!("python3.{minor}").into()));
    let folder = |name| std::env::var_os(name).map(PathBuf::from);
    let pyenv = folder("PYENV_ROOT").or_else(|| Some(folder("HOME")?.join(".pyenv")));
    let versions = pyenv.and_then(|pyenv| entries(&pyenv.join("versions")).ok());
    let versions = versions.unwrap_or_default().into_iter();
    candidates.extend(versions.map(|version| version.join("bin/python")));
    let mut found = Interpreters::new();
    for candidate in candidates {
        let probe = ["-c", include_str!("python/probe.py")];
        let said = output(Command::new(candidate).args(probe)).unwrap_or_default();
        if let ["3", minor, flag, path] = said.trim().splitn(4, ' ').collect::<Vec<_>>()[..]
            && let Ok(minor) = minor.parse()
            && VERSIONS.contains(&minor)
        {
            add(&mut found, minor, flag == "t", path.into(), Pip::Own);
        }
    }
    found
}

/// Those, and what setup gets from Debian, which has no pip installed.
fn interpreters(is_all: bool) -> Vec<Interpreter> {
    let mut found = installed();
    let minor = |series: &str| series.strip_prefix("3.")?.parse().ok();
    let newest = found.values().rfind(|it| !it.is_free_threaded);
    if let Some(newest) = newest.map(|newest| newest.path.clone()) {
        for series in debian::PYTHONS {
            if (is_all || PYTHONS.contains(&series))
                && let (Some(minor), Ok(path)) = (minor(series), debian::python(series))
            {
                add(&mut found, minor, false, path, Pip::Of(newest.clone()));
            }
        }
    }
    if is_all
        && let Some(minor) = minor(debian::FREE_THREADED_PYTHON)
        && let (Ok(path), Ok(pip)) = (debian::free_threaded_python(), debian::free_threaded_pip())
    {
        add(&mut found, minor, true, path, Pip::Wheel(pip));
    }
    let is_wanted = |it: &Interpreter| is_all || PYTHONS.contains(&it.version().as_str());
    found.into_values().filter(is_wanted).collect()
}

/// The Python that runs the builders, and builds the wheel of the stable ABI.
fn builder<'i>(interpreters: impl IntoIterator<Item = &'i Interpreter>) -> Result<&'i Interpreter> {
    let with_gil = interpreters.into_iter().find(|it| !it.is_free_threaded);
    with_gil.context("no python3 with pip")
}

fn maturin() -> PathBuf {
    setup_dir().join("maturin")
}

/// Installs [`PACKAGES`] for each Python, for two at a time: pip waits for much of its time.
pub(crate) fn setup(is_all: bool) -> Result<()> {
    install_builders()?;
    let installed = in_parallel(2, &interpreters(is_all), |interpreter| {
        interpreter.install(&interpreter.wanted(), &interpreter.packages())
    });
    installed.into_iter().collect()
}

/// Installs what [`zigbuild`] needs.
pub(crate) fn install_builders() -> Result<()> {
    builder(installed().values())?.install(&BUILDERS, &maturin())
}

/// Builds the wheels, and runs their tests with each Python of the usual or of all tests.
pub(crate) fn run(is_all: bool, counts: &mut Counts) -> Done {
    if let Err(error) = setup(is_all) {
        println!("not installed: {error:#}");
    }
    if !can_link_for_older_systems() {
        return report::skipped("maturin is not available");
    }
    let mut interpreters = interpreters(is_all);
    interpreters.retain(|interpreter| interpreter.packages().join(".installed").is_file());
    let command = if is_all {
        debug_command(builder(&interpreters)?)?
    } else {
        // Linking it for an older glibc would compile it once more, with the features that it has alone.
        nextest::build_command()?
    };
    let wheels = target_dir().join("python");
    let built = build(&interpreters, &command, &wheels, &musl::native())?;
    for interpreter in &interpreters {
        let mut install = interpreter.pip(&wheels.join(interpreter.version()));
        // pip selects the wheel for the interpreter.
        install.words("--no-deps --no-index --find-links");
        output(install.arg(&built).arg("otelctx"))?;
    }
    let results = in_parallel(2, &interpreters, |interpreter| {
        let version = interpreter.version();
        let title = format!("Python {version}: {}\n", interpreter.path.display());
        let ended = interpreter.pytest(&wheels.join(version), is_all)?;
        report::print(&[title.as_bytes(), &ended.stdout, &ended.stderr].concat());
        let passed = passed_tests(&String::from_utf8_lossy(&ended.stdout));
        Ok::<_, anyhow::Error>((ended.status.success(), passed))
    });
    let (mut passed, mut failed) = (Vec::new(), Vec::new());
    for (interpreter, result) in interpreters.iter().zip(results) {
        let (is_passed, count) = result?;
        counts.add_passed(count);
        let list = if is_passed { &mut passed } else { &mut failed };
        list.push(interpreter.version());
    }
    for version in &failed {
        counts.add_failure(format!("publish/python with Python {version}"));
    }
    ensure!(failed.is_empty(), "Python {}", failed.join(", "));
    report::passed(format!("Python {}", passed.join(", ")))
}

/// How many tests have passed, by pytest's last line, such as `1 failed, 20 passed, 2 skipped in 3.21s`.
fn passed_tests(output: &str) -> u64 {
    let last = output.lines().next_back().unwrap_or_default();
    let before = last.split_once(" passed").map_or("", |(before, _)| before);
    let number = before.rsplit(' ').next().unwrap_or_default();
    number.parse().unwrap_or_default()
}

fn package() -> PathBuf {
    root().join("publish/python")
}

/// Builds the wheels for this machine that are published, with the release build of the command.
pub(crate) fn wheel() -> Done {
    install_builders()?;
    let wheels = wheels(&musl::native())?.into_iter();
    let wheels: Vec<_> = wheels.map(|wheel| wheel.display().to_string()).collect();
    passed(wheels.join(" "))
}

/// Builds the wheels for a target that are published, with the release build of the command.
pub(crate) fn wheels(target: &str) -> Result<Vec<PathBuf>> {
    let command = command_for(target)?;
    // The others take longer to get than the wheel to build.
    let free_threaded = setup_dir().join(debian::FREE_THREADED_FOLDER);
    let interpreters = if free_threaded.join("python").is_file() {
        interpreters(true)
    } else {
        installed().into_values().collect()
    };
    let is_native = musl::is_native(target);
    let folder = target_dir().join(if is_native { "wheel" } else { target });
    entries(&build(&interpreters, &command, &folder, target)?)
}

/// The release build of the command, linked for [`GLIBC`]. It takes some minutes.
pub(crate) fn command_for(target: &str) -> Result<PathBuf> {
    let mut build = zigbuild("otelctx-cli", target)?;
    report::run(musl::cross(&mut build, target)?)?;
    zigbuilt(target, "otelctx")
}

/// The debug build of the command, linked once more, for [`GLIBC`]: so the linker fails, or a test of the wheel
/// does, if anything in it needs a newer one. A release build would take minutes.
fn debug_command(python: &Interpreter) -> Result<PathBuf> {
    let folder = target_dir().join("python-command");
    let linker = folder.join("linker");
    let zigbuild = maturin().join("bin/cargo-zigbuild").display().to_string();
    let (architecture, (major, minor)) = (std::env::consts::ARCH, GLIBC);
    let target = format!("{architecture}-linux-gnu.{major}.{minor}");
    let script = include_str!("python/linker.sh").replace("ZIGBUILD", &zigbuild);
    write_script(&linker, &script.replace("TARGET", &target))?;
    const COMMAND: &str = "-p otelctx-cli --bin otelctx --locked";
    let mut link = cargo("rustc");
    link.words(COMMAND).arg("--");
    link.arg(format!("-Clinker={}", linker.display()));
    report::run(with_zig(&mut link, python))?;
    let (built, linked) = (target_dir().join("debug/otelctx"), folder.join("otelctx"));
    copy(&built, &linked)?;
    // For other tests, with the usual linker.
    report::run(cargo("build").words(COMMAND))?;
    Ok(linked)
}

/// Whether [`zigbuild`] is installed.
pub(crate) fn can_link_for_older_systems() -> bool {
    maturin().join(".installed").is_file()
}

/// Makes a release build of a package for a target of Rust's, linked for [`GLIBC`] if it has glibc.
pub(crate) fn zigbuild(package: &str, target: &str) -> Result<Command> {
    let installed = installed();
    let mut version = String::new();
    if target.ends_with("gnu") {
        version = format!(".{}.{}", GLIBC.0, GLIBC.1);
    }
    let mut build = Command::new(maturin().join("bin/cargo-zigbuild"));
    build.current_dir(root());
    build.words("zigbuild --release --locked -p").arg(package);
    build.arg(format!("--target={target}{version}"));
    with_zig(&mut build, builder(installed.values())?).env("CARGO_TARGET_DIR", release_dir());
    Ok(build)
}

/// Cargo's target folder for what is published.
pub(crate) fn release_dir() -> PathBuf {
    target_dir().join("release-build")
}

/// The path of a file that [`zigbuild`] has made.
pub(crate) fn zigbuilt(target: &str, file: &str) -> Result<PathBuf> {
    let built = release_dir().join(target).join("release").join(file);
    if target.ends_with("gnu") {
        let (major, minor) = newest_glibc(&built)?;
        if (major, minor) > GLIBC {
            bail!("{file} needs glibc {major}.{minor}");
        }
    }
    Ok(built)
}

/// The newest version of glibc that a program's symbols name.
fn newest_glibc(program: &Path) -> Result<(u32, u32)> {
    let versions = output(command("readelf --version-info").arg(program))?;
    let versions = versions.split_whitespace().filter_map(|word| {
        let (major, minor) = word.strip_prefix("GLIBC_")?.split_once('.')?;
        let minor = minor.split('.').next()?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    });
    let newest = versions.max();
    newest.with_context(|| format!("{} names no version of glibc", program.display()))
}

/// Both builders find zig as `PYTHON -m ziglang`.
fn with_zig<'c>(command: &'c mut Command, python: &Interpreter) -> &'c mut Command {
    command.env("CARGO_ZIGBUILD_PYTHON_PATH", &python.path);
    command.env("PYTHONPATH", maturin())
}

/// Builds the wheel of the stable ABI with this command, and one for each free-threaded Python if they are for this
/// machine; returns their folder below `wheels`, which is removed before.
fn build(
    interpreters: &[Interpreter],
    command_file: &Path,
    wheels: &Path,
    target: &str,
) -> Result<PathBuf> {
    let python = builder(interpreters)?;
    create_empty(wheels)?;
    let folder = wheels.join("without-command");
    let package = package();
    output(&mut maturin_build(
        python, python, &package, &folder, target,
    )?)?;
    let without = only_entry(&folder, ".whl")?;

    // maturin can add only what is there whenever the package is built, without the command, too.
    let unpacked = unpack(python, &without, &wheels.join("unpacked"))?;
    let name = unpacked.file_name().unwrap_or_default().to_string_lossy();
    let script = unpacked.join(format!("{name}.data/scripts/otelctx"));
    copy(command_file, &script)?;
    // A release build is stripped already, and this machine's tool may not know its architecture.
    if musl::is_native(target) {
        output(command("strip --strip-debug").arg(&script))?;
    }
    add_address(&unpacked)?;
    let built = wheels.join("wheel");
    wheel_tool(python, "pack", &unpacked, &built)?;
    // Only the extension module differs.
    let is_built = |it: &&Interpreter| it.is_free_threaded && musl::is_native(target);
    for interpreter in interpreters.iter().filter(is_built) {
        replace_module(python, interpreter, &unpacked, wheels, target)?;
        wheel_tool(python, "pack", &unpacked, &built)?;
    }
    Ok(built)
}

/// Adds the repository's address, and links to it, to an unpacked wheel.
fn add_address(unpacked: &Path) -> Result<()> {
    let file = only_entry(unpacked, ".dist-info")?.join("METADATA");
    let text = fs::read_to_string(&file)?;
    let header = text.split("\n\n").next().unwrap_or_default();
    let address = repository::address_or_placeholder()?;
    let readme = repository::readme("publish/python")?;
    let text = format!("{header}\nProject-URL: Repository, {address}\n\n{readme}");
    write(&file, text)
}

/// Makes an unpacked wheel one for a free-threaded Python.
fn replace_module(
    builder: &Interpreter,
    python: &Interpreter,
    unpacked: &Path,
    wheels: &Path,
    target: &str,
) -> Result<()> {
    // What PyO3 supports no more.
    let package = match python.minor {
        ..14 => package().join("python3.13t"),
        _ => package(),
    };
    let version = python.version();
    // Modules of several Pythons would replace each other's.
    let target_dir = target_dir().join(format!("python-module-{version}"));
    let folder = wheels.join(format!("module-{version}"));
    let mut build = maturin_build(builder, python, &package, &folder.join("wheel"), target)?;
    output(build.env("CARGO_TARGET_DIR", target_dir))?;
    let built = only_entry(&folder.join("wheel"), ".whl")?;
    let built = unpack(builder, &built, &folder.join("unpacked"))?;

    fs::remove_file(only_entry(&unpacked.join("otelctx"), ".so")?)?;
    let new = match built.join("otelctx") {
        folder if folder.is_dir() => only_entry(&folder, ".so")?,
        _ => only_entry(&built.join("_otelctx"), ".so")?,
    };
    copy_into(&new, &unpacked.join("otelctx"))?;
    // The tags, and what the module is made of.
    let [from, to] = [&built, unpacked].map(|it| only_entry(it, ".dist-info"));
    let (from, to) = (from?, to?);
    copy_into(&from.join("WHEEL"), &to)?;
    fs::remove_dir_all(to.join("sboms"))?;
    Ok(fs::rename(from.join("sboms"), to.join("sboms"))?)
}

/// maturin, which builds and uploads wheels.
pub(crate) fn maturin_program() -> Command {
    Command::new(maturin().join("bin/maturin"))
}

/// `maturin build` of a package for a Python, into a folder.
fn maturin_build(
    builder: &Interpreter,
    python: &Interpreter,
    package: &Path,
    to: &Path,
    target: &str,
) -> Result<Command> {
    let mut build = maturin_program();
    build.current_dir(package);
    build.words("build --release --locked --quiet");
    build.words("--zig --compatibility manylinux2014 --out");
    build.arg(to);
    let compiler = if musl::is_native(target) {
        build.arg("--interpreter").arg(&python.path);
        "cc"
    } else {
        build.args(["--target", target]);
        musl::AARCH64.host_gcc()
    };
    // Instead of the library for unwinding that zig links, which fails where glibc unwinds frames of the module with
    // this one: it ends threads that way.
    let unwinder = output(command(compiler).arg("-print-file-name=libgcc_s.so.1"))?;
    build.arg("--");
    build.arg(format!("-Clink-arg={}", unwinder.trim()));
    musl::cross(with_zig(&mut build, builder), target)?;
    Ok(build)
}

/// Unpacks a wheel; returns its folder.
fn unpack(builder: &Interpreter, wheel: &Path, to: &Path) -> Result<PathBuf> {
    wheel_tool(builder, "unpack", wheel, to)?;
    only_entry(to, "")
}

/// `wheel pack` or `unpack`, into a folder.
fn wheel_tool(builder: &Interpreter, what: &str, path: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    let mut wheel = Command::new(&builder.path);
    wheel.args(["-m", "wheel", what, "-d"]).arg(to).arg(path);
    output(wheel.env("PYTHONPATH", maturin())).map(drop)
}
