//! The tests of the Python package, with every CPython of the machine: part of `cargo xtask test`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use otelctx_fixtures::tier::PYTHONS;

use crate::counts::Counts;
use crate::files::{at, copy, entries, only_entry, read, write};
use crate::report::{self, Outcome};
use crate::workspace::{cargo, root, setup_dir, target_dir};
use crate::{debian, musl, nextest, repository};

/// Minor versions of Python 3 that the package supports.
const VERSIONS: std::ops::RangeInclusive<u32> = 9..=15;

/// What the tests use from PyPI. An older Python gets the newest release that supports it.
const PACKAGES: [&str; 9] = [
    "pytest<=9.2.0",
    "opentelemetry-sdk<=1.45.2",
    "opentelemetry-distro<=0.66b2",
    "opentelemetry-instrumentation-flask<=0.66b2",
    "flask<=3.1.3",
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

/// With which Pythons to run the tests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Selection {
    Usual,
    All,
}

/// A Python, and one with pip that installs packages for it.
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
    fn pytest(&self, folder: &Path, selection: Selection) -> Result<Output, String> {
        let paths = [folder, &self.packages()];
        let paths = std::env::join_paths(paths).map_err(|error| error.to_string())?;
        let mut command = Command::new(&self.path);
        command.args(["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]);
        command.current_dir(package()).env("PYTHONPATH", paths);
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command.env("PYTHON", &self.path);
        command.env("OTELCTX", folder.join("bin/otelctx"));
        if selection == Selection::All {
            command.env(nextest::ALL.0, nextest::ALL.1);
        }
        let ended = command.output();
        ended.map_err(|error| format!("{}: {error}", report::shown(&command)))
    }

    /// `pip install` into a folder for `PYTHONPATH`.
    fn pip(&self, folder: &Path) -> Command {
        let mut command = match &self.pip {
            Pip::Of(python) => Command::new(python),
            Pip::Own | Pip::Wheel(_) => Command::new(&self.path),
        };
        if let Pip::Wheel(wheel) = &self.pip {
            command.env("PYTHONPATH", wheel);
        }
        command.args(["-m", "pip", "install", "--quiet", "--upgrade"]);
        // Building gevent takes minutes: an older release comes with a wheel.
        command.args(["--disable-pip-version-check", "--only-binary=:all:"]);
        command.arg("--target").arg(folder);
        if let Pip::Of(_) = self.pip {
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
        report::output(self.pip(folder).args(packages))?;
        write(&stamp, wanted)
    }
}

/// A release of each version, by the version and whether it is free-threaded: the system's, those on the search path,
/// and pyenv's.
fn installed() -> BTreeMap<(u32, bool), Interpreter> {
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
        let probe = "import pip, sys, sysconfig; assert sys.implementation.name == 'cpython'; \
                     flag = 't' if sysconfig.get_config_var('Py_GIL_DISABLED') else '-'; \
                     print(*sys.version_info[:2], flag, sys.executable)";
        let Ok(said) = report::output(Command::new(candidate).args(["-c", probe])) else {
            continue;
        };
        let words: Vec<&str> = said.trim().splitn(4, ' ').collect();
        if let ["3", minor, flag, path] = words[..]
            && let Ok(minor) = minor.parse()
            && VERSIONS.contains(&minor)
        {
            let is_free_threaded = flag == "t";
            found
                .entry((minor, is_free_threaded))
                .or_insert(Interpreter {
                    minor,
                    is_free_threaded,
                    path: path.into(),
                    pip: Pip::Own,
                });
        }
    }
    found
}

/// Those, and what setup gets from Debian, which has no pip installed.
fn interpreters(selection: Selection) -> Vec<Interpreter> {
    let mut found = installed();
    let newest = found.values().rfind(|it| !it.is_free_threaded);
    let newest = newest.map(|newest| Pip::Of(newest.path.clone()));
    let is_fetched =
        |it: &&debian::Python| selection == Selection::All || PYTHONS.contains(&it.series);
    let fetched = debian::PYTHONS
        .iter()
        .filter(is_fetched)
        .filter_map(|python| {
            let minor = python.series.strip_prefix("3.")?.parse().ok()?;
            Some((minor, false, python.fetch().ok()?, newest.clone()?))
        });
    let built = (selection == Selection::All).then_some(debian::FREE_THREADED_PYTHON);
    let built = built.into_iter().filter_map(|python| {
        let minor = python.series.strip_prefix("3.")?.parse().ok()?;
        Some((
            minor,
            true,
            python.build().ok()?,
            Pip::Wheel(python.pip().ok()?),
        ))
    });
    for (minor, is_free_threaded, path, pip) in fetched.chain(built) {
        found
            .entry((minor, is_free_threaded))
            .or_insert(Interpreter {
                minor,
                is_free_threaded,
                path,
                pip,
            });
    }
    let is_wanted =
        |it: &Interpreter| selection == Selection::All || PYTHONS.contains(&it.version().as_str());
    found.into_values().filter(is_wanted).collect()
}

/// The Python that runs the builders, and builds the wheel of the stable ABI.
fn builder(interpreters: &[Interpreter]) -> Result<&Interpreter, String> {
    let mut with_gil = interpreters.iter().filter(|it| !it.is_free_threaded);
    with_gil.next().ok_or_else(|| "no python3 with pip".into())
}

fn maturin() -> PathBuf {
    setup_dir().join("maturin")
}

/// Installs [`PACKAGES`] for each Python.
///
/// # Errors
/// Names what could not be installed.
pub(crate) fn setup(selection: Selection) -> Result<(), String> {
    install_builders()?;
    // pip waits for much of its time.
    let installed = report::in_pairs(&interpreters(selection), |interpreter| {
        interpreter.install(&interpreter.wanted(), &interpreter.packages())
    });
    installed.into_iter().collect()
}

/// Installs what [`zigbuild`] needs.
///
/// # Errors
/// Names what could not be installed.
pub(crate) fn install_builders() -> Result<(), String> {
    let installed: Vec<_> = installed().into_values().collect();
    builder(&installed)?.install(&BUILDERS, &maturin())
}

/// Builds the wheels, and runs their tests with each Python.
pub(crate) fn run(selection: Selection, counts: &mut Counts) -> Outcome {
    if let Err(error) = setup(selection) {
        println!("not installed: {error}");
    }
    if !maturin().join(".installed").is_file() {
        return Outcome::Skipped("maturin is not available".into());
    }
    test(selection, counts).into()
}

fn test(selection: Selection, counts: &mut Counts) -> Result<Outcome, String> {
    let mut interpreters = interpreters(selection);
    interpreters.retain(|interpreter| interpreter.packages().join(".installed").is_file());
    let command = match selection {
        // Linking it for an older glibc would compile it once more, with the features that it has alone.
        Selection::Usual => nextest::build_command()?,
        Selection::All => debug_command(builder(&interpreters)?)?,
    };
    let wheels = target_dir().join("python");
    let built = build(&interpreters, &command, &wheels, &musl::native())?;
    let mut versions = Vec::new();
    for interpreter in &interpreters {
        let version = interpreter.version();
        let folder = wheels.join(&version);
        let mut install = interpreter.pip(&folder);
        // pip selects the wheel for the interpreter.
        install.args(["--no-deps", "--no-index", "--find-links"]);
        report::output(install.arg(&built).arg("otelctx"))?;
        versions.push((version, folder, interpreter));
    }
    let results = report::in_pairs(&versions, |(version, folder, interpreter)| {
        let title = format!("Python {version}: {}\n", interpreter.path.display());
        let ended = interpreter.pytest(folder, selection)?;
        report::print(&[title.as_bytes(), &ended.stdout, &ended.stderr].concat());
        let passed = passed(&String::from_utf8_lossy(&ended.stdout));
        Ok::<_, String>((ended.status.success(), passed))
    });
    let (mut passed, mut failed) = (Vec::new(), Vec::new());
    for ((version, ..), result) in versions.into_iter().zip(results) {
        let (is_passed, count) = result?;
        counts.add_passed(count);
        let list = if is_passed { &mut passed } else { &mut failed };
        list.push(version);
    }
    if failed.is_empty() {
        return Ok(Outcome::Passed(format!("Python {}", passed.join(", "))));
    }
    for version in &failed {
        counts.add_failure(format!("publish/python with Python {version}"));
    }
    Err(format!("Python {}", failed.join(", ")))
}

/// How many tests have passed, by pytest's last line, such as `1 failed, 20 passed, 2 skipped in 3.21s`.
fn passed(output: &str) -> u64 {
    let last = output.lines().next_back().unwrap_or_default();
    let before = last.split_once(" passed").map_or("", |(before, _)| before);
    let number = before.rsplit(' ').next().unwrap_or_default();
    number.parse().unwrap_or_default()
}

fn package() -> PathBuf {
    root().join("publish/python")
}

/// Builds the wheels for this machine that are published, with the release build of the command.
pub(crate) fn wheel() -> Outcome {
    let built = install_builders().and_then(|()| wheels(&musl::native()));
    let built = built.map(|wheels| {
        let wheels = wheels.iter().map(|wheel| wheel.display().to_string());
        Outcome::Passed(wheels.collect::<Vec<_>>().join(" "))
    });
    built.into()
}

/// Builds the wheels for a target that are published, with the release build of the command.
///
/// # Errors
/// Says what cannot be built.
pub(crate) fn wheels(target: &str) -> Result<Vec<PathBuf>, String> {
    let command = command(target)?;
    // The others take longer to get than the wheel to build.
    let interpreters = match debian::FREE_THREADED_PYTHON.is_built() {
        true => interpreters(Selection::All),
        false => installed().into_values().collect(),
    };
    let is_native = musl::is_native(target);
    let folder = target_dir().join(if is_native { "wheel" } else { target });
    entries(&build(&interpreters, &command, &folder, target)?)
}

/// The release build of the command, with TLS, linked for [`GLIBC`]. It takes some minutes.
///
/// # Errors
/// Says what cannot be built.
pub(crate) fn command(target: &str) -> Result<PathBuf, String> {
    let mut command = zigbuild("otelctx-cli", target)?;
    command.args(["--features", "tls"]);
    report::run(musl::cross(&mut command, target)?)?;
    zigbuilt(target, "otelctx")
}

/// The debug build of the command, linked once more, for [`GLIBC`]: so the linker fails, or a test of the wheel
/// does, if anything in it needs a newer one. A release build would take minutes.
fn debug_command(python: &Interpreter) -> Result<PathBuf, String> {
    let folder = target_dir().join("python-command");
    let linker = folder.join("linker");
    // zig exports all symbols or none.
    let script = format!(
        r#"#!/bin/sh
for argument; do
    shift
    case "$argument" in
    -Wl,--export-dynamic-symbol=*) argument=-rdynamic ;;
    esac
    set -- "$@" "$argument"
done
exec '{}' zig cc -- -target {}-linux-gnu.{}.{} "$@"
"#,
        maturin().join("bin/cargo-zigbuild").display(),
        std::env::consts::ARCH,
        GLIBC.0,
        GLIBC.1
    );
    write(&linker, script)?;
    fs::set_permissions(&linker, fs::Permissions::from_mode(0o755)).map_err(at(&linker))?;
    let command = ["-p", "otelctx-cli", "--bin", "otelctx", "--locked"];
    let mut link = cargo();
    link.arg("rustc").args(command);
    link.arg("--").arg(format!("-Clinker={}", linker.display()));
    report::run(with_zig(&mut link, python))?;
    let (built, linked) = (target_dir().join("debug/otelctx"), folder.join("otelctx"));
    copy(&built, &linked)?;
    // For other tests, with the usual linker.
    report::run(cargo().arg("build").args(command))?;
    Ok(linked)
}

