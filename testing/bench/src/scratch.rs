//! Builds and runs other programs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A directory that is removed when dropped.
#[derive(Debug)]
pub(crate) struct Directory(PathBuf);

impl Directory {
    /// Creates a directory whose name contains this process's ID.
    pub(crate) fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("otelctx-bench-{name}-{}", std::process::id()));
        // Errors show in the first use of it.
        let _ = std::fs::create_dir_all(&path);
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The root of the checkout.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("testing/bench lies in the checkout")
}

/// The cargo that runs this program.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Runs a program and returns its output; an error carries its standard error.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    if !output.status.success() {
        return Err(format!(
            "{} failed ({}): {}",
            command.get_program().display(),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        ));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Builds the command and returns its path.
pub(crate) fn otelctx() -> Result<String, String> {
    let mut build = cargo();
    build.args([
        "build",
        "--release",
        "--locked",
        "--quiet",
        "-p",
        "otelctx-cli",
    ]);
    output(&mut build)?;
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    Ok(own.with_file_name("otelctx").display().to_string())
}

/// Builds in release mode; returns the files that cargo made.
pub(crate) fn cargo_build(arguments: &[&str]) -> Result<Vec<PathBuf>, String> {
    let mut command = cargo();
    command
        .args(["build", "--release", "--locked", "--message-format=json"])
        .args(arguments)
        // Both change the code. An empty RUSTFLAGS also replaces the checkout's own flags, because
        // applications are built without them.
        .env("CARGO_INCREMENTAL", "0")
        .env("RUSTFLAGS", "");
    let messages = output(&mut command)?;
    let messages = messages
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    Ok(messages
        .filter(|message: &serde_json::Value| message["reason"] == "compiler-artifact")
        .flat_map(|message| message["filenames"].as_array().cloned().unwrap_or_default())
        .filter_map(|name| Some(PathBuf::from(name.as_str()?)))
        .collect())
}
