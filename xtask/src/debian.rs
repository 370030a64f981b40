//! Other versions of Rust, the kernel and the C library, for other architectures too, from Debian's
//! packages. They are unpacked below `target/setup` and never installed, so this needs no root and
//! changes nothing else on the machine.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::report;
use crate::workspace::{have, setup_dir};

pub(crate) const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A Rust that Debian packages.
pub(crate) struct Rust {
    suite: &'static str,
    /// Below `target/setup`.
    folder: &'static str,
    /// Standard libraries for other targets, without what they depend on, each with the name of its target.
    other_targets: &'static [(&'static str, &'static str)],
}

const AARCH64: (&str, &str) = ("libstd-rust-dev:arm64", "aarch64-unknown-linux-gnu");

/// Rust 1.85: the oldest Debian package at or above the application crates' minimum. The release
/// before has 1.63, the one after the current version.
pub(crate) const OLDER: Rust = Rust {
    suite: "trixie",
    folder: "debian-rust",
    other_targets: &[
        AARCH64,
        ("libstd-rust-dev:i386", "i686-unknown-linux-gnu"),
        ("libstd-rust-dev-wasm32", "wasm32-wasip1"),
    ],
};

/// The current Rust, with aarch64's standard library, which rustup may not have.
pub(crate) const CURRENT: Rust = Rust {
    suite: "sid",
    folder: "debian-rust-current",
    other_targets: &[AARCH64],
};

/// The compiler with everything that it needs to run.
const COMPILER: [&str; 2] = ["rustc", "libstd-rust-dev"];

impl Rust {
    /// The release of Debian that it is from.
    pub(crate) fn suite(&self) -> &'static str {
        self.suite
    }

    /// The path of its `rustc`, fetched on first use (about 15 s).
    ///
    /// # Errors
    /// Says why it is not available on this machine.
    pub(crate) fn rustc(&self) -> Result<PathBuf, String> {
        let folder = setup_dir().join(self.folder);
        let rustc = folder.join("rustc");
        let libraries = folder.join("tree/usr/lib/rustlib");
        let mut targets = self.other_targets.iter().map(|(_, target)| target);
        if rustc.is_file() && targets.all(|target| libraries.join(target).is_dir()) {
            return Ok(rustc);
        }
        if cfg!(not(target_arch = "x86_64")) {
            return Err("Debian's Rust is set up on x86-64 only".into());
        }
        // The wrapper is written last: without it, an earlier attempt was interrupted.
        let _ = fs::remove_dir_all(&folder);
        println!(
            "fetching Debian {}'s rustc into {}",
            self.suite,
            folder.display()
        );
        let apt = Apt::new(&folder, self.suite)?;
        let packages = self.other_targets.iter().map(|(package, _)| *package);
        let download = [
            "install",
            "--download-only",
            "--yes",
            "--no-install-recommends",
        ];
        apt.run(&[&download[..], &COMPILER].concat())?;
        apt.run(&["download"].into_iter().chain(packages).collect::<Vec<_>>())?;
        apt.finish(&folder.join("tree"))?;
        write_wrapper(&rustc)?;
        report::output(Command::new(&rustc).arg("--version"))?;
        Ok(rustc)
    }
}

/// The kernel and the shell of a virtual machine.
pub(crate) struct Guest {
    pub(crate) kernel: PathBuf,
    /// A static busybox.
    pub(crate) busybox: PathBuf,
}

