//! OpenTelemetry's Collector, to which tests send profiles. Built with its own builder and only the
//! components that profiles need, into `target/setup/otelcol/otelcol`.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use fs_err as fs;

use crate::files::{create_empty, write};
use crate::report::{command, output};
use crate::workspace::{have, setup_dir};

/// Version of the builder and of every component; they are released together.
pub(crate) const VERSION: &str = "v0.156.0";
/// Timeout of fetching and compiling, in seconds; it takes one minute on two idle CPUs.
const BUILD_TIMEOUT: &str = "900";

/// The program, built on first use.
pub(crate) fn fetch() -> Result<PathBuf> {
    let folder = setup_dir().join("otelcol");
    let program = folder.join("otelcol");
    let stamp = folder.join(".version");
    if program.is_file() && fs::read_to_string(&stamp).is_ok_and(|text| text == VERSION) {
        return Ok(program);
    }
    ensure!(have("go"), "no go");
    println!("building the Collector {VERSION} into {}", folder.display());
    let work = setup_dir().join("otelcol-build");
    let installed = build(&work).and_then(|built| {
        // Another version's files may be linked into other checkouts.
        create_empty(&folder)?;
        fs::copy(&built, &program)?;
        Ok(fs::write(&stamp, VERSION)?)
    });
    // Half a gigabyte of sources that are not needed again.
    let _ = fs::remove_dir_all(&work);
    installed.map(|()| program)
}

fn build(work: &Path) -> Result<PathBuf> {
    let manifest = include_str!("collector/manifest.yaml").replace("VERSION", VERSION);
    let path = work.join("manifest.yaml");
    create_empty(work)?;
    write(&path, manifest)?;
    let mut builder = command("timeout");
    builder.args([BUILD_TIMEOUT, "go", "run"]);
    let package = "go.opentelemetry.io/collector/cmd/builder";
    builder.arg(format!("{package}@{VERSION}"));
    builder.arg("--config").arg(path).current_dir(work);
    // Otherwise Go makes its module folders read-only, and they cannot be removed.
    builder.env("GOFLAGS", "-modcacherw");
    builder.env("GOPATH", work.join("go"));
    builder.env("GOCACHE", work.join("cache"));
    output(&mut builder)?;
    Ok(work.join("out/otelcol"))
}
