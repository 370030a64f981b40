//! The Go modules in `publish/go`: what their tests need, for `cargo xtask setup`. Go keeps it in its own caches.

use anyhow::{Result, ensure};

use crate::report::{Words, command, output};
use crate::workspace::{have, root};

/// The modules that need others, below `publish/go`. Of the core, the oldest Go is fetched that all but the tests support.
const MODULES: [&str; 3] = ["otel", "grpc", "tests"];
const OLDEST: &str = "go1.21.13";

/// Fetches what is not in the caches yet.
pub(crate) fn setup() -> Result<()> {
    ensure!(have("go"), "no go");
    let folder = root().join("publish/go");
    for module in MODULES {
        let mut download = command("go");
        download
            .words("mod download")
            .current_dir(folder.join(module));
        output(download.env("GOWORK", "off").env("GOFLAGS", ""))?;
    }
    let mut oldest = command("go");
    oldest.arg("version").current_dir(folder);
    output(oldest.env("GOTOOLCHAIN", OLDEST))?;
    Ok(())
}
