//! `cargo xtask package`: compiles every published crate from its packaged files.
//!
//! `cargo package` would compile each crate in a target folder of its own, with all dependencies
//! again. Here the packaged files make one workspace, which shares the checkout's target folder.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use fs_err as fs;

use crate::files::{create_empty, entries};
use crate::report::{self, Done, command};
use crate::workspace::{VERSION, cargo, packages, root, target_dir};

/// What every published crate has in addition to its code.
const REQUIRED: [&str; 2] = ["README.md", "LICENSE"];
/// What else there is in the folder of one.
const ALLOWED: [&str; 9] = [
    ".cargo_vcs_info.json",
    "Cargo.lock",
    "Cargo.toml",
    "Cargo.toml.orig",
    "bpf",
    "build",
    "build.rs",
    "page",
    "src",
];

pub(crate) fn run() -> Done {
    let count = package(root())?.len();
    report::passed(format!("{count} crates compile from their packaged files"))
}

/// The names of the published crates, and their folders in the checkout.
pub(crate) fn published() -> Result<Vec<(String, String)>> {
    let packages = packages("Cargo.toml")?.into_iter();
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
pub(crate) fn package(checkout: &Path) -> Result<Vec<PathBuf>> {
    let (target, folder) = (target_dir(), target_dir().join("packaged"));
    let published = published()?;
    let mut package = cargo("package --quiet --no-verify --allow-dirty --target-dir");
    package.current_dir(checkout).arg(&target);
    report::output(package.args(published.iter().flat_map(|(name, _)| ["-p", name])))?;

    create_empty(&folder)?;
    let (mut archives, mut members, mut patches) = (Vec::new(), String::new(), String::new());
    for (name, _) in &published {
        let archive = target.join(format!("package/{name}-{VERSION}.crate"));
        // With the current time: cargo compares times, and those of packaged files never change.
        report::output(command("tar -xmzf").arg(&archive).arg("-C").arg(&folder))?;
        archives.push(archive);
        let member = folder.join(format!("{name}-{VERSION}"));
        check_entries(&member)?;
        members += &format!("{member:?}, ");
        patches += &format!("{name} = {{ path = {member:?} }}\n");
    }
    // With the same profiles, dependencies that are compiled already are used again.
    let own = fs::read_to_string(root().join("Cargo.toml"))?;
    let profiles = own.find("[profile.").map_or("", |begin| &own[begin..]);
    let manifest = format!(
        "[workspace]\nresolver = \"2\"\nmembers = [{members}]\n\n[patch.crates-io]\n{patches}\n{profiles}"
    );
    fs::write(folder.join("Cargo.toml"), manifest)?;
    fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock"))?;
    let mut check = cargo("check --quiet --workspace --target-dir");
    report::output(check.arg(&target).current_dir(&folder))?;
    Ok(archives)
}

/// Fails unless a packaged crate has what it should have, and nothing else.
fn check_entries(member: &Path) -> Result<()> {
    for file in REQUIRED {
        let is_there = member.join(file).is_file();
        ensure!(is_there, "{} is packaged without {file}", member.display());
    }
    for entry in entries(member)? {
        let is_known = REQUIRED
            .iter()
            .chain(&ALLOWED)
            .any(|name| entry.ends_with(name));
        ensure!(is_known, "{} is packaged", entry.display());
    }
    Ok(())
}
