//! `cargo xtask package`: compiles every published crate from its packaged files.
//!
//! `cargo package` would compile each crate in a target folder of its own, with all dependencies
//! again. Here the packaged files make one workspace, which shares the checkout's target folder.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::files::{copy, create_empty, entries, read, write};
use crate::report::{self, Outcome};
use crate::workspace::{VERSION, cargo, metadata, root, target_dir};

/// What every published crate has in addition to its code.
const REQUIRED: [&str; 2] = ["README.md", "LICENSE"];
/// What else there is in the folder of one.
const ALLOWED: [&str; 8] = [
    ".cargo_vcs_info.json",
    "Cargo.lock",
    "Cargo.toml",
    "Cargo.toml.orig",
    "bpf",
    "build",
    "build.rs",
    "src",
];

pub(crate) fn run() -> Outcome {
    let compiled = package(root()).map(|archives| {
        let count = archives.len();
        Outcome::Passed(format!("{count} crates compile from their packaged files"))
    });
    compiled.into()
}

/// The names of the published crates, and their folders in the checkout.
pub(crate) fn published() -> Result<Vec<(String, String)>, String> {
    let metadata = metadata(&root().join("Cargo.toml"))?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    // `publish` is null where it is not restricted; packages from registries have a source.
    let published = packages.filter(|it| it["publish"].is_null() && it["source"].is_null());
    let published = published.filter_map(|it| {
        let manifest = Path::new(it["manifest_path"].as_str()?);
        let folder = manifest.parent()?.strip_prefix(root()).ok()?;
        Some((it["name"].as_str()?.to_owned(), folder.to_str()?.to_owned()))
    });
    Ok(published.collect())
}

/// Packages the published crates of a copy of the checkout, and compiles them; returns the archives.
pub(crate) fn package(checkout: &Path) -> Result<Vec<PathBuf>, String> {
    let (target, folder) = (target_dir(), target_dir().join("packaged"));
    let published = published()?;
    let mut command = cargo();
    command.current_dir(checkout);
    command.args(["package", "--quiet", "--no-verify", "--allow-dirty"]);
    command.arg("--target-dir").arg(&target);
    command.args(published.iter().flat_map(|(name, _)| ["-p", name]));
    report::output(&mut command)?;

    create_empty(&folder)?;
    let (mut archives, mut members, mut patches) = (Vec::new(), String::new(), String::new());
    for (name, _) in &published {
        let archive = target.join(format!("package/{name}-{VERSION}.crate"));
        let mut tar = Command::new("tar");
        // With the current time: cargo compares times, and those of packaged files never change.
        tar.arg("-xmzf").arg(&archive).arg("-C").arg(&folder);
        report::output(&mut tar)?;
        archives.push(archive);
        let member = folder.join(format!("{name}-{VERSION}"));
        check_entries(&member)?;
        members += &format!("{member:?}, ");
        patches += &format!("{name} = {{ path = {member:?} }}\n");
    }
    // With the same profiles, dependencies that are compiled already are used again.
    let own = read(&root().join("Cargo.toml"))?;
    let profiles = own.find("[profile.").map_or("", |begin| &own[begin..]);
    let manifest = format!(
        "[workspace]\nresolver = \"2\"\nmembers = [{members}]\n\n[patch.crates-io]\n{patches}\n{profiles}"
    );
    write(&folder.join("Cargo.toml"), manifest)?;
    copy(&root().join("Cargo.lock"), &folder.join("Cargo.lock"))?;
    let mut check = cargo();
    check.current_dir(&folder);
    check.args(["check", "--quiet", "--workspace", "--target-dir"]);
    report::output(check.arg(&target))?;
    Ok(archives)
}

/// Fails unless a packaged crate has what it should have, and nothing else.
fn check_entries(member: &Path) -> Result<(), String> {
    if let Some(file) = REQUIRED.iter().find(|file| !member.join(file).is_file()) {
        return Err(format!("{} is packaged without {file}", member.display()));
    }
    let entries = entries(member)?;
    let is_unknown = |entry: &&PathBuf| {
        let mut known = REQUIRED.iter().chain(&ALLOWED);
        !known.any(|name| entry.ends_with(name))
    };
    match entries.iter().find(is_unknown) {
        Some(entry) => Err(format!("{} is packaged", entry.display())),
        None => Ok(()),
    }
}
