//! The checkout, its packages, and the programs on the search path.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::report;

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

/// The cargo that runs this task.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    forget_package(&mut command);
    command.current_dir(root());
    command
}

/// Removes what cargo has set for xtask's own package. Build scripts depend on some of it, and would run again.
pub(crate) fn forget_package(command: &mut Command) {
    let set = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let is_of_a_package =
        |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for name in set.filter(|name| is_of_a_package(name)) {
        command.env_remove(name);
    }
}

/// A program of rustup's nightly toolchain, if rustup has one.
pub(crate) fn nightly(program: &str) -> Command {
    let mut command = Command::new("rustup");
    command
        .current_dir(root())
        .args(["run", "nightly", program]);
    // Set by the cargo that runs this task; the nightly one must not inherit it.
    command.env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
    command
}

/// `cargo metadata` of the workspace at `manifest`, with its dependencies.
pub(crate) fn metadata(manifest: &Path) -> Result<Value, String> {
    let text = report::output(
        cargo()
            .args(["metadata", "--format-version=1", "--manifest-path"])
            .arg(manifest),
    )?;
    serde_json::from_str(&text).map_err(|error| format!("cargo metadata: {error}"))
}

/// A test program that cargo has built.
pub(crate) struct TestProgram {
    pub(crate) executable: PathBuf,
    /// The folder that cargo would start it in.
    pub(crate) package: PathBuf,
    /// The name of the package's crate for its unit tests, of the file for others.
    pub(crate) name: String,
}

impl TestProgram {
    /// The program as cargo would start it.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.package);
        command.env("CARGO_MANIFEST_DIR", &self.package);
        command
    }
}

impl fmt::Display for TestProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let package = self.package.strip_prefix(root()).unwrap_or(&self.package);
        write!(f, "{} {}", package.display(), self.name)
    }
}

/// Builds the test programs of some packages (`-p NAME`, `--workspace`).
pub(crate) fn test_programs(packages: &[&str]) -> Result<Vec<TestProgram>, String> {
    let mut command = cargo();
    command.args(["test", "--no-run", "--locked", "--quiet"]);
    command
        .arg("--message-format=json-render-diagnostics")
        .args(packages);
    let text = report::output(&mut command)?;
    let messages = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let tests = messages.filter(|message| message["profile"]["test"] == true);
    let program = |message: Value| {
        Some(TestProgram {
            executable: message["executable"].as_str()?.into(),
            package: Path::new(message["manifest_path"].as_str()?)
                .parent()?
                .into(),
            name: message["target"]["name"].as_str()?.into(),
        })
    };
    Ok(tests.filter_map(program).collect())
}

/// Whether a program of this name is on the search path.
pub(crate) fn have(program: &str) -> bool {
    find(program).is_some()
}

/// Where a program lies on the search path; the system's own folders come last, also when the
/// path lacks them (an unprivileged user's path often has no `/usr/sbin`).
pub(crate) fn find(program: impl AsRef<Path>) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders
        .map(|folder| folder.join(program.as_ref()))
        .find(|file| file.is_file())
}

/// Whether this process is root.
pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}
