//! The tests of the Python package, with every CPython of the machine: part of `cargo xtask test`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::counts::Counts;
use crate::debian;
use crate::report::{self, Outcome};
use crate::workspace::{cargo, root, setup_dir, target_dir};

/// Minor versions of Python 3 that the package supports.
const VERSIONS: std::ops::RangeInclusive<u32> = 9..=15;

/// What the tests use from PyPI. An older Python gets the newest release that supports it.
const PACKAGES: [&str; 5] = [
    "pytest<=9.2.0",
    "opentelemetry-sdk<=1.45.2",
    "uvloop<=0.23.0",
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

/// A Python, and one with pip that installs packages for it.
struct Interpreter {
    minor: u32,
    path: PathBuf,
    pip: PathBuf,
}

impl Interpreter {
    /// Where its packages of [`PACKAGES`] are.
    fn packages(&self) -> PathBuf {
        setup_dir().join(format!("python-3.{}", self.minor))
    }

    /// `pip install` into a folder for `PYTHONPATH`.
    fn pip(&self, folder: &Path) -> Command {
        let mut command = Command::new(&self.pip);
        command.args(["-m", "pip", "install", "--quiet", "--upgrade"]);
        command.args(["--disable-pip-version-check", "--target"]);
        command.arg(folder);
        if self.pip != self.path {
            command.args(["--implementation", "cp", "--python-version"]);
            command.arg(format!("3.{}", self.minor));
            let glibc = |minor| format!("manylinux_2_{minor}_x86_64");
            let platforms = (17..=34).map(glibc).chain(["manylinux2014_x86_64".into()]);
            command.args(platforms.map(|platform| format!("--platform={platform}")));
        }
        command
    }

    fn install(&self, packages: &[&str], folder: &Path) -> Result<(), String> {
        let stamp = folder.join(".installed");
        let wanted = packages.join(" ");
        if fs::read_to_string(&stamp).is_ok_and(|text| text == wanted) {
            println!("have {wanted} in {}", folder.display());
            return Ok(());
        }
        println!("installing {wanted} into {}", folder.display());
        let _ = fs::remove_dir_all(folder);
        // Building gevent takes minutes: an older release comes with a wheel.
        let wheels_only = "--only-binary=:all:";
        report::output(self.pip(folder).arg(wheels_only).args(packages))?;
        fs::write(&stamp, wanted).map_err(|error| format!("{}: {error}", stamp.display()))
    }
}

/// A release of each version: the system's, those on the search path, and pyenv's; then what setup
/// fetches from Debian, which has no pip.
fn interpreters() -> Vec<Interpreter> {
    let mut candidates = vec![PathBuf::from("/usr/bin/python3")];
    candidates.extend(VERSIONS.map(|minor| format!("python3.{minor}").into()));
    let home = |folder: OsString| PathBuf::from(folder).join(".pyenv");
    let pyenv = std::env::var_os("PYENV_ROOT").map(PathBuf::from);
    if let Some(pyenv) = pyenv.or_else(|| std::env::var_os("HOME").map(home)) {
        let versions = fs::read_dir(pyenv.join("versions"));
        let versions = versions.into_iter().flatten().flatten();
        candidates.extend(versions.map(|version| version.path().join("bin/python")));
    }
    let mut found = BTreeMap::new();
    for candidate in candidates {
        // Free-threaded builds load no wheel of the stable ABI.
        let probe = "import pip, sys, sysconfig; assert sys.implementation.name == 'cpython'; \
                     assert not sysconfig.get_config_var('Py_GIL_DISABLED'); \
                     print(sys.version_info[0], sys.version_info[1], sys.executable)";
        let Ok(said) = report::output(Command::new(candidate).args(["-c", probe])) else {
            continue;
        };
        let mut words = said.trim().splitn(3, ' ');
        let (major, minor) = (words.next(), words.next().and_then(|it| it.parse().ok()));
        if let (Some("3"), Some(minor), Some(path)) = (major, minor, words.next())
            && VERSIONS.contains(&minor)
        {
            let (path, pip) = (PathBuf::from(path), path.into());
            found
                .entry(minor)
                .or_insert(Interpreter { minor, path, pip });
        }
    }
    let newest = found.last_key_value().map(|(_, newest)| newest.pip.clone());
    let fetched = debian::PYTHONS.iter().filter_map(|python| {
        let minor = python.series.strip_prefix("3.")?.parse().ok()?;
        Some((minor, python.fetch().ok()?, newest.clone()?))
    });
    for (minor, path, pip) in fetched {
        found
            .entry(minor)
            .or_insert(Interpreter { minor, path, pip });
    }
    found.into_values().collect()
}

fn maturin() -> PathBuf {
    setup_dir().join("maturin")
}

/// Installs [`PACKAGES`] for each Python.
///
/// # Errors
/// Names what could not be installed.
pub(crate) fn setup() -> Result<(), String> {
    let interpreters = interpreters();
    let first = interpreters.first().ok_or("no python3 with pip")?;
    first.install(&BUILDERS, &maturin())?;
    for interpreter in &interpreters {
        interpreter.install(&PACKAGES, &interpreter.packages())?;
    }
    Ok(())
}

/// Builds the wheel, and runs its tests with each Python.
pub(crate) fn run(counts: &mut Counts) -> Outcome {
    if let Err(error) = setup() {
        println!("not installed: {error}");
    }
    if !maturin().join(".installed").is_file() {
        return Outcome::Skipped("maturin is not available".into());
    }
    test(counts).into()
}

fn test(counts: &mut Counts) -> Result<Outcome, String> {
    let mut interpreters = interpreters();
    interpreters.retain(|interpreter| interpreter.packages().join(".installed").is_file());
    let first = interpreters.first().ok_or("no python3 with pip")?;
    let target = target_dir();
    let command = target.join("debug/otelctx");
    if !command.is_file() {
        report::run(cargo().args(["build", "--locked", "-p", "otelctx-cli"]))?;
    }
    let wheels = target.join("python");
    let wheel = build(first, &command, &wheels)?;
    let (mut passed, mut failed) = (Vec::new(), Vec::new());
    for interpreter in &interpreters {
        let version = format!("3.{}", interpreter.minor);
        let folder = wheels.join(&version);
        report::output(interpreter.pip(&folder).arg("--no-deps").arg(&wheel))?;
        let installed = folder.join("bin/otelctx");
        let paths = [folder, interpreter.packages()];
        let paths = std::env::join_paths(paths).map_err(|error| error.to_string())?;
        let mut pytest = Command::new(&interpreter.path);
        pytest.args(["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]);
        pytest.current_dir(package()).env("PYTHONPATH", paths);
        pytest.env("PYTHONDONTWRITEBYTECODE", "1");
        pytest
            .env("PYTHON", &interpreter.path)
            .env("OTELCTX", installed);
        println!("Python {version}: {}", interpreter.path.display());
        match report::run(&mut pytest) {
            Ok(()) => passed.push(version),
            Err(_) => failed.push(version),
        }
    }
    if failed.is_empty() {
        return Ok(Outcome::Passed(format!("Python {}", passed.join(", "))));
    }
    for version in &failed {
        counts.add_failure(format!("bindings/python with Python {version}"));
    }
    Err(format!("Python {}", failed.join(", ")))
}

fn package() -> PathBuf {
    root().join("bindings/python")
}

/// Builds the wheel that is published, with the release build of the command.
pub(crate) fn wheel() -> Outcome {
    let built = setup().and_then(|()| {
        let interpreters = interpreters();
        let first = interpreters.first().ok_or("no python3 with pip")?;
        let command = release_command(first)?;
        build(first, &command, &target_dir().join("wheel"))
    });
    match built {
        Ok(wheel) => Outcome::Passed(wheel.display().to_string()),
        Err(error) => Outcome::Failed(error),
    }
}

/// The command, linked for [`GLIBC`]. It takes some minutes.
fn release_command(python: &Interpreter) -> Result<PathBuf, String> {
    const TARGET: &str = "x86_64-unknown-linux-gnu";
    let target = target_dir().join("wheel-command");
    let mut command = Command::new(maturin().join("bin/cargo-zigbuild"));
    command.current_dir(root());
    command.args(["zigbuild", "--release", "--locked", "-p", "otelctx-cli"]);
    command.arg(format!("--target={TARGET}.{}.{}", GLIBC.0, GLIBC.1));
    with_zig(&mut command, python).env("CARGO_TARGET_DIR", &target);
    report::run(&mut command)?;
    let built = target.join(TARGET).join("release/otelctx");
    match newest_glibc(&built)? {
        newest if newest <= GLIBC => Ok(built),
        (major, minor) => Err(format!("the command needs glibc {major}.{minor}")),
    }
}

/// The newest version of glibc that a program's symbols name.
fn newest_glibc(program: &Path) -> Result<(u32, u32), String> {
    let versions = report::output(Command::new("readelf").arg("--version-info").arg(program))?;
    let versions = versions.split_whitespace().filter_map(|word| {
        let (major, minor) = word.strip_prefix("GLIBC_")?.split_once('.')?;
        let minor = minor.split('.').next()?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    });
    let newest = versions.max();
    newest.ok_or_else(|| format!("{} names no version of glibc", program.display()))
}

/// Both builders find zig as `PYTHON -m ziglang`.
fn with_zig<'c>(command: &'c mut Command, python: &Interpreter) -> &'c mut Command {
    command.env("CARGO_ZIGBUILD_PYTHON_PATH", &python.path);
    command.env("PYTHONPATH", maturin())
}

/// Builds the wheel with this command; returns its path below `wheels`, which is removed before.
fn build(python: &Interpreter, command: &Path, wheels: &Path) -> Result<PathBuf, String> {
    let _ = fs::remove_dir_all(wheels);
    let mut build = Command::new(maturin().join("bin/maturin"));
    build.current_dir(package());
    build.args(["build", "--release", "--locked", "--quiet"]);
    build.args(["--zig", "--compatibility", "manylinux2014"]);
    build.arg("--interpreter").arg(&python.path);
    build.arg("--out").arg(wheels.join("without-command"));
    report::output(with_zig(&mut build, python))?;
    let without = only_entry(&wheels.join("without-command"))?;

    // maturin can add only what is there whenever the package is built, without the command, too.
    let wheel = |arguments: &[&str], path: &Path, to: &Path| {
        fs::create_dir_all(to).map_err(|error| format!("{}: {error}", to.display()))?;
        let mut wheel = Command::new(&python.path);
        wheel
            .args(["-m", "wheel"])
            .args(arguments)
            .arg("-d")
            .arg(to)
            .arg(path);
        report::output(wheel.env("PYTHONPATH", maturin()))
    };
    wheel(&["unpack"], &without, &wheels.join("unpacked"))?;
    let unpacked = only_entry(&wheels.join("unpacked"))?;
    let name = unpacked.file_name().unwrap_or_default().to_string_lossy();
    let scripts = unpacked.join(format!("{name}.data/scripts"));
    fs::create_dir_all(&scripts).map_err(|error| format!("{}: {error}", scripts.display()))?;
    let mut strip = Command::new("strip");
    strip
        .args(["--strip-debug", "-o"])
        .arg(scripts.join("otelctx"));
    report::output(strip.arg(command))?;
    wheel(&["pack"], &unpacked, &wheels.join("wheel"))?;
    only_entry(&wheels.join("wheel"))
}

/// The path of what a folder contains.
fn only_entry(folder: &Path) -> Result<PathBuf, String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths = entries.map(|entry| entry.path());
    match (paths.next(), paths.next()) {
        (Some(path), None) => Ok(path),
        _ => Err(format!("{} does not contain one entry", folder.display())),
    }
}