/// Whether [`zigbuild`] is installed.
pub(crate) fn can_link_for_older_systems() -> bool {
    maturin().join(".installed").is_file()
}

/// Makes a release build of a package for a target of Rust's, linked for [`GLIBC`] if it has glibc.
///
/// # Errors
/// If there is no Python that runs zig.
pub(crate) fn zigbuild(package: &str, target: &str) -> Result<Command, String> {
    let installed: Vec<_> = installed().into_values().collect();
    let python = builder(&installed)?;
    let mut command = Command::new(maturin().join("bin/cargo-zigbuild"));
    command.current_dir(root());
    command.args(["zigbuild", "--release", "--locked", "-p", package]);
    let version = match target.ends_with("gnu") {
        true => format!(".{}.{}", GLIBC.0, GLIBC.1),
        false => String::new(),
    };
    command.arg(format!("--target={target}{version}"));
    with_zig(&mut command, python).env("CARGO_TARGET_DIR", release_dir());
    Ok(command)
}

/// Cargo's target folder for what is published.
pub(crate) fn release_dir() -> PathBuf {
    target_dir().join("release-build")
}

/// The path of a file that [`zigbuild`] has made.
///
/// # Errors
/// If it needs a newer glibc than [`GLIBC`].
pub(crate) fn zigbuilt(target: &str, file: &str) -> Result<PathBuf, String> {
    let built = release_dir().join(target).join("release").join(file);
    if !target.ends_with("gnu") {
        return Ok(built);
    }
    match newest_glibc(&built)? {
        newest if newest <= GLIBC => Ok(built),
        (major, minor) => Err(format!("{file} needs glibc {major}.{minor}")),
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

/// Builds the wheel of the stable ABI with this command, and one for each free-threaded Python if they are for this
/// machine; returns their folder below `wheels`, which is removed before.
fn build(
    interpreters: &[Interpreter],
    command: &Path,
    wheels: &Path,
    target: &str,
) -> Result<PathBuf, String> {
    let python = builder(interpreters)?;
    let _ = fs::remove_dir_all(wheels);
    let folder = wheels.join("without-command");
    report::output(&mut maturin_build(
        python,
        python,
        &package(),
        &folder,
        target,
    )?)?;
    let without = only_entry(&folder, ".whl")?;

    // maturin can add only what is there whenever the package is built, without the command, too.
    wheel_tool(python, "unpack", &without, &wheels.join("unpacked"))?;
    let unpacked = only_entry(&wheels.join("unpacked"), "")?;
    let name = unpacked.file_name().unwrap_or_default().to_string_lossy();
    let script = unpacked.join(format!("{name}.data/scripts/otelctx"));
    copy(command, &script)?;
    // A release build is stripped already, and this machine's tool may not know its architecture.
    if musl::is_native(target) {
        report::output(Command::new("strip").arg("--strip-debug").arg(&script))?;
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
fn add_address(unpacked: &Path) -> Result<(), String> {
    let file = only_entry(unpacked, ".dist-info")?.join("METADATA");
    let text = read(&file)?;
    let header = text.split("\n\n").next().unwrap_or_default();
    let address = repository::address_or_placeholder()?;
    let readme = repository::readme("publish/python")?;
    write(
        &file,
        format!("{header}\nProject-URL: Repository, {address}\n\n{readme}"),
    )
}

/// Makes an unpacked wheel one for a free-threaded Python.
fn replace_module(
    builder: &Interpreter,
    python: &Interpreter,
    unpacked: &Path,
    wheels: &Path,
    target: &str,
) -> Result<(), String> {
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
    report::output(build.env("CARGO_TARGET_DIR", target_dir))?;
    let built = only_entry(&folder.join("wheel"), ".whl")?;
    wheel_tool(builder, "unpack", &built, &folder.join("unpacked"))?;
    let built = only_entry(&folder.join("unpacked"), "")?;

    let old = only_entry(&unpacked.join("otelctx"), ".so")?;
    fs::remove_file(&old).map_err(at(&old))?;
    let new = match built.join("otelctx") {
        folder if folder.is_dir() => only_entry(&folder, ".so")?,
        _ => only_entry(&built.join("_otelctx"), ".so")?,
    };
    copy(
        &new,
        &old.with_file_name(new.file_name().unwrap_or_default()),
    )?;
    // The tags, and what the module is made of.
    let (from, to) = (
        only_entry(&built, ".dist-info")?,
        only_entry(unpacked, ".dist-info")?,
    );
    copy(&from.join("WHEEL"), &to.join("WHEEL"))?;
    fs::remove_dir_all(to.join("sboms")).map_err(at(&to))?;
    fs::rename(from.join("sboms"), to.join("sboms")).map_err(at(&from))
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
) -> Result<Command, String> {
    let mut build = maturin_program();
    build.current_dir(package);
    build.args(["build", "--release", "--locked", "--quiet"]);
    build.args(["--zig", "--compatibility", "manylinux2014"]);
    build.arg("--out").arg(to);
    let compiler = match musl::is_native(target) {
        true => {
            build.arg("--interpreter").arg(&python.path);
            "cc"
        }
        false => {
            build.args(["--target", target]);
            musl::AARCH64.host_gcc()
        }
    };
    // Instead of the library for unwinding that zig links, which fails where glibc unwinds frames of the module with
    // this one: it ends threads that way.
    let unwinder = report::output(Command::new(compiler).arg("-print-file-name=libgcc_s.so.1"))?;
    build
        .arg("--")
        .arg(format!("-Clink-arg={}", unwinder.trim()));
    musl::cross(with_zig(&mut build, builder), target)?;
    Ok(build)
}

/// `wheel pack` or `unpack`, into a folder.
fn wheel_tool(builder: &Interpreter, what: &str, path: &Path, to: &Path) -> Result<(), String> {
    fs::create_dir_all(to).map_err(at(to))?;
    let mut wheel = Command::new(&builder.path);
    wheel.args(["-m", "wheel", what, "-d"]).arg(to).arg(path);
    report::output(wheel.env("PYTHONPATH", maturin())).map(drop)
}