/// A release's cloud kernel for an architecture, as Debian calls it, and a busybox; fetched on
/// first use (about 10 s).
///
/// # Errors
/// Says why it is not available on this machine.
pub(crate) fn guest(suite: &str, architecture: &str) -> Result<Guest, String> {
    let folder = setup_dir().join(format!("guest-{suite}-{architecture}"));
    let guest = Guest {
        kernel: folder.join("kernel"),
        busybox: folder.join("busybox"),
    };
    if guest.kernel.is_file() {
        return Ok(guest);
    }
    let _ = fs::remove_dir_all(&folder);
    println!(
        "fetching Debian {suite}'s {architecture} kernel into {}",
        folder.display()
    );
    let apt = Apt::new(&folder, suite)?;
    let newest = format!("linux-image-cloud-{architecture}:{architecture}");
    let depends = ["depends", "--recurse", "--important", &newest];
    let depends = report::output(apt.command("apt-cache").args(depends))?;
    // The kernel proper is in the first of them up to Debian 13, and in the second since.
    let images = depends.lines().filter(|package| {
        ["linux-image-", "linux-binary-"].iter().any(|prefix| {
            let version = package.strip_prefix(prefix);
            version.is_some_and(|version| version.starts_with(|it: char| it.is_ascii_digit()))
        })
    });
    let busybox = format!("busybox-static:{architecture}");
    let mut packages: Vec<&str> = images.collect();
    packages.push(&busybox);
    apt.run(&[&["download"][..], &packages].concat())?;
    let tree = folder.join("tree");
    apt.finish(&tree)?;
    let kernel = kernel_below(&tree)
        .ok_or_else(|| format!("no kernel for {architecture} in {suite}: {packages:?}"))?;
    let busybox = ["usr/bin/busybox", "bin/busybox"].map(|path| tree.join(path));
    let busybox = busybox.iter().find(|path| path.is_file());
    let busybox = busybox.ok_or_else(|| format!("no busybox in {suite}"))?;
    // The kernel's modules are ten times its size. It comes last: with it everything is there.
    fs::rename(busybox, &guest.busybox)
        .and_then(|()| fs::rename(kernel, &guest.kernel))
        .and_then(|()| fs::remove_dir_all(&tree))
        .map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(guest)
}

/// `boot/vmlinuz-VERSION`, or `usr/lib/modules/VERSION/vmlinuz`.
fn kernel_below(tree: &Path) -> Option<PathBuf> {
    let entries = |folder: &str| {
        let entries = fs::read_dir(tree.join(folder)).into_iter().flatten();
        entries.filter_map(|entry| Some(entry.ok()?.path()))
    };
    entries("boot")
        .chain(entries("usr/lib/modules").map(|version| version.join("vmlinuz")))
        .find(|path| path.is_file() && path.to_string_lossy().contains("/vmlinuz"))
}

/// A C library with its own dynamic linker, to run programs with.
///
/// `target/setup/glibc-VERSION/ld.so` is the linker, `lib` the folder with the libraries, and
/// `tree` what a compiler takes as `--sysroot`.
#[derive(Clone, Copy)]
pub(crate) struct Glibc {
    /// Below `target/setup`, where tests search for it.
    folder: &'static str,
    suite: &'static str,
    /// Below `tree`; a release's own path since Debian 13, where /lib is a link to /usr/lib.
    libraries: &'static str,
}

/// The oldest that Debian still has, which binds TLS descriptors lazily, and the newest.
pub(crate) const GLIBCS: [Glibc; 2] = [
    Glibc {
        folder: "glibc-2.31",
        suite: "bullseye",
        libraries: "lib/x86_64-linux-gnu",
    },
    Glibc {
        folder: "glibc-newest",
        suite: "sid",
        libraries: "usr/lib/x86_64-linux-gnu",
    },
];

