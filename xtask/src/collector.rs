//! OpenTelemetry's Collector, to which tests send profiles. Built with its own builder and only the
//! components that profiles need, into `target/setup/otelcol/otelcol`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::report;
use crate::workspace::{have, setup_dir};

/// Version of the builder and of every component; they are released together.
pub(crate) const VERSION: &str = "v0.156.0";
/// Timeout of fetching and compiling, in seconds; it takes one minute on two idle CPUs.
const BUILD_TIMEOUT: &str = "900";

/// The program, built on first use.
///
/// # Errors
/// Says why it is not available on this machine.
pub(crate) fn fetch() -> Result<PathBuf, String> {
    let folder = setup_dir().join("otelcol");
    let program = folder.join("otelcol");
    let stamp = folder.join(".version");
    if program.is_file() && fs::read_to_string(&stamp).is_ok_and(|text| text == VERSION) {
        return Ok(program);
    }
    if !have("go") {
        return Err("no go".into());
    }
    println!("building the Collector {VERSION} into {}", folder.display());
    let work = setup_dir().join("otelcol-build");
    let built = build(&work);
    let install = built.and_then(|built| {
        // Another version's files may be linked into other checkouts.
        let _ = fs::remove_dir_all(&folder);
        let installed = fs::create_dir_all(&folder)
            .and_then(|()| fs::copy(&built, &program))
            .and_then(|_| fs::write(&stamp, VERSION));
        installed.map_err(|error| format!("{}: {error}", folder.display()))
    });
    // Half a gigabyte of sources that are not needed again.
    let _ = fs::remove_dir_all(&work);
    install.map(|()| program)
}

fn build(work: &std::path::Path) -> Result<PathBuf, String> {
    let core = "go.opentelemetry.io/collector";
    let contrib = "github.com/open-telemetry/opentelemetry-collector-contrib";
    let manifest = format!(
        "dist:\n  name: otelcol\n  output_path: {work}/out\n  module: otelcol\n\
         receivers:\n  - gomod: {core}/receiver/otlpreceiver {VERSION}\n\
         exporters:\n  - gomod: {core}/exporter/debugexporter {VERSION}\n  \
         - gomod: {contrib}/exporter/fileexporter {VERSION}\n",
        work = work.display()
    );
    let path = work.join("manifest.yaml");
    let _ = fs::remove_dir_all(work);
    fs::create_dir_all(work)
        .and_then(|()| fs::write(&path, manifest))
        .map_err(|error| format!("{}: {error}", work.display()))?;
    let mut builder = Command::new("timeout");
    builder
        .args([BUILD_TIMEOUT, "go", "run"])
        .arg(format!("{core}/cmd/builder@{VERSION}"))
        .arg("--config")
        .arg(path)
        .current_dir(work)
        // Otherwise Go makes its module folders read-only, and they cannot be removed.
        .env("GOFLAGS", "-modcacherw")
        .env("GOPATH", work.join("go"))
        .env("GOCACHE", work.join("cache"));
    report::output(&mut builder)?;
    Ok(work.join("out/otelcol"))
}
