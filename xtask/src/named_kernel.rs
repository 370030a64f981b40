//! A small kernel with names for anonymous mappings (CONFIG_ANON_VMA_NAME), which Debian's kernels
//! lack, and with eBPF, built from Debian's source.

use anyhow::{Result, bail};
use fs_err as fs;

use crate::debian::{self, Guest};
use crate::files::create_empty;
use crate::report::{command, output};
use crate::workspace::{cpus, have, setup_dir};

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
pub(crate) fn guest() -> Result<Guest> {
    let folder = setup_dir().join("guest-named");
    let kernel = folder.join("kernel");
    let options = folder.join("options");
    let busybox = debian::guest(SUITE, "amd64")?.busybox;
    // Rebuilt when the options have changed.
    if !kernel.is_file() || fs::read_to_string(&options).ok().as_deref() != Some(OPTIONS) {
        let missing = PROGRAMS.iter().filter(|(program, _)| !have(program));
        let missing: Vec<&str> = missing.map(|(_, package)| *package).collect();
        if !missing.is_empty() {
            let missing = missing.join(" ");
            bail!("building it needs more programs: `apt-get install {missing}`");
        }
        create_empty(&folder)?;
        println!("building {SOURCE} in {}", folder.display());
        let tree = debian::unpack(&folder, SUITE, &[SOURCE])?;
        let archive = tree.join(format!("usr/src/{SOURCE}.tar.xz"));
        output(command("tar -xf").arg(archive).arg("-C").arg(&tree))?;
        let mut build = command("sh -euc");
        build.args([include_str!("named_kernel.sh"), "sh"]);
        build.arg(tree.join(SOURCE));
        build.arg(OPTIONS).arg(cpus().to_string()).arg(&kernel);
        output(&mut build)?;
        fs::remove_dir_all(&tree)?;
        fs::write(&options, OPTIONS)?;
    }
    Ok(Guest { kernel, busybox })
}