impl Glibc {
    /// Where it is, fetched on first use (about 10 s).
    ///
    /// # Errors
    /// Says why it is not available on this machine.
    pub(crate) fn fetch(&self) -> Result<PathBuf, String> {
        let folder = setup_dir().join(self.folder);
        let linker = folder.join("ld.so");
        if linker.is_file() {
            return Ok(folder);
        }
        if cfg!(not(target_arch = "x86_64")) {
            return Err("other versions of glibc are set up on x86-64 only".into());
        }
        let _ = fs::remove_dir_all(&folder);
        println!(
            "fetching Debian {}'s glibc into {}",
            self.suite,
            folder.display()
        );
        // The third has what POSIX threads need to end, the last the kernel's own headers.
        let packages = ["libc6", "libc6-dev", "libgcc-s1", "linux-libc-dev"];
        unpack(&folder, self.suite, &packages.map(str::to_owned))?;
        let libraries = Path::new("tree").join(self.libraries);
        // The package's own link is absolute, and leads out of the tree.
        let link = folder.join("tree/lib64/ld-linux-x86-64.so.2");
        let relative = Path::new("..")
            .join(self.libraries)
            .join("ld-linux-x86-64.so.2");
        if link.is_symlink() {
            fs::remove_file(&link)
                .and_then(|()| symlink(relative, &link))
                .map_err(|error| format!("{}: {error}", link.display()))?;
        }
        symlink(&libraries, folder.join("lib"))
            .and_then(|()| symlink(libraries.join("ld-linux-x86-64.so.2"), &linker))
            .map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(folder)
    }
}

/// The headers of opentelemetry-cpp, whose API consists of nothing else.
#[derive(Clone, Copy)]
pub(crate) struct OpentelemetryCpp {
    /// Below `target/setup`, where tests search for it.
    pub(crate) folder: &'static str,
    suite: &'static str,
}

/// The oldest version that Debian has, 1.19, and the newest.
pub(crate) const OPENTELEMETRY_CPP: [OpentelemetryCpp; 2] = [
    OpentelemetryCpp {
        folder: "opentelemetry-cpp-1.19",
        suite: "trixie",
    },
    OpentelemetryCpp {
        folder: "opentelemetry-cpp-newest",
        suite: "sid",
    },
];

impl OpentelemetryCpp {
    /// The folder for the compiler, `include`, fetched on first use (about 10 s).
    ///
    /// # Errors
    /// Says why it is not available on this machine.
    pub(crate) fn fetch(self) -> Result<PathBuf, String> {
        let folder = setup_dir().join(self.folder);
        let include = folder.join("include");
        if include.is_dir() {
            return Ok(include);
        }
        let _ = fs::remove_dir_all(&folder);
        println!(
            "fetching Debian {}'s opentelemetry-cpp into {}",
            self.suite,
            folder.display()
        );
        unpack(&folder, self.suite, &["opentelemetry-cpp-dev".to_owned()])?;
        symlink("tree/usr/include", &include)
            .map_err(|error| format!("{}: {error}", include.display()))?;
        Ok(include)
    }
}

/// A Python that Debian's current development suite packages, to inspect it.
#[derive(Clone, Copy)]
pub(crate) struct Python {
    /// Such as `3.14`.
    pub(crate) series: &'static str,
}

/// Versions newer than what machines have. The suite moves on: the older one may be gone.
pub(crate) const PYTHONS: [Python; 2] = [Python { series: "3.14" }, Python { series: "3.15" }];

impl Python {
    /// The path of `python`, fetched on first use (about 15 s).
    ///
    /// # Errors
    /// Says why it is not available on this machine.
    pub(crate) fn fetch(&self) -> Result<PathBuf, String> {
        let series = self.series;
        let folder = setup_dir().join(format!("cpython-{series}"));
        let python = folder.join("python");
        if python.is_file() {
            return Ok(python);
        }
        if cfg!(not(target_arch = "x86_64")) {
            return Err("Debian's Python is set up on x86-64 only".into());
        }
        let _ = fs::remove_dir_all(&folder);
        println!(
            "fetching Debian sid's Python {series} into {}",
            folder.display()
        );
        let mut packages = ["python", "libpython"]
            .map(|it| format!("{it}{series}-minimal"))
            .to_vec();
        packages.push(format!("libpython{series}-stdlib"));
        // What modules of the standard library are linked with: ctypes, zlib, hashlib.
        let libraries = ["libc6", "libffi8", "zlib1g", "libssl3t64"];
        packages.extend(libraries.map(str::to_owned));
        unpack(&folder, "sid", &packages)?;
        write_python(&python, series)?;
        report::output(Command::new(&python).args(["-c", "import ctypes, hashlib, zlib"]))?;
        Ok(python)
    }
}

