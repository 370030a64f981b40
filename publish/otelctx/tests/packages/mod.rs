//! Small packages that depend on this crate, built by the Cargo that runs the tests.

#![allow(dead_code)]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object, ObjectSymbol};

pub(crate) const OTELCTX: &str = env!("CARGO_MANIFEST_DIR");

/// A package in a directory of its own below the tests' temporary one.
pub(crate) struct Package {
    name: &'static str,
    directory: PathBuf,
}

impl Package {
    /// Writes the package: its manifest (without the first lines) and its files.
    pub(crate) fn new(name: &'static str, manifest: &str, files: &[(&str, &str)]) -> Self {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let manifest = format!(
            "[package]\nname = \"{name}\"\nversion = \"0.0.0\"\nedition = \"2021\"\n{manifest}\n\
             [workspace]\n"
        );
        let package = Self { name, directory };
        package.write("Cargo.toml", &manifest);
        for (file, text) in files {
            package.write(file, text);
        }
        // The versions that the workspace has are there, also without a network.
        let lock = Path::new(OTELCTX).join("../../Cargo.lock");
        package.write("Cargo.lock", &fs::read_to_string(lock).unwrap());
        package
    }

    pub(crate) fn write(&self, file: &str, text: &str) {
        let path = self.directory.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Writes a shell script that can be run, and returns its path.
    pub(crate) fn script(&self, file: &str, text: &str) -> String {
        self.write(file, &format!("#!/bin/sh\n{text}\n"));
        let path = self.directory.join(file);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path.into_os_string().into_string().unwrap()
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Builds, and returns the path of the executable or library called `file`.
    pub(crate) fn build(
        &self,
        file: &str,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> (PathBuf, String) {
        let target = self.directory.join("target");
        let output = Command::new(env!("CARGO"))
            .arg("build")
            .args(arguments)
            .current_dir(&self.directory)
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .env_remove("RUSTFLAGS")
            .env("CARGO_TARGET_DIR", &target)
            .env("CARGO_TERM_COLOR", "never")
            .envs(environment.iter().copied())
            .output()
            .unwrap();
        let messages = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{}: {messages}", self.name);
        let profile = if arguments.contains(&"--release") {
            "release"
        } else {
            "debug"
        };
        let found = [
            target.join(profile),
            target.join("x86_64-unknown-linux-gnu").join(profile),
        ]
        .into_iter()
        .map(|directory| directory.join(file))
        .filter(|path| path.exists())
        .max_by_key(|path| fs::metadata(path).unwrap().modified().unwrap());
        (found.expect("Cargo has built it"), messages)
    }
}

/// Runs a program and returns what it prints.
pub(crate) fn run(program: &Path, arguments: &[&OsStr]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{}: {} {errors}",
        program.display(),
        output.status
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Whether the file's dynamic symbol table defines the variable.
pub(crate) fn exports(file: &Path) -> bool {
    let data = fs::read(file).unwrap();
    let file = object::File::parse(&*data).unwrap();
    let found = file.dynamic_symbols().any(|symbol| {
        symbol.name() == Ok("otel_thread_ctx_v1")
            && !symbol.is_undefined()
            && symbol.kind() == object::SymbolKind::Tls
            && symbol.size() == 8
    });
    found
}

/// Whether this user may run the Cargo that built the tests; says so when not. It usually lies in
/// the home of who installed it, and the tests are also run as a user without rights.
pub(crate) fn have_cargo() -> bool {
    let runs = Command::new(env!("CARGO")).arg("--version").output();
    let found = runs.is_ok_and(|output| output.status.success());
    if !found {
        println!("skipped: Cargo is out of this user's reach");
    }
    found
}

/// Whether the machine has the program; says so when it has not.
pub(crate) fn have(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        println!("skipped: no {program} on this machine");
    }
    found
}
