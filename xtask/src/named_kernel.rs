//! A small kernel with names for anonymous mappings (CONFIG_ANON_VMA_NAME), which Debian's kernels
//! lack, and with eBPF, built from Debian's source.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::debian::{self, Guest};
use crate::report;
use crate::workspace::{have, setup_dir};

/// The release whose kernel is built, and its package.
const SUITE: &str = "trixie";
const SOURCE: &str = "linux-source-6.12";
/// On top of `make tinyconfig`.
const OPTIONS: &str = include_str!("named_kernel.config");

/// Programs that the build calls, beside a compiler's, and their Debian packages.
const PROGRAMS: [(&str, &str); 5] = [
    ("flex", "flex"),
    ("bison", "bison"),
    ("bc", "bc"),
    ("make", "make"),
    ("pahole", "dwarves libelf-dev"),
];

/// The kernel, built on first use (4 minutes on two idle cores, 2 GiB of disk meanwhile), and the
/// release's busybox.
///
/// # Errors
/// Says why it is not available on this machine.
pub(crate) fn guest() -> Result<Guest, String> {
    let folder = setup_dir().join("guest-named");
    let kernel = folder.join("kernel");
    let options = folder.join("options");
    let guest = Guest {
        kernel: kernel.clone(),
        ..debian::guest(SUITE, "amd64")?
    };
    // Rebuilt when the options have changed.
    if kernel.is_file() && fs::read_to_string(&options).is_ok_and(|built| built == OPTIONS) {
        return Ok(guest);
    }
    let missing: Vec<&str> = PROGRAMS
        .iter()
        .filter(|(program, _)| !have(program))
        .map(|(_, package)| *package)
        .collect();
    if !missing.is_empty() {
        return Err(format!(
            "building it needs more programs: `apt-get install {}`",
            missing.join(" ")
        ));
    }
    let _ = fs::remove_dir_all(&folder);
    println!("building {SOURCE} in {}", folder.display());
    let tree = debian::unpack(&folder, SUITE, &[SOURCE.to_owned()])?;
    let archive = tree.join(format!("usr/src/{SOURCE}.tar.xz"));
    report::output(
        Command::new("tar")
            .arg("-xf")
            .arg(archive)
            .arg("-C")
            .arg(&tree),
    )?;
    build(&tree.join(SOURCE), &kernel)?;
    fs::remove_dir_all(&tree)
        .and_then(|()| fs::write(&options, OPTIONS))
        .map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(guest)
}

fn build(source: &Path, kernel: &Path) -> Result<(), String> {
    let make = |arguments: &[&str]| {
        let mut command = Command::new("make");
        // Without the job server of the cargo that started this.
        command
            .env_remove("MAKEFLAGS")
            .env_remove("CARGO_MAKEFLAGS");
        report::output(command.arg("-s").arg("-C").arg(source).args(arguments)).map(drop)
    };
    let fail = |error| format!("{}: {error}", source.display());
    make(&["tinyconfig"])?;
    let configuration = source.join(".config");
    // Of two settings of one option the later one counts.
    let tiny = fs::read_to_string(&configuration).map_err(fail)?;
    fs::write(&configuration, tiny + OPTIONS).map_err(fail)?;
    make(&["olddefconfig"])?;
    let configured = fs::read_to_string(&configuration).map_err(fail)?;
    let dropped = OPTIONS.lines().find(|option| {
        option.starts_with("CONFIG_") && !configured.lines().any(|line| line == *option)
    });
    if let Some(option) = dropped {
        return Err(format!("the kernel's configuration rejected {option}"));
    }
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    make(&[&format!("-j{jobs}"), "bzImage"])?;
    fs::copy(source.join("arch/x86/boot/bzImage"), kernel)
        .map(drop)
        .map_err(fail)
}