/// A free-threaded Python, built from the source that Debian packages: no package has one.
#[derive(Clone, Copy)]
pub(crate) struct FreeThreadedPython {
    /// Such as `3.13`.
    pub(crate) series: &'static str,
    suite: &'static str,
}

/// The source packages of the development suite are not in all mirrors: those of a release are.
pub(crate) const FREE_THREADED_PYTHON: FreeThreadedPython = FreeThreadedPython {
    series: "3.13",
    suite: "trixie",
};

impl FreeThreadedPython {
    /// Modules of the standard library that no test imports, and that take long to compile or need a library.
    const WITHOUT: [&str; 12] = [
        "_codecs_cn",
        "_codecs_hk",
        "_codecs_iso2022",
        "_codecs_jp",
        "_codecs_kr",
        "_codecs_tw",
        "_curses",
        "_curses_panel",
        "_decimal",
        "_multibytecodec",
        "_sqlite3",
        "_tkinter",
    ];

    /// Its folder below `target/setup`.
    pub(crate) const FOLDER: &str = "cpython-3.13t";

    fn python() -> PathBuf {
        setup_dir().join(Self::FOLDER).join("python")
    }

    /// Whether it was built.
    pub(crate) fn is_built(self) -> bool {
        Self::python().is_file()
    }

