//! The checkout, its packages, and the programs on the search path.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::report::{Words, output};

/// The crates for applications: they support an older Rust, and have a small dependency tree.
pub(crate) const APPLICATION_CRATES: [&str; 3] = ["otelctx-format", "otelctx", "otelctx-build"];

/// Crates for applications that depend on another project's. They support the same Rust, as far as
/// those do.
pub(crate) const INTEGRATIONS: [&str; 2] = ["otelctx-opentelemetry", "otelctx-tracing"];

/// The version of all packages.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The workspaces of the checkout.
pub(crate) const MANIFESTS: [&str; 3] = [
    "Cargo.toml",
    "publish/python/python3.13t/Cargo.toml",
    "testing/fuzz/Cargo.toml",
];

/// The root of the checkout.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the checkout")
}

/// `target/setup`: what `cargo xtask setup` installs for the tests. It stays inside the checkout
/// whatever `CARGO_TARGET_DIR` says, so that tests find it at a fixed path.
pub(crate) fn setup_dir() -> PathBuf {
    root().join("target/setup")
}

/// Cargo's target folder.
pub(crate) fn target_dir() -> PathBuf {
    let folder = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    // Cargo runs in the checkout's root, and tests in their packages.
    root().join(folder)
}

/// The cargo that runs this task, in the checkout's root.
pub(crate) fn cargo(words: &str) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    forget_package(&mut command);
    command.current_dir(root()).words(words);
    command
}

/// Removes what cargo has set for xtask's own package. Build scripts depend on some of it, and would run again.
pub(crate) fn forget_package(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&*name);
        }
    }
}

/// git, in the checkout's root.
pub(crate) fn git(words: &str) -> Command {
    let mut command = Command::new("git");
    command.current_dir(root()).words(words);
    command
}

/// A program of rustup's nightly toolchain, if rustup has one.
pub(crate) fn nightly(words: &str) -> Command {
    let mut command = Command::new("rustup");
    command.current_dir(root()).words("run nightly");
    command.words(words);
    // Set by the cargo that runs this task; the nightly one must not inherit it.
    command.env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
    command
}

/// The packages of the workspace at `manifest`, and their dependencies.
pub(crate) fn packages(manifest: &str) -> Result<Vec<Value>> {
    let mut metadata = cargo("metadata --format-version=1 --manifest-path");
    let text = output(metadata.arg(root().join(manifest)))?;
    let mut metadata: Value = serde_json::from_str(&text).context("cargo metadata")?;
    Ok(serde_json::from_value(metadata["packages"].take())?)
}

/// The names of a package's targets of a kind: `bin`, `test`.
pub(crate) fn targets<'p>(package: &'p Value, kind: &str) -> impl Iterator<Item = &'p str> {
    let targets = package["targets"].as_array().into_iter().flatten();
    let targets = targets.filter(move |target| target["kind"][0] == kind);
    targets.filter_map(|target| target["name"].as_str())
}

/// Runs cargo, and returns the messages in JSON that it prints.
pub(crate) fn messages(cargo: &mut Command) -> Result<Vec<Value>> {
    let text = output(cargo)?;
    let messages = text.lines().map(serde_json::from_str);
    Ok(messages.flatten().collect())
}

/// Whether a program of this name is on the search path, or a file at this absolute path.
pub(crate) fn have(program: &str) -> bool {
    find(program).is_some()
}

/// Where a program lies on the search path; the system's own folders come last, also when the
/// path lacks them (an unprivileged user's path often has no `/usr/sbin`).
pub(crate) fn find(program: impl AsRef<Path>) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let mut files = folders.map(|folder| folder.join(program.as_ref()));
    files.find(|file| file.is_file())
}

/// Whether this process is root.
pub(crate) fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// The number of CPUs that this process may use.
pub(crate) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
