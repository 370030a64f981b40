//! What Debian's packages have and neither rustup nor the machine has: other versions of Rust, a
//! kernel for another architecture. Downloaded and unpacked below `target/setup`, never installed,
//! so it needs no root and touches nothing of the machine.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::report;
use crate::workspace::{have, setup_dir};

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A Rust that Debian packages.
pub(crate) struct Rust {
    suite: &'static str,
    /// Below `target/setup`.
    folder: &'static str,
    /// Standard libraries for other targets, without what they depend on.
    other_targets: &'static [&'static str],
}

/// Rust 1.85, the oldest one at or above the application crates' minimum; the releases around
/// it have 1.63 and the current one.
pub(crate) const OLDER: Rust = Rust {
    suite: "trixie",
    folder: "debian-rust",
    other_targets: &["libstd-rust-dev:arm64", "libstd-rust-dev-wasm32"],
};

/// The current Rust, with aarch64's standard library, which rustup may not have.
pub(crate) const CURRENT: Rust = Rust {
    suite: "sid",
    folder: "debian-rust-current",
    other_targets: &["libstd-rust-dev:arm64"],
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
    /// A sentence saying why there is none here.
    pub(crate) fn rustc(&self) -> Result<PathBuf, String> {
        let folder = setup_dir().join(self.folder);
        let rustc = folder.join("rustc");
        if rustc.is_file() {
            return Ok(rustc);
        }
        if cfg!(not(target_arch = "x86_64")) {
            return Err("Debian's Rust is set up on x86-64 only".into());
        }
        // A half-done earlier try is no use: the wrapper is written last.
        let _ = fs::remove_dir_all(&folder);
        println!(
            "fetching Debian {}'s rustc into {}",
            self.suite,
            folder.display()
        );
        let apt = Apt::new(&folder, self.suite)?;
        let download = [
            "install",
            "--download-only",
            "--yes",
            "--no-install-recommends",
        ];
        apt.run(&[&download[..], &COMPILER].concat())?;
        apt.run(&[&["download"][..], self.other_targets].concat())?;
        apt.finish(&folder.join("tree"))?;
        write_wrapper(&rustc)?;
        report::output(Command::new(&rustc).arg("--version"))?;
        Ok(rustc)
    }
}

/// What a machine that `cargo xtask aarch64` starts is made of.
pub(crate) struct Guest {
    pub(crate) kernel: PathBuf,
    /// A static busybox.
    pub(crate) busybox: PathBuf,
}