    /// The path of `python`, built on first use (about 3 minutes).
    ///
    /// # Errors
    /// Says why it is not available on this machine.
    pub(crate) fn build(self) -> Result<PathBuf, String> {
        let folder = setup_dir().join(Self::FOLDER);
        let python = Self::python();
        if self.is_built() {
            return Ok(python);
        }
        let _ = fs::remove_dir_all(&folder);
        println!(
            "building a free-threaded Python {} from Debian {}'s source in {}",
            self.series,
            self.suite,
            folder.display()
        );
        let [source, build, tree] = ["source", "build", "tree"].map(|it| folder.join(it));
        for folder in [&source, &build] {
            fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        let package = format!("python{}", self.series);
        let apt = Apt::with_sources(&folder, self.suite)?;
        apt.run(&["source", "--download-only", &package])?;
        let original = fs::read_dir(&apt.archives).into_iter().flatten().flatten();
        let mut original = original.map(|entry| entry.path());
        let is_original = |path: &PathBuf| path.to_string_lossy().contains(".orig.tar");
        let is_signature = |path: &PathBuf| path.extension().is_some_and(|it| it == "asc");
        let original = original.find(|path| is_original(path) && !is_signature(path));
        let original = original.ok_or_else(|| format!("no source in {package}"))?;
        let mut unpack = Command::new("tar");
        unpack.arg("--extract").arg("--strip-components=1");
        report::output(unpack.arg("--file").arg(original).arg("-C").arg(&source))?;
        let mut configure = Command::new(source.join("configure"));
        configure
            .current_dir(&build)
            .args(["--prefix=/usr", "--disable-gil", "--without-ensurepip"])
            .args(["--disable-test-modules", "--without-static-libpython"])
            // Without debug information, which takes 60 MB, and quick to compile.
            .arg("OPT=-DNDEBUG -O1")
            .args(Self::WITHOUT.map(|module| format!("py_cv_module_{module}=n/a")));
        report::output(&mut configure)?;
        let make = || {
            let mut make = Command::new("make");
            make.current_dir(&build).arg("--silent");
            make
        };
        let jobs = std::thread::available_parallelism().map_or(1, usize::from);
        report::output(make().arg(format!("--jobs={jobs}")))?;
        // It compiles the standard library three times otherwise.
        let install = ["altinstall", "COMPILEALL_OPTS=-x ."];
        let destination = format!("DESTDIR={}", tree.display());
        report::output(make().args(install).arg(destination))?;
        let program = PathBuf::from(format!("tree/usr/bin/python{}t", self.series));
        let check = "import ctypes, hashlib, ssl, sys, zlib; assert not sys._is_gil_enabled()";
        report::output(Command::new(folder.join(&program)).args(["-c", check]))?;
        let library = tree.join(format!("usr/lib/python{}t", self.series));
        let compile = ["-m", "compileall", "-q", "-j0"];
        report::output(
            Command::new(folder.join(&program))
                .args(compile)
                .arg(library),
        )?;
        // The link comes last: without it, an earlier attempt was interrupted.
        for folder in [&source, &build, &apt.archives] {
            fs::remove_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        symlink(&program, &python).map_err(|error| format!("{}: {error}", python.display()))?;
        Ok(python)
    }

    /// The wheel of pip that comes with the source, for `PYTHONPATH`.
    pub(crate) fn pip(self) -> Result<PathBuf, String> {
        let library = format!("tree/usr/lib/python{}t/ensurepip/_bundled", self.series);
        let folder = setup_dir().join(Self::FOLDER).join(library);
        let wheels = fs::read_dir(&folder).into_iter().flatten().flatten();
        let mut wheels = wheels.map(|entry| entry.path());
        wheels
            .find(|path| path.extension().is_some_and(|it| it == "whl"))
            .ok_or_else(|| format!("no wheel in {}", folder.display()))
    }
}

/// A Python of a Debian release for arm64, to run in a virtual machine.
#[derive(Clone, Copy)]
pub(crate) struct GuestPython {
    /// Such as `3.11`.
    pub(crate) series: &'static str,
    suite: &'static str,
}

/// The versions that its releases have. What is fetched once is kept: the suites move on.
pub(crate) const GUEST_PYTHONS: [GuestPython; 5] = [
    GuestPython {
        series: "3.9",
        suite: "bullseye",
    },
    GuestPython {
        series: "3.11",
        suite: "bookworm",
    },
    GuestPython {
        series: "3.13",
        suite: "trixie",
    },
    GuestPython {
        series: "3.14",
        suite: "sid",
    },
    GuestPython {
        series: "3.15",
        suite: "sid",
    },
];

impl GuestPython {
    /// The folder that its packages are unpacked in, fetched on first use (about 15 s).
    ///
    /// # Errors
    /// Says why it is not available on this machine.
    pub(crate) fn fetch(&self) -> Result<PathBuf, String> {
        let Self { series, suite } = self;
        let folder = setup_dir().join(format!("guest-cpython-{series}-arm64"));
        let tree = folder.join("tree");
        // Removed at the end.
        if tree.is_dir() && !folder.join("apt").exists() {
            return Ok(tree);
        }
        let _ = fs::remove_dir_all(&folder);
        println!(
            "fetching Debian {suite}'s Python {series} for arm64 into {}",
            folder.display()
        );
        let minimal = ["python", "libpython"].map(|it| format!("{it}{series}-minimal:arm64"));
        let rest = [format!("libpython{series}-stdlib:arm64")];
        // What threads need to end, and what modules of the standard library are linked with.
        let ffi = if *suite == "bullseye" {
            "libffi7"
        } else {
            "libffi8"
        };
        let libraries =
            ["libc6", "libgcc-s1", "libexpat1", "zlib1g", ffi].map(|it| format!("{it}:arm64"));
        unpack(&folder, suite, &[&minimal[..], &rest, &libraries].concat())
    }
}

/// Starts the unpacked interpreter through its own dynamic linker, see [`write_wrapper`].
fn write_python(python: &Path, series: &str) -> Result<(), String> {
    write_script(
        python,
        &format!(
            "PYTHONHOME=\"$tree/usr\" exec \"$tree/usr/lib64/ld-linux-x86-64.so.2\" \\\n    \
             --library-path \"$tree/usr/lib/x86_64-linux-gnu\" \\\n    \
             \"$tree/usr/bin/python{series}\" \"$@\"\n"
        ),
    )
}

/// Fetches packages (`NAME` or `NAME:ARCHITECTURE`), without what they depend on, and unpacks them
/// into `tree` below a folder.
pub(crate) fn unpack(folder: &Path, suite: &str, packages: &[String]) -> Result<PathBuf, String> {
    let apt = Apt::new(folder, suite)?;
    let packages = packages.iter().map(String::as_str);
    apt.run(&["download"].into_iter().chain(packages).collect::<Vec<_>>())?;
    let tree = folder.join("tree");
    apt.finish(&tree)?;
    Ok(tree)
}

/// apt with lists and status of its own, which all packages of a release share, and a folder for what it downloads.
struct Apt {
    lists: PathBuf,
    archives: PathBuf,
}

impl Apt {
    fn new(folder: &Path, suite: &str) -> Result<Self, String> {
        Self::of_kind(folder, suite, "deb")
    }

    /// For source packages.
    fn with_sources(folder: &Path, suite: &str) -> Result<Self, String> {
        Self::of_kind(folder, suite, "deb-src")
    }

    fn of_kind(folder: &Path, suite: &str, kind: &str) -> Result<Self, String> {
        if !has_tools() {
            return Err("Debian's packages are not available on this machine".into());
        }
        let lists = updated_lists(suite, kind)?;
        let archives = folder.join("apt");
        fs::create_dir_all(archives.join("partial"))
            .map_err(|error| format!("{}: {error}", archives.display()))?;
        Ok(Self { lists, archives })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let archives = format!("Dir::Cache::archives={}", self.archives.display());
        command
            .env("APT_CONFIG", self.lists.join("apt.conf"))
            .current_dir(&self.archives)
            .args(WITH_CACHES)
            .args(["-o", &archives]);
        command
    }

    fn run(&self, arguments: &[&str]) -> Result<(), String> {
        report::output(self.command("apt-get").arg("-qq").args(arguments)).map(drop)
    }

    /// Unpacks the downloaded packages and removes them.
    fn finish(self, tree: &Path) -> Result<(), String> {
        for package in deb_files(&self.archives)? {
            report::output(
                Command::new("dpkg-deb")
                    .arg("--extract")
                    .arg(package)
                    .arg(tree),
            )?;
        }
        fs::remove_dir_all(&self.archives)
            .map_err(|error| format!("{}: {error}", self.archives.display()))
    }
}

/// Options of apt to keep what it has read from the lists, which takes three seconds: the configuration of container
/// images says otherwise.
const WITH_CACHES: [&str; 4] = [
    "-o",
    "Dir::Cache::pkgcache=pkgcache.bin",
    "-o",
    "Dir::Cache::srcpkgcache=srcpkgcache.bin",
];

/// The releases whose lists this process has updated, each with its kind of packages.
static UPDATED: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

/// The folder with apt's configuration, lists and status for a release's packages of a kind (`deb`, `deb-src`).
/// Updating takes some 20 s of processor time: a process does it once.
fn updated_lists(suite: &str, kind: &str) -> Result<PathBuf, String> {
    let folder = all_lists().join(format!("{suite}-{kind}"));
    let mut updated = UPDATED.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (suite.to_owned(), kind.to_owned());
    if !updated.contains(&key) {
        update_lists(&folder, suite, kind)?;
        updated.push(key);
    }
    Ok(folder)
}

fn update_lists(folder: &Path, suite: &str, kind: &str) -> Result<(), String> {
    let fail = |error| format!("{}: {error}", folder.display());
    fs::create_dir_all(folder.join("lists/partial")).map_err(fail)?;
    fs::write(folder.join("status"), "").map_err(fail)?;
    let mirror = mirror()?;
    let source = format!("{kind} [signed-by={KEYRING}] {mirror} {suite} main\n");
    fs::write(folder.join("sources.list"), source).map_err(fail)?;
    // A mirror may be a snapshot whose release file is past its date; it is still signed.
    let configuration = format!(
        "Dir::State::status \"{folder}/status\";\n\
         Dir::State::lists \"{folder}/lists\";\n\
         Dir::Cache \"{folder}\";\n\
         Dir::Etc::sourcelist \"{folder}/sources.list\";\n\
         Dir::Etc::sourceparts \"/dev/null\";\n\
         Dir::Etc::preferencesparts \"/dev/null\";\n\
         Debug::NoLocking \"true\";\n\
         APT::Architecture \"amd64\";\n\
         APT::Architectures {{ \"amd64\"; \"arm64\"; \"i386\"; }};\n\
         APT::Sandbox::User \"\";\n\
         Acquire::Languages \"none\";\n\
         Acquire::Check-Valid-Until \"false\";\n",
        folder = folder.display(),
    );
    let file = folder.join("apt.conf");
    fs::write(&file, configuration).map_err(fail)?;
    for (program, argument) in [("apt-get", "update"), ("apt-cache", "gencaches")] {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", &file).args(WITH_CACHES);
        command.args(["-qq", argument]);
        report::output(&mut command)?;
    }
    Ok(())
}

/// This process's folder of lists.
fn all_lists() -> PathBuf {
    setup_dir().join(format!("apt-{}", std::process::id()))
}

/// Removes the lists: the next process gets newer ones.
pub(crate) fn remove_lists() {
    let mut updated = UPDATED.lock().unwrap_or_else(PoisonError::into_inner);
    if !updated.is_empty() {
        let _ = fs::remove_dir_all(all_lists());
    }
    updated.clear();
}

fn has_tools() -> bool {
    have("apt-get") && have("dpkg-deb") && Path::new(KEYRING).is_file()
}

/// Whether packages can be fetched and used on this machine.
pub(crate) fn is_available() -> bool {
    cfg!(target_arch = "x86_64") && has_tools() && mirror().is_ok()
}

/// The machine's own Debian mirror.
pub(crate) fn mirror() -> Result<String, String> {
    let format = [
        "indextargets",
        "--format",
        "$(ORIGIN) $(REPO_URI)",
        "Created-By: Packages",
    ];
    let targets = report::output(Command::new("apt-get").args(format))?;
    let mut debian = targets
        .lines()
        .filter_map(|line| line.strip_prefix("Debian "));
    // The security archive has only updates.
    let mirror = debian.find(|uri| !uri.contains("security"));
    mirror
        .map(str::to_owned)
        .ok_or_else(|| "apt on this machine has no Debian mirror".into())
}

fn deb_files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
    Ok(files
        .filter(|file| file.extension().is_some_and(|ending| ending == "deb"))
        .collect())
}

/// Starts the unpacked compiler through its own dynamic linker, because the machine's libc may be
/// older than it asks for.
fn write_wrapper(rustc: &Path) -> Result<(), String> {
    write_script(
        rustc,
        "exec \"$tree/usr/lib64/ld-linux-x86-64.so.2\" \\\n    \
         --library-path \"$tree/usr/lib/x86_64-linux-gnu:$tree/usr/lib\" \\\n    \
         \"$tree/usr/bin/rustc\" --sysroot \"$tree/usr\" \"$@\"\n",
    )
}

/// Writes a script that knows the `tree` beside it.
fn write_script(path: &Path, script: &str) -> Result<(), String> {
    // The checkout may move, or be reached by another path.
    let head = "#!/bin/sh\ntree=\"$(dirname \"$(readlink -f \"$0\")\")/tree\"\n";
    let fail = |error| format!("{}: {error}", path.display());
    fs::write(path, [head, script].concat()).map_err(fail)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(fail)
}
