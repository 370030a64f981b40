//! `cargo xtask licences`: cargo-deny checks every dependency's licence and source against `deny.toml`.

use crate::nextest;
use crate::report::{self, Outcome};
use crate::workspace::{MANIFESTS, root};

/// Checks every workspace of the checkout.
pub(crate) fn run() -> Outcome {
    if let Err(error) = nextest::setup() {
        println!("not installed: {error}");
    }
    for manifest in MANIFESTS {
        let mut deny = nextest::tool("cargo-deny");
        deny.args(["--all-features", "--workspace", "--log-level", "error"]);
        deny.arg("--config").arg(root().join("deny.toml"));
        deny.arg("--manifest-path").arg(root().join(manifest));
        deny.args(["check", "bans", "licenses", "sources"]);
        if let Err(error) = report::run(&mut deny) {
            return Outcome::Failed(error);
        }
    }
    Outcome::Passed(format!("{} workspaces", MANIFESTS.len()))
}
