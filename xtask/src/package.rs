//! `cargo xtask package`: compiles every published crate from its packaged files.
//!
//! `cargo package` would compile each crate in a target folder of its own, with all dependencies
//! again. Here the packaged files make one workspace, which shares the checkout's target folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::report::{self, Outcome};
use crate::workspace::{cargo, metadata, root};

/// Files that every published crate has in addition to its code.
const REQUIRED: [&str; 2] = ["README.md", "LICENSE"];

pub(crate) fn run() -> Outcome {
    package().into()
}

fn package() -> Result<Outcome, String> {
    let metadata = metadata(&root().join("Cargo.toml"))?;
    let target = metadata["target_directory"].as_str();
    let target = Path::new(target.ok_or("cargo metadata names no target folder")?);
    let packages = metadata["packages"].as_array().into_iter().flatten();
    // `publish` is null where it is not restricted; packages from registries have a source.
    let published = packages.filter(|it| it["publish"].is_null() && it["source"].is_null());
    let mut published: Vec<_> = published
        .filter_map(|it| Some((it["name"].as_str()?, it["version"].as_str()?)))
        .collect();
    published.sort_unstable();
    let mut command = cargo();
    command.args(["package", "--quiet", "--no-verify", "--allow-dirty"]);
    command.args(published.iter().flat_map(|(name, _)| ["-p", *name]));
    report::output(&mut command)?;

    let folder = target.join("packaged");
    let _ = fs::remove_dir_all(&folder);
    let fail = |error| format!("{}: {error}", folder.display());
    fs::create_dir_all(&folder).map_err(fail)?;
    let (mut members, mut patches) = (String::new(), String::new());
    for (name, version) in &published {
        let member = unpack(target, &folder, &format!("{name}-{version}"))?;
        let missing = REQUIRED.iter().find(|file| !member.join(file).is_file());
        if let Some(file) = missing {
            return Err(format!("{name} is packaged without a {file}"));
        }
        members += &format!("{:?}, ", member.display().to_string());
        patches += &format!("{name} = {{ path = {:?} }}\n", member.display().to_string());
    }
    // With the same profiles, dependencies that are compiled already are used again.
    let own = fs::read_to_string(root().join("Cargo.toml")).map_err(fail)?;
    let profiles = own.find("[profile.").map_or("", |begin| &own[begin..]);
    let manifest = format!(
        "[workspace]\nresolver = \"2\"\nmembers = [{members}]\n\n[patch.crates-io]\n{patches}\n{profiles}"
    );
    fs::write(folder.join("Cargo.toml"), manifest)
        .and_then(|()| fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock")))
        .map_err(fail)?;
    let mut check = cargo();
    check
        .current_dir(&folder)
        .args(["check", "--quiet", "--workspace", "--target-dir"])
        .arg(target);
    report::output(&mut check)?;
    Ok(Outcome::Passed(format!(
        "{} crates compile from their packaged files",
        published.len()
    )))
}

/// Unpacks `target/package/NAME.crate` into `folder`; returns the crate's own folder.
fn unpack(target: &Path, folder: &Path, name: &str) -> Result<PathBuf, String> {
    let archive = target.join("package").join(format!("{name}.crate"));
    let mut tar = Command::new("tar");
    // With the current time: cargo compares times, and those of packaged files never change.
    tar.arg("-xmzf").arg(archive).arg("-C").arg(folder);
    report::output(&mut tar)?;
    Ok(folder.join(name))
}
