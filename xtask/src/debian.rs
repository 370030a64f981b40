//! An older Rust out of Debian's packages, where rustup has none: downloaded and unpacked below
//! `target/setup`, never installed, so it needs no root and touches nothing of the machine.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::report;
use crate::workspace::{have, setup_dir};

/// The Debian release whose Rust (1.85) is the oldest one at or above the application crates'
/// minimum; the releases around it have 1.63 and the current one.
const SUITE: &str = "trixie";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The compiler with everything that it needs to run.
const COMPILER: [&str; 2] = ["rustc", "libstd-rust-dev"];
/// Standard libraries for other targets, without what they depend on: enough for `cargo check`.
const OTHER_TARGETS: [&str; 2] = ["libstd-rust-dev:arm64", "libstd-rust-dev-wasm32"];

/// The path of a `rustc` of Debian's, fetched on first use (about 15 s).
///
/// # Errors
/// A sentence saying why there is none here.
pub(crate) fn rustc() -> Result<PathBuf, String> {
    let folder = setup_dir().join("debian-rust");
    let rustc = folder.join("rustc");
    if rustc.is_file() {
        return Ok(rustc);
    }
    if !have("apt-get") || !have("dpkg-deb") || !Path::new(KEYRING).is_file() {
        return Err("Debian's packages are not to be had on this machine".into());
    }
    if cfg!(not(target_arch = "x86_64")) {
        return Err("Debian's older Rust is set up on x86-64 only".into());
    }
    // A half-done earlier try is no use: the wrapper is written last.
    let _ = fs::remove_dir_all(&folder);
    println!("fetching Debian {SUITE}'s rustc into {}", folder.display());
    let apt = Apt::new(&folder)?;
    apt.run(&["update"])?;
    let download = [
        "install",
        "--download-only",
        "--yes",
        "--no-install-recommends",
    ];
    apt.run(&[&download[..], &COMPILER].concat())?;
    apt.run(&[&["download"][..], &OTHER_TARGETS].concat())?;
    let tree = folder.join("tree");
    for package in deb_files(&apt.archives)? {
        report::output(
            Command::new("dpkg-deb")
                .arg("--extract")
                .arg(package)
                .arg(&tree),
        )?;
    }
    fs::remove_dir_all(&apt.state).map_err(|error| format!("{}: {error}", apt.state.display()))?;
    write_wrapper(&rustc, &tree)?;
    report::output(Command::new(&rustc).arg("--version"))?;
    Ok(rustc)
}

/// apt with lists, status and archives of its own.
struct Apt {
    state: PathBuf,
    archives: PathBuf,
}

impl Apt {
    fn new(folder: &Path) -> Result<Self, String> {
        let apt = Self {
            state: folder.join("apt"),
            archives: folder.join("apt/archives"),
        };
        let fail = |error| format!("{}: {error}", apt.state.display());
        fs::create_dir_all(apt.state.join("lists/partial")).map_err(fail)?;
        fs::create_dir_all(apt.archives.join("partial")).map_err(fail)?;
        fs::write(apt.state.join("status"), "").map_err(fail)?;
        let mirror = mirror()?;
        let source = format!("deb [signed-by={KEYRING}] {mirror} {SUITE} main\n");
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
        Ok(apt)
    }

    fn run(&self, arguments: &[&str]) -> Result<(), String> {
        let mut command = Command::new("apt-get");
        command
            .env("APT_CONFIG", self.state.join("apt.conf"))
            .current_dir(&self.archives);
        report::output(command.arg("-qq").args(arguments)).map(drop)
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
fn write_wrapper(rustc: &Path, tree: &Path) -> Result<(), String> {
    let text = format!(
        "#!/bin/sh\n\
         tree='{tree}'\n\
         exec \"$tree/usr/lib64/ld-linux-x86-64.so.2\" \\\n    \
         --library-path \"$tree/usr/lib/x86_64-linux-gnu:$tree/usr/lib\" \\\n    \
         \"$tree/usr/bin/rustc\" --sysroot \"$tree/usr\" \"$@\"\n",
        tree = tree.display(),
    );
    let fail = |error| format!("{}: {error}", rustc.display());
    fs::write(rustc, text).map_err(fail)?;
    fs::set_permissions(rustc, fs::Permissions::from_mode(0o755)).map_err(fail)
}
