//! Other versions of Rust, the kernel and the C library, for other architectures too, from Debian's
//! packages. They are unpacked below `target/setup` and never installed, so this needs no root and
//! changes nothing else on the machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use fs_err as fs;

use crate::files::{create_empty, entries, link, only_entry, write, write_script};
use crate::report::{Words, command, output};
use crate::workspace::{cpus, have, setup_dir};

pub(crate) const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The path of a file in a folder of `target/setup`. If it is missing, `make` fills the folder, with this file last:
/// without it, an earlier attempt was interrupted.
pub(crate) fn made(
    folder: &str,
    file: &str,
    what: &str,
    make: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let folder = setup_dir().join(folder);
    let file = folder.join(file);
    if !file.exists() {
        println!("making {} from Debian {what}", folder.display());
        create_empty(&folder)?;
        make(&folder)?;
    }
    Ok(file)
}

/// Fails where programs that are unpacked for x86-64 do not run.
fn runs_on_x86_64() -> Result<()> {
    ensure!(cfg!(target_arch = "x86_64"), "it is set up on x86-64 only");
    Ok(())
}

/// A Rust that Debian packages.
pub(crate) struct Rust {
    pub(crate) suite: &'static str,
    /// Below `target/setup`.
    folder: &'static str,
    /// Packages with standard libraries for other targets, and the targets.
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

impl Rust {
    /// The path of its `rustc`, fetched on first use (about 15 s).
    pub(crate) fn rustc(&self) -> Result<PathBuf> {
        let folder = setup_dir().join(self.folder);
        let libraries = folder.join("tree/usr/lib/rustlib");
        let mut targets = self.other_targets.iter().map(|(_, target)| target);
        if !targets.all(|target| libraries.join(target).is_dir()) {
            let _ = fs::remove_dir_all(&folder);
        }
        made(
            self.folder,
            "rustc",
            &format!("{}'s rustc", self.suite),
            |folder| {
                runs_on_x86_64()?;
                let apt = Apt::new(folder, self.suite, "deb")?;
                // The compiler with everything that it needs to run, and the others without.
                let install = "install --download-only --yes --no-install-recommends";
                apt.run(install, &["rustc", "libstd-rust-dev"])?;
                let others = self.other_targets.iter().map(|(package, _)| *package);
                apt.run("download", &others.collect::<Vec<_>>())?;
                apt.finish(&folder.join("tree"))?;
                let rustc = folder.join("rustc");
                let library_path = "$tree/usr/lib/x86_64-linux-gnu:$tree/usr/lib";
                let program = r#""$tree/usr/bin/rustc" --sysroot "$tree/usr""#;
                write_wrapper(&rustc, "", library_path, program)?;
                output(Command::new(&rustc).arg("--version")).map(drop)
            },
        )
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
pub(crate) fn guest(suite: &str, architecture: &str) -> Result<Guest> {
    let folder = format!("guest-{suite}-{architecture}");
    let what = format!("{suite}'s {architecture} kernel");
    let kernel = made(&folder, "kernel", &what, |folder| {
        let apt = Apt::new(folder, suite, "deb")?;
        let newest = format!("linux-image-cloud-{architecture}:{architecture}");
        let mut depends = apt.command("apt-cache depends --recurse --important");
        let depends = output(depends.arg(&newest))?;
        // The kernel proper is in the first of them up to Debian 13, and in the second since.
        let images = depends.lines().filter(|package| {
            ["linux-image-", "linux-binary-"].iter().any(|prefix| {
                let version = package.strip_prefix(prefix);
                version.is_some_and(|version| version.starts_with(|it: char| it.is_ascii_digit()))
            })
        });
        let busybox = format!("busybox-static:{architecture}");
        let packages: Vec<&str> = images.chain([&busybox[..]]).collect();
        apt.run("download", &packages)?;
        let tree = folder.join("tree");
        apt.finish(&tree)?;
        let kernel = kernel_below(&tree)
            .with_context(|| format!("no kernel for {architecture} in {suite}: {packages:?}"))?;
        let busybox = ["usr/bin/busybox", "bin/busybox"].map(|path| tree.join(path));
        let busybox = busybox.iter().find(|path| path.is_file());
        let busybox = busybox.with_context(|| format!("no busybox in {suite}"))?;
        fs::rename(busybox, folder.join("busybox"))?;
        fs::rename(kernel, folder.join("kernel"))?;
        // The kernel's modules are ten times its size.
        Ok(fs::remove_dir_all(&tree)?)
    })?;
    let busybox = kernel.with_file_name("busybox");
    Ok(Guest { kernel, busybox })
}

/// `boot/vmlinuz-VERSION`, or `usr/lib/modules/VERSION/vmlinuz`.
fn kernel_below(tree: &Path) -> Option<PathBuf> {
    let below = |folder: &str| entries(&tree.join(folder)).unwrap_or_default().into_iter();
    let modules = below("usr/lib/modules").map(|version| version.join("vmlinuz"));
    let mut files = below("boot").chain(modules);
    files.find(|path| path.is_file() && path.to_string_lossy().contains("/vmlinuz"))
}

/// C libraries with their own dynamic linkers, to run programs with: the oldest that Debian still has, which binds TLS
/// descriptors lazily, and the newest. Folders below `target/setup`, releases, and the folders of the libraries, which are a
/// release's own since Debian 13, where /lib is a link to /usr/lib.
pub(crate) const GLIBCS: [(&str, &str, &str); 2] = [
    ("glibc-2.31", "bullseye", "lib/x86_64-linux-gnu"),
    ("glibc-newest", "sid", "usr/lib/x86_64-linux-gnu"),
];

/// One of [`GLIBCS`], fetched on first use (about 10 s): `ld.so` is the linker, `lib` beside it the folder with the
/// libraries, and `tree` what a compiler takes as `--sysroot`.
pub(crate) fn glibc((folder, suite, libraries): (&str, &str, &str)) -> Result<PathBuf> {
    const LINKER: &str = "ld-linux-x86-64.so.2";
    made(folder, "ld.so", &format!("{suite}'s glibc"), |folder| {
        runs_on_x86_64()?;
        // The third has what POSIX threads need to end, the last the kernel's own headers.
        let packages = ["libc6", "libc6-dev", "libgcc-s1", "linux-libc-dev"];
        let tree = unpack(folder, suite, &packages)?;
        // The package's own link is absolute, and leads out of the tree.
        let in_tree = tree.join("lib64").join(LINKER);
        if in_tree.is_symlink() {
            link(format!("../{libraries}/{LINKER}"), &in_tree)?;
        }
        link(format!("tree/{libraries}"), &folder.join("lib"))?;
        link(format!("tree/{libraries}/{LINKER}"), &folder.join("ld.so"))
    })
}

/// Java virtual machines that Debian's releases do not have any more: folders below `target/setup`, packages, and where their
/// files are.
pub(crate) const JDKS: [(&str, &str, &str); 2] = [
    (
        "jdk-8",
        "openjdk-8-jre-headless",
        "usr/lib/jvm/java-8-openjdk-amd64/jre",
    ),
    (
        "jdk-11-debian",
        "openjdk-11-jre-headless",
        "usr/lib/jvm/java-11-openjdk-amd64",
    ),
];

/// One of [`JDKS`], fetched on first use (about 10 s): `java` starts it.
pub(crate) fn jdk((folder, package, home): (&str, &str, &str)) -> Result<PathBuf> {
    made(folder, "java", &format!("sid's {package}"), |folder| {
        runs_on_x86_64()?;
        let packages = [package, "libc6", "libgcc-s1", "libstdc++6", "zlib1g"];
        let tree = unpack(folder, "sid", &packages)?;
        // Java finds its files beside the program that runs, which is the linker.
        let linker = tree.join("usr/lib64/ld-linux-x86-64.so.2");
        fs::copy(linker, tree.join(home).join("bin/ld.so"))?;
        let java = folder.join("java");
        let home = format!("$tree/{home}");
        let libraries = "$tree/usr/lib/x86_64-linux-gnu";
        write_script(
            &java,
            &format!(
                r#"#!/bin/sh
tree="$(dirname "$(readlink -f "$0")")/tree"
exec "{home}/bin/ld.so" --library-path "{libraries}:{home}/lib/jli:{home}/lib/amd64/jli:{home}/lib/amd64" "{home}/bin/java" "$@"
"#
            ),
        )?;
        output(Command::new(&java).arg("-version")).map(drop)
    })
}

/// The headers of opentelemetry-cpp, whose API consists of nothing else, by folder and release: the oldest version that
/// Debian has, and the newest.
pub(crate) const OPENTELEMETRY_CPP: [(&str, &str); 2] = [
    ("opentelemetry-cpp-1.19", "trixie"),
    ("opentelemetry-cpp-newest", "sid"),
];

/// The folder for the compiler, `include`, fetched on first use (about 10 s).
pub(crate) fn opentelemetry_cpp(folder: &str, suite: &str) -> Result<PathBuf> {
    made(
        folder,
        "include",
        &format!("{suite}'s opentelemetry-cpp"),
        |folder| {
            unpack(folder, suite, &["opentelemetry-cpp-dev"])?;
            link("tree/usr/include", &folder.join("include"))
        },
    )
}

/// Versions of Python in Debian's development suite, newer than what machines have. The suite moves on: the older one
/// may be gone.
pub(crate) const PYTHONS: [&str; 2] = ["3.14", "3.15"];

/// The path of the `python` of a version, such as `3.14`, fetched on first use (about 15 s).
pub(crate) fn python(series: &str) -> Result<PathBuf> {
    let folder = format!("cpython-{series}");
    made(
        &folder,
        "python",
        &format!("sid's Python {series}"),
        |folder| {
            runs_on_x86_64()?;
            // The last ones are what modules of the standard library are linked with: ctypes, zlib, hashlib.
            let packages = format!(
                "python{series}-minimal libpython{series}-minimal libpython{series}-stdlib \
             libc6 libffi8 zlib1g libssl3t64"
            );
            unpack(folder, "sid", &packages.split(' ').collect::<Vec<_>>())?;
            let python = folder.join("python");
            let program = format!("\"$tree/usr/bin/python{series}\"");
            let home = "PYTHONHOME=\"$tree/usr\" ";
            write_wrapper(&python, home, "$tree/usr/lib/x86_64-linux-gnu", &program)?;
            output(Command::new(&python).args(["-c", "import ctypes, hashlib, zlib"])).map(drop)
        },
    )
}

/// The version of a free-threaded Python that is built from the source that Debian packages: no package has one. The source
/// packages of the development suite are not in all mirrors: those of a release are.
pub(crate) const FREE_THREADED_PYTHON: &str = "3.13";
/// Its folder below `target/setup`.
pub(crate) const FREE_THREADED_FOLDER: &str = "cpython-3.13t";

/// The path of the free-threaded `python`, built on first use (about 3 minutes).
pub(crate) fn free_threaded_python() -> Result<PathBuf> {
    let (series, suite) = (FREE_THREADED_PYTHON, "trixie");
    let what = format!("{suite}'s source, a free-threaded Python {series},");
    made(FREE_THREADED_FOLDER, "python", &what, |folder| {
        let apt = Apt::new(folder, suite, "deb-src")?;
        let package = format!("python{series}");
        apt.run("source --download-only", &[&package])?;
        let is_original = |path: &PathBuf| {
            let path = path.to_string_lossy();
            path.contains(".orig.tar.") && !path.ends_with(".asc")
        };
        let original = entries(&apt.archives)?.into_iter().find(is_original);
        let original = original.with_context(|| format!("no source in {package}"))?;
        let mut build = command("sh -euc");
        build.args([include_str!("debian/free_threaded.sh"), "sh", series]);
        build.arg(original).arg(cpus().to_string());
        output(build.current_dir(folder))?;
        fs::remove_dir_all(&apt.archives)?;
        let program = format!("tree/usr/bin/python{series}t");
        link(program, &folder.join("python"))
    })
}

/// The wheel of pip that comes with that Python's source, for `PYTHONPATH`.
pub(crate) fn free_threaded_pip() -> Result<PathBuf> {
    let library = format!("tree/usr/lib/python{FREE_THREADED_PYTHON}t/ensurepip/_bundled");
    let folder = setup_dir().join(FREE_THREADED_FOLDER);
    only_entry(&folder.join(library), ".whl")
}

/// Pythons of Debian's releases for arm64, to run in a virtual machine: versions, such as `3.11`, and releases. What is
/// fetched once is kept: the suites move on.
pub(crate) const GUEST_PYTHONS: [(&str, &str); 5] = [
    ("3.9", "bullseye"),
    ("3.11", "bookworm"),
    ("3.13", "trixie"),
    ("3.14", "sid"),
    ("3.15", "sid"),
];

/// The folder that the packages of one of [`GUEST_PYTHONS`] are unpacked in, fetched on first use (about 15 s).
pub(crate) fn guest_python(series: &str, suite: &str) -> Result<PathBuf> {
    let folder = format!("guest-cpython-{series}-arm64");
    // Removed at the end.
    if setup_dir().join(&folder).join("apt").exists() {
        let _ = fs::remove_dir_all(setup_dir().join(&folder));
    }
    let what = format!("{suite}'s Python {series} for arm64");
    made(&folder, "tree", &what, |folder| {
        let ffi = if suite == "bullseye" {
            "libffi7"
        } else {
            "libffi8"
        };
        // The last ones are what threads need to end, and what modules of the standard library are linked with.
        let packages = format!(
            "python{series}-minimal libpython{series}-minimal libpython{series}-stdlib \
             libc6 libgcc-s1 libexpat1 zlib1g {ffi}"
        );
        let packages = packages.split(' ').map(|it| format!("{it}:arm64"));
        let packages: Vec<_> = packages.collect();
        unpack(folder, suite, &packages).map(drop)
    })
}

/// Architectures whose libraries' unwind tables are compared with their instructions, by Debian's names.
pub(crate) const LIBRARIES: [&str; 2] = ["amd64", "arm64"];

/// The folder with the libraries of one of [`LIBRARIES`], fetched on first use (about 10 s): those with assembly, and large
/// ones of C and C++.
pub(crate) fn libraries(architecture: &str) -> Result<PathBuf> {
    let folder = format!("libraries-{architecture}");
    let what = format!("libraries for {architecture}");
    made(&folder, "tree", &what, |folder| {
        let packages = "libgmp10 libssl3 libx264-164 musl libc6 libpython3.11 libstdc++6";
        let packages = packages.split(' ').map(|it| format!("{it}:{architecture}"));
        let packages: Vec<_> = packages.collect();
        unpack(folder, "bookworm", &packages).map(drop)
    })
}

/// Fetches packages (`NAME` or `NAME:ARCHITECTURE`), without what they depend on, and unpacks them
/// into `tree` below a folder.
pub(crate) fn unpack(folder: &Path, suite: &str, packages: &[impl AsRef<str>]) -> Result<PathBuf> {
    let apt = Apt::new(folder, suite, "deb")?;
    let packages = packages.iter().map(AsRef::as_ref);
    apt.run("download", &packages.collect::<Vec<_>>())?;
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
    /// For packages of a kind: `deb`, or `deb-src` for sources.
    fn new(folder: &Path, suite: &str, kind: &str) -> Result<Self> {
        ensure!(has_tools(), "no Debian packages on this machine");
        let lists = updated_lists(suite, kind)?;
        let archives = folder.join("apt");
        fs::create_dir_all(archives.join("partial"))?;
        Ok(Self { lists, archives })
    }

    fn command(&self, words: &str) -> Command {
        let mut command = with_lists(words, &self.lists);
        command.current_dir(&self.archives);
        command.arg("-o");
        command.arg(format!("Dir::Cache::archives={}", self.archives.display()));
        command
    }

    fn run(&self, words: &str, packages: &[&str]) -> Result<()> {
        output(self.command("apt-get -qq").words(words).args(packages)).map(drop)
    }

    /// Unpacks the downloaded packages and removes them.
    fn finish(self, tree: &Path) -> Result<()> {
        for package in entries(&self.archives)? {
            if package.extension().is_some_and(|ending| ending == "deb") {
                output(command("dpkg-deb --extract").arg(package).arg(tree))?;
            }
        }
        Ok(fs::remove_dir_all(&self.archives)?)
    }
}

/// A command of apt that uses a folder's lists. It keeps what it has read from them, which takes three seconds: the
/// configuration of container images says otherwise.
fn with_lists(words: &str, lists: &Path) -> Command {
    let mut command = command(words);
    command.env("APT_CONFIG", lists.join("apt.conf"));
    command.words("-o Dir::Cache::pkgcache=pkgcache.bin");
    command.words("-o Dir::Cache::srcpkgcache=srcpkgcache.bin");
    command
}

/// The folders of lists that this process has updated.
static UPDATED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// The folder with apt's configuration, lists and status for a release's packages of a kind.
/// Updating takes some 20 s of processor time: a process does it once.
fn updated_lists(suite: &str, kind: &str) -> Result<PathBuf> {
    let folder = all_lists().join(format!("{suite}-{kind}"));
    let mut updated = UPDATED.lock().unwrap_or_else(PoisonError::into_inner);
    if !updated.contains(&folder) {
        fs::create_dir_all(folder.join("lists/partial"))?;
        write(&folder.join("status"), "")?;
        let mirror = mirror()?;
        let source = format!("{kind} [signed-by={KEYRING}] {mirror} {suite} main\n");
        write(&folder.join("sources.list"), source)?;
        let settings = include_str!("debian/apt.conf");
        let settings = settings.replace("FOLDER", &folder.display().to_string());
        write(&folder.join("apt.conf"), settings)?;
        output(with_lists("apt-get", &folder).words("-qq update"))?;
        output(with_lists("apt-cache", &folder).words("-qq gencaches"))?;
        updated.push(folder.clone());
    }
    Ok(folder)
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
pub(crate) fn mirror() -> Result<String> {
    let mut targets = command("apt-get indextargets --format");
    let targets = output(targets.args(["$(ORIGIN) $(REPO_URI)", "Created-By: Packages"]))?;
    let mut debian = targets.lines().filter_map(|it| it.strip_prefix("Debian "));
    // The security archive has only updates.
    let mirror = debian.find(|uri| !uri.contains("security"));
    Ok(mirror
        .context("apt on this machine has no Debian mirror")?
        .to_owned())
}

/// Writes a script that starts an unpacked program through its own dynamic linker, because the machine's libc may be
/// older than it asks for.
fn write_wrapper(path: &Path, variables: &str, library_path: &str, program: &str) -> Result<()> {
    // The checkout may move, or be reached by another path.
    write_script(
        path,
        &format!(
            r#"#!/bin/sh
tree="$(dirname "$(readlink -f "$0")")/tree"
{variables}exec "$tree/usr/lib64/ld-linux-x86-64.so.2" --library-path "{library_path}" {program} "$@"
"#
        ),
    )
}