/// Debian's cloud kernel for arm64 and a busybox, fetched on first use (about 10 s).
///
/// # Errors
/// A sentence saying why there is none here.
pub(crate) fn arm64_guest() -> Result<Guest, String> {
    /// Of the release whose C library the cross compiler has.
    const SUITE: &str = "bookworm";
    let folder = setup_dir().join("guest-arm64");
    let tree = folder.join("tree");
    if !tree.is_dir() {
        let _ = fs::remove_dir_all(&folder);
        println!(
            "fetching Debian {SUITE}'s arm64 kernel into {}",
            folder.display()
        );
        let apt = Apt::new(&folder, SUITE)?;
        let depends = ["depends", "linux-image-cloud-arm64:arm64"];
        let depends = report::output(apt.command("apt-cache").args(depends))?;
        let image = depends
            .lines()
            .find_map(|line| line.trim().strip_prefix("Depends: linux-image-"))
            .map(|version| format!("linux-image-{version}"))
            .ok_or_else(|| format!("no arm64 kernel in {SUITE}: {depends}"))?;
        apt.run(&["download", &image, "busybox-static:arm64"])?;
        let partial = folder.join("partial");
        apt.finish(&partial)?;
        fs::rename(&partial, &tree).map_err(|error| format!("{}: {error}", tree.display()))?;
    }
    let boot = tree.join("boot");
    let kernel = fs::read_dir(&boot)
        .map_err(|error| format!("{}: {error}", boot.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.to_string_lossy().contains("/vmlinuz-"))
        .ok_or_else(|| format!("{}: no kernel", boot.display()))?;
    Ok(Guest {
        kernel,
        busybox: tree.join("bin/busybox"),
    })
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

/// apt with lists, status and archives of its own.
struct Apt {
    state: PathBuf,
    archives: PathBuf,
}

impl Apt {
    fn new(folder: &Path, suite: &str) -> Result<Self, String> {
        if !have("apt-get") || !have("dpkg-deb") || !Path::new(KEYRING).is_file() {
            return Err("Debian's packages are not to be had on this machine".into());
        }
        let apt = Self {
            state: folder.join("apt"),
            archives: folder.join("apt/archives"),
        };
        let fail = |error| format!("{}: {error}", apt.state.display());
        fs::create_dir_all(apt.state.join("lists/partial")).map_err(fail)?;
        fs::create_dir_all(apt.archives.join("partial")).map_err(fail)?;
        fs::write(apt.state.join("status"), "").map_err(fail)?;
        let mirror = mirror()?;
        let source = format!("deb [signed-by={KEYRING}] {mirror} {suite} main\n");
        fs::write(apt.state.join("sources.list"), source).map_err(fail)?;
        // A mirror may be a snapshot whose release file is past its date; it is still signed.
        let configuration = format!(
            "Dir::State::status \"{state}/status\";\n\
             Dir::State::lists \"{state}/lists\";\n\
             Dir::Cache \"{state}\";\n\
             Dir::Cache::archives \"{state}/archives\";\n\
             Dir::Etc::sourcelist \"{state}/sources.list\";\n\
             Dir::Etc::sourceparts \"/dev/null\";\n\
             Dir::Etc::preferencesparts \"/dev/null\";\n\
             Debug::NoLocking \"true\";\n\
             APT::Architecture \"amd64\";\n\
             APT::Architectures {{ \"amd64\"; \"arm64\"; }};\n\
             APT::Sandbox::User \"\";\n\
             Acquire::Check-Valid-Until \"false\";\n",
            state = apt.state.display(),
        );
        fs::write(apt.state.join("apt.conf"), configuration).map_err(fail)?;
        apt.run(&["update"])?;
        Ok(apt)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env("APT_CONFIG", self.state.join("apt.conf"))
            .current_dir(&self.archives);
        command
    }

    fn run(&self, arguments: &[&str]) -> Result<(), String> {
        report::output(self.command("apt-get").arg("-qq").args(arguments)).map(drop)
    }

    /// Unpacks everything that was downloaded, and forgets the rest.
    fn finish(self, tree: &Path) -> Result<(), String> {
        for package in deb_files(&self.archives)? {
            report::output(
                Command::new("dpkg-deb")
                    .arg("--extract")
                    .arg(package)
                    .arg(tree),
            )?;
        }
        fs::remove_dir_all(&self.state)
            .map_err(|error| format!("{}: {error}", self.state.display()))
    }
}

/// The machine's own Debian mirror.
fn mirror() -> Result<String, String> {
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
        .ok_or_else(|| "this machine knows no Debian mirror".into())
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
    // The checkout may move, or be reached by another path.
    let text = "#!/bin/sh\n\
         tree=\"$(dirname \"$(readlink -f \"$0\")\")/tree\"\n\
         exec \"$tree/usr/lib64/ld-linux-x86-64.so.2\" \\\n    \
         --library-path \"$tree/usr/lib/x86_64-linux-gnu:$tree/usr/lib\" \\\n    \
         \"$tree/usr/bin/rustc\" --sysroot \"$tree/usr\" \"$@\"\n";
    let fail = |error| format!("{}: {error}", rustc.display());
    fs::write(rustc, text).map_err(fail)?;
    fs::set_permissions(rustc, fs::Permissions::from_mode(0o755)).map_err(fail)
}
