//! What Go fetches into its own caches for the tests: compilers, and what the modules in `publish/go` need. And
//! `cargo xtask go-offsets`: writes where each version of Go keeps what is read, by debug information.

use anyhow::{Result, ensure};
use otelctx_fixtures::GO_VERSIONS;

use crate::report::{self, Done, Words, command, output};
use crate::workspace::{have, root};

/// The modules that need others, below `publish/go`.
const MODULES: [&str; 3] = ["otel", "grpc", "tests"];
/// The test that compares the table with programs, and writes it if the variable is set.
const TEST: &str = "the_table_has_the_offsets_of_each_version";
const WRITES: &str = "OTELCTX_WRITE_GO_OFFSETS";

/// Writes the table.
pub(crate) fn run() -> Done {
    fetch_versions()?;
    let mut test = command("cargo test --package otelctx-go --lib");
    test.arg(TEST).env(WRITES, "1").current_dir(root());
    report::run(&mut test)?;
    report::passed("inspect/runtimes/go/src/offsets.csv is that of the compilers")
}

/// Fetches the compilers that are not there yet, which Go has as modules. The oldest one tests the publisher, too.
pub(crate) fn fetch_versions() -> Result<()> {
    ensure!(have("go"), "no go");
    for version in GO_VERSIONS {
        let mut go = command("go version");
        // Without modules, it does not switch to another version.
        go.env("GO111MODULE", "on");
        go.env("GOTOOLCHAIN", format!("go{version}"));
        let said = output(&mut go)?;
        ensure!(
            said.contains(version),
            "Go {version} was not fetched: {said}"
        );
    }
    Ok(())
}

/// Fetches what the modules need and the cache does not have yet.
pub(crate) fn fetch_modules() -> Result<()> {
    ensure!(have("go"), "no go");
    let folder = root().join("publish/go");
    for module in MODULES {
        let mut download = command("go");
        download
            .words("mod download")
            .current_dir(folder.join(module));
        output(download.env("GOWORK", "off").env("GOFLAGS", ""))?;
    }
    Ok(())
}
