//! `cargo xtask licences`: cargo-deny checks every dependency's licence and source against `deny.toml`.

use crate::nextest;
use crate::report::{self, Done, Words};
use crate::workspace::{MANIFESTS, root};

/// Checks every workspace of the checkout.
pub(crate) fn run() -> Done {
    if let Err(error) = nextest::setup() {
        println!("not installed: {error:#}");
    }
    for manifest in MANIFESTS {
        let mut deny = nextest::tool("cargo-deny");
        deny.words("--all-features --workspace --log-level error");
        deny.arg("--config").arg(root().join("deny.toml"));
        deny.arg("--manifest-path").arg(root().join(manifest));
        report::run(deny.words("check bans licenses sources"))?;
    }
    report::passed(format!("{} workspaces", MANIFESTS.len()))
}
